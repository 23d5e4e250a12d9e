"""How is it said which places of a model are meant, other than by their paths? ``byname.select``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.model.call_graph import Call
from byname.model.families import FAMILIES
from byname.model.operations import operation_name
from byname.model.predicates import AtPath, Everything, InFamily, OfClass, Parametrized, TheModule, TheOperation, Where
from byname.model.selectors import Selector
from byname.place import parse
from byname.table import closest

__all__ = ["Select", "select"]


class Select:
    """Makes selectors: values that say which places of a model are meant.

    Families cover modules, functions and methods of tensors alike, also those in place: ``select.relu`` means every
    ``nn.ReLU``, and every ``F.relu``, ``torch.relu``, ``x.relu()`` and ``x.relu_()`` elsewhere. They are `activation`
    and each activation by its name, ``arithmetic, attention, conv, distance, dropout, embedding, linear, loss, matmul,
    norm, pad, pool, recurrent, shuffle, upsample``.

    >>> from torch import nn
    >>> from byname import select
    >>> select.relu & ~select.path("encoder.**")
    select.relu & ~select.path('encoder.**')

    They are combined by ``& | ^ ~``, cut by positions in the order of the run, and by the flow of data:

    >>> (select.conv | select.linear)[1:3], select.activation.last
    ((select.conv | select.linear)[1:3], select.activation[-1])
    >>> select.softmax.after(select.matmul, within=2)
    select.softmax.after(select.matmul, within=2)

    Whatever looks from the end, or follows the flow of data, needs an ``example=`` where it is used.
    """

    __slots__ = ()

    @property
    def all(self) -> Selector:
        """Every module, and every operation outside modules of ``torch.nn``."""
        return Everything()

    @property
    def parametrized(self) -> Selector:
        """Modules that have parameters of their own."""
        return Parametrized()

    def path(self, pattern: str) -> Selector:
        """Modules and operations whose path matches.

        Args:
            pattern: such as ``"layers.*.attn"``, ``"**.softmax"``.

        Raises:
            BadPathError: when it is no path.
        """
        return AtPath(parse(pattern))

    def module(self, which: type | nn.Module) -> Selector:
        """The modules of a class and of those derived from it, or one module.

        Args:
            which: a class or a module.
        """
        if isinstance(which, type):
            return OfClass(which)
        if isinstance(which, nn.Module):
            return TheModule(which)
        raise BadArgumentError(
            f"select.module takes a class such as nn.Linear, or a module; this is of type {type(which).__name__}. "
            "For a path there is select.path, for a function select.op"
        )

    def op(self, which: str | Callable[..., Any]) -> Selector:
        """The calls of one function, whether as a function or as a method; not those inside modules of ``torch.nn``.

        Args:
            which: its name (``"softmax"``, ``"add"``, ``"getitem"``), or the function (``torch.bmm``, ``F.softmax``).
                The form in place is another function: ``"add_"``.
        """
        name: str | None
        if isinstance(which, str):
            name = which.strip("_") if which.startswith("__") else which
        else:
            name = operation_name(which) if callable(which) and not isinstance(which, type | nn.Module) else None
        if not name:
            raise BadArgumentError(
                f"select.op takes the name of an operation, or its function, not {which!r:.80}; "
                "functions that only tell something of a tensor, such as its size, are no operations"
            )
        return TheOperation(name)

    def where(self, function: Callable[[Call], bool]) -> Selector:
        """The calls of which a function says yes.

        Args:
            function: called with each `Call`, which has ``path``, ``operation``, ``kind`` and ``module``; where an
                ``example=`` is given also ``shapes`` and more.
        """
        if not callable(function):
            raise BadArgumentError(f"select.where takes a function of a call, not {type(function).__name__}")
        return Where(function)

    def __getattr__(self, name: str) -> Selector:
        if name not in FAMILIES:
            raise AttributeError(
                f"select has no {name!r}; there are {closest(name, FAMILIES)}, see dir(select). "
                f"For a class of modules there is select.module, for a function select.op({name!r})"
            )
        return InFamily(name)

    def __dir__(self) -> list[str]:
        return sorted({*FAMILIES, "all", "module", "op", "parametrized", "path", "where"})

    def __repr__(self) -> str:
        return "select"


select = Select()
"""Makes selectors, see `Select`."""
