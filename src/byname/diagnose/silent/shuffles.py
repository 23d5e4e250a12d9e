"""Shuffles: inputs and targets that two draws shuffle differently, and random numbers that repeat."""

from __future__ import annotations

import ast
import dis
import inspect
import math
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset, dataloader

from byname.diagnose.cause import variable
from byname.diagnose.context import enclosing, node_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import is_readable, reading_values, sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, copy_values, distinct, on_call, topic_cause
from byname.reading.frames import Line, variables_of
from byname.reading.objects import attributes_of, found_in
from byname.reading.tensor import PLAIN, fact, is_tensor
from byname.source.code import CodeKey, definition_of, enclosing_statement, names_bound, statements_of
from byname.source.location import FILE_ORIGIN, PROGRAM, Site, is_library, site_of, statements_binding
from byname.source.tracebacks import walk_frames
from byname.tracking.lookup import creation_record_of
from byname.undo import Undo

# fmt: off
SHUFFLED_APART = topic_cause("shuffled-apart",
    "suspicious: the inputs{inputs:at} and the targets{noticed:at} of one loss are shuffled by two different calls of "
    "{by}: no target belongs to its sample any more",
    "draw one permutation once and index both with it: perm = torch.randperm(len(x)); x, y = x[perm], y[perm]; or give "
    "both to one loader: DataLoader(TensorDataset(x, y), shuffle=True)")
SHUFFLED_ALONE = topic_cause("shuffled-apart",
    "suspicious: `{shuffles.statement}`{noticed:at} shuffles {inputs} alone: the targets, {targets}, go with it"
    "{used:at} in their old order, and no target belongs to its sample any more",
    "index both with one permutation: perm = torch.randperm(len(x)); x, y = x[perm], y[perm]")
SAME_DRAWS = topic_cause("same-random-numbers",
    "suspicious: `{seeds.statement}`{noticed:at} sets the same seed {when}: what is drawn {what}{drawn:at} is the same "
    "each time",
    "set the seed once, before the loop; for an evaluation with a fixed seed, under torch.random.fork_rng()")
# fmt: on

_MOST_ROWS, _MOST_NUMBERS, _COMPARED, _MANY = 1 << 16, 1 << 22, 4, 8
_SEEDS = re.compile(r"seed|set_state|default_rng|RandomState|Random\(")
"""Words of a statement after which the same numbers may be drawn again."""
_SEEDS_BY = re.compile(r"\b(manual_seed|random\.seed|default_rng|RandomState|random\.Random)\((\d+|[A-Z][A-Z_]*)\)$")
_GENERATOR = re.compile(r"(?!torch\.)[\w.]+(?= =|\.manual_seed|\.seed)")
_DRAWS, _SHUFFLES = r"[\w.]*(?:randperm|permutation)\(", r"(?:np\.|numpy\.)?random\.shuffle"
_EVALUATES = re.compile(r"val|test|eval|no_grad|inference")
_IN_FORWARD = "by a dropout or the like in the forward"
_EACH_STEP = f"before each of {_MANY} steps"


class _Draw(NamedTuple):
    """A statement that shuffles a variable: its place among the statements, and the call that draws."""

    variable: str
    call: str
    at: int
    site: Site


class Drawn(NamedTuple):
    """Indices that were drawn: a key, the line, and the expression that they index."""

    key: tuple[int, str]
    line: Line
    source: str
    by: str = "randperm or randint"
    samples: int = 0  # of a loader that shuffles them


