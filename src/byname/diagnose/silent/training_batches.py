"""Training batches: one batch again and again, or one part of the data, and samples that are all equal."""

from __future__ import annotations

import ast
import math
import re
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, dataloader

from byname.diagnose.cause import variable
from byname.diagnose.context import enclosing, node_of, value_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.shuffles import SHUFFLED_APART, Drawn, draw_of, ignores_index, item_of, read_by
from byname.diagnose.silent.topic import (
    ObservedCall,
    Topic,
    Watch,
    arg_name,
    copy_values,
    distinct,
    has_equal_rows,
    on_call,
    topic_cause,
)
from byname.naming.name import Name
from byname.reading.frames import Line, user_line, variables_at, variables_of
from byname.reading.objects import attributes_of
from byname.reading.tensor import fact, is_tensor
from byname.source.code import names_bound, statements_of
from byname.source.location import Site, is_library, site_of, statements_binding
from byname.source.tracebacks import walk_frames
from byname.tracking.log import logs
from byname.tracking.lookup import site_of_tensor
from byname.undo import Undo

# fmt: off
FIRST_BATCH_ONLY = topic_cause("first-batch-only",
    "each of {times} steps uses the same first batch: a new iterator of {loader}{noticed:at} begins anew each time, "
    "without shuffle gives the same {size} of {samples} samples first, and is asked for no others",
    "iterate over all: `for batch in {loader.path}:` without a break after the first one, or keep one iterator outside "
    "of the loop, and call next() with it")
ENDS_EARLY = topic_cause("first-batch-only",
    "suspicious: each of {times} loops over {loader}{noticed:at} makes one step: `{left.statement}`{left:at} leaves "
    "it in its first iteration, and the other batches are never used",
    "move it behind the loop, one level out; it is right if each call should make one step")
EMPTY_LOADER = topic_cause("empty-loader",
    "{loader}{noticed:at} gives no batch, and a loop over it ends at once: it has {samples} samples, batches of {size} "
    "and drop_last=True", "drop_last=False, or a batch_size of {samples} or less")
BATCH_NOT_USED = topic_cause("batch-not-used",
    "each of {times} steps uses the same {what}, {name}{noticed:at}: a batch that {loader} gave before, while the loop"
    "{loop:at} gets a new batch each time, which is not used for it", "use the batch of the loop, not {name}")
SAME_SLICE = topic_cause("same-slice",
    "{inputs:-}suspicious: each of {times} steps uses the same {size} of {samples} samples: {part}{noticed:at} is the "
    "same slice each time, as {start} {why}",
    "{remedy}, or iterate over a DataLoader; it is right if the other samples are for something else")
USED_UP = topic_cause("iterator-used-up",
    "{batches} is a {kind}{made:at}, which gives its items once, and the loop{noticed:at} goes through it in the first "
    "iteration of `{outer}`: in all others there is nothing left, and no step is made",
    "make it anew in each iteration, or make it a list or a DataLoader")
OVERLAPS = topic_cause("same-slice",
    "suspicious: {part}{noticed:at} has {size} samples, and overlaps with the one before, which began {shift} earlier: "
    "{start} counts batches, not samples, so that most of the {samples} samples are never used",
    "multiply it, as in [{start.path} * n : ({start.path} + 1) * n], or iterate over range(0, {samples}, n)")
EQUAL_SAMPLES = topic_cause("equal-samples",
    "all {size} inputs of each batch {name}{made:at} that {module} is given{noticed:at} are identical, {how}: {why}",
    "{remedy}")
# fmt: on

_STACKED = (
    "stack the samples, each its own: torch.stack([x for x, _ in samples]); in a Dataset, use the index given, "
    "and return a clone() of a tensor that it fills again"
)
_MANY, _EQUAL_IN, _ENTRIES, _FRAMES = 8, 3, 16, 3
_LOOKED_AT = (0, 1, 3)
"""Steps made before those whose inputs are read."""


@dataclass
class _Loader:
    """A DataLoader: its iterators and batches so far, the line, and the tensors that it gave before the first step.

    An iterator counts as regular if the one before gave one batch, and one step was made with it. No iterator of a
    loader does whose first batches differ, as where a Dataset draws its samples.
    """

    loader: weakref.ref[Any]
    line: Line
    iterators: int = 0
    batches: int = 0
    size: int = 0
    samples: int = 0
    several: bool = False  # whether there is more than one batch
    regular: int = 0
    steps: int = 0
    shuffled: Drawn | None = None
    before: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    sums: list[float | None] = field(default_factory=list)  # of the tensors of the first batch


