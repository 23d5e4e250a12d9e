"""Rewriting: a second model with interjections in it for good, which shares the parameters."""
