"""Where does a graph keep what no path of the model leads to? Beside the modules, out of ``state_dict``."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["HELD", "Held"]

HELD = "_byname"
"""The attribute of a rewritten model that holds all this."""


class Held(nn.Module):
    """Things that a graph reads as attributes: constants, functions of the user, interjections, the model itself.

    It is a module only because ``torch.fx`` looks for what it calls in modules; it is not registered in the model, and
    what it holds is not registered in it.
    """

    def keep(self, thing: Any, name: str = "constant") -> str:
        """Holds a thing and gives the name of the attribute.

        Args:
            thing: anything.
            name: what the attribute's name begins with.
        """
        for key, held in self.__dict__.items():
            if held is thing and not key.startswith("_"):
                return key
        key, count = name, 0
        while key in self.__dict__ or hasattr(type(self), key):
            count += 1
            key = f"{name}_{count}"
        self.__dict__[key] = thing
        return key

    def things(self) -> dict[str, Any]:
        """All it holds, but the model."""
        own = {*nn.Module().__dict__, "root"}
        return {key: thing for key, thing in self.__dict__.items() if key not in own}