class _Slice(NamedTuple):
    """A slice in the source: its text, the variable it starts at, its line, and the step of a loop over starts."""

    text: str
    start: str
    site: Site
    steps: str = ""


class _Same(NamedTuple):
    """A tensor, or a part of it, that was used in all of some uses so far, unchanged."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    part: tuple[Any, ...]  # its shape and offset, and the shape of the tensor
    times: int
    given: int  # the batches that loaders had given at the first use
    line: Line
    slice: _Slice | None  # how the part was taken, if by a slice with a variable start, or in a loop over starts


class _Input(NamedTuple):
    """The input of a module."""

    equal: int  # how many samples it has if all are equal, or 0
    drawn: Drawn | None
    module: str
    line: Line
    made: Site | None


class Batches(Topic):
    """Watches loaders, and the inputs and targets of the first steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._loaders: dict[int, _Loader] = {}
        self._iterators: dict[int, _Loader] = {}
        self._same: dict[Any, _Same | None] = {}
        self._input: list[_Input] = []
        self._lines = set[Any]()  # that called a module before the first step
        self._is_zero = False  # whether all numbers of an input are
        self._equal, self._how = 0, ""  # how it shows that samples should differ
        self._parts: deque[tuple[weakref.ref[torch.Tensor], _Loader]] = deque(maxlen=64)  # of the last batches

    def begin(self, block: Undo) -> None:
        on_call(block, DataLoader, "__iter__", self._began)
        on_call(block, dataloader._BaseDataLoaderIter, "__next__", self._gave)

    def _began(self, call: ObservedCall, iterator: Any) -> None:
        loader, line, made = call.args[0], user_line(call.frame), self._watch.steps
        known = self._loaders.get(id(loader))
        if known is None or known.loader() is not loader:
            known = self._loaders[id(loader)] = _Loader(weakref.ref(loader), line)
            own = attributes_of(loader)
            if type(own.get("sampler")) is RandomSampler and own["sampler"].generator is None:
                key = str(id(own["dataset"]))
                known.shuffled = Drawn((0, key), line, key, "DataLoader(..., shuffle=True)", len(own["dataset"]))
            is_plain = type(own.get("sampler")) in (RandomSampler, SequentialSampler) and own["batch_size"]
            size, samples = (own["batch_size"], len(own["dataset"])) if is_plain else (0, 0)
            known.several = samples > size
            if own["drop_last"] and 0 < samples < size:
                self.report(EMPTY_LOADER, line.site, loader=loader_of(line)[0], samples=samples, size=size)
            if type(own.get("sampler")) is SequentialSampler:
                known.size, known.samples = size, samples
        known.regular += made - known.steps == 1 and known.batches == known.iterators
        known.iterators, known.steps, known.line = known.iterators + 1, made, line
        self._iterators[id(iterator)] = known

    def _gave(self, call: ObservedCall, batch: Any) -> None:
        known = self._iterators.get(id(call.args[0]))
        if known is not None:
            known.batches += 1
            parts = [*batch.values()] if type(batch) is dict else batch if type(batch) in (list, tuple) else [batch]
            parts = [one for one in parts if is_tensor(one)] if known.batches <= _ENTRIES else []
            self._parts += [(weakref.ref(one), known) for one in parts]
            if not self._watch.steps and len(known.before) < _ENTRIES:
                known.before += [weakref.ref(one) for one in parts]
            if known.samples and known.batches == known.iterators:
                sums = [None if (values := copy_values(one)) is None else values.double().sum().item() for one in parts]
                known.sums = known.sums or sums
                known.samples *= not sums or any(one == first for one, first in zip(sums, known.sums, strict=False))

    def ran(self, call: ObservedCall) -> None:
        """Look at the inputs of a forward with gradients."""
        given, made = call.tensors[:1], self._watch.steps
        if given and not call.depth:
            self._note_same(("inputs", id(call.called)), given[0], call)
            self._input = [self._look_at_input(call, given[0])] if made in _LOOKED_AT else []
            is_new = not made and call.line.place not in self._lines
            self._lines |= {call.line.place} if is_new else set()
            for facts in used_up(call.frame) if is_new else ():
                self.report(USED_UP, facts.pop("site"), **facts)

    def _look_at_input(self, call: ObservedCall, given: torch.Tensor) -> _Input:
        values, equal = copy_values(given), 0
        if values is not None and values.dim() > 1 and len(values) >= 4:
            self._is_zero = len(call.tensors) == 1 and values[0].numel() > _FRAMES and not bool(values.any())
            is_long = self._is_zero or (values.is_floating_point() and distinct(values[0]) >= 3)
            equal = len(values) if has_equal_rows(values) and is_long else 0
        return _Input(equal, self._draw_of(given), type(call.called).__name__, call.line, site_of_tensor(given))

    def _draw_of(self, tensor: torch.Tensor) -> Drawn | None:
        """Return the draw by which a tensor was indexed, or by which a loader shuffled it."""
        shuffled = [known.shuffled for part, known in self._parts if part() is tensor]
        return shuffled[-1] if shuffled else draw_of(tensor)

    def _note_same(self, key: Any, tensor: torch.Tensor, call: ObservedCall) -> None:
        known = self._same.get(key)
        if key in self._same and known is None:
            return
        index, cut, samples = _drawn_once(tensor, call.frame) or (tensor, None, ())
        version = 0 if index.is_inference() else fact(index, "_version")
        base = fact(index, "_base")
        whole = index if base is None else base
        part = tuple(tensor.shape), index.storage_offset(), samples or tuple(whole.shape)
        if known is None:
            given = sum(one.batches for one in self._loaders.values())
            self._same[key] = _Same(weakref.ref(whole), version, part, 1, given, call.line, cut or _slice(tensor))
            return
        same = known.tensor() is whole and (known.version, known.part) == (version, part)
        if not same and known.tensor() is whole and key[0] == "targets" and (item := item_of(tensor)) is not None:
            self._look_for_overlap(known.part, part, *item)
        self._same[key] = known._replace(times=known.times + 1) if same else None

    def _look_for_overlap(self, before: Any, part: Any, line: Line, node: ast.Subscript) -> None:
        """Report a slice that begins a few rows after the one before, in a loop over the number of batches."""
        found = re.search(r"\[(\w+):\1 \+ ([\w.]+)[],]", ast.unparse(node))
        start, size = found.groups() if found else ("", "")
        loop = enclosing(node, ast.For)
        while loop is not None and ast.unparse(loop.target) != start:
            loop = enclosing(loop.parent, ast.For)
        shift = (part[1] - before[1]) // math.prod(part[2][1:])
        if loop is None or line.code is None or not 0 < 2 * shift <= part[0][0]:
            return
        count = ast.unparse(loop.iter).removeprefix("range(").removesuffix(")")
        bound = [ast.unparse(one.node) for one in statements_binding(line.code, count) if one.node is not None]
        if any("," not in one and re.search(rf"/ {re.escape(size)}\b|batches$", one) for one in (count, *bound)):
            facts = {"part": variable(ast.unparse(node)), "start": variable(start), "shift": shift}
            self.report(OVERLAPS, line.site, size=part[0][0], samples=part[2][0], **facts)

    def applied(self, call: ObservedCall) -> None:
        targets = call.targets
        if targets is None or not torch.is_grad_enabled():
            return
        self._note_same(("targets", call.line.place), targets, call)
        for first in [one.drawn for one in self._input]:
            values = copy_values(targets)
            is_chosen = targets.dtype == torch.long and any(log.detaches_of(targets) for log in logs())  # by a policy
            differ = values is not None and values.dim() > 0 and not (is_chosen or has_equal_rows(values))
            ignoring = [words for one in self._loaders.values() if (words := ignores_index(one.loader()))]
            self._how = "while their targets differ" if differ else [*ignoring, ""][0]
            second = self._draw_of(targets)
            if first is None or second is None or (first.by, first.samples) != (second.by, second.samples):
                continue
            if first.key != second.key and first.source != second.source:
                self.report(SHUFFLED_APART, second.line.site, inputs=first.line.site, by=first.by)

    def before_step(self, followed: FollowedOptimizer) -> None:
        for one in self._input if self._how else ():
            self._equal += one.equal > 0
            if self._equal == _EQUAL_IN:
                name = arg_name(one.line, 0, "without a name")
                facts = {"size": one.equal, "name": name, "made": one.made, "module": one.module, "how": self._how}
                why, remedy = "a batch seems to repeat one sample", _STACKED
                if self._is_zero:
                    why = "all their numbers are 0, as after // 255 or long() of fractions, or where nothing fills them"
                    remedy = "convert to whole numbers after scaling, not before it; divide as floats: x.float() / 255"
                self.report(EQUAL_SAMPLES, one.line.site, why=why, remedy=remedy, **facts)
        self._input, self._how = [], ""
        if self._watch.steps == 2 * _MANY:
            self._report_same()

    def _report_same(self) -> None:
        """Report a batch from before the first step that every step uses, while its loader gives new ones."""
        now = sum(one.batches for one in self._loaders.values())
        often = [(key, same) for key, same in self._same.items() if same is not None and same.times >= _MANY]
        for key, same in often:
            tensor = same.tensor()
            for known in self._loaders.values() if tensor is not None else ():
                if any(one() is tensor for one in known.before) and now - same.given >= same.times - 1:
                    name = arg_name(same.line, 0 if key[0] == "inputs" else 1)
                    loader, loop, is_used, _ = loader_of(known.line)
                    facts = {"what": key[0], "times": same.times, "name": name, "loader": loader, "loop": loop}
                    if not is_used:
                        self.report(BATCH_NOT_USED, same.line.site, **facts)

    def _report_slices(self) -> None:
        """Report a small part of the targets that every step slices anew, always the same part."""
        for same in [same for key, same in self._same.items() if same is not None and key[0] == "targets"]:
            if same.slice is not None and same.times >= 2 * _MANY:
                size, samples, (text, start, site, steps) = same.part[0][0], same.part[2][0], same.slice
                if 2 * size <= samples:
                    why = "is not read where its loop goes over the samples" if steps else "does not change"
                    remedy = f"take [{start}:{start} + {steps}]" if steps else f"change `{start}` from step to step"
                    remedy = remedy if ":" in text else f"draw `{start}` anew for each step, inside of the loop"
                    facts = {"times": same.times, "size": size, "samples": samples, "why": why, "remedy": remedy}
                    inputs = [one.slice.site for one in self._same.values() if one and one.slice and one is not same]
                    self.report(SAME_SLICE, site, inputs=inputs, part=variable(text), start=variable(start), **facts)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        if self._watch.steps < 2 * _MANY:
            self._report_same()
        self._report_slices()
        for known in self._loaders.values():
            site, facts = known.line.site, {"size": known.size, "samples": known.samples, "times": known.iterators}
            often = known.regular >= max(_MANY, known.iterators - 2) and known.samples > known.size > 0
            loader, *_, left = loader_of(known.line)
            is_left = left and known.several and known.batches == known.iterators >= _EQUAL_IN
            if often and site is not None and not is_library(site.file):
                self.report(FIRST_BATCH_ONLY, site, loader=loader, **facts)
            elif is_left and known.regular >= known.iterators - 2:
                self.report(ENDS_EARLY, site, left=left, loader=loader, **facts)


