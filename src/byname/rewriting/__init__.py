"""Rewriting: a model as a ``torch.fx`` graph that computes the same, with interjections in it."""
