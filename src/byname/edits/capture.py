"""Capture: the values at places of a model in one run of it."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as of_calls

from byname.errors import BadArgumentError, ChangedInPlaceWarning, NotCapturedError
from byname.model.items import tensors_in
from byname.model.where import parts_of, resolve_where, unwrapped
from byname.reading.frames import MODULE_CALL_CODE
from byname.reading.interrupts import defer_signals, raise_first
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.tracebacks import warn
from byname.table import Row, Rows, closest, counted, plain_value
from byname.undo import weak_callback
from byname.watch.attach import attach
from byname.watch.attachment import Event

if TYPE_CHECKING:
    import pandas


def capture(
    model: nn.Module,
    where: Any,
    *,
    grad: bool = False,
    stop: bool = False,
    example: Any = None,
    attention: str | None = None,
) -> Capture:
    """Return the values that pass places of a model when it runs once.

    Called with inputs of the model it runs it:

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> cap = byname.capture(model, "*")(torch.ones(4, 2))
        >>> list(cap), cap["1"].shape, torch.equal(cap["1"], cap.output)
        (['0', '1'], torch.Size([4, 3]), True)

        Around calls of your own:

        >>> with byname.capture(model, "0") as cap:
        ...     _ = model(torch.ones(4, 2)), model(torch.ones(5, 2))
        >>> [value.shape[0] for value in cap.calls("0")]
        [4, 5]

        A gradient is there once a backward has reached it:

        >>> cap = byname.capture(model, ["0", "0.grad"])(torch.ones(1, 2))
        >>> cap.output.sum().backward()
        >>> list(cap)
        ['0', '0.grad']

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        grad: whether to keep the tensors of the graph themselves; by default they are detached copies. To read one
            that was changed in place since is warned of (`ChangedInPlaceWarning`).
        stop: whether to end the forward as soon as each wanted place was passed, and the module around it has returned;
            a place that runs again later is then held as often as it had run. Selectors, parameters and buffers may be
            passed until the end, and so the forward is not ended.
        example: arguments to run the model with first, where a selector needs to know the flow of data.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Returns:
        A mapping from paths to values, in the order in which they were passed. It runs nothing until it is called or
        entered; each call or block begins anew.

    Raises:
        NoMatchError: nothing matches; for operations at the end of the run.
        NotCapturedError: a place is asked for that was not passed.
    """
    return Capture(model, where, grad=grad, stop=stop, example=example, attention=attention)


class Capture(Mapping[str, Any]):
    """The values at places of a model, by path, in the order in which they were passed; see `capture`.

    Attributes:
        reader: the callback that gets the values; a rehearsal knows the capture by it.
    """

    def __init__(
        self, model: nn.Module, where: Any, *, grad: bool, stop: bool, example: Any, attention: str | None = None
    ) -> None:
        self._model = model
        self._values, self._gradients, self._owners = _sorted(model, where)
        self._stop = stop
        self._example = example
        self._attention = attention
        self._held = _Values(grad=grad)
        self.reader = weak_callback(self._held.value)
        self._output: Any = _NOTHING
        self._why_no_output = _NOT_RUN
        self._running: ExitStack | None = None
        self._stopper: Stopper | None = None
        self._stop_gradients: weakref.finalize[Any, Capture] | None = None

    def __call__(self, *inputs: Any, **kwargs: Any) -> Capture:
        """Run the model once on these inputs, and return this capture."""
        with self:
            self._output = self._model(*inputs, **kwargs)
        return self

    def __enter__(self) -> Capture:
        if self._running is not None:
            raise BadArgumentError("this capture is already running; make another one for the inner run")
        self.forget()
        self._why_no_output = "in a with block the program calls the model, and has its outputs"
        self._running = stack = ExitStack()
        try:
            with defer_signals():
                self._attach(stack)
            return self
        except BaseException:
            self._leave(*sys.exc_info())
            self.forget()
            raise

    def _attach(self, stack: ExitStack) -> None:
        """Attach to the places; leaving the stack removes the hooks, but not those that wait for gradients."""
        if self._gradients:
            callback = weak_callback(self._held.gradient)
            handle = attach(self._model, self._gradients, callback, reads=True, attention=self._attention)
            self._stop_gradients = weakref.finalize(self, handle.remove_silently)
            self._stop_gradients.atexit = False
            stack.callback(setattr, handle, "paused", True)  # it waits for gradients of what it has seen
        if self._values:
            handle = attach(
                self._model, self._values, self.reader, reads=True, example=self._example, attention=self._attention
            )
            stack.push(handle.__exit__)
        if self._stop and self._owners:
            self._stopper = Stopper(self._owners)
            stack.push(attach(self._model, self._stopper.modules, self._stopper, reads=True).__exit__)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        try:
            return self._leave(kind, error, at)
        except BaseException:
            self._leave(kind, error, at)  # an interrupt may have come before the signals waited
            raise

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        mine = isinstance(error, Stopped) and error.by is self._stopper
        with defer_signals():
            stack, self._running = self._running, None
            if stack is None:  # left before
                return mine
            with stack:
                if isinstance(error, Stopped) and mine:
                    self._why_no_output = "stop=True ended the forward early"
                    _run_always_called_hooks(error)
                elif error is not None:
                    stack.__exit__(kind, error, at)  # which has the attachments say nothing of what the error kept away
        return mine

    def forget(self) -> None:
        """Let go of all values, and wait for no more gradients."""
        self._held.clear()
        self._output = _NOTHING
        if self._stop_gradients is not None:
            self._stop_gradients()

    @property
    def output(self) -> Any:
        """The output of the model, as the model has returned it.

        Raises:
            NotCapturedError: there is none: the model has not run, was stopped early, or ran in a ``with`` block.
        """
        if self._output is _NOTHING:
            raise NotCapturedError(f"there is no output: {self._why_no_output}")
        return self._output

    def calls(self, path: str) -> tuple[Any, ...]:
        """Return the values at a place, one for each time that it was passed, in the order of the forwards.

        The gradients at ``path.grad`` have the order of the values at ``path``, with None for a value whose gradient
        has not come; those of a further backward to the same values follow, in the same order. How many values there
        were is known where the capture has ``path`` as well.

        Raises:
            NotCapturedError: it was not passed.
        """
        if path not in self._held.calls:
            raise NotCapturedError(self._missing(path))
        values = self._held.of(path)
        if path in self._held.versions and [*map(_versions, values)] != self._held.versions[path]:
            del self._held.versions[path]
            warn(_CHANGED.format(path), ChangedInPlaceWarning)
        return values

    def __getitem__(self, path: str) -> Any:
        values = self.calls(path)
        return values[0] if len(values) == 1 else values

    def __iter__(self) -> Iterator[str]:
        return iter([*self._held.calls])

    def __len__(self) -> int:
        return len(self._held.calls)

    def __contains__(self, path: object) -> bool:
        return path in self._held.calls

    def _missing(self, path: str) -> str:
        if not self._held.calls and self._why_no_output is _NOT_RUN:
            return f"nothing was captured yet at `{path}`: call the capture with the model's inputs"
        waited = self._gradients and str(path).endswith(".grad")
        hint = "; a gradient is there once a backward has reached it" if waited else ""
        return f"nothing was captured at `{path}`; there are {closest(str(path), self) or 'none'}{hint}"

    def rows(self) -> list[Row]:
        """Return one dict per place: ``path, type, shape, dtype, device, bytes, calls``."""
        return self._table().rows()

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame."""
        return self._table().to_pandas()

    def _table(self) -> _CaptureTable:
        items = [_row(path, self._held.of(path)) for path in self._held.calls]
        found = _NOT_RUN if self._why_no_output == _NOT_RUN else f"{counted(len(items), 'place')} captured"
        return _CaptureTable(items, f"{type(unwrapped(self._model)).__name__}: {found}")

    def __repr__(self) -> str:
        return repr(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()


class _Values:
    """The values of one run, by path. Hooks know it weakly, for a graph may live longer than the capture.

    Args:
        grad: whether to keep the tensors of the graph themselves.

    Attributes:
        calls: the values, one for each call, in the order of the calls.
        numbers: the number of the forward and that of the call, for each value.
        gradients: the gradients of values by these numbers, in a round for each backward that reached the same value.
        versions: the versions of the tensors in each value, if these are the tensors of the graph.
    """

    def __init__(self, *, grad: bool) -> None:
        self._grad = grad
        self.clear()

    def clear(self) -> None:
        self.calls: dict[str, list[Any]] = {}
        self.numbers: dict[str, list[tuple[int, int]]] = {}
        self.gradients: dict[str, list[dict[tuple[int, int], Any]]] = {}
        self.versions: dict[str, list[list[int]]] = {}

    def of(self, path: str) -> tuple[Any, ...]:
        """Return the values at a place; gradients in the order of their values."""
        rounds = self.gradients.get(path)
        if rounds is None:
            return tuple(self.calls[path])
        order = sorted({*self.numbers.get(path.removesuffix(".grad"), ()), *(one for some in rounds for one in some)})
        return tuple(some.get(number) for some in rounds for number in order)

    def value(self, event: Event) -> None:
        if not event.recomputed:
            self._keep(event, event.value if self._grad else detached(event.value))
            if self._grad:
                self.versions.setdefault(event.path, []).append(_versions(event.value))

    def gradient(self, event: Event) -> None:
        """Keep a copy of a gradient, to which autograd may add later; a further backward begins a round of its own."""
        gradient = event.value.clone() if self._grad else detached(event.value)
        self._keep(event, gradient)
        if event.kind == "parameter":
            return
        path, base = event.path, event.path.removesuffix(".grad")
        rounds = self.gradients.setdefault(path, [{}])
        number = event.iteration, event.call
        if event.recomputed:  # by a checkpoint, which has the last call first, and does not know its number
            free = (one for one in reversed(self.numbers.get(base, [])) if one not in rounds[-1])
            number = next(free, (sys.maxsize, -len(self.calls[path])))
        if number in rounds[-1]:
            rounds.append({})
        rounds[-1][number] = gradient

    def _keep(self, event: Event, value: Any) -> None:
        self.calls.setdefault(event.path, []).append(value)
        self.numbers.setdefault(event.path, []).append((event.iteration, event.call))


def _versions(value: Any) -> list[int]:
    with DisableTorchFunction():
        return [fact(tensor, "_version") for _, tensor in tensors_in(value) if not tensor.is_inference()]


_CHANGED = (
    "`{}` was changed in place after it was captured, and the tensor in the graph now has the new values; "
    "grad=False captures a copy, and the path with .grad at its end captures the gradient"
)


_NOTHING = object()
_NOT_RUN = "the model has not run yet: call the capture with the model's inputs"


def _sorted(model: nn.Module, where: Any) -> tuple[list[Any], list[Any], list[nn.Module]]:
    """Return the parts of `where` that are values, those that are gradients, and the modules that end with all of them.

    There are no such modules if a place may be passed until the end of the forward.
    """
    root = unwrapped(model)
    values: list[Any] = []
    gradients: list[Any] = []
    owners: list[nn.Module] = []
    to_the_end = False
    for part in parts_of(where, root):
        resolution, selectors = resolve_where(part, root, reads=True)
        waits = bool(resolution.spots) and all(spot.gradient for spot in resolution.spots)
        (gradients if waits else values).append(part)
        owners += [spot.module for spot in resolution.spots]
        state = any(spot.kind in ("parameter", "buffer") and not spot.gradient for spot in resolution.spots)
        to_the_end = to_the_end or state or bool(selectors)
    return values, gradients, [] if to_the_end or any(one is root for one in owners) else owners


def detached(value: Any) -> Any:
    """Return a copy of a value without its graph: of a tensor, and of those in tuples, lists, dicts and dataclasses.

    An object of another class is returned as it is.
    """
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, tuple):
        parts = [detached(one) for one in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, list):
        return [detached(one) for one in value]
    if isinstance(value, dict):
        made = copy.copy(value)  # an output of transformers is a dict of a class of its own
        for key, one in value.items():
            made[key] = detached(one)
        return made
    if is_dataclass(type(value)):
        made = copy.copy(value)
        for name in (one.name for one in fields(type(value)) if hasattr(value, one.name)):
            object.__setattr__(made, name, detached(getattr(value, name)))  # it may be frozen
        return made
    return value


