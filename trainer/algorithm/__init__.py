"""Pure: selection, advantages, loss, log-probabilities, micro-batches. No files, no events."""
