"""A file that no kill tears."""
