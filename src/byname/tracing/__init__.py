"""Tracing: one muted run of an example, which leaves the model as it was."""