def loader_of(line: Line) -> tuple[Name, Site | None, bool, Site | None]:
    """Return the loader of a loop on a line, the line, whether it uses all it gets, and the return at its end."""
    node, code, site = node_of(line), line.code, line.site
    is_used, left = False, None
    for one in statements_of(code) if code is not None else ():
        if isinstance(one, ast.For) and site is not None and one.lineno == site.line and code is not None:
            node, site, is_used = one.iter, site_of(code, one, None, code.co_qualname), _uses_all(one)
            left = site_of(code, one.body[-1], None, "") if isinstance(one.body[-1], ast.Return) else None
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    path = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else "the loader"
    return variable(path), site, is_used, left


def _uses_all(loop: ast.For) -> bool:
    """Return whether a loop reads all variables that it binds to parts of a batch, and not only their sizes."""
    bound = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    for one in loop.body:
        value = one.value if isinstance(one, ast.Assign) else None
        if isinstance(value, ast.Name | ast.Subscript) and read_by(value) & bound:
            bound |= names_bound(one)
    return bound <= {name for one in loop.body for name in read_by(one)}


def used_up(frame: FrameType) -> Iterator[dict[str, Any]]:
    """Yield facts of an iterator that a loop around a call goes through to its end, in each round of an outer loop."""
    held, facts = None, dict[str, Any]()
    for one in [one for one in walk_frames(frame) if not is_library(one.f_code.co_filename)]:
        code, variables = one.f_code, variables_of(one)
        loops = [part for part in statements_of(code) if isinstance(part, ast.For)]
        for loop in reversed([part for part in loops if part.lineno < one.f_lineno <= (part.end_lineno or 0)]):
            value, parts = variables.get(_ITERATED.sub(r"\1", ast.unparse(loop.iter))), [*ast.walk(loop)]
            has_exit = any(isinstance(part, ast.Break | ast.Return | ast.Raise | ast.Yield) for part in parts)
            if held is None and type(value).__name__ in _ONCE and not has_exit:
                held, facts["site"] = value, site_of(code, loop, None, code.co_qualname)
            elif held is not None and _rounds(loop, variables) > 1:
                bound = {name for part in parts if isinstance(part, ast.stmt) for name in names_bound(part)}
                for name in [name for name, other in variables.items() if other is held and name not in bound]:
                    made = [None, *(part.site for part in statements_binding(code, name))][-1]
                    outer = ast.unparse(loop).partition(":\n")[0]
                    yield facts | {"batches": variable(name), "kind": type(held).__name__, "made": made, "outer": outer}
                    return


