"""Options: what `record` is asked to do with each place, and which analysers can be recorded like places."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeGuard

from torch import nn

from byname.codec import dtype_name
from byname.errors import BadArgumentError
from byname.recording.callbacks import Callbacks, callables
from byname.recording.sampling import IterationSchedule, Sampling
from byname.recording.values.reduce import converted, reduction, reduction_name, torch_dtype


class Analysed(Protocol):
    """Computes figures of what passes at places of a model, unless it is not `enabled`."""

    enabled: bool

    @property
    def watching(self) -> bool:
        """Whether it is at places of some model."""

    def result(self) -> Any:
        """Return the figures as they are now; their ``by_path(name)`` maps ``fc1.<name>.mean`` to each."""


def is_analyser(one: Any) -> TypeGuard[Analysed]:
    """Return whether it computes figures, judged by its class, so that no code of a model runs."""
    kind = type(one)
    return not issubclass(kind, str | nn.Module | type) and hasattr(kind, "watching") and hasattr(kind, "result")


def several(where: Any) -> Collection[Any]:
    """Return the entries of `where=`, also of a single one."""
    return where if isinstance(where, Sequence | Set) and not isinstance(where, str) else (where,)


def named_analysers(where: Any) -> Any:
    """Return `where` with the names of analysers in their place, for messages: they print as their results."""
    if is_analyser(where):
        return type(where).__name__
    if isinstance(where, list | tuple | set | dict):
        return [named_analysers(one) for one in where]
    return where


Reduce = str | Callable[[Any], Any] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Options(IterationSchedule):
    """How the values of a place are recorded, and when; the arguments of `byname.record` of the same names."""

    on_change: bool = True
    reduce: Reduce = None
    dtype: Any = None
    on_value: Callbacks = ()

    def sampling(self, where: str, count: str, state: str) -> Sampling:
        """Return the same as facts that a recording keeps, with the entry that a place was matched by."""
        figures = self.reduce if isinstance(self.reduce, list | tuple) else [self.reduce]
        names = tuple(reduction_name(one) for one in figures if one is not None)
        dtype = torch_dtype(self.dtype)
        return Sampling(
            where,
            **{one.name: getattr(self, one.name) for one in fields(IterationSchedule)},
            on_change=bool(self.on_change),
            reduce=names if len(names) > 1 else names[0] if names else None,
            dtype=None if dtype is None else dtype_name(dtype),
            count=count,
            on_value=tuple(reduction_name(one) for one in callables(self.on_value, "on_value")),
            state=state,
        )

    def check(self, path: str) -> None:
        """Refuse invalid options; the path is for messages."""
        reduction(self.reduce, path)
        torch_dtype(self.dtype)
        callables(self.on_value, "on_value")


def placed(where: Any, defaults: Options) -> list[tuple[Options, Any]]:
    """Return places by their options, from places or a mapping of places to options; each pair is one attachment."""
    if not isinstance(where, Mapping):
        return [(defaults, where)]
    if not where:
        raise BadArgumentError("where is an empty dict: map places to their options, {'fc1': {'every': 10}}")
    found: list[tuple[Options, list[Any]]] = []
    for place, own in where.items():
        options = _own(place, own, defaults)
        same = next((places for known, places in found if known == options), None)
        if same is None:
            found.append((options, [place]))
        else:
            same.append(place)
    return [*found]


def _own(place: Any, own: Any, defaults: Options) -> Options:
    names = [field.name for field in fields(Options)]
    asked = named_analysers(place)
    if not isinstance(own, Mapping):
        raise BadArgumentError(
            f"`{asked}` is mapped to {type(own).__name__}: map it to a dict of options, {{'every': 10}}"
        )
    for name in own:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, 1)
            advice = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(names)}"
            raise BadArgumentError(f"`{asked}`: there is no option {name!r}; {advice}")
    try:
        options = replace(defaults, **own)
        options.check(str(asked))
    except BadArgumentError as error:
        raise BadArgumentError(f"`{asked}`: {error}") from None
    return options


def conversion_of(options: Options, path: str, warn: Callable[[str], None]) -> Callable[[Any], Any] | None:
    """Return the function that reduces and converts values where they are; None if nothing is to be done."""
    reduce, dtype = reduction(options.reduce, path), torch_dtype(options.dtype)
    if dtype is None:
        return reduce
    convert = converted(dtype, path, warn)
    return convert if reduce is None else lambda value: convert(reduce(value))
