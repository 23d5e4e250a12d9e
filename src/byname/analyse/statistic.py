"""Statistic: figures of data that comes in batches, which can be merged, gathered over ranks and saved."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from byname.analyse.batches import Batch, check_shape, checked_choice, checked_weights, known, per_sample, samples_of
from byname.analyse.state import (
    Stateful,
    as_call,
    brief,
    class_named,
    distinct_names,
    is_named,
    leaves_in,
    mapped,
    on_tensors,
    packed_state,
    unpacked_state,
    writable_copy,
)
from byname.codec import write_atomically
from byname.errors import BadArgumentError
from byname.reading.interrupts import defer_signals
from byname.text import printable, with_article


@contextmanager
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():  # what is kept is changed in place outside of it, too
        yield


def computing() -> AbstractContextManager[object]:
    """Return a context without gradients and outside of inference mode; cheap if that is so already."""
    inference = torch.is_inference_mode_enabled()
    return torch.no_grad() if torch.is_grad_enabled() and not inference else _of_detached()


def _of_detached() -> AbstractContextManager[object]:
    """Return a context outside of inference mode, for detached tensors, which have no gradient anyway."""
    return _without_gradients() if torch.is_inference_mode_enabled() else _ALREADY


_ALREADY = nullcontext()


class Statistic(Stateful):
    """A figure of data that comes batch after batch; the data itself is not kept.

    It keeps float64 numbers or exact integers, whatever the type of the data, on the device of the first batch. A
    refused batch changes nothing.

    A child class names its attributes in `SETTINGS` and `STATE`, and defines how a batch is added (`_add`), how another
    statistic of the same settings is merged (`_merge`) and the main figure (`result`). This class does everything else.

    Attributes:
        count: the number of samples added, also those with NaN in them.
        nans: the number of values that were NaN.
        nan: how NaN is treated: ``"omit"`` leaves it out, ``"propagate"`` makes the figures with it NaN,
            ``"raise"`` refuses the batch.
    """

    KIND = "statistic"
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor, without ``nan``; each is an attribute of the same name."""
    STATE: ClassVar[tuple[str, ...]] = ()
    """The attributes that batches change: tensors, numbers, None (the default), or lists and dicts of these."""

    note: str | None = None
    """A sentence to show beside the figures, if any."""

    def __init_subclass__(cls, **of_class: Any) -> None:
        super().__init_subclass__(**of_class)
        if taken := sorted({"statistic", "version", "settings"}.intersection(cls.STATE)):
            raise BadArgumentError(
                f"the STATE of {cls.__name__} has {taken[0]!r}, a key that every state uses for itself: give the "
                "attribute another name"
            )

    def __init__(self, *, nan: str = "omit") -> None:
        self.nan = checked_choice(nan, "nan", ("omit", "propagate", "raise"))
        self.count = 0
        self.nans = 0
        for name in self.STATE:
            if not hasattr(self, name):
                setattr(self, name, None)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        """Take a batch: detached samples along dimension 0, and checked weights."""
        raise BadArgumentError(f"{with_article(type(self).__name__)} does not take batches with add()")

    @abstractmethod
    def _merge(self, other: Self) -> None:
        """Take in the data of another statistic; `count` and `nans` do not include it yet."""

    @abstractmethod
    def result(self) -> Any:
        """Return the main figure."""

    def add(self, batch: Batch, weights: Batch | None = None) -> Self:
        """Take one more batch.

        Args:
            batch: a tensor, or data that becomes one, with the samples along dimension 0.
            weights: how often each sample, or each value, counts: of the shape of the batch or of its first
                dimensions. A mask of bools leaves out samples or values where it is False.

        Raises:
            BadArgumentError: if it has no dimension, another shape of samples than before, or NaN with
                ``nan="raise"``; if a weight is negative or not finite. Nothing is taken then.
        """
        samples = samples_of(batch)
        with defer_signals(), _of_detached():  # half a batch would make every later figure wrong
            self._add(samples, checked_weights(weights, samples))
            self.count += len(samples)
        return self

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {**{name: getattr(self, name) for name in self.SETTINGS}, "nan": self.nan}

    def reduce(self, group: Any = None) -> Self:
        """Return a new statistic of the data of all ranks, as `Stateful.reduce` does, on this one's device."""
        return super().reduce(group).to(self.device)

    @property
    def device(self) -> torch.device:
        """The device of the tensors; the CPU as long as there are none."""
        held = leaves_in([getattr(self, name) for name in self.STATE])
        return next((one.device for one in held if isinstance(one, Tensor)), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Move everything to another device, and return this statistic."""
        with torch.inference_mode(False):
            moved = {name: on_tensors(getattr(self, name), lambda tensor: tensor.to(device)) for name in self.STATE}
        self._replace_contents(moved)
        return self

    def reset(self) -> None:
        """Forget everything."""
        self._replace_contents(self._fresh()._state_contents())

    def twin(self) -> Self:
        """Return a copy."""
        twin = self._fresh()
        twin._replace_contents(self._state_contents())
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, which `load` reads. Nothing in the file is ever executed.

        A file of that name is replaced when the new one is complete.

        Raises:
            BadArgumentError: if the directory is not there.
        """
        if not Path(path).parent.is_dir():
            raise BadArgumentError(f"there is no directory {Path(path).parent} to save to: make it first")
        write_atomically(Path(path), packed_state(self.state_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the statistic that was saved, on the CPU.

        Raises:
            BadArgumentError: if the file holds something else.
            OSError: if it cannot be read.
        """
        return cls.made(unpacked_state(Path(path).read_bytes(), source=str(path)))

    @classmethod
    def made(cls, state: Any) -> Self:
        """Return a new statistic with a state from `state_dict`, made with the settings in it."""
        name = state.get("statistic") if isinstance(state, dict) else None
        if not isinstance(name, str):
            raise BadArgumentError(f"this is not a saved {cls.__name__} but {brief(state)}")
        if not is_named(cls, name):
            mine, other = distinct_names(cls, name)
            raise BadArgumentError(f"this is not a saved {mine} but {with_article(other)}")
        if state.keys() == {"statistic", "state"}:  # as byname 0.2.0 wrote it, with the name of the class once more
            state = state["state"]
        settings = state.get("settings") if isinstance(state, dict) else None
        if not isinstance(settings, dict) or set(settings) != {*cls.SETTINGS, "nan"}:
            names = (*cls.SETTINGS, "nan")
            raise BadArgumentError(f"{with_article(cls.__name__)} has settings {names}, not {brief(settings)}")
        try:
            made = cls(**settings)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = with_article(cls.__name__)
            raise BadArgumentError(f"{brief(settings)} are not settings of {kind}: {error}") from None
        made.load_state_dict(state)
        return made

    def _fresh(self) -> Self:
        return type(self)(**writable_copy(self.settings()))

    def _merge_checked(self, other: Self) -> None:
        if not other.count:
            return
        if not self.count:
            self._replace_contents(other._state_contents())
            return
        if other is self or other.device != self.device:
            other = other.twin().to(self.device)
        with computing():
            self._merge(other)
        self.count, self.nans = self.count + other.count, self.nans + other.nans

    def _state_contents(self) -> dict[str, Any]:
        return writable_copy({name: getattr(self, name) for name in ("count", "nans", *self.STATE)})  # type: ignore[no-any-return]

    def _read_contents(self, state: Any) -> dict[str, Any]:
        names = {"settings", "count", "nans", *self.STATE}
        if isinstance(state, dict):
            self._check_header(state)
        if not isinstance(state, dict) or {*state, "statistic", "version"} != {*names, "statistic", "version"}:
            raise BadArgumentError(
                f"the state of {with_article(type(self).__name__)} is a dict of {sorted(names)}, not {brief(state)}"
            )
        if not all(type(state[name]) is int and state[name] >= 0 for name in ("count", "nans")):
            raise BadArgumentError(f"count and nans are numbers, not {state['count']!r:.80} and {state['nans']!r:.80}")
        return writable_copy({name: state[name] for name in ("count", "nans", *self.STATE)})  # type: ignore[no-any-return]

    def _replace_contents(self, contents: dict[str, Any]) -> None:
        for name, value in contents.items():
            setattr(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with torch.inference_mode(False):  # as in `writable_copy`
            vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__}({as_call(self.settings(), self.SETTINGS)}) of {self.count} samples>")


class SummedStatistic(Statistic):
    """A statistic that computes a few tensors from each batch, and adds them up over all batches.

    A child class names the tensors in `STATE` and computes those of one batch (`_of`). Adding, merging, and the error
    before the first batch follow.

        >>> class Sum(SummedStatistic):
        ...     STATE = ("_sum",)
        ...     def _of(self, samples, weights):
        ...         return (samples.double().sum(0),), 0
        ...     def result(self):
        ...         return self.known()[0]
        >>> Sum().add([[1.0, 2.0], [3.0, 4.0]]).add([[5.0, 6.0]]).result()
        tensor([ 9., 12.], dtype=torch.float64)
    """

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        """Return the tensors of one batch in the order of `STATE`, no views of it, and the number of NaN in it."""
        raise NotImplementedError

    def known(self) -> tuple[Tensor, ...]:
        """Return the tensors of all batches, as copies."""
        return tuple(known(getattr(self, name)).clone() for name in self.STATE)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        found, nans = self._of(samples, weights)
        self._fold(found)
        self.nans += nans

    def _merge(self, other: Self) -> None:
        self._fold(other.known())

    def _fold(self, more: tuple[Tensor, ...]) -> None:
        mine = [getattr(self, name) for name in self.STATE]
        if mine[0] is not None:
            check_shape(self, mine[0].shape, more[0].shape, "figures")
            more = tuple(one + two.to(one.device) for one, two in zip(mine, more, strict=True))
        for name, one in zip(self.STATE, more, strict=True):
            setattr(self, name, one)


class PairStatistic(Statistic):
    """A statistic of two sets of features of the same samples."""

    @abstractmethod
    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        """Take a batch of each, on one device, with weights of shape ``(len(samples),)``."""

    def add(self, batch: Batch, other: Batch, weights: Batch | None = None) -> Self:  # type: ignore[override]
        """Take one more batch of each set.

        Args:
            batch: the first set, with the samples along dimension 0.
            other: the second set, of the same samples in the same order.
            weights: how often each sample counts, of shape ``(samples,)``; a mask of bools leaves out those with False.

        Raises:
            BadArgumentError: as for `Statistic.add`, and if the numbers of samples differ. Nothing is taken then.
        """
        samples, others = samples_of(batch), samples_of(other)
        if len(samples) != len(others):
            raise BadArgumentError(
                f"both batches must have the same samples, but the first has {len(samples)}, the second {len(others)}"
            )
        with defer_signals(), _of_detached():
            checked = per_sample(checked_weights(weights, samples), samples)
            self._add_pair(samples, others.to(samples.device), checked)
            self.count += len(samples)
        return self


# Trees of statistics: one, or a dict of trees.


def merged(mine: Any, other: Any) -> Any:
    """Return the merged data of two trees; the first is changed, the second is not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key, kept in other.items():
            mine[key] = merged(mine[key], kept) if key in mine else twin(kept)
        return mine
    if isinstance(mine, Statistic) and isinstance(other, Statistic):
        return mine.merge(other)
    one, two = (with_article(type(each).__name__) for each in (mine, other))
    raise BadArgumentError(f"{one} cannot be merged with {two}")


def twin(kept: Any) -> Any:
    return mapped(kept, lambda one: one.twin())


def tree_state(kept: Any) -> dict[str, Any]:
    """Return a tree as tensors and plain values, from which `made` makes it again."""
    if isinstance(kept, Statistic):
        return kept.state_dict()
    return {"parts": [[key, tree_state(one)] for key, one in kept.items()]}


def made(state: Any, declared: Iterable[type[Statistic]] = ()) -> Any:
    """Return the tree that `tree_state` described; declared classes are preferred if several classes have a name."""
    if isinstance(state, dict) and "statistic" in state:
        kind: type[Statistic] = class_named(state["statistic"], Statistic, declared)
        return kind.made(state)
    try:
        parts = [(key, one) for key, one in state["parts"]]
    except (KeyError, TypeError, ValueError):
        raise BadArgumentError(f"this is not the state of an analyser: {brief(state)}") from None
    return {key: made(one, declared) for key, one in parts}
