"""Which calls does a model make, and which tensors go from one to the next? One run of an example, seen as a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError, NotAModuleError
from byname.model.call_graph import Call, Flow
from byname.model.module_tree import modules_by_path
from byname.model.operations import is_elementary
from byname.reading.modules import state_of
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.quiet import DisableTorchFunction
from byname.text import note_on
from byname.tracing.eager import EAGERLY
from byname.tracing.example import arguments_of, copied, labelled
from byname.tracing.muted import example_running
from byname.tracing.preserve import kept
from byname.tracing.tensor_ids import Numbers
from byname.tracing.tracer import Draft, Tracer
from byname.tracking.depth import Deeper

__all__ = ["trace"]


def trace(model: nn.Module, example: Any) -> Flow:
    """Runs an example through a model and notes every call. The model, the example and the random state stay as before.

    >>> from torch import nn
    >>> flow = trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.zeros(1, 2))
    >>> [(call.path, call.operation, call.shapes) for call in flow.calls if call.elementary]
    [('0', 'Linear', ((1, 3),)), ('1', 'ReLU', ((1, 3),))]

    Args:
        model: any module. It runs in the mode it is in (train or eval), and in the grad mode of the caller.
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments; or ``(args, kwargs)``.

    Raises:
        NotAModuleError: when the model is none.
        BadExampleError: when the example stands for no arguments.
    """
    if not issubclass(type(model), nn.Module):
        raise NotAModuleError(f"a model is needed here, and this is of type {type(model).__name__}")
    args, kwargs = arguments_of(example)
    modules = modules_by_path(model)
    _refuse_unfinished(model)
    with Deeper(), example_running(), kept(model) as before, EAGERLY.held():
        args, kwargs = copied((args, kwargs), model, list(modules.values()))
        with DisableTorchFunction():
            named = [*_state_names(model), *_input_names(model, args, kwargs), *_attribute_names(modules)]
            numbers = Numbers(named, [tensor for _, tensor in _state_names(model)])
        tracer = Tracer(modules, numbers, before)
        try:
            with tracer.listening():
                model(*args, **kwargs)
        except Exception as error:
            note_on(error, "byname: raised while the model ran the example= that was given")
            raise
        return _finished(tracer)


def _refuse_unfinished(model: nn.Module) -> None:
    for name, tensor in _state_names(model):
        if issubclass(type(tensor), _UNFINISHED):
            raise BadArgumentError(
                f"the model is not finished: {name} gets its size at the first call. Run the model once first."
            )


_UNFINISHED = (nn.UninitializedParameter, nn.UninitializedBuffer)


def _state_names(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(state_of(model))


def _input_names(model: nn.Module, args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    names = _argument_names(model)
    for position, value in enumerate(args):
        name = names[position] if position < len(names) else str(position)
        yield from labelled(f"input {name}", value)
    for name, value in kwargs.items():
        yield from labelled(f"input {name}", value)


def _argument_names(model: nn.Module) -> tuple[str, ...]:
    """The positional arguments of a model's forward, without the first."""
    forward: Any = attributes_of(model).get("forward", found_in(type(model), "forward"))
    while (inner := getattr(forward, "__wrapped__", None)) is not None:
        forward = inner
    code = getattr(forward, "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names if hasattr(forward, "__self__") and names[:1] != ("self",) else names[1:]


def _attribute_names(modules: dict[str, nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that modules hold as plain attributes."""
    for path, module in modules.items():
        for name, value in snapshot(attributes_of(module)):
            if name not in ("_parameters", "_buffers", "_modules"):
                yield from labelled(f"{path}.{name}" if path else name, value)


def _finished(tracer: Tracer) -> Flow:
    """The flow of what was written down."""
    drafts = [draft for draft in tracer.drafts if draft.is_call]
    for maker, before, after in tracer.numbers.late:
        for draft in _up_to_a_step(maker):
            draft.inputs.append(before)
            draft.outputs.append(after)
    _take_in(drafts, tracer.numbers.state)
    places = {id(draft): index for index, draft in enumerate(drafts)}
    counts: Counter[str] = Counter()
    calls = []
    for draft in drafts:
        outputs = tuple(dict.fromkeys(draft.outputs))
        calls.append(
            Call(
                path=draft.path,
                operation=draft.operation,
                kind=draft.kind,
                module=draft.module,
                parent=None if draft.parent is None else places[id(draft.parent)],
                call=counts[draft.path],
                inputs=tuple(dict.fromkeys(draft.inputs)),
                outputs=outputs,
                shapes=tuple(tracer.numbers.shapes[number] for number in outputs),
                function=draft.function,
                elementary=_is_step(draft),
            )
        )
        counts[draft.path] += 1
    return Flow(tuple(calls), tracer.numbers.sources, tracer.numbers.unseen)


def _is_step(draft: Draft) -> bool:
    return is_elementary(draft.module) == (draft.kind == "module")


def _up_to_a_step(draft: Draft) -> list[Draft]:
    """A call, and the sealed module in which it happened."""
    inside = draft.kind == "operation" and draft.parent is not None and is_elementary(draft.parent.module)
    return [draft, draft.parent] if inside and draft.parent is not None else [draft]


def _take_in(drafts: list[Draft], state: set[int]) -> None:
    """Gives a sealed module what goes into its operations from elsewhere: a tensor that it keeps in an attribute."""
    made: dict[int, set[int]] = {}
    for draft in drafts:
        for step in _up_to_a_step(draft)[1:]:
            inside = made.setdefault(id(step), set())
            step.inputs += [number for number in draft.inputs if number not in inside and number not in state]
            inside.update(draft.outputs)
