"""Statistic: figures of data that comes batch by batch; merged, gathered over ranks, saved, also in trees."""

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

from byname.analyse.batches import Batch, checked_choice, checked_weights, known, per_sample, samples_of
from byname.analyse.state import (
    Stateful,
    class_named,
    copied,
    is_named,
    leaves_in,
    listed,
    mapped,
    on_tensors,
    packed,
    told,
    told_apart,
    unpacked,
)
from byname.codec import write_whole
from byname.errors import BadArgumentError
from byname.text import printable, with_article


@contextmanager
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():  # what is kept is changed in place outside of it, too
        yield


def computing() -> AbstractContextManager[object]:
    """A context without gradients and outside of inference mode; it costs next to nothing where that is so already."""
    inference = torch.is_inference_mode_enabled()
    return torch.no_grad() if torch.is_grad_enabled() and not inference else _of_detached()


def _of_detached() -> AbstractContextManager[object]:
    """The same where all tensors are detached, so that nothing has a gradient."""
    return _without_gradients() if torch.is_inference_mode_enabled() else _ALREADY


_ALREADY = nullcontext()


class Statistic(Stateful):
    """A figure of data that comes batch after batch; the data itself is not kept.

    What it keeps is float64, or exact integers, whatever the type of the data, on the device of the first batch. A
    batch that is refused leaves everything as it was.

    A child class names what makes it up in `SETTINGS` and `STATE`, and says what one more batch does (`_add`), what
    another statistic of the same settings does (`_merge`) and what comes out (`result`). The rest is here.

    Attributes:
        count: how many samples were added, also those with NaN in them.
        nans: how many values were NaN.
        nan: how NaN is treated: ``"omit"`` leaves it out, ``"propagate"`` makes the figures with it NaN,
            ``"raise"`` refuses the batch.
    """

    KIND = "statistic"
    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor, without ``nan``; each is an attribute of the same name."""
    STATE: ClassVar[tuple[str, ...]] = ()
    """The attributes that batches change: tensors, numbers, None (the default), or lists and dicts of these."""

    note: str | None = None
    """What is to be said beside the figures, if anything."""

    def __init_subclass__(cls, **of_class: Any) -> None:
        super().__init_subclass__(**of_class)
        if taken := sorted({"statistic", "version", "settings"}.intersection(cls.STATE)):
            raise BadArgumentError(
                f"the STATE of {cls.__name__} has {taken[0]!r}, which is what a state says of itself: call the "
                "attribute something else"
            )

    def __init__(self, *, nan: str = "omit") -> None:
        self.nan = checked_choice(nan, "nan", ("omit", "propagate", "raise"))
        self.count = 0
        self.nans = 0
        for name in self.STATE:
            if not hasattr(self, name):
                setattr(self, name, None)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        """Takes a batch: detached samples along dimension 0, and weights as they were checked."""
        raise BadArgumentError(f"{with_article(type(self).__name__)} is not given batches by add()")

    @abstractmethod
    def _merge(self, other: Self) -> None:
        """Takes in what the other has seen; `count` and `nans` are those before."""

    @abstractmethod
    def result(self) -> Any:
        """The main figure."""

    def add(self, batch: Batch, weights: Batch | None = None) -> Self:
        """Takes one more batch.

        Args:
            batch: a tensor, or what becomes one, with the samples along dimension 0.
            weights: how often each sample, or each value, counts: of the shape of the batch or of its first
                dimensions. A mask of bools leaves out what is False.

        Raises:
            BadArgumentError: if it has no dimension, another shape of samples than before, or NaN with
                ``nan="raise"``; if a weight is negative or not finite. Nothing is taken then.
        """
        samples = samples_of(batch)
        with _of_detached():
            self._add(samples, checked_weights(weights, samples))
        self.count += len(samples)
        return self

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**{name: getattr(self, name) for name in self.SETTINGS}, "nan": self.nan}

    def reduce(self, group: Any = None) -> Self:
        """A new statistic of what all ranks have seen, as of `Stateful.reduce`, on this one's device."""
        return super().reduce(group).to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU as long as there are none."""
        held = leaves_in([getattr(self, name) for name in self.STATE])
        return next((one.device for one in held if isinstance(one, Tensor)), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Moves everything to another device; returns itself."""
        with torch.inference_mode(False):
            moved = {name: on_tensors(getattr(self, name), lambda tensor: tensor.to(device)) for name in self.STATE}
        self._replace_contents(moved)
        return self

    def reset(self) -> None:
        """Forgets everything."""
        self._replace_contents(self._fresh()._state_contents())

    def twin(self) -> Self:
        """Another that has seen the same."""
        twin = self._fresh()
        twin._replace_contents(self._state_contents())
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one file, from which `load` makes it again. Nothing in the file is ever executed.

        A file of that name is replaced when the new one is complete.

        Raises:
            BadArgumentError: if the directory is not there.
        """
        if not Path(path).parent.is_dir():
            raise BadArgumentError(f"there is no directory {Path(path).parent} to save to: make it first")
        write_whole(Path(path), packed(self.state_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The statistic that was saved, on the CPU.

        Raises:
            BadArgumentError: if the file holds something else.
            OSError: if it cannot be read.
        """
        return cls.made(unpacked(Path(path).read_bytes(), source=str(path)))

    @classmethod
    def made(cls, state: Any) -> Self:
        """A new statistic with a state from `state_dict`, made with the settings in it."""
        name = state.get("statistic") if isinstance(state, dict) else None
        if not isinstance(name, str):
            raise BadArgumentError(f"this is no saved {cls.__name__} but {told(state)}")
        if not is_named(cls, name):
            mine, other = told_apart(cls, name)
            raise BadArgumentError(f"this is no saved {mine} but {with_article(other)}")
        if state.keys() == {"statistic", "state"}:  # as byname 0.2.0 wrote it, with the name of the class once more
            state = state["state"]
        settings = state.get("settings") if isinstance(state, dict) else None
        if not isinstance(settings, dict) or set(settings) != {*cls.SETTINGS, "nan"}:
            names = (*cls.SETTINGS, "nan")
            raise BadArgumentError(f"{with_article(cls.__name__)} has settings {names}, not {told(settings)}")
        try:
            made = cls(**settings)
        except (TypeError, ValueError, RuntimeError) as error:
            kind = with_article(cls.__name__)
            raise BadArgumentError(f"{told(settings)} are no settings of {kind}: {error}") from None
        made.load_state_dict(state)
        return made

    def _fresh(self) -> Self:
        return type(self)(**copied(self.settings()))

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
        return copied({name: getattr(self, name) for name in ("count", "nans", *self.STATE)})  # type: ignore[no-any-return]

    def _read_contents(self, state: Any) -> dict[str, Any]:
        names = {"settings", "count", "nans", *self.STATE}
        if isinstance(state, dict):
            self._check_header(state)
        if not isinstance(state, dict) or {*state, "statistic", "version"} != {*names, "statistic", "version"}:
            raise BadArgumentError(
                f"the state of {with_article(type(self).__name__)} is a dict of {sorted(names)}, not {told(state)}"
            )
        if not all(type(state[name]) is int and state[name] >= 0 for name in ("count", "nans")):
            raise BadArgumentError(f"count and nans are numbers, not {state['count']!r:.80} and {state['nans']!r:.80}")
        return copied({name: state[name] for name in ("count", "nans", *self.STATE)})  # type: ignore[no-any-return]

    def _replace_contents(self, contents: dict[str, Any]) -> None:
        for name, value in contents.items():
            setattr(self, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with torch.inference_mode(False):  # as in `copied`
            vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__}({listed(self.settings(), self.SETTINGS)}) of {self.count} samples>")


