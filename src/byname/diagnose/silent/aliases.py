"""Aliases: entries of containers, and results that are kept, that are one tensor."""

from __future__ import annotations

import ast
import gc
import re
import sys
import weakref
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.causes.loss import Loss
from byname.diagnose.context import FailureContext
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, copy_values, has_equal_rows, on_call, topic_cause
from byname.reading.frames import Line, reported_frame, user_line, variables_of
from byname.reading.objects import attributes_of, dict_of
from byname.reading.tensor import fact, is_tensor, memory_of
from byname.source.location import assignments
from byname.source.tracebacks import walk_frames
from byname.tracking.log import DetachPoint, logs
from byname.tracking.lookup import site_of_tensor
from byname.undo import Undo

# fmt: off
ONE_TENSOR = topic_cause("entries-are-one-tensor",
    "{entries} entries of containers are one tensor, {name}, which is changed in place{noticed:at}: they share its "
    "memory, and all are equal to its latest values", "store a copy: {name.path}.clone()")
ONE_ARRAY = topic_cause("entries-are-one-tensor",
    "{entries} tensors that {call}{noticed:at} made of one array share its memory, and the array was filled anew "
    "between: all are equal to its latest values", "store a copy: torch.tensor(array), or {call} and .clone()")
ONE_FOR_ALL = topic_cause("entries-are-one-tensor",
    "`{noticed.statement}`{noticed:at} evaluates its entry once, so that all entries of {name} are one object, and "
    "`{changed}` changes it in place", "evaluate it for each entry: [... for _ in range(n)], {{k: ... for k in keys}}")
ONE_RECORD = topic_cause("entries-are-one-tensor",
    "all {entries} entries of {name} {are} one and the same {kind}, which holds the latest values only, and the inputs"
    "{noticed:at}, made of them{made:at}, are all equal", "make a new {kind} for each entry, or append a copy of it")
KEPT_REFERENCES = topic_cause("entries-are-one-tensor",
    "{entries} results of {call}{noticed:at}, with steps between them, are one tensor, {name}: they share its memory, "
    "and all are equal to its latest values", "keep a copy of each: x{call}.clone()")
KEPT_GRADIENTS = topic_cause("entries-are-one-tensor",
    "{entries} entries of containers are the one gradient of {name}, to which the backward{noticed:at} adds in place: "
    "they share its memory, and all are equal to its latest values",
    "store a copy: {name.path}.grad.clone()")
# fmt: on

_MANY, _AGAIN, _ENTRIES, _FRAMES, _REFERENCES, _FIRST = 8, 2, 16, 3, 3, 3