def _rounds(loop: ast.For, variables: dict[str, Any]) -> int:
    """Return how often a loop over a range runs; 0 if it is not known."""
    given = loop.iter.args if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range" else []
    bounds: list[Any] = [one.value if isinstance(one, ast.Constant) else value_of(one, variables) for one in given]
    return len(range(*bounds)) if bounds and all(type(one) is int for one in bounds) and 0 not in bounds[2:] else 0


_ITERATED = re.compile(r"^(?:enumerate|tqdm)\((\w+)[,)].*")
_ONCE = ("generator", "zip", "map", "filter", "enumerate", "_SingleProcessDataLoaderIter")


def _drawn_once(tensor: torch.Tensor, frame: FrameType) -> tuple[torch.Tensor, _Slice, tuple[int]] | None:
    """Return the index by which a batch was made, and the number of samples, if a statement draws it for one batch."""
    item = item_of(tensor)
    if item is None or (code := item[0].code) is None or (site := item[0].site) is None:
        return None
    path = ast.unparse(item[1].slice)
    bound: list[Any] = [one.node for one in statements_binding(code, path)] if path.isidentifier() else []
    if len(bound) == 1 and re.search(r"^(?=.*batch).*(rand(perm|int)|choice|sample)\(", ast.unparse(bound[0])):
        variables = variables_at(code, frame)
        index, source = (value_of(part, variables) for part in (item[1].slice, item[1].value))
        if is_tensor(index) and is_tensor(source):
            return index, _Slice(ast.unparse(item[1]), path, site), (len(source),)
    return None


