"""Checkpoints: checkpoint-mismatch, the operation that differed the second time; ddp-ready-twice."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.checkpoint import CheckpointFunction

from byname.autograd.slots import packed_in
from byname.diagnose.cause import Cause, Facts, Raised, Subject, render
from byname.diagnose.context import FailureContext, assigned_on, enclosing, node_of
from byname.diagnose.engine import engine_call
from byname.naming.name import Name, at, unnamed
from byname.source.code import CodeKey
from byname.table import counted
from byname.text import shape_text
from byname.tracking.log import Call, logs

_REMEDY = (
    "what runs inside a checkpoint must do the same both times: no counters, caches, branches or random choices in "
    "Python that differ the second time ({random})"
)
_REPLAYED = "PyTorch replays its own random numbers"
_NOT_REPLAYED = "leave out preserve_rng_state=False, under which PyTorch draws other random numbers then"


def _mismatch(context: FailureContext) -> Iterator[Facts]:
    """Yield the first operation that the recomputation left out, added or did on other shapes."""
    record = _record(context)
    if record is not None and context.has_graph:
        numbers = context.walk.numbers
        found = {id(raw.data): numbers[node] for node, _, raw in packed_in(context.walk.nodes[1:])}
        nodes = [found.get(id(held)) if (held := one()) is not None else None for one in record.weak_holders]
        remedy = _REMEDY.format(random=_REPLAYED if _replays(record.recompute_fn) else _NOT_REPLAYED)
        yield {"remedy": remedy, **(_other_operation(context, record, nodes) or _other_shape(context, record, nodes))}


def _replays(recompute: Any) -> bool:
    """Return whether a checkpoint draws the same random numbers again, as it does unless it is told not to."""
    cells = dict(zip(recompute.__code__.co_freevars, recompute.__closure__, strict=True))  # others may be empty
    return "preserve_rng_state" not in cells or bool(cells["preserve_rng_state"].cell_contents)


def _record(context: FailureContext) -> Any:
    """Return the checkpoint's own record, from the frame of the function that found the difference."""
    for known in context.frames(*_FINDERS):
        record = known.get("self") or known.get("target_frame") or known.get("frame")
        if hasattr(record, "weak_holders"):
            return record
    return None


_FINDERS = ("check_recomputed_tensors_match", "pack_hook", "unpack_hook")


def _other_operation(context: FailureContext, record: Any, nodes: Sequence[int | None]) -> Facts | None:
    """Return the facts of the first call that only one of the two runs made, if a tracker has seen both."""
    found = _both_runs(context, [number for number in nodes if number is not None])
    if found is None:
        return None
    then, now = found
    compared = difflib.SequenceMatcher(None, [*map(_key, then)], [*map(_key, now)], autojunk=False)
    changed = next((change for change in compared.get_opcodes() if change[0] != "equal"), None)
    if changed is None:
        return None
    _, start, end, start_now, end_now = changed
    left_out, added = then[start:end][:1], now[start_now:end_now][:1]
    has_all = any(count == len(record.weak_holders) for count in record.recomp_counter.values())
    if left_out and not added and end == len(then) and has_all:  # the second run has stopped early
        return None
    return _differing(left_out, added)


def _both_runs(context: FailureContext, nodes: Sequence[int]) -> tuple[list[Call], list[Call]] | None:
    """Return the calls of the checkpointed part, and those of the run that has just been made to repeat them."""
    if not nodes:
        return None
    numbers = [context.walk.nodes[number]._sequence_nr() for number in nodes]
    root = max(context.walk.nodes[number]._sequence_nr() for number in context.walk.roots)
    for log in logs():
        calls = [Call.of(raw) for raw in log.calls]
        then = [call for call in calls if call.after > min(numbers) and call.before <= max(numbers)]
        now = [call for call in calls if call.before > root]
        if then and now and any(call.before <= numbers[0] < call.after for call in then):
            return then, now[_beginning(then, now) :]
    return None


def _beginning(then: Sequence[Call], now: Sequence[Call]) -> int:
    """Return the index among the calls made during backward from which most calls fit, the last one of several."""
    keys = [_key(call) for call in then]
    starts = [at for at, call in enumerate(now) if _key(call) == keys[0]]

    def fits(start: int) -> int:
        pairs = zip(keys, now[start:], strict=False)
        return next((count for count, (key, call) in enumerate(pairs) if key != _key(call)), len(keys))

    return max(starts, key=lambda start: (fits(start), start), default=0)


def _key(call: Call) -> tuple[CodeKey | None, int, str, int]:
    module = None if call.module is None else call.module()
    # The line that led to a layer of PyTorch's is the forward's the first time, and the backward's the second.
    layer = type(module).__module__.startswith("torch.nn.")
    place = (None, 0) if layer else call.line.place
    return *place, call.name, id(module)


def _differing(left_out: Sequence[Call], added: Sequence[Call]) -> Facts:
    calls = [(call.line, call.line.site) for call in (*left_out, *added)]
    subjects = [Subject(assigned_on(line) or unnamed(site), site) for line, site in calls]
    how = "{one[0]} was computed only the " + f"{'first' if left_out else 'second'} time"
    if left_out and added:
        how = "{one[0]} was computed the first time, but {one[1]} in its place the second time"
    facts: Facts = {}
    if mode := _mode(left_out, added):
        how += f". The first time {mode[0]} was in {mode[1]} mode, and it is in {mode[2]} mode now"
        facts["remedy"] = "call train() and eval() after the backward or before the forward, not between the two"
    return {**facts, "how": render(f"{_SAME}: {how}", one=subjects)}