class Shuffles(Topic):
    """Compares the first inputs and targets with variables that were shuffled separately."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._input: torch.Tensor | None = None
        self._pairs: dict[CodeKey, list[tuple[_Draw, _Draw]]] = {}
        self._item: tuple[Line, Any] | None = None  # how the inputs were taken

    def begin(self, block: Undo) -> None:
        on_call(block, TensorDataset, "__init__", self._joined)

    def _joined(self, call: ObservedCall, result: Any) -> None:
        """Look at the variables whose tensors go into one dataset."""
        given: Any = getattr(node_of(call.line), "args", ())
        shapes = [one.shape[1:] for one in call.tensors]
        if len(given) == len(shapes) == 2 and shapes[0] != shapes[1]:  # else they may be two domains
            self._look_for_shuffle(call.line, given[0], given[1], call.tensors[1])

    def _look_for_shuffle(self, line: Line, inputs: ast.expr, targets: ast.expr, values: Any) -> None:
        """Report a statement that shuffles the inputs, if nothing shuffles the targets."""
        first, second = ({one.id for one in ast.walk(part) if isinstance(one, ast.Name)} for part in (inputs, targets))
        used, known = line.site, copy_values(values)
        if line.code is None or used is None or len(first - second) != 1 or len(second - first) != 1:
            return
        (name,), (other,) = first - second, second - first
        every = [(one, ast.unparse(one).partition("\n")[0]) for one in statements_of(line.code)]
        text = "\n".join(words for _, words in every)
        if re.search(rf"shuffle\({other}\)|^{other} = {other}\[", text, re.M):
            return
        for at, (one, words) in enumerate(every):
            found = re.match(rf"{name} = {name}\[(?:(\w+)|{_DRAWS}.*\))\]$|{_SHUFFLES}\({name}\)$", words)
            perm = found[1] if found else None
            drawn = re.search(rf"^{perm} = {_DRAWS}|^{_SHUFFLES}\({perm}\)", text, re.M)
            uses = len(re.findall(rf"\b{perm}\b", text))
            is_drawn = perm is None or (drawn and uses == (2 if "=" in drawn[0] else 3))  # and indexes nothing else
            later = {bound for after, _ in every[at + 1 :] if after.lineno <= used.line for bound in names_bound(after)}
            is_alone = found and is_drawn and one.lineno < used.line and not later & {name, other, perm}
            if is_alone and not _is_conditional(one) and known is not None and distinct(known) > 1:
                site = site_of(line.code, one, None, line.code.co_qualname)
                facts = {"inputs": variable(name), "targets": variable(other), "used": used}
                self.report(SHUFFLED_ALONE, site, shuffles=site, **facts)

    def ran(self, call: ObservedCall) -> None:
        """Remember the inputs of the first steps."""
        if not call.depth and self._watch.steps < 2 and torch.is_grad_enabled():
            self._input = copy_values(call.tensors[0]) if call.tensors else None
            self._item = item_of(call.tensors[0]) if call.tensors else None

    def applied(self, call: ObservedCall) -> None:
        """Look whether sample and target are at one index of two variables that were shuffled separately."""
        targets = None if self._input is None or call.targets is None else copy_values(call.targets)
        item = item_of(call.targets) if self._item is not None else None
        if item is not None and self._item is not None and item[0].code is self._item[0].code:
            self._look_for_shuffle(item[0], self._item[1], item[1], call.targets)
        if self._input is None or targets is None or len(self._input.shape) * targets.dim() == 0:
            return
        for frame in walk_frames(call.frame) if len(targets) == len(self._input) > 1 else ():
            for first, second in self._pairs_of(frame):
                given = variables_of(frame)
                rows = [_rows_of(given.get(one.variable)) for one in (first, second)]
                for mine, theirs in ((0, 1), (1, 0)):
                    if _stand_together(rows[mine], rows[theirs], self._input, targets):
                        sites = (first, second)[mine].site, (first, second)[theirs].site
                        self.report(SHUFFLED_APART, sites[1], inputs=sites[0], by=first.call)
        self._input = None

    def _pairs_of(self, frame: FrameType) -> list[tuple[_Draw, _Draw]]:
        code = frame.f_code
        if FILE_ORIGIN[code.co_filename] != PROGRAM:
            return []
        if CodeKey(code) not in self._pairs:
            self._pairs[CodeKey(code)] = [*_shuffled_apart(code)]
        return [pair for pair in self._pairs[CodeKey(code)] if max(one.site.line for one in pair) < frame.f_lineno]

    def before_step(self, followed: FollowedOptimizer) -> None:
        self._input = None


class Seeds(Topic):
    """Watches the generator of random numbers where the program sets a seed before each step."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._now: dict[str, Any] = {}  # since the last step: seed, line, the generator's state then and in the forward
        self._same: list[Any] = []  # what held in the last steps in a row
        self._made: list[tuple[Any, float]] = []  # inputs that were made anew and are equal: how, and their sum
        self._last = (0, 0)  # the id of the iterator that gave the last batch, and the steps before it

    def begin(self, block: Undo) -> None:
        on_call(block, torch, "manual_seed", self._seeds)
        on_call(block, dataloader._BaseDataLoaderIter, "__next__", self._gave)
        for owner in (torch, torch.random):  # as fork_rng() does at its end
            on_call(block, owner, "set_rng_state", lambda call, _: self._now.clear())

    def _seeds(self, call: ObservedCall, result: Any) -> None:
        if torch.is_grad_enabled():
            self._now |= {"seed": call.given(0, "seed"), "line": call.programs_line, "fresh": _state()}

    def _gave(self, call: ObservedCall, batch: Any) -> None:
        """Report a seed that the dataset of a batch sets for each sample."""
        last, made = self._last, self._watch.steps
        self._last = id(call.args[0]), made
        trains = last == (id(call.args[0]), made - 1) and torch.is_grad_enabled()  # it gives a batch for each step
        if trains and made == _MANY:
            for site, _ in seeds_in(getitem_code(attributes_of(call.args[0]).get("_dataset"))):
                self.report(SAME_DRAWS, site, seeds=site, when="for each sample", what="with it", drawn=None)

    def ran(self, call: ObservedCall) -> None:
        """Note the state at the first forward of a step, and inputs that are made anew and equal the last ones."""
        given = call.tensors[:1] if not call.depth and self._watch.steps < _MANY else []
        for one, made in [(one, made) for one in given if (made := creation_record_of(one)) is not None]:
            now, last = (made, sum_of(one)), [*self._made[-1:], (made, 0.0)][0]
            is_equal = last[0] is not made and last[0].line.code is made.line.code and last[1] == now[1]
            self._made = [*(self._made if is_equal else []), now]
            if len(self._made) == _MANY and made.line.code is not call.line.code:
                self._look_for_generators(made.line, None)
        if self._now.keys() == {"seed", "line", "fresh"} and not call.depth:
            self._now |= {"state": _state(), "drawn": call.line.site}

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Report a forward that drew random numbers, and began in the same state in several steps in a row."""
        now, same, self._now, self._same = self._now, self._same, {}, []
        is_drawn = "state" in now and now["state"] != now["fresh"]
        if is_drawn and getattr(now["line"].code, "co_name", "") == "__getitem__":  # `_gave` looks at a dataset's
            now = {}
        if "state" in now and (is_drawn or _state() != now["state"]) and followed.kind != "LBFGS":
            key = id(followed), now["seed"], now["line"].place, now["state"]
            self._same = [*same, key] if [key] == same[-1:] else [key]
            if len(self._same) == _MANY and (site := now["line"].site) is not None:
                what = "between it and the forward, such as a batch," if is_drawn else _IN_FORWARD
                self.report(SAME_DRAWS, site, seeds=site, when=_EACH_STEP, what=what, drawn=now["drawn"])
        if followed.steps == _MANY:
            self._look_for_generators(followed.line, node_of(followed.line))

    def _look_for_generators(self, line: Line, step: Any) -> None:
        """Report a generator that is seeded beside a step, or in a function that makes batches, and drawn from."""
        code: Any = line.code
        for site, seeds in seeds_in(code):
            last = math.inf if step is None else step.lineno
            block: Any = definition_of(code) if step is None else enclosing_statement(step).parent  # type: ignore[attr-defined]
            is_near = seeds.parent is block and not code.co_flags & inspect.CO_GENERATOR
            between = [ast.unparse(one) for one in seeds.parent.body if is_near and seeds.lineno < one.lineno < last]
            generator = _GENERATOR.match(ast.unparse(seeds))
            draws = [one for one in between if generator and re.search(rf"\b{re.escape(generator[0])}\b", one)]
            if draws and not _EVALUATES.search(" ".join([ast.unparse(seeds), *draws])):
                self.report(SAME_DRAWS, site, seeds=site, when=_EACH_STEP, what="with it", drawn=None)


def getitem_code(dataset: Any) -> Any:
    """Return the code by which a dataset gives a sample, or None."""
    return getattr(found_in(type(dataset), "__getitem__"), "__code__", None)


def seeds_in(code: CodeType | None) -> Iterator[tuple[Site, Any]]:
    """Yield the statements of a body that always set one seed, or make a generator with it."""
    for one in statements_of(code) if code is not None and not is_library(code.co_filename) else ():
        is_plain = isinstance(one, ast.Expr | ast.Assign) and _SEEDS_BY.search(ast.unparse(one))
        if code is not None and is_plain and isinstance(one.parent, ast.FunctionDef | ast.For | ast.While):  # type: ignore[attr-defined]
            yield site_of(code, one, None, code.co_qualname), one


def ignores_index(loader: Any) -> str:
    """Return in words that the program's dataset of a loader does not read the index that it is asked for, or none."""
    code = getitem_code(attributes_of(loader).get("dataset"))
    if code is None or is_library(code.co_filename) or code.co_varnames[1:2] < ("a",):  # "_" says so
        return ""
    given = [one.argval if type(one.argval) is tuple else (one.argval,) for one in dis.get_instructions(code)]
    return "" if any(code.co_varnames[1] in one for one in given) else "and __getitem__() does not use its index"


