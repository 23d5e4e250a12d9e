"""A trainer as a library would bring it: the user's program never calls backward itself."""

from minilightning.trainer import Task, Trainer

__all__ = ["Task", "Trainer"]
