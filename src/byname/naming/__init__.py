"""Naming: the expressions by which a program reaches a tensor, and the names that the tracking log remembers."""
