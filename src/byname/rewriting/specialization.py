"""Specialization: one graph, the arguments that it was traced for, and the conditions under which it is valid."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from byname.rewriting.known_values import metadata_of
from byname.rewriting.outside import answers_hold


class _Given:
    """A value that is known only when the model runs."""

    def __repr__(self) -> str:
        return "GIVEN"

    def __reduce__(self) -> str:
        return "GIVEN"


GIVEN = _Given()
Call = tuple[tuple[Any, ...], dict[str, Any]]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_DECIDING = (type(None), bool, str)
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """One way to call a forward: the arguments, and the values on which the graph depends.

    Attributes:
        signature: the signature of the forward, without ``self``.
        values: each argument by its name, ``*xs`` as ``xs_0``, ``xs_1``; `GIVEN`, or the plain value.
        extra: the number of arguments in ``*xs``.
        named: the names in ``**more``.
    """

    signature: inspect.Signature
    values: Mapping[str, Any]
    extra: int = 0
    named: tuple[str, ...] = ()

    def __str__(self) -> str:
        plain = [f"{name}={value!r}" for name, value in self.values.items() if is_plain(value)]
        return ", ".join(plain) or "no plain values"

    def call(self, given: Mapping[str, Any]) -> Call:
        """Return the positional and keyword arguments for the forward.

        Args:
            given: the value of each argument, by its name in `values`.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_position = True
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += [given[f"{name}_{index}"] for index in range(self.extra)]
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update((one, given[one]) for one in self.named)
            elif (
                given[name] is parameter.default and not self.extra and parameter.kind is not parameter.POSITIONAL_ONLY
            ):
                by_position = False  # the decorators of a forward see which arguments are left out
            elif by_position and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                args.append(given[name])
            else:
                kwargs[name] = given[name]
        return tuple(args), kwargs

    def fits(self, call: Arguments) -> bool:
        """Return whether a graph made for these arguments is valid for a call, whose values are all known."""
        if self.values.keys() != call.values.keys():
            return False
        return all(_takes(wanted, call.values[name]) for name, wanted in self.values.items())


def of_call(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call, with their values."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values: dict[str, Any] = {}
    extra, named = 0, ()
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            values.update((f"{name}_{index}", one) for index, one in enumerate(value))
            extra = len(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
            named = tuple(value)
        else:
            values[name] = value
    return Arguments(signature, values, extra, named)


def generalised(call: Arguments, depends: frozenset[str]) -> Arguments:
    """Return the arguments that a graph is specialized to.

    The plain values of the arguments in `depends` are kept. Of the other arguments only None, strings and bools are
    kept, since forwards usually branch on these.

    Args:
        call: the arguments of one call.
        depends: the names of the arguments on whose plain values the graph may depend.
    """
    values = {
        name: value if type(value) in _DECIDING or (is_plain(value) and name in depends) else GIVEN
        for name, value in call.values.items()
    }
    return Arguments(call.signature, values, call.extra, call.named)


def default_call(signature: inspect.Signature) -> Arguments:
    """Return the shortest call: the arguments without a default are given, the others have their default."""
    needed = [one for one in signature.parameters.values() if one.kind not in _SEVERAL and one.default is one.empty]
    positional = [GIVEN for one in needed if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {one.name: GIVEN for one in needed if one.kind is inspect.Parameter.KEYWORD_ONLY}
    return of_call(signature, tuple(positional), named)


def depends_on(signature: inspect.Signature, example: Arguments | None) -> frozenset[str]:
    """Return the arguments whose plain values a graph may depend on: plain by default, or plain in the example."""
    names = {
        name
        for name, one in signature.parameters.items()
        if one.kind not in _SEVERAL and one.default is not one.empty and is_plain(one.default)
    }
    if example is not None:
        names |= {name for name, value in example.values.items() if is_plain(value)}
    return frozenset(names)


def is_plain(value: Any) -> bool:
    """Return whether a value is None, a number, a string, bytes, a dtype or a device, or a tuple of these."""
    if type(value) is tuple:
        return all(is_plain(one) for one in value)
    return type(value) in _PLAIN


def _takes(wanted: Any, value: Any) -> bool:
    """Return whether a graph made for the value `wanted` of an argument is valid for another value."""
    if wanted is GIVEN:
        return type(value) not in _DECIDING
    return wanted is value or (type(wanted) is type(value) and bool(wanted == value))


@dataclass(slots=True, eq=False)
class Variant:
    """One graph, and the conditions under which it is valid.

    Attributes:
        arguments: the arguments that it is specialized to.
        flags: the ``training`` flags on which the forward branches, by module path.
        graph: the graph, with the interjections in it.
        switches: whether the graph switches grad mode.
        answers: the PyTorch state that the forward asked for, such as ``is_grad_enabled``.
        metadata: what `metadata_of` returns for the calls that it is valid for; None if it depends on no metadata.
        traced: the graph as it was traced, as plain data, if it depends on metadata.
        run: the compiled code of the graph.
    """

    arguments: Arguments
    flags: Mapping[str, bool]
    graph: fx.Graph
    switches: bool
    answers: Mapping[str, Any] = field(default_factory=dict)
    metadata: set[Hashable] | None = None
    traced: Any = field(default=None, repr=False)
    run: Callable[..., Any] = field(default=lambda: None, repr=False)

    def fits(self, model: nn.Module) -> bool:
        """Return whether the model's training flags and PyTorch's modes are those that the graph was made for."""
        return all(model.get_submodule(path).training == flag for path, flag in self.flags.items()) and answers_hold(
            self.answers
        )

    def holds(self, model: nn.Module, call: Arguments) -> bool:
        """Return whether the metadata of a call is that of one for which the graph was made."""
        return self.metadata is None or metadata_of(call.values, model) in self.metadata

    def take_over(self, other: Variant) -> bool:
        """Return whether the graph is the same as one traced for other metadata, and hold for these from now on."""
        conditions = (other.arguments, other.flags, other.answers)
        same = self.traced is not None and self.traced == other.traced
        if (
            not same
            or (self.arguments, self.flags, self.answers) != conditions
            or not (self.metadata and other.metadata)
        ):
            return False
        self.metadata |= other.metadata
        return True

    def __call__(self, model: nn.Module, call: Arguments) -> Any:
        """Run the graph with the arguments of a call."""
        if not self.switches:
            return self.run(model, *call.values.values())
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # restores grad mode, also after an exception
            return self.run(model, *call.values.values())
