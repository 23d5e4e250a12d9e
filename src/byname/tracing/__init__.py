"""Tracing: one run of an example, told to nobody, which leaves the model as it was."""
