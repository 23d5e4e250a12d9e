"""Unused calls: clipping that no step uses, and calls whose result a statement drops."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from os.path import commonprefix
from types import CodeType
from typing import Any

import torch
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.causes.loss import Loss
from byname.diagnose.context import enclosing, node_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, on_call, topic_cause
from byname.reading.frames import Line
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of
from byname.reading.tensor import fact, is_tensor
from byname.source.code import source_of
from byname.source.location import is_library, site_of
from byname.tracking.log import Call, Log, logs
from byname.undo import Undo

# fmt: off
CLIPS_TOO_SOON = topic_cause("clips-at-the-wrong-place",
    "`{clip.statement}`{noticed:at} clips nothing that a step uses: whenever it runs, no backward has reached the "
    "gradients of {names:3} since the last step; the backward{backward:at} comes after it",
    "move it between the backward and optimizer.step()")
CLIPS_NOTHING = topic_cause("clips-another-model",
    "`{clip.statement}`{noticed:at} clips nothing: {why}",
    "clip the parameters of the optimizer, each time anew: clip_grad_norm_(model.parameters(), ...)")
CLIPS_ANOTHER = topic_cause("clips-another-model",
    "`{clip.statement}`{noticed:at} clips the gradients of {names:3}, which no backward has reached since their last "
    "step, and then {kind} steps{step:at} with the gradients of {others:3}, which nothing clips",
    "clip the parameters of that step: those of {path}")
DROPPED = topic_cause("result-dropped",
    "`{noticed.statement}`{noticed:at} changes nothing: the statement drops what {name}() returns", "{remedy}")
RENAMED = topic_cause("result-dropped",
    "`{noticed.statement}`{noticed:at} changes no parameter: it gives the variable {name} of the loop another value",
    "copy the values, under torch.no_grad(): {name.path}.copy_({value})")
# fmt: on

_ENOUGH, _CLIPPED_IN = 3, 64


class Clipping(Topic):
    """Watches which gradients are clipped in the first steps, and whether the next step uses them."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._stale: dict[int, tuple[FollowedOptimizer, Line, list[FollowedOptimizer]]] = {}
        self._clipped: set[int] = set()
        self._seen: dict[tuple[Any, ...], int] = {}
        self._vain: dict[tuple[Any, ...], tuple[int, Line, str]] = {}

    def begin(self, block: Undo) -> None:
        """Watch ``clip_grad_value_``, and the function inside ``clip_grad_norm_``, which programs import by name."""
        on_call(block, torch.nn.utils.clip_grad, "_clip_grads_with_norm_", self._clips)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            on_call(block, owner, "clip_grad_value_", self._clips, reads_whole=True)

    def _clips(self, call: ObservedCall, result: Any) -> None:
        if ((is_late := self._is_late()) and not self._vain) or call.given(1, "max_norm") == math.inf:
            return  # late, or only to know the norm
        given = call.given(0, "parameters")
        parameters = [given] if is_tensor(given) else given if type(given) in (list, tuple) else None
        every = self._watch.optimizers()
        keys = set(map(id, parameters or ()))
        if parameters is not None and any(one.has_new_grads for one in every):
            self._note_vain(call.programs_line, parameters, not keys.isdisjoint(self.owned()))
        for followed in (one for one in every if not is_late and not keys.isdisjoint(one.keys)):
            if followed.has_new_grads:
                self._clipped.add(id(followed))
                self._stale.pop(id(followed), None)
            elif id(followed) not in self._clipped and followed.steps:
                others = [one for one in every if one.has_new_grads and followed.steps == followed.backward_steps]
                self._stale[id(followed)] = followed, call.programs_line, others

    def _is_late(self) -> bool:
        """Return whether all optimizers have made their first steps."""
        return all(one.steps > _CLIPPED_IN for one in self._watch.optimizers())

    def _note_vain(self, line: Line, parameters: Sequence[torch.Tensor], owned: bool) -> None:
        """Count calls of a line in a row with nothing to clip."""
        if owned or any(fact(one, "grad") is not None or not fact(one, "requires_grad") for one in parameters):
            self._vain.pop(line.place, None)
        else:
            why = "it is given no parameters, as by a generator such as model.parameters(), which gives them only once"
            why = "no optimizer has its parameters, and none of them has a gradient" if parameters else why
            self._vain[line.place] = self._vain.get(line.place, (0,))[0] + 1, line, why

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report lines that had nothing to clip."""
        for times, line, why in self._vain.values():
            if times >= _ENOUGH and (site := line.site) is not None and not is_library(site.file):
                self.report(CLIPS_NOTHING, site, clip=site, why=why)

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Note whether the clipping since the last step had no effect."""
        own = self._stale.pop(id(followed), None)
        if followed.steps == 1 and followed.line.code is not None and self._watch.steps <= _CLIPPED_IN:
            self._look_for_dropped(followed.line.code)
        if self._is_late():
            return
        if id(followed) in self._clipped or not followed.has_new_grads:
            self._clipped.discard(id(followed))
        elif own is not None:
            self._count(followed, followed, own[1])
        else:
            for other, line, fresh in self._stale.values():
                if any(one is followed for one in fresh):
                    self._count(followed, other, line)

    def _look_for_dropped(self, code: CodeType) -> None:
        """Report statements of a file that clip gradients, or name another tensor, and whose result nothing uses."""
        source: Any = source_of(code)
        for one in ast.walk(source.tree) if source is not None else ():
            called = getattr(one.value, "func", None) if isinstance(one, ast.Expr) else None
            clips = re.fullmatch(r".+\.grad(?:\.data)?\.(clamp|clip)", "" if called is None else ast.unparse(called))
            facts = {"noticed": site_of(code, one, None, "")} if isinstance(one, ast.stmt) else {}
            if clips:
                remedy = f"clip in place, by {clips[1]}_(), or nn.utils.clip_grad_value_()"
                self.report(DROPPED, name=clips[1], remedy=remedy, **facts)
            elif isinstance(one, ast.Assign) and _names_another(one):
                self.report(RENAMED, name=variable(ast.unparse(one.targets[0])), value=ast.unparse(one.value), **facts)

    def _count(self, followed: FollowedOptimizer, clipped: FollowedOptimizer, line: Line) -> None:
        key = id(followed), id(clipped), line.place
        self._seen[key] = self._seen.get(key, 0) + 1
        site = line.site
        if self._seen[key] == _ENOUGH and site is not None and not is_library(site.file):
            names, others = clipped.all_names(), followed.all_names()
            module = re.match(r"(.+)[.\[]", commonprefix([one.path for one in others]))  # noqa: RUF071 - no paths of files
            path = f"{module[1]}.parameters()" if module else "its optimizer"
            facts = {"kind": followed.kind, "backward": followed.backward, "step": followed.site, "path": path}
            cause = CLIPS_TOO_SOON if clipped is followed else CLIPS_ANOTHER
            self.report(cause, site, clip=site, names=names, others=others, **facts)


