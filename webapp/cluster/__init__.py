"""The machines behind the runs: what the sandbox nodes say of themselves."""
