"""Tracer: the calls that a model makes while an example runs, observed with module hooks and a function mode."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from byname.errors import BadArgumentError
from byname.model.call_graph import Flow, ModelCall
from byname.model.module_tree import join_path, modules_by_path
from byname.model.operations import is_leaf_module, main_result, operation_name, operation_path, taken
from byname.reading.frames import MODULE_CALL_CODE, runs
from byname.reading.functions import is_in_place, target_of, versions_of
from byname.reading.modules import state_of
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import is_tensor
from byname.source.code import CodeKey, original_code
from byname.source.location import Instruction, is_torch
from byname.text import note_on
from byname.tracing.eager import EAGERLY
from byname.tracing.muted import compilation_disabled, mute_all
from byname.tracing.preserve import ModelSnapshot, arguments_of, copied_arguments, distinct_tensors, labelled, restored
from byname.tracing.tensor_ids import TensorIds, shape_of


def call_model(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a model. Frames outside of this call on the stack are not lines of the model."""
    return model(*args, **kwargs)


def model_instruction(frame: FrameType | None) -> Instruction | None:
    """Return the innermost instruction outside PyTorch and byname; None if it is not inside `call_model`."""
    while frame is not None and is_torch(frame.f_code.co_filename):
        if frame.f_code is call_model.__code__:
            return None
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def functions_running(functions: Mapping[str, CodeKey], frame: FrameType | None) -> list[str]:
    """Return which of a module's functions run between its call and a frame inside it, the innermost first."""
    found: dict[str, None] = {}
    while frame is not None and frame.f_code is not MODULE_CALL_CODE:
        code = original_code[frame.f_code]
        found.update((name, None) for name, one in functions.items() if one.code is code)
        frame = frame.f_back
    return [*found]


T = TypeVar("T")