def draw_of(tensor: torch.Tensor) -> Drawn | None:
    """Return the draw by which a tensor, or the one that it is a part of, was indexed."""
    for one in (tensor, fact(tensor, "_base")):
        item = item_of(one)
        if item is None or (code := item[0].code) is None:
            continue
        line, index = item[0], item[1].slice
        index = index.value if isinstance(index, ast.Subscript) and isinstance(index.slice, ast.Slice) else index
        text = ast.unparse(index)
        bound = statements_binding(code, text) if text.isidentifier() else []
        drawn = [ast.unparse(part.node) for part in bound if isinstance(part.node, ast.Assign)] or [text]
        function = r"rand(perm|int)\(" if not isinstance(item[1].slice, ast.Tuple) else r"randperm\("
        if all(re.search(function, words) and "generator" not in words for words in drawn):
            source = ast.unparse(item[1].value) if "randint(" in drawn[0] else str(id(one))  # one copy of several
            return Drawn((id(code) if bound else id(one), text), line, source)
    return None


def item_of(tensor: torch.Tensor | None) -> tuple[Line, ast.Subscript] | None:
    """Return the line that made a tensor as an item of another, according to the source, and the expression."""
    made = None if tensor is None else creation_record_of(tensor)
    code, at = (None, 0) if made is None else made.line[:2]
    if made is None or code is None or not dis.opname[code.co_code[at]].startswith("BINARY_"):
        return None
    node = node_of(made.line)
    return (made.line, node) if isinstance(node, ast.Subscript) else None


