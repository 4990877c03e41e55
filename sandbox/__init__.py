"""Runs untrusted Python and says exactly what happened. Other rooms use `sandbox.client` only."""
