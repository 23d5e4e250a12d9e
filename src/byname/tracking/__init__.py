"""Tracking: what ran, and where; from a call of PyTorch to a log to a line of the program."""
