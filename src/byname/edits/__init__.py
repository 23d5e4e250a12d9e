"""Edits: capturing, patching, ablating, steering and skipping what a model computes, and what it costs to run."""
