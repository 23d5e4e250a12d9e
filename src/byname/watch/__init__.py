"""Watching: what happens at any point of a model while it runs; ``byname.watch.attach`` is the way to get there."""

from byname.watch.attach import attach

__all__ = ["attach"]
