"""Comparison: where two recordings, or two models on one batch, differ first."""