class Folded(Statistic):
    """A statistic that is a few tensors of each batch, added up over all batches.

    A child class names the tensors in `STATE` and says what one batch gives (`_of`); adding, merging, and what is said
    before the first batch follow.

        >>> class Sum(Folded):
        ...     STATE = ("_sum",)
        ...     def _of(self, samples, weights):
        ...         return (samples.double().sum(0),), 0
        ...     def result(self):
        ...         return self.known()[0]
        >>> Sum().add([[1.0, 2.0], [3.0, 4.0]]).add([[5.0, 6.0]]).result()
        tensor([ 9., 12.], dtype=torch.float64)
    """

    UNIT: ClassVar[str] = "figures"
    """What the first tensor has one number of, for the error where there are others than before."""

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        """The tensors of one batch in the order of `STATE`, none of them a part of it; and how many values are NaN."""
        raise NotImplementedError

    def known(self) -> tuple[Tensor, ...]:
        """The tensors of all batches, as copies."""
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
            self._check_shape(mine[0], more[0])
            more = tuple(one + two.to(one.device) for one, two in zip(mine, more, strict=True))
        for name, one in zip(self.STATE, more, strict=True):
            setattr(self, name, one)

    def _check_shape(self, before: Tensor, now: Tensor) -> None:
        if before.shape != now.shape:
            one, two = (len(each) if each.ndim == 1 else tuple(each.shape) for each in (before, now))
            raise BadArgumentError(f"there were {one} {self.UNIT} before, and are {two} now")


