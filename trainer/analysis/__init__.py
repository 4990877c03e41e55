"""What the tokens of a trajectory show: classes, entropy, forking and reflection marks."""
