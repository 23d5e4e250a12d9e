"""Analysers: what is computed at the places of a model while it runs."""
