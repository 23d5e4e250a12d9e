"""Naming: what the program calls a tensor, by what leads to it, or by what the log remembers."""
