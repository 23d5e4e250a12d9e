"""Autograd: the graph behind a tensor, its leaves, and what it saved for backward."""