class OpenCalls(list[tuple[nn.Module, T]]):
    """A stack of modules, each with what is noted of its call.

    >>> calls = OpenCalls()
    >>> outer, inner = nn.ReLU(), nn.Tanh()
    >>> calls.append((outer, "first"))
    >>> calls.append((inner, "second"))
    >>> calls.end(outer), calls.end(inner), len(calls)
    ('first', None, 0)
    """

    def end(self, module: nn.Module) -> T | None:
        """Close the innermost call of a module, and those inside it, whose hooks may have been removed meanwhile.

        Returns:
            What was noted of the call; None if no call of the module is open, as when another hook raised before ours.
        """
        if not self or self[-1][0] is not module:
            if all(one is not module for one, _ in self):
                return None
            while self[-1][0] is not module:
                self.pop()
        return self.pop()[1]


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call whose inputs and outputs are still being collected.

    `visible` is whether the call of a module is on the stack, as always unless other code replaces PyTorch's.
    """

    call: ModelCall
    parent: PendingCall | None
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    is_call: bool = True
    visible: bool = False


class CallTracer(TorchFunctionMode):
    """Collects the calls that one thread makes inside a model, in the order in which they began."""

    def __init__(
        self, modules: dict[str, nn.Module], numbers: TensorIds, before: ModelSnapshot, functions: Functions | None
    ) -> None:
        super().__init__()
        self.pending_calls: list[PendingCall] = []
        self.numbers = numbers
        self._modules = modules
        self._paths = {id(module): path for path, module in modules.items()}
        self._taken: dict[int, frozenset[str]] = {}
        self._open: OpenCalls[PendingCall] = OpenCalls()
        self._before = before
        self._functions = functions or {}
        self._thread = threading.get_ident()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Observe the calls of this thread inside the block."""
        handles: list[Any] = []
        try:
            for module in self._modules.values():
                if issubclass(type(module), torch.jit.ScriptModule):  # does not accept hooks (PyTorch 2.13)
                    continue
                handles.append(module.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
                handles.append(module.register_forward_pre_hook(self._record_inputs, with_kwargs=True))
                handles.append(module.register_forward_hook(self._leave, with_kwargs=True, always_call=True))
            with self, compilation_disabled():
                yield
        finally:
            for handle in handles:
                handle.remove()
            self._open.clear()

    @dynamo_skip
    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        path, line = self._paths[id(module)], model_instruction(sys._getframe(1))
        call = ModelCall(path, type(module).__name__, "module", module, line=line)
        pending = PendingCall(call, self._running(), visible=runs(module))
        self.pending_calls.append(pending)
        self._open.append((module, pending))

    def _running(self) -> PendingCall | None:
        """Return the innermost call that is running; one whose module has removed its hooks ends without `_leave`."""
        while self._open and self._open[-1][1].visible and not runs(self._open[-1][0]):
            self._open.pop()
        return self._open[-1][1] if self._open else None

    @dynamo_skip
    def _record_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the inputs of a module, after the user's pre-hooks have run."""
        if threading.get_ident() == self._thread and self._open:
            _, pending = self._open[-1]
            with DisableTorchFunction():
                pending.inputs = [self.numbers.of(one) for one in distinct_tensors((args, kwargs))]
                pending.call = pending.call._replace(given=_labelled_shapes(args, kwargs))

    @dynamo_skip
    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if threading.get_ident() != self._thread or (pending := self._open.end(module)) is None:
            return None
        with DisableTorchFunction():
            return self._record_outputs(pending, output)

    def _record_outputs(self, pending: PendingCall, output: Any) -> Any:
        """Note the outputs of a module; if a leaf module returns its input, return another view of it instead."""
        numbers = self.numbers
        other = None
        if (
            is_leaf_module(pending.call.module)
            and is_tensor(output)
            and numbers.of(output, pending.inputs) in pending.inputs
        ):
            other = output = self._other(output)
        pending.outputs = [numbers.of(one, pending.inputs) for one in distinct_tensors(output)]
        return other

    @dynamo_skip
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation_name(func)
        if name is None or self._running() is None:
            return self._call_untraced(func, args, kwargs)
        with DisableTorchFunction():
            tensors = distinct_tensors((args, kwargs))
            target = target_of(args, kwargs, in_place=is_in_place(str(getattr(func, "__name__", ""))))
            targets = None if target is None else distinct_tensors(target)
            self._before.before_writing(targets if targets is not None else _renormed(name, args, kwargs))
            pending = self._begun(name, func, sys._getframe(1))
            pending.inputs = [self.numbers.of(one) for one in tensors]
            versions = versions_of(tensors)
        result = func(*args, **kwargs)
        with DisableTorchFunction():
            changed = [
                tensor
                for tensor, old, new in zip(tensors, versions, versions_of(tensors), strict=True)
                if old != new or (old is None and targets and any(tensor is one for one in targets))
            ]
            done = self._done(pending, tensors, changed, main_result(func, result), targets is not None)
            return (done, *result[1:]) if type(result) is tuple and type(done) is not tuple else done

    def _begun(self, name: str, func: Any, caller: FrameType) -> PendingCall:
        _, frame = self._open[-1]
        module = frame.call.module
        if id(module) not in self._taken:
            self._taken[id(module)] = taken(module)
        count = frame.counts.get(name, 0)
        frame.counts[name] = count + 1
        path = operation_path(frame.call.path, name, count, self._taken[id(module)])
        line, inside = model_instruction(caller), self._paths_in_functions(frame, name, caller)
        call = ModelCall(path, name, "operation", module, function=func, line=line, inside=inside)
        pending = PendingCall(call, frame, is_call=False)
        self.pending_calls.append(pending)
        return pending

    def _paths_in_functions(self, module: PendingCall, name: str, caller: FrameType) -> tuple[str, ...]:
        """Return the paths of an operation in the functions that run between the module's call and the operation."""
        functions = self._functions.get(id(module.call.module))
        paths = []
        for function in functions_running(functions, caller) if functions else ():
            count = module.counts.get(label := f"{function}.{name}", 0)
            module.counts[label] = count + 1
            paths.append(operation_path(join_path(module.call.path, function), name, count))
        return tuple(paths)

    def _done(
        self, pending: PendingCall, given: list[torch.Tensor], changed: list[torch.Tensor], result: Any, in_place: bool
    ) -> Any:
        """Note the results and in-place changes of an operation; return another view of a result that is an input."""
        numbers = self.numbers
        changes = dict(zip(map(id, changed), numbers.changed(changed, pending), strict=True))
        results = distinct_tensors(result)
        if not results and not changed:
            return result
        pending.is_call = True
        known = {id(one) for one in given}
        if len(results) == 1 and result is results[0] and not in_place and id(result) in known and not changes:
            result = self._other(result)
            results = [result]
        for one in results:
            number = changes.pop(id(one), None)
            if number is None:
                number = numbers.of(one) if id(one) in known else numbers.made(one)
            pending.outputs.append(number)
        pending.outputs += changes.values()
        return result

    def _other(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return another view of an input, with its own id: else a call that uses the result seems to use the input."""
        numbers = self.numbers
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or numbers.is_named(tensor):
            return tensor
        if not tensor.requires_grad:
            tensor = tensor.detach()
        elif torch.is_grad_enabled():
            tensor = tensor.view_as(tensor)
        numbers.made(tensor)
        return tensor

    def _call_untraced(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        if name == "backward":
            self._before.before_backward()
        result = func(*args, **kwargs)
        if name == "__set__" and getattr(func, "__self__", None) is _DATA and self._open:
            with DisableTorchFunction():
                self.numbers.same(args[0], args[1])
        return result


_DATA: Any = torch.Tensor.data


def _labelled_shapes(args: Any, kwargs: Any) -> tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]:
    """Return the arguments of a call as they are written after ``.input``, with the shapes of their tensors."""
    every = {**{f"[{number}]": one for number, one in enumerate(args)}, **{f"[{key!r}]": kwargs[key] for key in kwargs}}
    found = [(label, tuple(shape_of(tensor) or () for tensor in distinct_tensors(one))) for label, one in every.items()]
    return (("", found[0][1]), *found[1:]) if found else ()


def _renormed(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the weight that an embedding with ``max_norm`` changes in place."""
    if name in ("embedding", "embedding_bag") and (kwargs.get("max_norm") or (len(args) > 3 and args[3])):
        return distinct_tensors((args[1:2], kwargs.get("weight")))
    return []


Functions = Mapping[int, Mapping[str, CodeKey]]
"""The code of functions that modules call, by the ``id`` of the module and the name of the function."""


def trace(model: nn.Module, example: Any, functions: Functions | None = None) -> Flow:
    """Run an example through a model and return its call graph. Model, example and random state stay unchanged.

    >>> from torch import nn
    >>> flow = trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.zeros(1, 2))
    >>> [(call.path, call.operation, call.shapes) for call in flow.calls if call.elementary]
    [('0', 'Linear', ((1, 3),)), ('1', 'ReLU', ((1, 3),))]

    It runs in its current mode (train or eval) and in the caller's grad mode. The paths of operations in these
    `functions`, which the modules call, are in `ModelCall.inside`.
    """
    args, kwargs = arguments_of(example)
    modules = modules_by_path(model)
    refuse_lazy_modules(model)
    with mute_all(), restored(model) as before, EAGERLY.held():
        args, kwargs = copied_arguments((args, kwargs), model, list(modules.values()))
        with DisableTorchFunction():
            state = [*state_of(model)]
            named = [*state, *_input_names(model, args, kwargs), *_attribute_names(modules)]
            numbers = TensorIds(named, [tensor for _, tensor in state])
        tracer = CallTracer(modules, numbers, before, functions)
        try:
            with tracer.listening():
                call_model(model, args, kwargs)
        except Exception as error:
            note_on(error, "byname: raised while the model ran the given example=")
            raise
        return _finished(tracer)


def refuse_lazy_modules(model: nn.Module) -> None:
    """Refuse a model with lazy modules, which the first run changes for good."""
    for name, tensor in state_of(model):
        if issubclass(type(tensor), _UNFINISHED):
            raise BadArgumentError(
                f"the model has a lazy parameter: {name} gets its shape at the first call. Run the model once first."
            )


_UNFINISHED = (nn.UninitializedParameter, nn.UninitializedBuffer)


def _input_names(model: nn.Module, args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    names = _argument_names(model)
    for position, value in enumerate(args):
        name = names[position] if position < len(names) else str(position)
        yield from labelled(f"input {name}", value)
    for name, value in kwargs.items():
        yield from labelled(f"input {name}", value)


def _argument_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the positional arguments of a model's forward, without ``self``."""
    forward: Any = attributes_of(model).get("forward", found_in(type(model), "forward"))
    while (inner := getattr(forward, "__wrapped__", None)) is not None:
        forward = inner
    code = getattr(forward, "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names if hasattr(forward, "__self__") and names[:1] != ("self",) else names[1:]


def _attribute_names(modules: dict[str, nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that modules hold as plain attributes, each with its path."""
    for path, module in modules.items():
        for name, value in snapshot(attributes_of(module)):
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from labelled(join_path(path, name), value)


def _finished(tracer: CallTracer) -> Flow:
    pending_calls = [pending for pending in tracer.pending_calls if pending.is_call]
    for maker, before, after in tracer.numbers.late:
        for pending in _with_leaf_module(maker):
            pending.inputs.append(before)
            pending.outputs.append(after)
    _add_attribute_inputs(pending_calls, tracer.numbers.state)
    places = {id(pending): index for index, pending in enumerate(pending_calls)}
    counts: Counter[str] = Counter()
    calls = []
    for pending in pending_calls:
        call, outputs = pending.call, tuple(dict.fromkeys(pending.outputs))
        calls.append(
            call._replace(
                parent=None if pending.parent is None else places[id(pending.parent)],
                call=counts[call.path],
                inputs=tuple(dict.fromkeys(pending.inputs)),
                outputs=outputs,
                shapes=tuple(tracer.numbers.shapes[number] for number in outputs),
                elementary=is_leaf_module(call.module) == (call.kind == "module"),
            )
        )
        counts[call.path] += 1
    return Flow(tuple(calls), tracer.numbers.sources, tracer.numbers.unseen)


def _with_leaf_module(pending: PendingCall) -> list[PendingCall]:
    """Return a call, and the leaf module that it ran in, if any."""
    around = None if pending.call.kind == "module" else pending.parent
    return [pending] if around is None or not is_leaf_module(around.call.module) else [pending, around]


def _add_attribute_inputs(pending_calls: list[PendingCall], state: set[int]) -> None:
    """Add to each leaf module's inputs the tensors that its operations take from plain attributes."""
    made: dict[int, set[int]] = {}
    for pending in pending_calls:
        for step in _with_leaf_module(pending)[1:]:
            inside = made.setdefault(id(step), set())
            step.inputs += [number for number in pending.inputs if number not in inside and number not in state]
            inside.update(pending.outputs)
