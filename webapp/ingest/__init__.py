"""Takes the event journal of running attempts into Postgres, each event once."""