def _state() -> bytes:
    """Return the state of PyTorch's generator of random numbers."""
    with reading_values():
        state = torch.get_rng_state()
        return state.numpy().tobytes() if type(state) in PLAIN and is_readable(state) else b""  # not under functorch


def _shuffled_apart(code: CodeType) -> Iterator[tuple[_Draw, _Draw]]:
    """Yield the statements of a body that shuffle two variables by two draws of one generator."""
    statements = [*statements_of(code)] if "numpy" in sys.modules or "random" in code.co_names else []
    draws = [draw for at, one in enumerate(statements) for draw in _draws_of(code, at, one)]
    for first, second in combinations(draws, 2):
        between = statements[first.at + 1 : second.at]
        seeded = any(_SEEDS.search(ast.unparse(one)) for one in between if not hasattr(one, "body"))
        mine = [(one.variable, other) for one in (first, second) for other in statements[one.at + 1 :]]
        anew = any(name in names_bound(one) and name not in read_by(one) for name, one in mine)
        if first.call == second.call and first.variable != second.variable and not seeded and not anew:
            yield first, second


def read_by(statement: ast.AST) -> set[str]:
    """Return the variables that a statement reads, but for those of which it asks the size only."""
    every = [one for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    return {one.id for one in every if not _SIZES.search(ast.unparse(getattr(one, "parent", one)))}


_SIZES = re.compile(r"^len\(|\.(shape|size|device|dtype|numel)$")


def _draws_of(code: CodeType, at: int, statement: ast.stmt) -> Iterator[_Draw]:
    """Yield the variables that a statement shuffles, if nothing decides whether it runs."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and statement.value.args:
        parts = [(statement.value.args[0], statement.value)]
    elif isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
        parts = [*zip(target.elts, value.elts, strict=True)] if both else [(target, value)]  # type: ignore[attr-defined]
    for target, value in parts if not _is_conditional(statement) else ():
        drawn = value.slice if isinstance(value, ast.Subscript) else value
        called = ast.unparse(drawn.func) if isinstance(drawn, ast.Call) and not drawn.keywords else ""
        name, wanted = called.rpartition(".")[2], ("permutation",) if drawn is not value else ("permutation", "shuffle")
        if isinstance(target, ast.Name) and name in wanted and "(" not in called:
            yield _Draw(target.id, called, at, site_of(code, statement, target.id, code.co_qualname))


def _is_conditional(statement: Any) -> bool:
    block = enclosing(statement, ast.If, ast.Try, ast.Match)
    is_main = isinstance(block, ast.If) and "__name__" in ast.unparse(block.test)
    return _is_conditional(block.parent) if is_main else block is not None


def _rows_of(value: Any) -> torch.Tensor | None:
    """Return the rows of a tensor, an array or a list of numbers or tensors, or None."""
    if type(value) is list and 1 < len(value) <= _MOST_ROWS and type(value[0]) in (int, float, list, *PLAIN):
        size = max(value[0].numel(), 1) if is_tensor(value[0]) else 1
        try:
            with reading_values():
                some = value[: _MOST_NUMBERS // size]
                value = torch.stack(some) if is_tensor(value[0]) else torch.tensor(some, device="cpu")
        except (TypeError, ValueError, RuntimeError):  # such as entries of several shapes
            return None
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "fiub" and value.size < _MOST_NUMBERS:
        value = torch.from_numpy(value.copy())
    values = copy_values(value, _MOST_NUMBERS) if is_tensor(value) else None
    return values.reshape(len(values), -1) if values is not None and values.dim() > 0 else None


def _stand_together(
    samples: torch.Tensor | None, labels: torch.Tensor | None, given: torch.Tensor, targets: torch.Tensor
) -> bool:
    """Return whether each of the first inputs is one of some samples, and its target the label of the same number."""
    if samples is None or labels is None or len(samples) != len(labels):
        return False
    with reading_values():
        given, targets = (one[:_COMPARED].reshape(len(one[:_COMPARED]), -1) for one in (given, targets))
        if samples.shape[1] != given.shape[1] or labels.shape[1] != targets.shape[1]:
            return False
        samples, labels = samples.to(given.dtype), labels.to(targets.dtype)
        found = [(samples == one).all(1).nonzero().flatten().tolist() for one in given]
        alone = all(len(one) == 1 for one in found) and len({one[0] for one in found}) == len(found)
        return alone and torch.equal(labels[[one[0] for one in found]], targets)
