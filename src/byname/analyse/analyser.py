"""Analyser: gets the values at places of a model, one `Sample` at a time, and computes figures of each place."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from byname.analyse.results import Results
from byname.analyse.state import Stateful, brief, leaves_in
from byname.analyse.statistic import Statistic, made, merged, tree_state
from byname.errors import BadArgumentError
from byname.text import printable

if TYPE_CHECKING:
    from byname.model.feature_dims import FeatureContext
    from byname.watch.handle import Handle


@dataclass(frozen=True, slots=True)
class Sample:
    """A value, or the gradient of one, at an observed place.

    Attributes:
        path: the place, without wildcards.
        module: the module called, or the one that owns the value.
        value: the tensor, detached, not a copy: it may change when the analyser has returned. Samples are along
            dimension 0, unless it is a parameter.
        gradient: whether it is the gradient of the value, not the value.
        parameter: whether the place is a parameter, or its ``.grad``.
        targets: the classes of the samples, if the analyser has them.
        observation: which `byname.observe` it comes from, a number.
        iteration: the number of the forward.
        output: whether it is the output of `module`, an item of it, or the gradient of that.
        around: the modules that tell which dimension of the value are its features.
    """

    path: str
    module: nn.Module
    value: Tensor
    gradient: bool
    parameter: bool
    targets: Tensor | None
    observation: int
    iteration: int
    output: bool = False
    around: FeatureContext | None = None

    def only(self, chosen: Tensor) -> Sample:
        """Return the samples that a mask of bools, of shape ``(len(value),)``, chooses."""
        targets = None if self.targets is None else self.targets[chosen.to(self.targets.device)]
        return replace(self, value=self.value[chosen.to(self.value.device)], targets=targets)


_OF_THIS_ONE = ("lock", "_observations", "_resting")
"""Attributes that a copy does not share."""


class Switched(Protocol):
    """An observation, as an analyser sees it, which switches it on and off with itself, and tells it its targets."""

    handle: Handle
    label: str
    number: int
    """Observations made later have a higher one."""
    places: dict[str, str]
    """The paths in the model at which a value has passed, with their names in the results."""
    asked: frozenset[str]
    """The paths of the places that are known before a run."""

    @property
    def model(self) -> nn.Module | None:
        """The model, until the observation is removed."""

    def targets_are(self, targets: Tensor | str | None) -> None:
        """The targets were set."""

    def silence(self) -> list[str]:
        """Return sentences about the places that have given nothing so far."""


class Analyser(Stateful):
    """Computes figures of the values at places of a model, to which `byname.observe` attaches it.

    A child class names the statistics to keep for a place (`KEEPS`), each of which gets the values, and computes the
    figures (`figures`). Merging, ranks, classes and saving are done here.

        >>> import torch, byname
        >>> class Largest(byname.analyse.Analyser):
        ...     KEEPS = {"range": byname.analyse.Extremes}
        ...     def figures(self, kept):
        ...         return {"largest": float(kept["range"].max().max())}
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> largest = Largest()
        >>> with byname.observe(model, "1", largest):
        ...     _ = model(torch.tensor([[-1., 3.], [2., -5.]]))
        >>> largest.result()["1"]["largest"]
        3.0

    `values` returns the values that the statistics get from a sample. If the statistics depend on the sample, or get
    different values, define `begin` and `take` instead.

    Attributes:
        listens: the events that it gets: ``"value"``, ``"gradient"`` or both.
        of_gradients: whether it needs gradients for its figures.
        tells_classes_apart: whether it classifies samples, so that one for each class would have nothing to do.
        lock: held while it gets a sample: forwards may run in several threads.

    A copy, or an unpickled one, has the same data and is observed nowhere.
    """

    KIND = "analyser"
    KEEPS: ClassVar[Mapping[str, Callable[[], Statistic]]] = {}
    """The statistics of a place: by name, a function that makes an empty one, such as its class."""

    listens: frozenset[str] = frozenset({"value"})
    of_gradients: bool = False
    tells_classes_apart: bool = False

    def __init__(self) -> None:
        self._places: dict[str, Any] = {}
        self._targets: Tensor | str | None = None
        self._enabled = True
        self._observations: weakref.WeakSet[Switched] = weakref.WeakSet()  # that hold the model, as it holds them
        self._resting: list[object] = []  # their handles while they are off, when the model does not hold them
        self.lock = threading.RLock()

    def begin(self, sample: Sample) -> Any:
        """Return the empty statistics for the place of a sample: one, or a dict of them."""
        return {name: make() for name, make in self.KEEPS.items()}

    def take(self, kept: Any, sample: Sample) -> None:
        """Add a sample to what is kept of its place."""
        values = self.values(kept, sample)
        for name in self.KEEPS:
            kept[name].add(values)

    def values(self, kept: Any, sample: Sample) -> Tensor:
        """Return the values that the statistics of a place get from a sample, with the samples along dimension 0."""
        return sample.value

    @abstractmethod
    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the figures of a place, by their names."""

    def started(self, observation: int) -> None:
        """An observation was put in place."""

    def begun(self, observation: int, iteration: int) -> None:
        """A forward of an observed model begins."""

    def ended(self, observation: int) -> None:
        """An observation was taken off, for good or until it is enabled again."""

    def settle(self) -> None:
        """Take in pending data, since figures or the state are asked for."""

    @property
    def enabled(self) -> bool:
        """Whether it gets values. Setting it to False removes its hooks; the data stays."""
        return self._enabled

    @enabled.setter
    def enabled(self, wanted: bool) -> None:
        self._enabled = bool(wanted)
        observations = self.observations
        self._resting = [] if self._enabled else [one.handle for one in observations]
        for observation in observations:
            observation.handle.enabled = self._enabled

    @property
    def targets(self) -> Tensor | str | None:
        """The classes of the samples: a tensor of class numbers for the next batches, or a path of the model.

        A path such as ``"forward.targets"`` is read anew in each forward.
        """
        return self._targets

    @targets.setter
    def targets(self, targets: Any) -> None:
        import torch

        try:
            wanted = targets if targets is None or isinstance(targets, str) else torch.as_tensor(targets)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadArgumentError(
                f"targets are a tensor or list of class numbers, or a path of the model, not {targets!r:.60}"
            ) from error
        for observation in [*self._observations]:
            observation.targets_are(wanted)
        self._targets = wanted

    @property
    def observations(self) -> tuple[Switched, ...]:
        """The observations that attach it at the moment."""
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
        """Forget what was seen."""
        with self.lock:
            self._places.clear()

    def restart(self) -> None:
        """Forget everything, since a pass begins or has ended."""
        self.reset()

    def result(self) -> Results:
        """Return the figures of every place: ``{path: {figure: value}}``."""
        with self.lock:
            self.settle()
            return self._results({path: self.figures(kept) for path, kept in self._places.items()}, type(self).__name__)

    def _results(self, figures: Mapping[str, Any], name: str) -> Results:
        notes = [note for path in figures for note in self.notes_of(path)]
        return Results(figures, name=name, notes=notes if figures else self._notes_when_empty())

    def notes_of(self, path: str) -> tuple[str, ...]:
        """Return the notes about a place, each sentence once."""
        notes = dict.fromkeys(one.note for one in leaves_in(self._kept_of(path)) if one.note is not None)
        return tuple(f"`{path}`: {note}" for note in notes)

    def _kept_of(self, path: str) -> Any:
        return self._places.get(path, {})

    def put(self, sample: Sample) -> None:
        """Give a sample to the analyser; `byname.observe` calls this."""
        self._give(self._places, sample.path, sample)

    def _give(self, places: dict[Any, Any], name: Any, sample: Sample) -> None:
        kept = places[name] if name in places else self.begin(sample)
        self.take(kept, sample)
        places[name] = kept  # now: what is refused is no place

    def name_of(self, observation: Switched, path: str) -> str:
        """Return the name of a path in the results: with the number of its model if one before it has the path, too.

        Which model runs first makes no difference, unless the place is known only from a run, as that of an operation.
        """
        others = [one for one in self.observations if one.model is not observation.model]
        before = [one for one in others if one.number < observation.number]
        asked = {path, path.partition("[")[0]}
        if not (any(path in one.places.values() for one in others) or any(asked & one.asked for one in before)):
            return path
        models = {id(one.model): None for one in sorted(self.observations, key=lambda one: one.number)}
        return f"model{[*models].index(id(observation.model)) + 1}.{path}"

    def observed(self, observation: Switched) -> None:
        """An observation has begun, which is held weakly."""
        self._observations.add(observation)
        if not self._enabled:
            self._resting.append(observation.handle)

    def _notes_when_empty(self) -> list[str]:
        return [said for one in self.observations if self._enabled for said in one.silence()] or [self._why_empty()]

    def _why_empty(self) -> str:
        if not self.watching:
            return (
                "no data: it observes no model now, and has no data from before; call "
                "byname.observe(model, where, analyser)"
            )
        if not self._enabled:
            return (
                "no data: it is disabled, as always between the snapshots of an Evaluation, whose figures are in "
                "evaluation.records; set analyser.enabled = True to enable it"
            )
        kinds = " or ".join(sorted(self.listens))
        return f"no data: its places had no {kinds} since it was attached or reset"

    def _classes(self) -> list[type[Statistic]]:
        """Return the classes of statistics to prefer for a name in a state."""
        return [*(type(make()) for make in self.KEEPS.values()), *map(type, leaves_in(self._places))]

    def _merge_checked(self, other: Self) -> None:
        other.settle()
        with self.lock:
            self.settle()
            merged(self._places, other._places)

    def _state_contents(self) -> dict[str, Any]:
        with self.lock:
            self.settle()
            return tree_state(self._places)

    def _read_contents(self, state: Any) -> dict[str, Any]:
        if not isinstance(state, dict) or "parts" not in state:
            raise BadArgumentError(f"this is not the state of an analyser: {brief(state)}")
        self._check_header(state)
        return made({"parts": state["parts"]}, self._classes())  # type: ignore[no-any-return]

    def _replace_contents(self, contents: dict[str, Any]) -> None:
        with self.lock:
            self._places = contents

    def _fresh(self) -> Self:
        fresh = type(self).__new__(type(self))
        fresh.__setstate__({**vars(self), "_places": {}})
        return fresh

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_ONE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, lock=threading.RLock(), _observations=weakref.WeakSet(), _resting=[])

    def __repr__(self) -> str:
        if self.paths:
            return repr(self.result())
        return printable(f"<{type(self).__name__} without data>")


def checked_analyser(given: Any) -> Analyser:
    if not isinstance(given, Analyser):
        if isinstance(given, type):
            raise BadArgumentError(f"{given.__name__} is a class, not an instance; did you mean {given.__name__}()?")
        raise BadArgumentError(
            f"give an analyser such as byname.analyse.FeatureStatistics(), not {type(given).__name__}"
        )
    return given


def class_numbers(sample: Sample, count: int, advice: Callable[[], str]) -> Tensor:
    """Return the class of each of a number of samples; refuse targets that are missing, or are no class numbers."""
    targets = sample.targets
    if targets is None:
        raise BadArgumentError(
            "the classes of the samples are unknown: set analyser.targets to a tensor of class numbers before each "
            'forward, or once to a path of the model such as "forward.targets"'
        )
    if targets.is_floating_point() or targets.is_complex() or targets.numel() != count:
        raise BadArgumentError(
            f"`{sample.path}` has {count} samples; targets must be one class number each, not "
            f"{tuple(targets.shape)} of {targets.dtype}. {advice()}"
        )
    return targets.detach().reshape(-1)
