"""Which nodes of a graph have a result that the program holds, and what does it call that?"""

from __future__ import annotations

import torch

from byname.autograd.walk import Walk
from byname.naming.name import Name
from byname.naming.names import Findings
from byname.reading.tensor import fact

__all__ = ["NamedResults"]


class NamedResults:
    """The names of the results of a walk's nodes, among the tensors that a search came upon."""

    def __init__(self, walk: Walk, findings: Findings) -> None:
        self._walk = walk
        self._findings = findings
        self._tensors: dict[int, torch.Tensor] | None = None

    def name(self, number: int) -> Name | None:
        """The best name of a node's result; None when the program has none. To be called inside `untouched`."""
        result = self.tensor(number)
        named = () if result is None else self._findings.own_names(result)
        return named[0] if named else None

    def tensor(self, number: int) -> torch.Tensor | None:
        """The tensor that the program holds as a node's result."""
        return self._every().get(number)

    def numbers(self) -> list[int]:
        """The nodes whose results the program holds, in their order."""
        return sorted(self._every())

    def _every(self) -> dict[int, torch.Tensor]:
        if self._tensors is None:
            self._tensors = self._find()
        return self._tensors

    def _find(self) -> dict[int, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for tensor in self._findings.tensors():
            node = fact(tensor, "grad_fn")
            number = None if node is None else self._walk.numbers.get(node)
            if number is not None:
                found.setdefault(number, tensor)
        return found
