"""Observe: attach an analyser to places of a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser, Sample, checked_analyser
from byname.analyse.statistic import computing
from byname.errors import BadArgumentError, BynameError
from byname.model.feature_dims import FeatureContext
from byname.model.items import tensors_in
from byname.model.module_tree import modules_by_path
from byname.model.spot import Spot
from byname.model.states import with_paths
from byname.model.where import resolve_where, unwrapped
from byname.reading.interrupts import defer_signals
from byname.reading.quiet import DisableTorchFunction
from byname.text import note_on, printable
from byname.tracing.muted import is_muted
from byname.watch.attach import attach
from byname.watch.attachment import Event
from byname.watch.handle import Handle
from byname.watch.requested import MISSED, NO_GRADIENT, Entry, PlaceNote
from byname.watch.value_gradients import LeafHooks, on_gradient

_numbers = itertools.count()
"""Process-wide, so that two observations of one analyser have different numbers."""


def observe(
    model: nn.Module,
    where: Any,
    analyser: Analyser,
    *,
    example: Any = None,
    label: str = "",
    attention: str | None = None,
) -> Handle:
    """Attach an analyser to places of a model: it gets the values of each forward. The model does not change.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> features = byname.analyse.FeatureStatistics()
        >>> with byname.observe(model, "*", features):
        ...     for _ in range(3):
        ...         _ = model(torch.ones(4, 2))
        >>> list(features.result())
        ['0', '1']

    The recomputation of a checkpoint is not observed.

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        analyser: gets the values, or their gradients. It may observe several places, also of several models.
        example: arguments to run the model with once; see `byname.points`.
        label: put before the paths in the results, to tell two models apart: ``"teacher"`` gives ``teacher.fc1``.
            Without one, a path that another model has, too, which the analyser observes, gives ``model2.fc1``.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Returns:
        A handle, which lists the places and detaches the analyser.

    Raises:
        NoMatchError: if no place matches, or the path of the analyser's targets does not.
        BadArgumentError: if `analyser` is not an analyser, or observes one of the places already.
    """
    checked_analyser(analyser)
    root = unwrapped(model)
    where = with_paths(where, root)
    observation = Observation(root, analyser, label, resolve_where(where, root, reads=True)[0].spots)
    handle = attach(
        root,
        where,
        observation,
        example=example,
        attention=attention,
        begun=observation.begun,
        reads=True,
        enabled=False,
    )
    observation.handle = handle
    handle.requested.seen = observation.why_nothing
    handle.requested.if_never_run = True
    try:
        observation.refuse_twice()
        observation.targets_are(analyser.targets)
    except BynameError:  # also if the path of the targets is none of this model's
        handle.remove()
        raise
    handle.add(observation)
    analyser.observed(observation)
    return handle.switched(analyser.enabled)


class Observation:
    """An analyser at places of one model; for its attributes see `Switched`."""

    handle: Handle

    def __init__(self, model: nn.Module, analyser: Analyser, label: str, spots: Sequence[Spot]) -> None:
        self._model = model
        self._analyser = analyser
        self._gradients = [(spot.kind, spot.path) for spot in spots if spot.gradient]
        self.asked = frozenset(spot.full for spot in spots)
        self._modules: dict[str, nn.Module] = {}
        self._kinds: dict[str, tuple[nn.Module, PlaceKind]] = {}
        self.label = f"{label}." if label else ""
        self.number = next(_numbers)
        self.places: dict[str, str] = {}
        self._wanted = False
        self._targets: Tensor | None = None
        self._targets_handle: Handle | None = None
        self._lasting = LeafHooks()
        self._awaited: set[str] = set()
        self._given: set[str] = set()
        self._waited: set[str] = set()
        self._noted: set[str] = set()

    def refuse_twice(self) -> None:
        """Raise an error if the analyser observes a place already: it would count each value twice."""
        same = [one for one in self._analyser.observations if one.model is self._model and one.label == self.label]
        twice = [path for path in self.handle.paths if any(path in one.handle.paths for one in same)]
        if twice:
            raise BadArgumentError(
                f"this {type(self._analyser).__name__} observes `{printable(twice[0])}` already, and would count each "
                "value twice: remove the handle of the other observation before, or give another analyser"
            )

    def why_nothing(self, entry: Entry) -> str:
        """Return why the analyser got nothing of the values that passed; empty if it got something."""
        passed = [one for one in self.places if any(one == path or one.startswith(f"{path}[") for path in entry.paths)]
        if any(self.places[one] in self._given for one in passed):
            return ""
        if not passed:
            return "no tensors passed there"
        if any(self.places[one] in self._waited for one in passed):
            return "its gradients are observed, but no backward reached it"
        return "its gradients are observed, but no gradient flows there"

    def silence(self) -> list[str]:
        """Return sentences about the places that gave the analyser nothing so far."""
        return self.handle.requested.sentences()

    @property
    def model(self) -> nn.Module | None:
        """The model, until the observation is removed."""
        return None if self.handle.removed else self._model

    def install(self) -> None:
        self._wanted = True
        self._analyser.started(self.number)
        if self._targets_handle is not None:
            self._targets_handle.enabled = True

    def remove(self) -> None:
        """Stop, also for graphs that were made before."""
        self._wanted = False
        if self._targets_handle is not None:
            self._targets_handle.enabled = False
        self._lasting.remove()
        self._targets = None
        self._analyser.ended(self.number)

    def targets_are(self, targets: Tensor | str | None) -> None:
        """Follow the targets that were set for the analyser from now on, if they are a path."""
        before, followed = self._targets_handle, None
        if isinstance(targets, str) and not self.handle.removed:
            followed = attach(self._model, targets, self._keep_targets, reads=True, enabled=self._wanted)
            followed.requested.says = False  # the observation does
        self._targets_handle = followed
        if before is not None:
            before.remove()

    def begun(self, iteration: int) -> None:
        self._targets = None
        self._awaited.clear()
        with defer_signals(), self._analyser.lock:
            self._analyser.begun(self.number, iteration)

    def __call__(self, event: Event) -> None:
        kind = self._kind_of(event.path, event.module)
        listens = self._analyser.listens
        for segments, tensor in tensors_in(event.value):
            path = self._place(event.path + "".join(map(str, segments)))
            if "value" in listens and (kind.gradient or not event.recomputed):
                self._put(self._sample(path, event, kind), tensor, gradient=False)
            if "gradient" in listens and not kind.gradient:
                self._await_gradient(path, event, kind, tensor)

    def _place(self, path: str) -> str:
        place = self.places.get(path)
        if place is None:
            place = self.places[path] = self.label + path if self.label else self._analyser.name_of(self, path)
        return place

    def _put(self, sample: Callable[..., Sample], value: Tensor, *, gradient: bool) -> None:
        # What is kept is made outside of inference mode, and in full precision. An analyser's computations are no part
        # of the program, and no tracker records them.
        cast = torch.is_autocast_enabled(value.device.type)
        precise = torch.autocast(value.device.type, enabled=False) if cast else nullcontext()
        with defer_signals(), self._analyser.lock, DisableTorchFunction(), computing(), precise:
            given = sample(value=value.detach(), gradient=gradient)
            self._analyser.put(given)
            if gradient or not self._analyser.of_gradients or given.path.endswith(".grad"):
                self._given.add(given.path)
            if given.path not in self._noted:
                self._noted.add(given.path)
                for note in self._analyser.notes_of(given.path):
                    self.handle.note(note)

    def _sample(self, path: str, event: Event, kind: PlaceKind) -> Callable[..., Sample]:
        """Return a sample without its value, which must not live until a later backward."""
        targets = self._targets if isinstance(self._analyser.targets, str) else self._analyser.targets
        return partial(
            Sample,
            path,
            event.module,
            parameter=kind.parameter,
            targets=None if kind.parameter else targets,  # whose hook would keep them
            observation=self.number,
            iteration=event.iteration,
            output=kind.output,
            around=kind.around,
        )

    def _await_gradient(self, path: str, event: Event, kind: PlaceKind, tensor: Tensor) -> None:
        if not tensor.requires_grad or not (torch.is_grad_enabled() or tensor.is_leaf):
            if torch.is_grad_enabled():
                self.handle.note(PlaceNote(path, NO_GRADIENT))
            return
        if event.recomputed and path in self._awaited:  # a reentrant checkpoint runs without gradients at first
            return
        if not event.recomputed:
            self._awaited.add(path)
        self._waited.add(path)
        sample = self._sample(path, event, kind)

        def receive(gradient: Tensor) -> None:
            if not self._wanted or is_muted(self):
                return
            try:
                self._put(sample, gradient, gradient=True)
            except Exception as error:  # whatever an analyser raises goes on, with the place added
                note_on(error, f"byname: at the gradient of `{path}` in a backward")
                raise

        missed = partial(self.handle.note, PlaceNote(path, MISSED))
        on_gradient(tensor, receive, missed, partial(self._lasting.keep, path))

    def _keep_targets(self, event: Event) -> None:
        if isinstance(event.value, Tensor):
            with DisableTorchFunction():
                self._targets = event.value.detach()

    def _kind_of(self, path: str, module: nn.Module) -> PlaceKind:
        known, kind = self._kinds.get(path, (None, None))
        if kind is not None and known is module:
            return kind
        if kind is not None or not self._modules:  # another module stands there by now
            self._modules = modules_by_path(self._model)
        gradient = path.endswith(".grad") and any(
            what == "operation" or path.startswith(start) for what, start in self._gradients
        )  # a variable may be called so, too
        plain = path.removesuffix(".grad") if gradient else path
        owner, _, name = plain.rpartition(".")
        output = self._modules.get(_without_items(plain)) is module
        parameter = self._modules.get(owner) is module and name in module.__dict__.get("_parameters", ())
        kind = PlaceKind(output, parameter, gradient, FeatureContext(self._modules, plain, module, output))
        self._kinds[path] = module, kind
        return kind


class PlaceKind(NamedTuple):
    """Whether a place is the output of a module, a parameter, a gradient that the path asks for; and what is around."""

    output: bool
    parameter: bool
    gradient: bool
    around: FeatureContext


def _without_items(path: str) -> str:
    """Return the path of the module whose output, or an item of it, is at a path; empty for the model itself."""
    path = path.partition("[")[0]
    return "" if path == "forward" else path.removesuffix(".forward")