_NEW = re.compile("masked_fill|detach|dropout|relu|sigmoid|(log_)?softmax|normalize|clamp|squeeze|transpose|permute")
"""Functions and methods that are called for their result only."""


class Unused(Topic):
    """Watches what statements drop before the first backward calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._remedies: dict[Any, str] = {}  # by place; none where nothing is dropped

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Embedding, "__init__", self._made)

    def _made(self, call: ObservedCall, _: Any) -> None:
        line = call.programs_line
        is_dropped = isinstance(getattr(node_of(line), "parent", None), ast.Expr)
        if is_dropped and call.frame.f_code.co_name == "from_pretrained":
            remedy = "assign it, as by self.embedding = nn.Embedding.from_pretrained(...)"
            self.report(DROPPED, line.site, name="from_pretrained", remedy=remedy)

    def backward(self, loss: Loss) -> None:
        """Report the statements that dropped a result before this call, and before an earlier one."""
        for log in [one for one in logs() if one.of_this_thread()] if loss.number <= 4 else ():
            for place, (line, name, module) in {one[0].place: one for one in _calls_of(log)}.items():
                if remedy := self._remedies.get(place):
                    self.report(DROPPED, line.site, name=name, remedy=remedy)
                elif place not in self._remedies and not is_library(line.code.co_filename):  # type: ignore[union-attr]
                    remedy = _instead(line, name, module)
                    changes = remedy and any(one.line.place == place for one in log.changes)
                    self._remedies[place] = "" if changes else remedy


def _names_another(assigned: Any) -> bool:
    """Return whether an assignment gives the variable of a loop over parameters another value, and nothing reads it."""
    loop, name = enclosing(assigned, ast.For), ast.unparse(assigned.targets[0])
    if loop is None or name not in re.findall(r"[^\W_]\w*", ast.unparse(loop.target)):
        return False
    every: list[Any] = [one for one in ast.walk(loop) if getattr(one, "id", "") == name]
    read = [one for one in every if isinstance(one.ctx, ast.Load) and one.lineno >= assigned.lineno]
    return "parameters()" in ast.unparse(loop.iter) and not read


def _calls_of(log: Log) -> Iterator[tuple[Line, str, Any]]:
    """Yield the calls since the last step whose result is gone: line, name and innermost module."""
    since = log.steps[-1].number if log.steps else 0
    for raw in takewhile(lambda raw: raw[0] >= since, reversed([*log.calls])):
        if (result := Call.of(raw).result) is not None and result() is None and raw[6] is not None and not raw[5]:
            yield Line(*raw[6:]), Call.of(raw).name, raw[4] and raw[4]()
    for cut in takewhile(lambda cut: cut.number >= since, reversed([*log.detaches])):
        if cut.name == "detach" and cut.result is not None and cut.result() is None:
            yield cut.line, cut.name, None


def _instead(line: Line, name: str, module: Any) -> str:
    """Return what to write instead of a call for its result that is a whole statement; empty if it is none."""
    node = node_of(line)
    statement: Any = getattr(node, "parent", None)
    called = ast.unparse(node.func) if isinstance(node, ast.Call) and isinstance(statement, ast.Expr) else ""
    own = attributes_of(module) if type(module).__module__.startswith("torch.nn.") else {}  # else the line is in it
    last = called.rpartition(".")[2]  # of a module part of its class, or it may be the last one of those called
    is_plain = len(last) > 3 and type(module).__name__.lower().startswith(last.lower()[:4])
    is_known = is_plain and not parameters_in(module) if own else _NEW.fullmatch(name) and last == name
    if not called or not is_known or any(map(own.get, ("_forward_hooks", "_forward_pre_hooks", "inplace"))):
        return ""
    if isinstance(statement.parent, ast.Try) or {one.arg for one in node.keywords} & {"inplace", "out"}:
        return ""
    is_function = own or re.search(r"(^|\b(F|functional|torch)\.)\w+$", called)
    given = (*node.args, node)[0] if is_function else getattr(node.func, "value", node)
    return f"{ast.unparse(given)} = {ast.unparse(node)}" if "(" not in ast.unparse(given) else "assign the result"
