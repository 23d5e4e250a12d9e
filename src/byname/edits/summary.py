"""Summary: what each module of a model costs in one forward: parameters, operations, memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from byname.model.module_tree import is_called, is_script, modules_by_path
from byname.model.where import unwrapped
from byname.reading.modules import modules_in, own_parameters, parameters_in
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, memory_of
from byname.table import Column, Rows, Tabled, bytes_text, counted
from byname.tracing.muted import nothing_compiled
from byname.tracing.preserve import copied, tensors_in
from byname.tracing.rehearsal import rehearsal
from byname.tracing.tracer import refuse_unfinished
from byname.watch.attach import attach
from byname.watch.attachment import Event


def _figure(name: str, words: Callable[[Any], str], spare: int = 0) -> Column:
    """Return the column of a figure under its own name, as text."""
    return Column(name, spare, title=name, show=lambda one: words(getattr(one, name)))


@dataclass(frozen=True, slots=True)
class ModuleSummary(Tabled):
    """What one module costs, with all that is inside it.

    Attributes:
        path: the path of the module; empty for the model itself.
        module: the name of its class.
        calls: how often it was called.
        output: the shape of what the first call returned, or the shapes of all tensors in it; None if nothing was.
        output_bytes: the size of these tensors, of all calls.
        parameters: the number of parameters, each counted once.
        own_parameters: those of the module itself.
        flops: floating-point operations, as `torch.utils.flop_counter` counts them.
        own_flops: those of the module itself.
        saved_bytes: the size of what the forward has saved for backward: whole storages, each counted once, without
            those of parameters.
        seconds: the time that it took.
    """

    path: str
    module: str
    calls: int
    output: tuple[Any, ...] | None
    output_bytes: int
    parameters: int
    own_parameters: int
    flops: int
    own_flops: int
    saved_bytes: int
    seconds: float

    columns = (
        Column("path"),
        Column("module", spare=4),
        Column("calls", spare=3),
        Column("output", show=lambda one: _shapes(one.output)),
        _figure("output_bytes", bytes_text),
        _figure("parameters", "{:,}".format),
        _figure("own_parameters", "{:,}".format, spare=2),
        _figure("flops", "{:,}".format),
        _figure("own_flops", "{:,}".format, spare=1),
        _figure("saved_bytes", bytes_text),
        _figure("seconds", "{:.2g}".format, spare=5),
    )


def _shapes(output: tuple[Any, ...] | None) -> str:
    """Return the shape, or the shapes, of what a module returned, as they are printed."""
    shapes = () if output is None else output if output and type(output[0]) is tuple else (output,)
    return ", ".join("×".join(map(str, one)) or "scalar" for one in shapes)


_TOTALS = ("parameters", "flops", "output_bytes", "saved_bytes", "seconds")


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Rows[ModuleSummary]):
    """What the modules of a model cost in one forward, in the order of their registration.

    Attributes:
        items: the modules; the first is the model itself.
        model: the class name of the model.
        notes: what was different from an ordinary run.
    """

    items: tuple[ModuleSummary, ...]
    model: str
    notes: tuple[str, ...] = ()
    _row = ModuleSummary

    @property
    def totals(self) -> dict[str, Any]:
        """The figures of the whole model: parameters, flops, output_bytes, saved_bytes and seconds."""
        return {name: getattr(self.items[0], name) for name in _TOTALS}

    def _title(self) -> str:
        whole = self.items[0]
        figures = f"{whole.parameters:,} parameters, {whole.flops:,} FLOPs, {bytes_text(whole.saved_bytes)} saved"
        return f"{self.model}: {counted(len(self.items), 'module')}, {figures}"

    def _notes(self) -> tuple[str, ...]:
        return self.notes


def summary(model: nn.Module, *args: Any, **kwargs: Any) -> Summary:
    """Return what each module of a model costs in one forward with these arguments.

    The model runs twice, once for the figures and once for the time, in the mode that it is in and in the grad mode of
    the caller; without gradients nothing is saved. It is afterwards as before: buffers, gradients, random state.

    >>> import torch, byname
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> found = byname.summary(model, torch.ones(4, 2))
    >>> for row in found.rows():
    ...     print(row["path"] or "the model", row["output"], row["parameters"], row["flops"], row["saved_bytes"])
    the model (4, 3) 9 48 80
    0 (4, 3) 9 48 32
    1 (4, 3) 0 0 48
    >>> found.totals["flops"]
    48

    Args:
        model: any module.
        args: the positional arguments of the forward.
        kwargs: its keyword arguments.

    Raises:
        BadArgumentError: the model has a lazy module that has not run yet, or its forward changes a parameter in place.
    """
    root = unwrapped(model)
    refuse_unfinished(root)
    modules = modules_by_path(root)
    figures, clock = _Figures(root), _Clock(root)
    notes = _measured(model, root, figures, args, kwargs)
    _measured(model, root, clock, args, kwargs)
    costs = {id(module): figures.costs.get(id(module), _Cost()) for module in modules.values()}
    for module in reversed(modules.values()):
        costs[id(module)].seconds = clock.costs.get(id(module), _Cost()).seconds
        if not is_called(module):  # a list of modules costs what they cost
            for child in module._modules.values():
                costs[id(module)].add(costs.get(id(child), _Cost()))
    items = tuple(_row(path, module, costs[id(module)]) for path, module in modules.items())
    return Summary(items, type(root).__name__, notes)


def _row(path: str, module: nn.Module, cost: _Cost) -> ModuleSummary:
    saved = sum(size for _, size in cost.saved.values())
    inside = _parameters(module)
    direct = module.parameters(recurse=False) if is_script(module) else own_parameters(module)
    with DisableTorchFunction():
        parameters = sum(int(one.numel()) for one in inside)
        own = sum(int(one.numel()) for one in {id(one): one for one in direct}.values())
    return ModuleSummary(
        path=path,
        module=type(module).__name__,
        calls=cost.calls,
        output=cost.output,
        output_bytes=cost.output_bytes,
        parameters=parameters,
        own_parameters=own,
        flops=cost.flops,
        own_flops=cost.own_flops,
        saved_bytes=saved,
        seconds=cost.seconds,
    )


def _parameters(module: nn.Module) -> list[Tensor]:
    """Return the parameters of a module, each once, also those of scripted modules, which are kept elsewhere."""
    scripts = [one for one in modules_in(module) if is_script(one)]
    found = [*parameters_in(module), *(parameter for one in scripts for parameter in one.parameters())]
    return list({_address(one): one for one in found}.values()) if scripts else found


@dataclass(slots=True)
class _Cost:
    """What one module has cost so far; `saved` holds the storages by address, so that no other one gets it."""

    calls: int = 0
    output: tuple[Any, ...] | None = None
    output_bytes: int = 0
    flops: int = 0
    own_flops: int = 0
    seconds: float = 0.0
    saved: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def add(self, other: _Cost) -> None:
        """Add what a module inside it has cost."""
        self.flops += other.flops
        self.seconds += other.seconds
        self.saved |= other.saved


@dataclass(slots=True)
class _ModuleCall:
    """A call of a module that has begun: the meter at its beginning, and what the calls inside it have used."""

    module: nn.Module
    begun: float
    inside: float = 0.0


class _Meter:
    """Reads a meter when modules begin and end.

    Args:
        root: the model.

    Attributes:
        costs: what each module has cost, by ``id``.
        running: the calls under way, outermost first.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.costs: dict[int, _Cost] = {}
        self.running: list[_ModuleCall] = []

    def during(self) -> Iterator[AbstractContextManager[Any]]:
        """Yield the contexts in which the model runs."""
        return iter(())

    def read(self) -> float:
        """Return what the meter shows."""
        raise NotImplementedError

    def note(self, cost: _Cost, event: Event, used: float, own: float) -> None:
        """Note what a call has used."""
        raise NotImplementedError

    def begins(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        self.running.append(_ModuleCall(module, self.read()))

    def ends(self, event: Event) -> None:
        """A call has ended; those inside it that raised have ended before."""
        now, module = self.read(), event.module
        if not any(call.module is module for call in self.running):
            return
        while (call := self.running.pop()).module is not module:
            continue
        used = now - call.begun
        if self.running:
            self.running[-1].inside += used
        self.note(self.costs.setdefault(id(module), _Cost()), event, used, used - call.inside)


class _Figures(_Meter):
    """Counts operations, outputs and saved tensors."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__(root)
        self._counter: Any = _Counter(display=False)
        no_modules: Any = _NoModules()
        self._counter.mod_tracker = no_modules
        self._parameters = {_address(one) for one in _parameters(root)}

    def during(self) -> Iterator[AbstractContextManager[Any]]:
        """Yield what counts operations and saved tensors."""
        yield saved_tensors_hooks(self._saves, _same)
        yield self._counter

    def read(self) -> float:
        """Return the number of operations."""
        return int(self._counter.get_total_flops())

    def note(self, cost: _Cost, event: Event, used: float, own: float) -> None:
        """Note the operations and the output of a call."""
        cost.flops += int(used)
        cost.own_flops += int(own)
        with DisableTorchFunction():
            tensors = tensors_in(event.value)
            shapes = tuple(() if one.is_nested else tuple(fact(one, "shape")) for one in tensors)
            cost.output_bytes += sum(one.nbytes for one in tensors if one.layout is torch.strided)
        if not cost.calls and tensors:
            cost.output = shapes[0] if len(shapes) == 1 else shapes
        cost.calls += 1

    def _saves(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is saved for backward, and have another tensor of the same storage saved instead.

        A node that holds its own output because a hook returned it is a cycle that no collection finds (PyTorch 2.13).
        """
        storage = memory_of(tensor)
        key = _address(tensor)
        if key not in self._parameters:
            size = 0 if storage is tensor else int(storage.nbytes())
            for call in self.running:
                self.costs.setdefault(id(call.module), _Cost()).saved[key] = storage, size
        with DisableTorchFunction():
            return torch._C.TensorBase.detach(tensor)


class _Counter(FlopCounterMode):
    """PyTorch's counter, which also counts ``flex_attention`` where it is not compiled."""

    def __enter__(self) -> Any:
        entered: Any = super().__enter__()  # type: ignore[no-untyped-call]
        mode: Any = self.mode
        mode._handle_higher_order_ops = partial(_counted, self, mode._handle_higher_order_ops)
        return entered


def _counted(counter: Any, handle: Callable[..., Any], func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator of higher order; PyTorch's mode refuses most although it has their formulas (PyTorch 2.13)."""
    result = handle(func, types, args, kwargs)
    if result is not NotImplemented:
        return result
    disable: Any = torch.compiler.disable  # PyTorch may be running what it has compiled itself
    return counter._count_flops(func, disable(lambda: func(*args, **kwargs))(), args, kwargs)


class _NoModules:
    """Stands for PyTorch's tracker of modules, whose hooks fail where a forward takes gradients itself (2.13)."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


class _Clock(_Meter):
    """Takes the time."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__(root)
        on_gpu = any(one.device.type == "cuda" for one in parameters_in(root))
        self._wait: Callable[[], Any] = torch.cuda.synchronize if on_gpu else _nothing

    def read(self) -> float:
        """Return the time, once a GPU has done what it was given."""
        self._wait()
        return time.perf_counter()

    def note(self, cost: _Cost, event: Event, used: float, own: float) -> None:
        """Note the time of a call."""
        cost.seconds += used


def _measured(
    model: nn.Module, root: nn.Module, meter: _Meter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """Run the model once under a meter; return what was different from an ordinary run."""
    with rehearsal(root, meter):
        args, kwargs = copied((args, kwargs), root, list(modules_by_path(root).values()))
        handle = attach(model, nn.Module, meter.ends, before=meter.begins, reads=True)
        if handle.heard is not None:
            handle.heard.says = False  # the table says how often each was called
        with handle, ExitStack() as stack:
            for context in meter.during():
                stack.enter_context(context)
            if not torch.is_grad_enabled():  # with gradients PyTorch has to compile what it compiles itself
                stack.enter_context(nothing_compiled())
            model(*args, **kwargs)
    return handle.notes


def _address(tensor: Tensor) -> int:
    storage = memory_of(tensor)
    return id(tensor) if storage is tensor else int(storage._cdata)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _nothing() -> None:
    """There is nothing to wait for."""
