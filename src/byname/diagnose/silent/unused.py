"""Unused: results that a statement drops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from byname.diagnose.causes.loss import Loss
from byname.diagnose.silent.topic import Topic, Watch, row
from byname.reading.frames import Line
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of
from byname.source.location import is_library
from byname.tracking.log import Call, Log, logs

# fmt: off
DROPPED = row("result-dropped",
    "`{dropped.statement}`{noticed:at} changes nothing: the statement drops what {name}() returns", "{remedy}")
# fmt: on

_NEW = re.compile("masked_fill|detach|dropout|relu|sigmoid|(log_)?softmax|normalize|clamp|squeeze|transpose|permute")
"""Functions and methods that are called for their result only."""


class Unused(Topic):
    """Watches what statements drop before the first backward calls."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._remedies: dict[Any, str] = {}  # by place; none where nothing is dropped

    def backward(self, loss: Loss) -> None:
        """Report the statements that dropped a result before this call, and before an earlier one."""
        for log in [one for one in logs() if one.of_this_thread()] if loss.number <= 4 else ():
            for place, (line, name, module) in {one[0].place: one for one in _calls_of(log)}.items():
                if remedy := self._remedies.get(place):
                    self.say(DROPPED, line.site, dropped=line.site, name=name, remedy=remedy)
                elif place not in self._remedies and not is_library(line.code.co_filename):  # type: ignore[union-attr]
                    remedy = _instead(line, name, module)
                    changes = remedy and any(one.line.place == place for one in log.changes)
                    self._remedies[place] = "" if changes else remedy


def _calls_of(log: Log) -> Iterator[tuple[Line, str, Any]]:
    """Yield the calls since the last step whose result is gone: line, name and innermost module."""
    since = log.steps[-1].number if log.steps else 0
    for raw in takewhile(lambda raw: raw[0] >= since, reversed([*log.calls])):
        if raw[3] is not None and raw[3]() is None and raw[6] is not None and not raw[5]:
            yield Line(*raw[6:]), Call.of(raw).name, raw[4] and raw[4]()
    for cut in takewhile(lambda cut: cut.number >= since, reversed([*log.cuts])):
        if cut.name == "detach" and cut.result is not None and cut.result() is None:
            yield cut.line, cut.name, None


def _instead(line: Line, name: str, module: Any) -> str:
    """Return what to write instead of a call for its result that is a whole statement; empty if it is none."""
    node: Any = getattr(line.spot, "node", None)
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