def _mode(left_out: Sequence[Call], added: Sequence[Call]) -> tuple[str, str, str] | None:
    """Return a module, its former mode and its mode now, if the difference is that of training and evaluation."""
    for call in (*left_out, *added):
        module = None if call.module is None else call.module()
        if module is not None and ((dropped := "dropout" in call.name) or _branches_by_mode(call)):
            now = module.training
            if not dropped or now is (call in added):
                modes = ("evaluation", "training") if now else ("training", "evaluation")
                return f"the {type(module).__name__}", *modes
    return None


def _branches_by_mode(call: Call) -> bool:
    """Return whether a call stands in a branch of an ``if self.training:``."""
    node = enclosing(node_of(call.line), ast.If, ast.IfExp)
    while node is not None and ast.unparse(node.test).removeprefix("not ") != "self.training":
        node = enclosing(node.parent, ast.If, ast.IfExp)
    return node is not None


def _other_shape(context: FailureContext, record: Any, nodes: Sequence[int | None]) -> Facts:
    """Return the facts of the first tensor that was saved with another shape or dtype, or of another number of them."""
    then, now = list(record.x_metadatas), _metadata_now(record)
    number = next((at for at, (old, new) in enumerate(zip(then, now, strict=True)) if new and old != new), None)
    node = None if number is None else nodes[number]
    if number is None or node is None:
        return {"how": "the checkpointed part saved a different number of tensors when backward recomputed it"}
    how = render(
        _SAME + ": what was saved for {tensor} was {then} the first time and is {now} the second time",
        tensor=Subject(context.variable(node), context.site(node)),
        then=_shape(then[number]),
        now=_shape(now[number]),
    )
    return {"how": how}


def _metadata_now(record: Any) -> list[Any]:
    """Return the metadata of the recomputed tensors; None for one not recomputed, or no longer needed."""
    computed = [kept for group in record.recomputed.values() for kept in group.items()]
    by_handle = {id(handle): tensor for handle, tensor in computed}
    found: list[Any] = []
    for reference in record.weak_holders:
        holder = reference()
        handles = [] if holder is None else [handle for handle in holder.handles.values() if id(handle) in by_handle]
        found.append(record.metadata_fn(by_handle[id(handles[-1])]) if handles else None)
    return found


def _shape(metadata: dict[str, Any]) -> str:
    return f"{str(metadata.get('dtype', '')).removeprefix('torch.')} {shape_text(metadata.get('shape', ()))}"


def _reduced_twice(context: FailureContext) -> Iterator[Facts]:
    """Yield the block that runs in several reentrant checkpoints under ``DistributedDataParallel``."""
    calls = [call for one in context.passed if (call := engine_call(one.frame)) is not None]
    outer = FailureContext(calls[-1][0]) if calls else context
    blocks: dict[int, list[int]] = {}
    for number, node in enumerate(outer.walk.nodes[1:] if outer.has_graph else (), 1):
        if getattr(type(node), "_forward_cls", None) is CheckpointFunction:
            blocks.setdefault(id(node.run_function), []).append(number)
    numbers = max(blocks.values(), key=len, default=[])
    if len(numbers) > 1:
        sites = list(dict.fromkeys(site for number in reversed(numbers) if (site := outer.site(number)) is not None))
        path = context.match[1]
        yield {
            "whose": f"`{path}`" if path else "a parameter",
            "parameter": Name(f"module.{path}", "parameter", exact=False) if path else (),
            "times": counted(len(numbers), "time"),
            "where": at(sites[0] if sites else None),
            "sites": sites,
            "noticed": outer.error_site,
        }


def _asked_for_inputs(context: FailureContext) -> Iterator[Facts]:
    """Yield the reentrant checkpoints that a backward for chosen inputs goes through."""
    nodes = enumerate(context.walk.nodes[1:] if context.has_graph else (), 1)
    numbers = [number for number, node in nodes if getattr(type(node), "_forward_cls", None) is CheckpointFunction]
    for where in [*map(context.site, numbers)][:1]:
        yield {"where": where}


_SAME = "the checkpointed part did not do the same when backward recomputed it"

# fmt: off
CHECKPOINTS: tuple[Cause[FailureContext], ...] = (
    Cause("checkpoint-mismatch", Raised(RuntimeError, r"torch\.utils\.checkpoint"), _mismatch, "{how}", "{remedy}"),
    Cause("reentrant-checkpoint", Raised(RuntimeError, r"checkpoint is incompatible with \.grad\(\)"),
        _asked_for_inputs,
        "a gradient for chosen inputs{noticed:at} is asked for through the checkpoint{where:at}, which is reentrant: "
        "its backward gives gradients to all parameters, not to some inputs",
        "pass use_reentrant=False to checkpoint()"),
    Cause("ddp-ready-twice",
        Raised(RuntimeError, r"mark a variable ready only once(?:.*with name ([\w.]+) has been marked)?"),
        _reduced_twice,
        "{parameter:-}{sites:-}DistributedDataParallel got the gradient of {whose} twice in one backward: a part of "
        "the model runs {times} in a reentrant checkpoint{where}, each of which runs a backward of its own",
        "pass use_reentrant=False to checkpoint(), or static_graph=True to DistributedDataParallel if every iteration "
        "computes the same graph"),
)