def _slice(tensor: torch.Tensor) -> _Slice | None:
    """Return the slice that made a tensor, if it starts at a variable, or is in a loop over starts that it ignores."""
    item = item_of(tensor)
    index = None if item is None else item[1].slice
    index = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if item is None or item[0].site is None or not isinstance(index, ast.Slice):
        return None
    if index.lower is None or isinstance(index.lower, ast.Constant):
        loop = enclosing(item[1], ast.For, ast.FunctionDef, ast.Module)
        found = re.match(r"for (\w+) in range\([^,]+, .+, ([\w.]+)\):", ast.unparse(loop))
        is_read = found is None or any(found[1] in read_by(one) for one in loop.body)
        return None if found is None or is_read else _Slice(ast.unparse(item[1]), found[1], item[0].site, found[2])
    names = [one.id for one in ast.walk(index.lower) if isinstance(one, ast.Name)]
    end, code = "" if index.upper is None else ast.unparse(index.upper), item[0].code
    if end.isidentifier() and code is not None:  # the end of a part on purpose, unless it is computed from the start
        end = " ".join(path for one in statements_binding(code, end) for path in one.reads)
    is_moved = bool({*names} & {*re.findall(r"\w+", end)})  # from step to step, if its start is
    return _Slice(ast.unparse(item[1]), names[0], item[0].site) if is_moved else None
