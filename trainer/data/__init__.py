"""Problems: generated and given, curated for a run."""
