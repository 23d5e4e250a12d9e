"""Evaluations: snapshots of analysers on fixed data during a training."""