def _row(path: str, values: tuple[Any, ...]) -> Row:
    """Return what was captured at one place; of several calls the facts of the first."""
    first: Any = next((one for one in values if one is not None), None)
    many = f" of {len(first)}" if isinstance(first, tuple | list | dict) else ""
    facts: Row = dict.fromkeys(("shape", "dtype", "device", "bytes"))
    if is_tensor(first):
        with DisableTorchFunction():
            facts["shape"] = None if first.is_nested else tuple(fact(first, "shape"))
            facts |= {name: plain_value(fact(first, name)) for name in ("dtype", "device")}
            facts["bytes"] = sum(
                fact(one, "nbytes") for one in values if is_tensor(one) and one.layout is torch.strided
            )
    return {"path": path, "type": type(first).__name__ + many, **facts, "calls": len(values)}


@dataclass(frozen=True, slots=True, repr=False)
class _CaptureTable(Rows[Row]):
    items: list[Row]
    title: str

    def rows(self) -> list[Row]:
        return self.items

    def _title(self) -> str:
        return self.title

    def _drop_order(self) -> tuple[str, ...]:
        return "device", "type", "calls", "bytes"


class Stopped(BaseException):
    """Ends a forward. No error: a program that handles its own errors (``except Exception``) does not catch it."""

    def __init__(self, by: Stopper) -> None:
        super().__init__("byname ended this forward early, since nothing after this point is needed")
        self.by = by


