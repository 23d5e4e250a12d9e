"""Tracking: a log of the PyTorch calls that a thread makes, and the source line of each."""
