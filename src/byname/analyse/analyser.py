"""What is an analyser? It is given what passes at places of a model, and has figures to tell of each."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any, Protocol, Self

from torch import Tensor, nn

from byname.analyse.keeping import Kept, classes_in, described, made, merged, notes_in
from byname.analyse.results.results import Results
from byname.analyse.sample import Sample
from byname.analyse.statistics.identity import VERSION, check_version, is_named, name_of, other_class, told_apart
from byname.analyse.statistics.states import listed, plain, same, states_of_all_ranks, told
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError
from byname.text import printable

_OF_THIS_ONE = ("lock", "_observations", "_resting")
"""Attributes that a copy does not share."""


class Switched(Protocol):
    """What an analyser switches on and off with itself, and tells its targets: an observation."""

    number: int
    """Observations made later have a higher one."""
    places: dict[str, str]
    """The paths in the model at which something has passed, as they are called in the results."""

    @property
    def model(self) -> nn.Module | None:
        """The model, until the observation is removed."""

    @property
    def handle(self) -> object:
        """What holds it, until it is removed."""

    def switch(self, enabled: bool) -> None:
        """Puts it in place, or takes it off."""

    def targets_are(self, targets: Tensor | str | None) -> None:
        """The targets were set."""

    def silence(self) -> list[str]:
        """Sentences about the places of which nothing was given so far."""

    @property
    def removed(self) -> bool:
        """Whether it was taken off for good."""


class Analyser(ABC):
    """Computes figures of what passes at the places at which `byname.observe` puts it.

    A child class says what is kept of a place (`begin`), what one more value does to it (`take`), and which figures
    come out (`figures`). What is kept are running statistics, so that merging, ranks and saving are done here.

        >>> import torch, byname
        >>> class Largest(byname.analyse.Analyser):
        ...     def begin(self, sample):
        ...         return byname.analyse.Extremes()
        ...     def take(self, kept, sample):
        ...         kept.add(sample.value)
        ...     def figures(self, kept):
        ...         return {"largest": float(kept.max().max())}
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> largest = Largest()
        >>> with byname.observe(model, "1", largest):
        ...     _ = model(torch.tensor([[-1., 3.], [2., -5.]]))
        >>> largest.result()["1"]["largest"]
        3.0

    Attributes:
        listens: what is given to it: ``"value"``, ``"gradient"`` or both.
        of_gradients: whether it has nothing to tell without gradients.
        tells_classes_apart: whether that is its task, so that one for each class would have nothing to do.
        lock: is held while it is given something: forwards may run in several threads.

    A copy, or what a pickle makes, has seen the same and is observed nowhere.
    """

    listens: frozenset[str] = frozenset({"value"})
    of_gradients: bool = False
    tells_classes_apart: bool = False

    def __init__(self) -> None:
        self._places: dict[str, Kept] = {}
        self._targets: Tensor | str | None = None
        self._enabled = True
        self._observations: weakref.WeakSet[Switched] = weakref.WeakSet()  # that hold the model, as it holds them
        self._resting: list[object] = []  # their handles while they are off, when the model does not hold them
        self.lock = threading.RLock()

    @abstractmethod
    def begin(self, sample: Sample) -> Kept:
        """What is kept of the place of a sample before there is any: a statistic, or a dict of them."""

    @abstractmethod
    def take(self, kept: Any, sample: Sample) -> None:
        """Adds a sample to what is kept of its place."""

    @abstractmethod
    def figures(self, kept: Any) -> dict[Any, Any]:
        """The figures of a place, by their names."""

    def settings(self) -> dict[str, Any]:
        """What has to be the same in two of them for `merge`, and in a state that is loaded.

        That is what changes the figures; what the statistics themselves tell is not needed.
        """
        return {}

    def started(self, observation: int) -> None:  # noqa: B027 - most do not ask
        """An observation was put in place."""

    def begun(self, observation: int, iteration: int) -> None:  # noqa: B027 - most do not ask
        """A forward of an observed model begins."""

    def ended(self, observation: int) -> None:  # noqa: B027 - most do not ask
        """An observation was taken off, for good or until it is enabled again."""

    def settle(self) -> None:  # noqa: B027 - most take in all at once
        """Figures or the state are asked for: whatever is still pending is taken in."""

    @property
    def enabled(self) -> bool:
        """Whether it is given anything. Set to False its hooks are taken off; what it has seen stays."""
        return self._enabled

    @enabled.setter
    def enabled(self, wanted: bool) -> None:
        self._enabled = bool(wanted)
        observations = self.observations
        self._resting = [] if self._enabled else [one.handle for one in observations]
        for observation in observations:
            observation.switch(self._enabled)

    @property
    def targets(self) -> Tensor | str | None:
        """What the samples are of: a tensor of class numbers for the batches to come, or a path of the model.

        A path such as ``"forward.targets"`` is read anew in each forward.
        """
        return self._targets

    @targets.setter
    def targets(self, targets: Any) -> None:
        import torch

        wanted = targets if targets is None or isinstance(targets, str) else torch.as_tensor(targets)
        for observation in [*self._observations]:
            observation.targets_are(wanted)
        self._targets = wanted

    @property
    def observations(self) -> tuple[Switched, ...]:
        """Where it is put at the moment."""
        return tuple(one for one in self._observations if one.model is not None)

    @property
    def watching(self) -> bool:
        """Whether `byname.observe` has put it at places of some model, from which it was not removed since."""
        return bool(self.observations)

    @property
    def paths(self) -> tuple[str, ...]:
        """The places at which something has passed."""
        return tuple(self._places)

    def reset(self) -> None:
        """Forgets what was seen."""
        with self.lock:
            self._places.clear()

    def restart(self) -> None:
        """Has nothing of what was seen in the figures of the pass that begins now, or has ended."""
        self.reset()

    def merge(self, other: Self) -> Self:
        """Takes in what another analyser of the same settings has seen; returns itself.

        Raises:
            BadArgumentError: if the other is of another kind, has other settings, or has kept something else.
        """
        if type(other) is not type(self):
            raise other_class(type(self), type(other), "merges")
        mine, others = self.settings(), other.settings()
        if not same(mine, others):
            one, two = _differing(mine, others)
            raise BadArgumentError(
                f"a {type(self).__name__} with {one} cannot merge one with {two}: their rules differ"
            )
        self.settle()
        other.settle()
        merged(self._places, other._places)
        return self

    def reduce(self, group: Any = None) -> Self:
        """A new analyser with what all ranks have seen; a collective, which every rank of the group has to call.

        Args:
            group: a process group; the default one if None.

        Raises:
            BadArgumentError: on every rank, if one has another analyser, other settings or has kept something else.
        """
        whole = self._fresh()
        for rank, state in enumerate(states_of_all_ranks(self.state_dict(), group)):
            try:
                merged(whole._places, self._places_in(state))
            except BadArgumentError as error:
                raise BadArgumentError(f"rank {rank} does not go with the others: {error}") from None
        return whole

    def result(self) -> Results:
        """The figures of every place: ``{path: {figure: value}}``."""
        with self.lock:
            self.settle()
            figures = {path: self.figures(kept) for path, kept in self._places.items()}
            notes = [note for path in self._places for note in self.notes_of(path)]
        return Results(figures, name=type(self).__name__, notes=notes if figures else self._notes_when_empty())

    def notes_of(self, path: str) -> tuple[str, ...]:
        """What is to be said of a place beside its figures, in sentences."""
        kept = self._places.get(path)
        return () if kept is None else tuple(f"`{path}`: {note}" for note in notes_in(kept))

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as tensors and plain values that are not shared with this.

        It says what it is the state of: the module and the name of the class, and the settings.
        """
        with self.lock:
            self.settle()
            return self._described(self._places)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, in place of what was seen here.

        Raises:
            BadArgumentError: if it is the state of something else, or of other settings. Nothing is taken then.
        """
        places = self._places_in(state)
        with self.lock:
            self._places = places

    def put(self, sample: Sample) -> None:
        """Gives a sample to the analyser; `byname.observe` does that."""
        kept = self._places.get(sample.path)
        if kept is None:
            kept = self.begin(sample)
        self.take(kept, sample)
        self._places[sample.path] = kept  # now: what is refused is no place

    def name_of(self, observation: Switched, path: str) -> str:
        """What a path is called in the results: with the number of its model where it is one of another model, too."""
        others = [one for one in self.observations if one.model is not observation.model]
        if not any(path in one.places.values() for one in others):
            return path
        models = {id(one.model): None for one in sorted(self.observations, key=lambda one: one.number)}
        return f"model{[*models].index(id(observation.model)) + 1}.{path}"

    def observed(self, observation: Switched) -> None:
        """An observation has begun, which is held weakly."""
        self._observations.add(observation)
        if not self._enabled:
            self._resting.append(observation.handle)

    def _notes_when_empty(self) -> list[str]:
        """What to say where there are no figures."""
        silent = [said for one in self.observations for said in one.silence()] if self._enabled else []
        return silent or [self._why_empty()]

    def _why_empty(self) -> str:
        """Why there are no figures."""
        if not self.watching:
            return (
                "nothing has passed: it is observed on no model now, and kept nothing from before; "
                "byname.observe(model, where, analyser) puts it at places"
            )
        if not self._enabled:
            return (
                "nothing is kept: it is off, as an Evaluation has it between snapshots, whose figures are in "
                "evaluation.records; analyser.enabled = True has it see what passes"
            )
        kinds = " or ".join(("gradient" if one == "gradient" else "value") for one in sorted(self.listens))
        return f"nothing has passed: no {kinds} of its places has come since it is observed, or was reset"

    def _described(self, places: dict[str, Kept]) -> dict[str, Any]:
        about = {"analyser": name_of(type(self)), "version": VERSION, "settings": plain(self.settings())}
        return {**about, **described(places)}

    def _places_in(self, state: dict[str, Any]) -> dict[str, Kept]:
        """What the state of an analyser of this class and these settings has kept."""
        if not isinstance(state, dict) or "parts" not in state:
            raise BadArgumentError(f"this is not the state of an analyser: {told(state)}")
        kind = type(self).__name__
        name = state.get("analyser", kind)
        if not is_named(type(self), name):
            mine, other = told_apart(type(self), name) if isinstance(name, str) else (kind, told(name))
            raise BadArgumentError(f"this is the state of a {other}, not of a {mine}")
        check_version(state, kind)
        mine, others = plain(self.settings()), state.get("settings")
        if "settings" in state and not same(mine, others):
            one, two = _differing(mine, others) if isinstance(others, dict) else (str(mine), told(others))
            raise BadArgumentError(
                f"this is the state of a {kind} with {two}, and cannot go on in one with {one}: load it into one that "
                "was made with the same arguments"
            )
        places = made(state, _classes_near(self))
        assert isinstance(places, dict)
        return places

    def _fresh(self) -> Self:
        """One of the same settings that has seen nothing."""
        fresh = type(self).__new__(type(self))
        fresh.__setstate__({**vars(self), "_places": {}})
        return fresh

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_ONE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=threading.RLock(), _observations=weakref.WeakSet(), _resting=[])

    def __repr__(self) -> str:
        if self.paths:
            return repr(self.result())
        return printable(f"<{type(self).__name__}, which has seen nothing>")


def checked_analyser(given: Any) -> Analyser:
    """The argument, if it is an analyser.

    Raises:
        BadArgumentError: if it is not, also for the class of one.
    """
    if not isinstance(given, Analyser):
        if isinstance(given, type):
            raise BadArgumentError(f"{given.__name__} is a class, not an instance; did you mean {given.__name__}()?")
        raise BadArgumentError(
            f"an analyser is an instance such as byname.analyse.FeatureStatistics(), not {type(given).__name__}"
        )
    return given


def _differing(mine: dict[str, Any], others: dict[str, Any]) -> tuple[str, str]:
    """The settings that differ, as they stand in a call."""
    names = [name for name in {**mine, **others} if not (name in mine and name in others)]
    names += [name for name in mine if name in others and not same(mine[name], others[name])]
    one, two = ([name for name in names if name in settings] for settings in (mine, others))
    return listed(mine, one) or "no such setting", listed(others, two) or "no such setting"


def _classes_near(analyser: Analyser) -> list[type[Statistic]]:
    """The classes of statistics that a name in a state of this analyser means first: those it uses and names itself."""
    found = classes_in(analyser._places)
    for value in _values_in(vars(analyser)):
        if isinstance(value, Analyser) and value is not analyser:
            found.update(dict.fromkeys(_classes_near(value)))
        elif isinstance(value, type) and issubclass(value, Statistic):
            found[value] = None
    for kind in type(analyser).__mro__:
        for member in vars(kind).values():
            found.update(dict.fromkeys(_classes_named_in(member)))
    return [*found]


def _values_in(held: dict[str, Any]) -> Iterator[Any]:
    for value in held.values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _classes_named_in(member: Any) -> Iterator[type[Statistic]]:
    """The statistics that the code of a method names: variables of the function around it, and global ones."""
    if not isinstance(member, FunctionType):
        return
    values: list[Any] = [member.__globals__.get(name) for name in member.__code__.co_names]
    for cell in member.__closure__ or ():
        with suppress(ValueError):  # a cell that is empty
            values.append(cell.cell_contents)
    for value in values:
        if issubclass(type(value), type) and issubclass(value, Statistic):
            yield value
