"""Record: checks the arguments, attaches the listeners, and opens the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.methods import Namespace
from byname.model.states import with_paths
from byname.model.where import unwrapped
from byname.place import Place, as_place
from byname.recording.callbacks import Callbacks, callables
from byname.recording.chosen import ByValues, IterationFilter
from byname.recording.clock import Clock
from byname.recording.distributed.gather import gatherer
from byname.recording.distributed.ranks import rank, rank_file, world
from byname.recording.facts import facts_of_run
from byname.recording.flush import Windows
from byname.recording.listener import Asked, Listener, analyser_listeners, without_analysers
from byname.recording.memory import MemoryStore, Store
from byname.recording.options import Options, Reduce, named_analysers, placed, several
from byname.recording.program_functions import ProgramFunctions
from byname.recording.recorder import Recorder


def record(
    model: nn.Module | str | Place | Sequence[str | Place] | None,
    where: Any = None,
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
    finish: bool = True,
    keep: int | None = None,
    by: str | Place | ByValues | None = None,
    stop_when: ByValues | None = None,
) -> Recorder:
    """Record the values at places of a model, or of variables of functions, over a run, in memory or in an HDF5 file.

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with record(model, ["1", "0.weight.grad"]) as recorder:
        ...     for _ in range(4):
        ...         model(torch.ones(5, 2)).sum().backward()
        >>> series = recorder.results["1"]
        >>> series.iterations, series.values[0].shape
        ([0, 1, 2, 3], torch.Size([5, 3]))

    Without a model, it records variables of plain functions of the program:

        >>> def halved(x):
        ...     y = x / 2
        ...     return y
        >>> with record("halved.y") as recorder:
        ...     halved(8) + halved(6)
        7.0
        >>> list(recorder.results["halved.y"].values)
        [4.0, 3.0]

    A value is stored when it has changed since it was last stored. Nothing of the training changes, and nothing waits:
    under `torch.distributed` each process writes a file of its own, unless `gather_every` asks for one of all.

    Args:
        model: any module; wrappers such as ``DistributedDataParallel`` are seen through. None, or a path or a list
            of paths, for variables of plain functions.
        where: paths, selectors, parameters, modules or classes of modules, as in `interject`; analysers that `observe`
            has put at places, whose figures are recorded at the end of each forward, as ``fc1.DeadUnits.dead``. Without
            a model, paths ``module.function.variable``, as much of it as is unambiguous; a function alone
            is what it returns. Or a mapping from these to options of their own, ``{"fc1": {"every": 10}}``: every,
            start, stop, mode, on_change, reduce, dtype, on_value.
        to: the HDF5 file; None keeps everything in memory. While the recording runs, a log is beside it
            (``run.h5.log``), which becomes the file when the recorder is closed.
        every: record every n-th iteration, counted from `start`.
        start: the first iteration.
        stop: the first iteration that is no longer recorded.
        mode: ``"both"``, or only ``"train"`` or ``"eval"``: forwards with ``model.training`` or without it. Their
            iterations are counted separately.
        on_change: False stores each value, changed or not.
        reduce: ``"mean"``, ``"std"``, ``"norm"``, ``"min"``, ``"max"``, ``"histogram"``, several of them, or a
            function. Its result replaces the tensor; it is computed on the device of the tensor.
        dtype: the dtype to convert tensors to; None keeps them exactly.
        count: the unit of an iteration: ``"forward"`` of the whole model (without a model, a call of the function
            named first), ``"step"`` (each call of `Recorder.step`), or an optimizer, whose steps count.
        on_value: ``on_value(path, value, iteration)``; its result is recorded instead of the value.
        gather_every: gather the values of all processes at rank 0 each time this many iterations are over.
        before_gather: ``before_gather(path, series)`` returns a series to gather instead of that window.
        after_gather: the same for the window of all processes, in rank 0.
        at_end: the same for all windows, when the recorder is closed; it changes the results, not the file.
        compression: of the file: ``"gzip"`` or ``("gzip", level)``.
        overwrite: whether an existing file may be replaced.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.
        finish: False leaves the log at the end: `byname.open` reads it, and `byname.finish` makes the file of it.
        keep: how many iterations stay, those for which `by` is largest, each with all values. NaN is largest, of equal
            iterations the first stays. They are in memory until `flush` or the end. Each process keeps its own.
        by: the path of a number that is recorded, or a function that returns a number for a dict from each recorded
            path to its (last) value in the iteration, as it is stored.
        stop_when: a function of such a dict, called when an iteration is over, in which a value that has not changed is
            the last one stored. If it returns True, nothing more is recorded, and ``recording.run["stopped"]`` and the
            notes say why. Each process ends on its own.

    Returns:
        The recorder, which records from now on; a context manager that closes it.

    Raises:
        NoMatchError: nothing matches a place; for operations, at the end of the first forward.
        BadArgumentError, BadPathError, NotAModuleError: an argument is invalid; or a function already runs, has no
            Python code, or is one of several with its name.
        RecordingError: the file cannot be made.
        NotStorableError: in the first forward, a place holds a value that no recording can store.
    """
    defaults = Options(
        every=every, start=start, stop=stop, mode=mode, on_change=on_change, reduce=reduce, dtype=dtype,
        on_value=on_value,
    )  # fmt: skip
    defaults.check("")
    _check(to, gather_every, keep, before_gather=before_gather, after_gather=after_gather, at_end=at_end)
    if isinstance(model, str | Place | list | tuple):
        where, model = _with_first(several(model), where), None
    elif model is not None:
        where = with_paths(where, unwrapped(model))
    whole = placed(where, defaults)
    if keep is not None:  # an iteration stays with all that it had, whatever came before
        whole = [(replace(options, on_change=False), places) for options, places in whole]
    asked, analysers = without_analysers(whole)
    program = _program(asked, model) if model is None or isinstance(model, Namespace) else None
    root = unwrapped(model) if program is None else program.root
    windows = Windows(rank(), gather_every, before_gather, after_gather)
    chosen = IterationFilter(windows, keep, by, stop_when)
    clock = Clock(root, count)
    listen = partial(Listener, clock=clock, windows=windows, attention=attention)
    listeners, program = _listeners(root, asked, listen, program)
    clock.calls = None if program is None else program.calls()
    _refuse_twice(listeners)
    reports = analyser_listeners(root, analysers, clock, windows)
    chosen.check(listeners, reports)
    recorder = Recorder(clock, windows, [*listeners, *reports], at_end, chosen)
    if to is not None and gather_every is None and (before_gather or after_gather):
        recorder.warn(_ONE_WINDOW)
    of_model = {} if isinstance(root, Namespace) else {"model": type(root).__qualname__}
    facts = {**of_model, **facts_of_run(named_analysers(where), to), **chosen.facts()}
    make = _maker_of_stores(to, facts, compression, overwrite, finish)
    together = gather_every is not None and world() > 1
    return recorder.begin(lambda: _gathering(windows, make) if together else make(world() > 1))


_ONE_WINDOW = (
    "before_gather and after_gather are called with windows, and without gather_every= the whole run is one window: it "
    "stays in memory, and nothing is in the file, until the recorder is closed. gather_every=100 writes a window every "
    "100 iterations; at_end= is called with the whole run"
)


def _check(to: Any, gather_every: Any, keep: Any, **callbacks: Callbacks) -> None:
    if gather_every is not None and (type(gather_every) is not int or gather_every < 1):
        raise BadArgumentError(f"gather_every= takes an integer of at least 1, not {gather_every!r}")
    if gather_every is not None and keep is not None:
        raise BadArgumentError("keep= chooses iterations in each process alone: leave out gather_every=")
    for moment, given in callbacks.items():
        callables(given, moment)
    if not (to is None or isinstance(to, str | os.PathLike)) or (isinstance(to, str) and not to):
        raise BadArgumentError(f"to= takes the path of a file such as 'run.h5', not {to!r:.60}")


def _with_first(first: Collection[Any], where: Any) -> Any:
    if isinstance(where, Mapping):
        return {**{one: {} for one in first}, **where}
    return [*first, *(() if where is None else several(where))]


def _program(asked: Asked, root: Namespace | None) -> ProgramFunctions:
    program = ProgramFunctions(root)
    for options, places in asked:
        if options.mode == "eval":
            raise BadArgumentError("mode='eval' needs a model: without one, every iteration has mode 'train'")
        for one in several(places):
            if not isinstance(one, str | Place):
                raise BadArgumentError(f"without a model a place is a path such as 'train.step.loss', not {one!r:.80}")
            program.find(as_place(one))
    if not program.spots:
        raise BadArgumentError("without a model, record needs a path such as 'train.step.loss'; none was given")
    return program


def _listeners(
    root: nn.Module, asked: Asked, listen: Callable[..., Listener], program: ProgramFunctions | None
) -> tuple[list[Listener], ProgramFunctions | None]:
    """Return the listeners, and the program: what a model has not may be a variable of a function."""
    try:
        return [listen(root, places, options) for options, places in asked], program
    except NoMatchError as error:
        program = ProgramFunctions()
        rooted: list[tuple[nn.Module, list[Any], Options]] = []
        for options, places in asked:
            paths = [one for one in several(places) if isinstance(one, str | Place)]
            of_functions = [one for one in paths if program.find_unless_in(root, as_place(one))]
            own = [one for one in several(places) if one not in of_functions]
            rooted += [(root, own, options), (program.root, of_functions, options)]
        try:
            if not program.spots:
                raise error
            return [listen(*one) for one in rooted if one[1]], program
        except NoMatchError as lacking:
            near = f". Close variables of functions: {program.near}" if program.near else ""
            raise NoMatchError(f"{lacking}{near}") from None


def _gathering(windows: Windows, make: Callable[[bool], Store]) -> Store:
    """Have windows gathered at rank 0; return the store there, and elsewhere one that takes nothing."""
    windows.gatherer = gatherer()
    windows.own = lambda: make(True)
    with ExitStack() as undone:
        undone.callback(windows.gatherer.close)
        store = MemoryStore() if rank() else make(False)
        undone.pop_all()
    return store


def _refuse_twice(listeners: Sequence[Listener]) -> None:
    seen: dict[str, Listener] = {}
    for listener in listeners:
        for path in listener.paths:
            if path in seen:
                raise BadArgumentError(
                    f"{seen[path].asked} and {listener.asked} match `{path}` and ask for different things; leave it "
                    "out of one"
                )
            seen[path] = listener


def _maker_of_stores(
    to: Any, facts: Mapping[str, Any], compression: Any, overwrite: bool, finish: bool
) -> Callable[[bool], Store]:
    """Return a function that makes the store, for all processes or, if its argument is true, for this one alone."""

    def make(alone: bool) -> Store:
        if to is None:
            return MemoryStore()
        from byname.recording.log_file import LogStore

        path = rank_file(to, rank()) if alone else Path(to)
        return LogStore(path, run=facts, compression=compression, overwrite=overwrite, finish=finish)

    return make
