"""Record: all that can be refused is, then listeners are put in place and a store is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.model.where import unwrapped
from byname.place import Place, parse
from byname.recording.analyser_listener import apart, reports_of
from byname.recording.callbacks import Callbacks, callables
from byname.recording.clock import Clock
from byname.recording.distributed.gather import Gatherer
from byname.recording.distributed.ranks import rank, rank_file, world
from byname.recording.facts import facts_of_run
from byname.recording.flush import Windows
from byname.recording.listener import Listener
from byname.recording.options import Reduce, named, options_of, placed
from byname.recording.recorder import Recorder
from byname.recording.stores.memory import MemoryStore, Store


def record(
    model: nn.Module,
    where: Any,
    *,
    to: str | os.PathLike[str] | None = None,
    every: int = 1,
    start: int = 0,
    stop: int | None = None,
    mode: str = "both",
    on_change: bool = True,
    reduce: Reduce = None,
    dtype: Any = None,
    count: Any = "forward",
    on_value: Callbacks = (),
    gather_every: int | None = None,
    before_gather: Callbacks = (),
    after_gather: Callbacks = (),
    at_end: Callbacks = (),
    compression: Any = None,
    overwrite: bool = False,
    attention: str | None = None,
) -> Recorder:
    """Records the values of places of a model over a run, in memory or to an HDF5 file.

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with record(model, ["1", "0.weight.grad"]) as recorder:
        ...     for _ in range(4):
        ...         model(torch.ones(5, 2)).sum().backward()
        >>> series = recorder.results["1"]
        >>> series.iterations, series.values[0].shape
        ([0, 1, 2, 3], torch.Size([5, 3]))

    A value is stored when it has changed since it was last stored. Nothing of the training changes, and nothing waits:
    under `torch.distributed` each process writes a file of its own, unless `gather_every` asks for one of all.

    Args:
        model: any module; wrappers such as ``DistributedDataParallel`` are seen through.
        where: paths, selectors, modules or classes of modules, as in `interject`; or a mapping from these to options
            of their own, ``{"fc1": {"every": 10}, "forward.x": {"mode": "eval"}}``: every, start, stop, mode,
            on_change, reduce, dtype, on_value. An analyser that `observe` has put at places stands among the places;
            its figures are recorded at the end of each forward, as ``fc1.DeadUnits.dead``.
        to: the file; None keeps everything in memory.
        every: one iteration of so many is recorded, counted from `start`.
        start: the first iteration.
        stop: the first that is not recorded any more.
        mode: ``"both"``, or only ``"train"`` or ``"eval"``: forwards with ``model.training`` or without it. Their
            iterations are counted apart.
        on_change: False stores each value, changed or not.
        reduce: ``"mean"``, ``"std"``, ``"norm"``, ``"min"``, ``"max"``, ``"histogram"``, several of them, or a
            function: what is stored in the place of a tensor, computed where the tensor is.
        dtype: what tensors are converted to; None keeps them exactly.
        count: what an iteration is: ``"forward"`` of the whole model, ``"step"`` (each call of `Recorder.step`), or an
            optimizer, whose steps count.
        on_value: ``on_value(path, value, iteration)`` returns what is recorded in the value's place.
        gather_every: the values of all processes come to rank 0 every so many iterations.
        before_gather: ``before_gather(path, series)`` returns what is gathered in the place of a window of so many
            iterations.
        after_gather: the same for the window of all processes, in rank 0.
        at_end: the same for all windows, when the recorder is closed; it changes the results, not the file.
        compression: of the file: ``"gzip"``, ``"lzf"`` or ``("gzip", level)``.
        overwrite: whether a file that there is may be replaced.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Returns:
        The recorder, which records from now on; a context manager that closes it.

    Raises:
        NoMatchError: if nothing matches a place; for operations at the end of the first forward.
        BadArgumentError, BadPathError, NotAModuleError: if an argument is none.
        RecordingError: if the file cannot be made.
        NotStorableError: in the first forward, for a place that holds what no recording can.
    """
    defaults = options_of(
        every=every, start=start, stop=stop, mode=mode, on_change=on_change, reduce=reduce, dtype=dtype,
        on_value=on_value,
    )  # fmt: skip
    _check(to, gather_every, before_gather=before_gather, after_gather=after_gather, at_end=at_end)
    root = unwrapped(model)
    asked, analysers = apart(placed(where, defaults))
    exact = frozenset(place for _, places in asked for place in _paths(places))
    windows = Windows(rank(), gather_every, before_gather, after_gather)
    clock = Clock(root, count)
    listeners = [
        Listener(root, places, options, clock, windows, exact, attention=attention) for options, places in asked
    ]
    _refuse_twice(listeners)
    reports = reports_of(root, analysers, clock, windows)
    recorder = Recorder(clock, windows, [*listeners, *reports], at_end)
    if to is not None and gather_every is None and (before_gather or after_gather):
        recorder.warn(_ONE_WINDOW)
    facts = {"model": type(root).__qualname__, **facts_of_run(named(where), to)}
    make = _maker_of_stores(to, facts, compression, overwrite)
    together = gather_every is not None and world() > 1
    return recorder.begin(lambda: _gathering(windows, make) if together else make(world() > 1))


_ONE_WINDOW = (
    "before_gather and after_gather are called with windows, and without gather_every= the whole run is one: it is in "
    "memory, and nothing of it in the file, until the recorder is closed. gather_every=100 has a window written every "
    "100 iterations; at_end= is for what is made of the whole run"
)


def _check(to: Any, gather_every: Any, **callbacks: Callbacks) -> None:
    """Refuses what has no meaning before anything is installed or written."""
    if gather_every is not None and (type(gather_every) is not int or gather_every < 1):
        raise BadArgumentError(f"gather_every is a whole number of iterations from 1 on, not {gather_every!r}")
    for moment, given in callbacks.items():
        callables(given, moment)
    if not (to is None or isinstance(to, str | os.PathLike)) or (isinstance(to, str) and not to):
        raise BadArgumentError(f"to is the path of a file such as 'run.h5', not {to!r:.60}")


def _gathering(windows: Windows, make: Callable[[bool], Store]) -> Store:
    """Has windows come to rank 0; the store there, and elsewhere one that takes nothing."""
    windows.gatherer = Gatherer()
    windows.own = lambda: make(True)
    with ExitStack() as undone:
        undone.callback(windows.gatherer.close)
        store = MemoryStore() if rank() else make(False)
        undone.pop_all()
    return store


def _paths(places: Any) -> Iterator[str]:
    """The places that are asked for by a path without wildcards."""
    for place in (places,) if isinstance(places, str | Place) else places if isinstance(places, Iterable) else ():
        if isinstance(place, str | Place):
            yield str(parse(place) if isinstance(place, str) else place)


def _refuse_twice(listeners: Sequence[Listener]) -> None:
    """Each place has one schedule."""
    seen: dict[str, Listener] = {}
    for listener in listeners:
        for path in listener.paths:
            if path in seen:
                raise BadArgumentError(
                    f"`{path}` is matched by {seen[path].asked} and by {listener.asked}, which ask for different "
                    "things; leave it out of one of them"
                )
            seen[path] = listener


def _maker_of_stores(to: Any, facts: Mapping[str, Any], compression: Any, overwrite: bool) -> Callable[[bool], Store]:
    """What makes the store, for all processes or, if told so, for this one alone."""

    def make(alone: bool) -> Store:
        if to is None:
            return MemoryStore()
        from byname.recording.stores.writer import Hdf5Store

        path = rank_file(to, rank()) if alone else Path(to)
        return Hdf5Store(path, run=facts, compression=compression, overwrite=overwrite)

    return make
