"""Statistic: figures of data that comes batch by batch; merged, gathered over ranks, saved."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from byname.analyse.statistics.batches import Batch, checked_nan, checked_weights, per_sample, samples_of
from byname.analyse.statistics.identity import VERSION, check_version, is_named, name_of, other_class, told_apart
from byname.analyse.statistics.states import (
    copied,
    listed,
    mapped,
    packed,
    same,
    states_of_all_ranks,
    tensors_in,
    told,
    unpacked,
)
from byname.errors import BadArgumentError
from byname.text import printable


@contextmanager
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():  # what is kept is changed in place outside of it, too
        yield


def _plain() -> AbstractContextManager[object]:
    """A context without gradients and outside of inference mode; it costs next to nothing where that is so already."""
    return _without_gradients() if torch.is_grad_enabled() or torch.is_inference_mode_enabled() else _ALREADY


_ALREADY = nullcontext()
_ABOUT = frozenset({"statistic", "version", "settings"})
"""What a state says of itself."""


class Statistic(ABC):
    """A figure of data that comes batch after batch; the data itself is not kept.

    What it keeps is float64, or exact integers, whatever the type of the data, on the device of the first batch. A
    batch that is refused leaves everything as it was.

    A child class names what makes it up in `SETTINGS` and `STATE`, and says what one more batch does (`_add`), what
    another statistic of the same settings does (`_merge`) and what comes out (`result`). The rest is here.

    Attributes:
        count: how many samples were added, also those with NaN in them.
        nans: how many values were NaN.
        nan: what is done with NaN: ``"omit"`` leaves it out, ``"propagate"`` lets it spoil the figures it is part of,
            ``"raise"`` refuses the batch.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor, without ``nan``; each is an attribute of the same name."""
    STATE: ClassVar[tuple[str, ...]] = ()
    """The attributes that batches change: tensors, numbers, None, or lists and dicts of these."""

    note: str | None = None
    """What is to be said beside the figures, if anything."""

    def __init_subclass__(cls, **of_class: Any) -> None:
        super().__init_subclass__(**of_class)
        if taken := sorted(_ABOUT.intersection(cls.STATE)):
            raise BadArgumentError(
                f"the STATE of {cls.__name__} has {taken[0]!r}, which is what a state says of itself: call the "
                "attribute something else"
            )

    def __init__(self, *, nan: str = "omit") -> None:
        self.nan = checked_nan(nan)
        self.count = 0
        self.nans = 0

    @abstractmethod
    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        """Takes a batch: detached samples along dimension 0, and weights as they were checked."""

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
        with _plain():
            self._add(samples, checked_weights(weights, samples))
        self.count += len(samples)
        return self

    def merge(self, other: Self) -> Self:
        """Takes in what another statistic has seen, as if all its batches had been added here.

        Raises:
            BadArgumentError: if the other is of another kind, has other settings or samples of another shape.
        """
        if type(other) is not type(self):
            raise other_class(type(self), type(other), "merges")
        mine, others = self._settings(), other._settings()
        differing = [name for name in mine if not same(mine[name], others[name])]
        if differing:
            raise BadArgumentError(
                f"{type(self).__name__} with {listed(mine, differing)} cannot merge one with "
                f"{listed(others, differing)}"
            )
        if not other.count:
            return self
        if not self.count:
            self.load_state_dict(other.state_dict())
            return self
        if other is self or other.device != self.device:
            other = other.twin().to(self.device)
        with _plain():
            self._merge(other)
        self.count, self.nans = self.count + other.count, self.nans + other.nans
        return self

    def reduce(self, group: Any = None) -> Self:
        """A new statistic of what all ranks have seen, the same on each; the ranks are merged in their order.

        A collective: every rank of the group has to call it. Without `torch.distributed` it is a copy.

        Args:
            group: a process group; the default one if None.

        Raises:
            BadArgumentError: on every rank, if one has other settings or samples of another shape; if this rank is not
                of the group.
        """
        whole = self._empty()
        for rank, state in enumerate(states_of_all_ranks(self.described(), group)):
            try:
                whole.merge(self.made(state))
            except BadArgumentError as error:
                raise BadArgumentError(f"rank {rank} does not go with the others: {error}") from None
        return whole.to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the tensors are; the CPU as long as there are none."""
        held = next(tensors_in([getattr(self, name) for name in self.STATE]), None)
        return torch.device("cpu") if held is None else held.device

    def to(self, device: torch.device | str) -> Self:
        """Moves everything to another device; returns itself."""
        with torch.inference_mode(False):
            moved = {name: mapped(getattr(self, name), lambda tensor: tensor.to(device)) for name in self.STATE}
        for name, value in moved.items():
            setattr(self, name, value)
        return self

    def reset(self) -> None:
        """Forgets everything."""
        self.load_state_dict(self._empty().state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything there is to keep, as tensors and plain values that are not shared with this.

        It says what it is the state of: the module and the name of the class, and the settings.
        """
        kept = {"count": self.count, "nans": self.nans, **{name: getattr(self, name) for name in self.STATE}}
        about = {"statistic": name_of(type(self)), "version": VERSION, "settings": copied(self._settings())}
        return {**about, **copied(kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, in place of what is here.

        Raises:
            BadArgumentError: if it is the state of something else, or of other settings.
        """
        names = {"settings", "count", "nans", *self.STATE}
        if isinstance(state, dict):
            self._check_kind(state)
        if not isinstance(state, dict) or {*state, "statistic", "version"} != {*names, "statistic", "version"}:
            raise BadArgumentError(
                f"the state of a {type(self).__name__} is a dict of {sorted(names)}, not {told(state)}"
            )
        if not same(state["settings"], self._settings()):
            raise BadArgumentError(
                f"this is the state of a {type(self).__name__} with {_told_settings(state['settings'])}, not with "
                f"{_told_settings(self._settings())}"
            )
        if not all(type(state[name]) is int and state[name] >= 0 for name in ("count", "nans")):
            raise BadArgumentError(f"count and nans are numbers, not {state['count']!r:.80} and {state['nans']!r:.80}")
        try:
            for name in ("count", "nans", *self.STATE):
                setattr(self, name, copied(state[name]))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:  # of what checks what it is given
            raise BadArgumentError(f"this is no state of a {type(self).__name__}: {error!r:.200}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one file, from which `load` makes it again. Nothing in the file is ever executed.

        A file of that name is replaced when the new one is complete.

        Raises:
            BadArgumentError: if the directory is not there.
        """
        whole = Path(path)
        if not whole.parent.is_dir():
            raise BadArgumentError(f"there is no directory {whole.parent} to save to: make it first")
        part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
        try:
            part.write_bytes(packed(self.described()))
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The statistic that was saved, on the CPU.

        Raises:
            BadArgumentError: if the file holds something else.
            OSError: if it cannot be read.
        """
        return cls.made(unpacked(Path(path).read_bytes(), source=str(path)))

    def _settings(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.SETTINGS}, "nan": self.nan}

    def _empty(self) -> Self:
        return type(self)(**copied(self._settings()))

    def twin(self) -> Self:
        """Another that has seen the same."""
        twin = self._empty()
        twin.load_state_dict(self.state_dict())
        return twin

    def described(self) -> dict[str, Any]:
        """The state, and what it is the state of."""
        return {"statistic": name_of(type(self)), "state": self.state_dict()}

    @classmethod
    def made(cls, described: dict[str, Any]) -> Self:
        """The statistic that was described."""
        name = described.get("statistic") if isinstance(described, dict) else None
        if not isinstance(name, str):
            raise BadArgumentError(f"this is no saved {cls.__name__} but {told(described)}")
        if not is_named(cls, name):
            mine, other = told_apart(cls, name)
            raise BadArgumentError(f"this is no saved {mine} but a {other}")
        state = described.get("state")
        settings = state.get("settings") if isinstance(state, dict) else None
        if not isinstance(settings, dict) or set(settings) != {*cls.SETTINGS, "nan"}:
            raise BadArgumentError(f"a {cls.__name__} has settings {(*cls.SETTINGS, 'nan')}, not {told(settings)}")
        try:
            made = cls(**settings)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadArgumentError(f"{told(settings)} are no settings of a {cls.__name__}: {error}") from None
        made.load_state_dict(described["state"])
        return made

    def _check_kind(self, state: dict[Any, Any]) -> None:
        name = state.get("statistic", type(self).__name__)
        if not is_named(type(self), name):
            mine, other = told_apart(type(self), name) if isinstance(name, str) else (type(self).__name__, told(name))
            raise BadArgumentError(f"this is the state of a {other}, not of a {mine}")
        check_version(state, type(self).__name__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with torch.inference_mode(False):  # as in `copied`
            vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __repr__(self) -> str:
        settings = listed(self._settings(), self.SETTINGS)
        return printable(f"<{type(self).__name__}({settings}) of {self.count} samples>")


def _told_settings(settings: Any) -> str:
    return listed(settings, settings) if isinstance(settings, dict) else told(settings)


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
        with torch.inference_mode(False), torch.no_grad():
            checked = per_sample(checked_weights(weights, samples), samples)
            self._add_pair(samples, others.to(samples.device), checked)
        self.count += len(samples)
        return self

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        raise BadArgumentError(f"a {type(self).__name__} takes two batches: add(batch, other)")
