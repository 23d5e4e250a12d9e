"""Rewriting: a model as a graph of torch.fx that does what the model does, with interjections in it."""