class Stopper:
    """A callback at modules, which ends the forward once each of them has returned."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.modules = list({id(one): one for one in modules}.values())
        self._left = {id(one) for one in self.modules}

    def __call__(self, event: Event) -> None:
        self._left.discard(id(event.module))
        if not self._left and not event.recomputed:
            raise Stopped(self)


def _run_always_called_hooks(stopped: Stopped) -> None:
    """Run the hooks that PyTorch runs after a forward that raised, which it does for errors alone (PyTorch 2.13)."""
    errors: list[BaseException] = []
    for frame, _ in reversed([*walk_tb(stopped.__traceback__)]):
        if frame.f_code is MODULE_CALL_CODE:
            for hook in _always_called(frame.f_locals):
                try:
                    hook()
                except Exception as error:  # noqa: BLE001 - a hook of anybody's; raised after the others have run
                    errors.append(error)
    stopped.__traceback__ = None  # its frames hold the values of the forward
    raise_first(errors)


def _always_called(call: dict[str, Any]) -> Iterator[Any]:
    """Yield the hooks of a module's call that are left to run, each as a function without arguments."""
    module, args, result = call["self"], call["args"], call.get("result")
    done = call.get("called_always_called_hooks", ())
    for hooks, always in (
        (of_calls._global_forward_hooks, of_calls._global_forward_hooks_always_called),
        (module._forward_hooks, module._forward_hooks_always_called),
    ):
        for key, hook in [*hooks.items()]:
            if key in always and key not in done:
                given = (call["kwargs"],) if key in module._forward_hooks_with_kwargs else ()
                yield lambda hook=hook, given=given: hook(module, args, *given, result)
