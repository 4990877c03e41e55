"""The trained model: loading, optimizer, checkpoints."""
