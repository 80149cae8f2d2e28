"""Experiments: they start runs and report on them."""
