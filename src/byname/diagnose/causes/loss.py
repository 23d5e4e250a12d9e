"""Loss: a backward call that is about to be made, with its graph by kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from torch import nn

from byname.diagnose.cause import Facts
from byname.diagnose.context import FailureContext
from byname.reading.frames import caller
from byname.source.location import Site

COMPARING = {"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"}
BY_HAND = {"PowBackward", "AbsBackward", "MulBackward"}
"""What a loss that is written by hand makes of a difference."""
MOVES = {"ViewBackward", "UnsafeViewBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "TBackward"}


class Loss:
    """The losses of a backward call that a running program is about to make.

    Attributes:
        context: the graph behind them.
        number: how many calls there were of this line, with this one.
        called: the line.
        modules: the modules that there are, at the first call of a line.
        frame: the frame of the program that makes the call.
    """

    def __init__(
        self, context: FailureContext, number: int, called: Site | None, modules: Sequence[nn.Module] = ()
    ) -> None:
        self.context = context
        self.number = number
        self.called = called
        self.modules = modules
        self.frame = caller()
        self.known: Facts = {"noticed": None}

    @cached_property
    def nodes(self) -> dict[str, list[Any]]:
        """The nodes of the graph by kind, without the number of the overload."""
        found: dict[str, list[Any]] = {}
        for kind, same in self.context.kinds.items():
            found.setdefault(kind.__name__.rstrip("0123456789"), []).extend(same)
        return found

    def of_kinds(self, kinds: Iterable[str]) -> Iterator[Any]:
        """Yield the nodes of some kinds."""
        return (node for kind in kinds for node in self.nodes.get(kind, ()))

    def site(self, node: Any) -> Site | None:
        """Return the line that made a node."""
        return self.context.site(self.context.walk.numbers[node])


def is_first(loss: Loss) -> bool:
    """Return whether a line calls backward for the first time."""
    return loss.number == 1


def kind_of(node: Any) -> str:
    """Return the class of a node without the number of the overload."""
    return type(node).__name__.rstrip("0123456789")


def input_of(node: Any) -> Any:
    """Return the node that computed the first input of another, past those that only move values."""
    given = node.next_functions[0][0]
    while kind_of(given) in MOVES:
        given = given.next_functions[0][0]
    return given
