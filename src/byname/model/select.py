"""Select: `byname.select`, which makes selectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.model.call_graph import ModelCall
from byname.model.families import FAMILIES
from byname.model.operations import operation_name
from byname.model.predicates import (
    AtPath,
    Attention,
    ByFunction,
    Everything,
    InFamily,
    OfModule,
    Parametrized,
    State,
    Where,
)
from byname.model.selectors import Selector
from byname.place import parse
from byname.table import closest


class Select:
    """Makes selectors: values that select places of a model.

    A family covers modules, functions and tensor methods alike, also in-place forms: ``select.relu`` selects every
    ``nn.ReLU``, and every ``F.relu``, ``torch.relu``, ``x.relu()`` and ``x.relu_()`` elsewhere. The families are
    `activation` and each activation by its name, ``arithmetic, attention, conv, distance, dropout, embedding, linear,
    loss, matmul, norm, pad, pool, recurrent, shuffle, upsample``.

    >>> from torch import nn
    >>> from byname import select
    >>> select.relu & ~select.path("encoder.**")
    select.relu & ~select.path('encoder.**')

    Combine selectors with ``& | ^ ~``, with positions in the order of the run, and along the flow of data:

    >>> (select.conv | select.linear)[1:3], select.activation.last
    ((select.conv | select.linear)[1:3], select.activation[-1])
    >>> select.softmax.after(select.matmul, within=2)
    select.softmax.after(select.matmul, within=2)

    A selector that counts from the end, or follows the flow of data, needs an ``example=`` where it is used.
    """

    __slots__ = ()

    @property
    def all(self) -> Selector:
        """Every module, and every operation outside leaf modules."""
        return Everything()

    @property
    def parametrized(self) -> Selector:
        """Every module that has parameters of its own."""
        return Parametrized()

    @property
    def parameter(self) -> State:
        """Every parameter of the model, each once; ``select.parameter.grad`` is the accumulated gradient of each.

        Joined by ``&`` with a selector of modules it means the parameters in these modules, at any depth.

        >>> from byname import select
        >>> select.parameter & ~select.norm, select.parameter.path("layers.*").grad
        (select.parameter & ~select.norm, select.parameter.grad & select.path('layers.*'))
        """
        return State("parameter")

    @property
    def buffer(self) -> State:
        """Every buffer of the model, each once; see `parameter`."""
        return State("buffer")

    def path(self, pattern: str) -> Selector:
        """Return a selector of the modules and operations whose path matches.

        >>> from byname import select
        >>> select.path("layers.*.attn")
        select.path('layers.*.attn')

        Args:
            pattern: a path, such as ``"layers.*.attn"`` or ``"**.softmax"``.

        Raises:
            BadPathError: the path is malformed.
        """
        return AtPath(parse(pattern))

    def module(self, which: type | nn.Module) -> Selector:
        """Return a selector of the modules of a class and its subclasses, or of one module.

        >>> from byname import select
        >>> select.module(torch.nn.Linear)
        select.module(nn.Linear)

        Args:
            which: a class or a module.

        Raises:
            BadArgumentError: `which` is neither.
        """
        if isinstance(which, type | nn.Module):
            return OfModule(which)
        raise BadArgumentError(
            f"select.module takes a class such as nn.Linear, or a module, not {type(which).__name__}. "
            "For a path use select.path, for a function select.op"
        )

    def op(self, which: str | Callable[..., Any]) -> Selector:
        """Return a selector of the calls of one function, also as a method, except those inside leaf modules.

        >>> from byname import select
        >>> select.op("add_"), select.op(torch.bmm)
        (select.op('add_'), select.op('bmm'))

        Args:
            which: the name (``"softmax"``, ``"add"``, ``"getitem"``), or the function (``torch.bmm``, ``F.softmax``).
                The in-place form is another function: ``"add_"``.

        Raises:
            BadArgumentError: `which` is not an operation.
        """
        name: str | None
        if isinstance(which, str):
            name = which.strip("_") if which.startswith("__") else which
        else:
            name = operation_name(which) if callable(which) and not isinstance(which, type | nn.Module) else None
        if not name:
            raise BadArgumentError(
                f"select.op takes the name of an operation, or its function, not {which!r:.80}; "
                "functions that only return a property of a tensor, such as its size, are not operations"
            )
        return ByFunction(name)

    def where(self, function: Callable[[ModelCall], bool]) -> Selector:
        """Return a selector of the places for which a function returns True.

        >>> from byname import select
        >>> def wide(call):
        ...     return call.kind == "module" and getattr(call.module, "out_features", 0) > 100
        >>> select.where(wide)
        select.where(wide)

        Args:
            function: called with a `ModelCall`, which has ``path``, ``operation``, ``kind`` and ``module``; with an
                ``example=`` also ``shapes`` and the other fields. After ``select.parameter &`` it is called with each
                parameter, whose ``kind`` is ``"parameter"`` and whose ``module`` is the one that has it.

        Raises:
            BadArgumentError: `function` is not callable.
        """
        if not callable(function):
            raise BadArgumentError(f"select.where takes a function of a call, not {type(function).__name__}")
        return Where(function)

    def __getattr__(self, name: str) -> Selector:
        if name not in FAMILIES:
            raise AttributeError(
                f"select has no {name!r}; there are {closest(name, FAMILIES)}, see dir(select). "
                f"For a class of modules use select.module, for a function select.op({name!r})"
            )
        return Attention(name) if name == "attention" else InFamily(name)

    def __dir__(self) -> list[str]:
        return sorted({*FAMILIES, "all", "buffer", "module", "op", "parameter", "parametrized", "path", "where"})

    def __repr__(self) -> str:
        return "select"


select = Select()
"""Makes selectors, see `Select`."""
