"""Summary: what each module of a model costs in one forward: parameters, operations, memory and time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from byname.model.module_tree import has_forward, is_script, modules_by_path
from byname.model.where import unwrapped
from byname.reading.modules import modules_in, own_parameters, parameters_in
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, memory_of, storage_key
from byname.table import Column, Rows, Tabled, bytes_text, counted
from byname.text import shape_text
from byname.tracing.muted import compilation_disabled
from byname.tracing.preserve import copied_arguments, distinct_tensors, isolated_run
from byname.tracing.tracer import OpenCalls, refuse_lazy_modules
from byname.watch.attach import attach
from byname.watch.attachment import Event


def _figure(name: str, words: Callable[[Any], str], drop_order: int = 0) -> Column:
    """Return the column of a figure under its own name, as text."""
    return Column(name, drop_order, title=name, show=lambda one: words(getattr(one, name)))


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
        Column("module", drop_order=4),
        Column("calls", drop_order=3),
        Column("output", show=lambda one: _shapes(one.output)),
        _figure("output_bytes", bytes_text),
        _figure("parameters", "{:,}".format),
        _figure("own_parameters", "{:,}".format, drop_order=2),
        _figure("flops", "{:,}".format),
        _figure("own_flops", "{:,}".format, drop_order=1),
        _figure("saved_bytes", bytes_text),
        _figure("seconds", "{:.2g}".format, drop_order=5),
    )


def _shapes(output: tuple[Any, ...] | None) -> str:
    shapes = () if output is None else output if output and type(output[0]) is tuple else (output,)
    return ", ".join(map(shape_text, shapes))


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
    refuse_lazy_modules(root)
    modules = modules_by_path(root)
    figures, clock = _Figures(root), _Meter(_clock(root))
    notes = figures.run(model, root, args, kwargs)
    clock.run(model, root, args, kwargs)
    for module in reversed(modules.values()):
        if not has_forward(module):  # a list of modules costs what they cost
            for meter in (figures, clock):
                for child in module._modules.values():
                    meter.costs[id(module)].add(meter.costs[id(child)])
    items = [
        _row(path, module, figures.costs[id(module)], clock.costs[id(module)].used) for path, module in modules.items()
    ]
    return Summary(tuple(items), type(root).__name__, notes)


def _row(path: str, module: nn.Module, cost: _Cost, seconds: float) -> ModuleSummary:
    direct = module.parameters(recurse=False) if is_script(module) else own_parameters(module)
    with DisableTorchFunction():
        parameters = sum(int(one.numel()) for one in _parameters(module))
        own = sum(int(one.numel()) for one in {id(one): one for one in direct}.values())
    return ModuleSummary(
        path=path,
        module=type(module).__name__,
        calls=cost.calls,
        output=cost.output,
        output_bytes=cost.output_bytes,
        parameters=parameters,
        own_parameters=own,
        flops=int(cost.used),
        own_flops=int(cost.own),
        saved_bytes=sum(size for _, size in cost.saved.values()),
        seconds=seconds,
    )


def _parameters(module: nn.Module) -> list[Tensor]:
    """Return the parameters of a module, each once, also those of scripted modules, which are kept elsewhere."""
    scripts = [one for one in modules_in(module) if is_script(one)]
    found = [*parameters_in(module), *(parameter for one in scripts for parameter in one.parameters())]
    return list({storage_key(one): one for one in found}.values()) if scripts else found


@dataclass(slots=True)
class _Cost:
    """What one module has cost so far; `saved` holds the storages by address, so that no other one gets it."""

    calls: int = 0
    output: tuple[Any, ...] | None = None
    output_bytes: int = 0
    used: float = 0
    own: float = 0
    saved: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def add(self, other: _Cost) -> None:
        self.used += other.used
        self.saved |= other.saved


@dataclass(slots=True)
class _ModuleCall:
    """A call of a module that has begun: the meter at its beginning, and what the calls inside it have used."""

    begun: float
    inside: float = 0.0


class _Meter:
    """Reads a meter, by the function `read`, when modules begin and end.

    Attributes:
        costs: what each module has cost, by ``id``.
        running: the calls under way, outermost first.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self.costs: defaultdict[int, _Cost] = defaultdict(_Cost)
        self.running: OpenCalls[_ModuleCall] = OpenCalls()

    def begins(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.running.append((module, _ModuleCall(self._read())))

    def ends(self, event: Event) -> None:
        """Note a call that has ended."""
        now, module = self._read(), event.module
        if (call := self.running.end(module)) is None:
            return
        used, cost = now - call.begun, self.costs[id(module)]
        cost.used += used
        cost.own += used - call.inside
        if self.running:
            self.running[-1][1].inside += used
        self.note(cost, event.value)

    def note(self, cost: _Cost, output: Any) -> None:
        """Note the output of a call."""

    def contexts(self) -> Sequence[AbstractContextManager[Any]]:
        """Return the contexts in which the model runs."""
        return ()

    def run(self, model: nn.Module, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """Run the model once; return what was different from an ordinary run."""
        with isolated_run(root, self):
            args, kwargs = copied_arguments((args, kwargs), root, list(modules_by_path(root).values()))
            handle = attach(model, nn.Module, self.ends, before=self.begins, reads=True)
            handle.requested.says = False  # the table says how often each was called
            with handle, ExitStack() as stack:
                for context in self.contexts():
                    stack.enter_context(context)
                if not torch.is_grad_enabled():  # with gradients PyTorch has to compile what it compiles itself
                    stack.enter_context(compilation_disabled())
                model(*args, **kwargs)
        return handle.notes


def _clock(root: nn.Module) -> Callable[[], float]:
    """Return a function that returns the time, once a GPU has done what it was given."""
    if not any(one.device.type == "cuda" for one in parameters_in(root)):
        return time.perf_counter

    def read() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return read


class _Figures(_Meter):
    """Counts operations, outputs and saved tensors."""

    def __init__(self, root: nn.Module) -> None:
        self._counter: Any = _Counter(display=False)
        no_modules: Any = _NoModules()
        self._counter.mod_tracker = no_modules
        super().__init__(self._counter.get_total_flops)
        self._parameters = {storage_key(one) for one in _parameters(root)}

    def contexts(self) -> Sequence[AbstractContextManager[Any]]:
        return saved_tensors_hooks(self._saves, lambda one: one), self._counter

    def note(self, cost: _Cost, output: Any) -> None:
        with DisableTorchFunction():
            tensors = distinct_tensors(output)
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
        key = storage_key(tensor)
        if key not in self._parameters:
            size = 0 if storage is tensor else int(storage.nbytes())
            for module, _ in self.running:
                self.costs[id(module)].saved[key] = storage, size
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


class _NoModules(nullcontext[None]):
    """Stands for PyTorch's tracker of modules, whose hooks fail where a forward takes gradients itself (2.13)."""

    parents = frozenset({"Global"})
