"""Watching: calling functions with the values at places of a model while it runs; `attach` is the entry point."""

from byname.watch.attach import attach as attach