class Aliases(Topic):
    """Watches tensors that share the memory of an array, are in many containers, or are references to a parameter."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._arrays: deque[tuple[weakref.ref[torch.Tensor], int, bytes, Line, str]] = deque(maxlen=4096)
        self._loads = 0
        self._records = 0  # looks at which a list held one record only

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Module, "load_state_dict", self._loaded)
        for name in ("from_numpy", "as_tensor"):
            on_call(block, torch, name, self._shares)

    def _shares(self, call: ObservedCall, result: Any) -> None:
        """Note a tensor that shares the memory of an array, with the first numbers there."""
        numpy, array = sys.modules.get("numpy"), call.given(0, "data")
        if numpy is not None and type(array) is numpy.ndarray:
            known = weakref.ref(result), result.data_ptr(), array.flat[:8].tobytes()
            self._arrays.append((*known, user_line(call.frame), f"{call.called.__name__}()"))
            if len(self._arrays) in (_ENTRIES, 4 * _ENTRIES):  # they may be gone before the next step
                self._look_for_one_array()

    def _look_for_one_array(self) -> None:
        """Report many living tensors of one array that was filled anew."""
        alive = [one for one in self._arrays if one[0]() is not None]
        for pointer, count in Counter(one[1] for one in alive).items():
            same = [one for one in alive if one[1] == pointer] if count >= _MANY else []
            if len({one[2] for one in same}) > 1:
                self.report(ONE_ARRAY, same[-1][3].site, entries=count, call=same[-1][4])

    def _loaded(self, call: ObservedCall, result: Any) -> None:
        self._loads += 1
        if self._watch.steps and self._loads < _ENTRIES:  # an average of references, which are gone at the end
            self._look_for_references()

    def ran(self, call: ObservedCall) -> None:
        """Look for one record in a list, if the inputs of one of the first forwards are all equal."""
        given = call.tensors[:1] if self._watch.steps <= _FIRST and not call.depth else []
        values = copy_values(given[0]) if given else None
        if values is not None and values.dim() > 1 and len(values) >= _FRAMES and has_equal_rows(values):
            self._look_for_one_record(call)

    def _look_for_one_record(self, call: ObservedCall) -> None:
        """Report a list in the frames around a call whose entries are one record of tensors."""
        for variables in map(variables_of, walk_frames(reported_frame(call.frame))):
            for name, held in variables.items():
                rows = [*held] if type(held) in (list, deque) and len(held) >= _ENTRIES else [()]
                is_row = all(issubclass(type(one), tuple) for one in rows)
                for column in zip(*map(tuple.__iter__, rows), strict=False) if is_row else [rows]:
                    if any(map(is_tensor, _parts_of(column[0]))) and all(one is column[0] for one in column):
                        self._records += 1
                        if self._records == _AGAIN:
                            facts = {"entries": len(rows), "name": variable(name), "kind": type(column[0]).__name__}
                            facts |= {"are": "have" if is_row else "are", "made": site_of_tensor(call.tensors[0])}
                            self.report(ONE_RECORD, call.line.site, **facts)

    def backward(self, loss: Loss) -> None:
        """Report a gradient that is in several lists, though each backward changes it."""
        for leaf in loss.context.leaves[-1:]:
            grad = fact(leaf, "grad")
            entries = _entries(grad)[0] if grad is not None and sys.getrefcount(grad) > _REFERENCES else 0
            if entries >= _REFERENCES:
                self.report(KEPT_GRADIENTS, loss.line.site, entries=entries, name=FailureContext().names([leaf])[0])

    def before_step(self, followed: FollowedOptimizer) -> None:
        for facts in _repeated(followed.line.code) if self._watch.steps == 1 else ():
            self.report(ONE_FOR_ALL, **facts)
        if followed.is_sampled_step:
            self._look_for_one_tensor()
            self._look_for_one_array()
            self._look_for_references()

    def _look_for_one_tensor(self) -> None:
        """Report a tensor that is in many entries of containers, and that the program changes in place."""
        for log in logs():
            changed: dict[int, list[Any]] = {}
            for change in [*log.changes][-4096:] if log.of_this_thread() else ():
                for storage in (reference() for reference in change.storages if not change.operation.endswith(".step")):
                    changed.setdefault(id(storage), []).append((storage, change.line))
            often = {key: lines for key, lines in changed.items() if len(lines) >= _MANY and lines[0][0] is not None}
            for record in log.creations() if often else ():
                tensor = record()  # in no list of ours, which would count
                if tensor is None or sys.getrefcount(tensor) <= _FRAMES:
                    continue
                lines = [] if fact(tensor, "requires_grad") else often.get(id(memory_of(tensor)), [])
                entries, fills = _entries(tensor) if lines else (0, False)
                if entries >= _ENTRIES or fills:
                    name = FailureContext().names([tensor])[0]
                    self.report(ONE_TENSOR, lines[-1][1].site, entries=entries, name=name)

    def _look_for_references(self) -> None:
        """Report references to one parameter that a line kept several times, as if they were copies."""
        kept: dict[Any, dict[int, tuple[Any, Any, DetachPoint]]] = {}
        for log in logs():
            steps = [one.number for one in log.steps]
            for cut in [*log.detaches] if log.of_this_thread() else ():
                held = cut.result() if cut.result is not None and cut.name in ("detach", "data") else None
                source = None if held is None else cut.inputs[0][0]()
                if isinstance(source, nn.Parameter) and held is not None and memory_of(held) is memory_of(source):
                    same = kept.setdefault((id(memory_of(source)), cut.line.place), {})
                    same[bisect(steps, cut.number)] = source, held, cut
        for same in [one for one in kept.values() if len(one) >= _REFERENCES][:1]:
            source, _, cut = next(iter(same.values()))
            name, *others = FailureContext().names([source, *(held for _, held, _ in same.values())])
            call = ".data" if cut.name == "data" else ".detach()"
            if all(one.path for one in others):  # else they may be garbage
                self.report(KEPT_REFERENCES, cut.line.site, entries=len(same), call=call, name=name)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        self._look_for_references()


def _entries(tensor: torch.Tensor) -> tuple[int, bool]:
    """Return how many entries of lists and deques, and of what these hold, are a tensor; whether it fills a deque."""
    holders: list[Any] = [one for one in gc.get_referrers(tensor) if type(one) in (list, deque)]
    rows = [one for one in gc.get_referrers(tensor) if issubclass(type(one), tuple | dict) or _is_record(one)]
    lists = [one for one in (gc.get_referrers(*rows[:_ENTRIES]) if rows else ()) if type(one) in (list, deque)]
    inside = {id(one) for held in lists if held is not rows for one in held}
    holders += [one for one in rows if id(one) in inside]
    counted = [one.values() if type(one) is dict else [tensor] if _is_record(one) else one for one in holders]
    number = sum(one is tensor for held in counted for one in held)
    frames = [one for one in holders if type(one) in (list, deque) and len(one) >= _FRAMES]
    return number, any(len({*map(id, one)}) == 1 for one in frames)


def _repeated(code: CodeType | None) -> Iterator[dict[str, Any]]:
    """Yield the containers of a file whose entries are one object, if a statement changes one of these in place."""
    for made, node in assignments(code):
        path = ast.unparse(node.targets[0])
        scope: Any = node if _ONE_FOR_EACH.fullmatch(ast.unparse(node.value)) else None
        while hasattr(scope, "parent") and ("." in path or not isinstance(scope, ast.FunctionDef)):
            scope = scope.parent
        own, text = rf"(?<![\w.]){re.escape(path)}", "" if scope is None else ast.unparse(scope)
        found = None if re.search(rf"{own}\[[^\[\]]+\] = ", text) else re.search(own + _CHANGED, text)
        parts = [*ast.walk(scope)] if found is not None else []
        bound = [ast.unparse(one) for one in parts if isinstance(getattr(one, "ctx", None), ast.Store)]
        bound += [one.arg for one in parts if isinstance(one, ast.arg)]
        if found is not None and bound.count(path) == 1:
            yield {"noticed": made, "name": variable(path), "changed": found[0]}


def _parts_of(one: Any) -> Iterable[Any]:
    """Return what a list, a deque, a dictionary or a record holds."""
    held = one if type(one) is dict else attributes_of(one) if _is_record(one) else {}
    return one if type(one) in (list, deque) else held.values()


def _is_record(one: Any) -> bool:
    """Return whether an object is an instance of a class of the program's that has attributes, such as a dataclass."""
    home = type(one).__module__.partition(".")[0]
    return dict_of(type(one)) is not None and home not in _OTHERS and not issubclass(type(one), tuple | nn.Module)


_OBJECT = r"(\[.*\]( \* \w+)?|\{\}|(list|dict|set|deque)\(.*\)|(torch|np)\.(zeros|ones|empty|full)\w*\(.*\))"
_ONE_FOR_EACH = re.compile(rf"\[{_OBJECT}\] \* .+|dict\.fromkeys\([^()]+(\([^()]*\))?, {_OBJECT}\)")
_CHANGED = r"\[[^\[\]]+\](\.(append|extend|insert|add|update|[a-z]\w*_)\(| [-+*/]=|\[[^\[\]]+\] [-+*/]?=(?!=)).*"
"""Containers of one object, and a change of an entry in place."""
_OTHERS = sys.stdlib_module_names - {"__main__"} | {"torch", "byname"}
