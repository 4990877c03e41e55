"""Pretraining of `models/tiny-base`, the small model that the demo run starts from."""