class PairStatistic(Statistic):
    """A statistic of two sets of features of the same samples."""

    @abstractmethod
    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        """Takes a batch of each, on one device, with weights of shape ``(len(samples),)``."""

    def add(self, batch: Batch, other: Batch, weights: Batch | None = None) -> Self:  # type: ignore[override]
        """Takes one more batch of each set.

        Args:
            batch: the first set, with the samples along dimension 0.
            other: the second set, of the same samples in the same order.
            weights: how often each sample counts, of shape ``(samples,)``; a mask of bools leaves out what is False.

        Raises:
            BadArgumentError: as of `Statistic.add`, and if there are not as many samples in both. Nothing is taken
                then.
        """
        samples, others = samples_of(batch), samples_of(other)
        if len(samples) != len(others):
            raise BadArgumentError(
                f"both batches are of the same samples, but the first has {len(samples)} and the second {len(others)}"
            )
        with _of_detached():
            checked = per_sample(checked_weights(weights, samples), samples)
            self._add_pair(samples, others.to(samples.device), checked)
        self.count += len(samples)
        return self


# Trees of statistics: one, or a dict of trees.


def merged(mine: Any, other: Any) -> Any:
    """What both have seen; the first is changed, the second is not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key, kept in other.items():
            mine[key] = merged(mine[key], kept) if key in mine else twin(kept)
        return mine
    if isinstance(mine, Statistic) and isinstance(other, Statistic):
        return mine.merge(other)
    one, two = (with_article(type(each).__name__) for each in (mine, other))
    raise BadArgumentError(f"{one} cannot be merged with {two}")


def twin(kept: Any) -> Any:
    """Another of the same, of the same classes."""
    return mapped(kept, lambda one: one.twin())


def state_of(kept: Any) -> dict[str, Any]:
    """Tensors and plain values from which it can be made again."""
    if isinstance(kept, Statistic):
        return kept.state_dict()
    return {"parts": [[key, state_of(one)] for key, one in kept.items()]}


def made(state: Any, declared: Iterable[type[Statistic]] = ()) -> Any:
    """What `state_of` described; the declared classes come first where a name means several."""
    if isinstance(state, dict) and "statistic" in state:
        kind: type[Statistic] = class_named(state["statistic"], Statistic, declared)
        return kind.made(state)
    try:
        parts = [(key, one) for key, one in state["parts"]]
    except (KeyError, TypeError, ValueError):
        raise BadArgumentError(f"this is not the state of an analyser: {told(state)}") from None
    return {key: made(one, declared) for key, one in parts}
