"""Causes: one file for each family of failures, with its evidence, the variables to blame and the remedy."""
