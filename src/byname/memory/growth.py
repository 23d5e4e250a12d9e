"""Growth: the tensors that become more, or larger, within a block of the program.

It compares snapshots by the patterns of names. `Known` holds weak references to the storages of a snapshot, to
recognise them later.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from byname.errors import BadArgumentError
from byname.memory.blocks import StorageRegion
from byname.memory.leaks import Leak, leak_of
from byname.memory.patterns import (
    GraphExtent,
    Group,
    GrowingGraph,
    Key,
    Size,
    groups_of,
    growing_graph,
    joined,
    widened,
)
from byname.memory.snapshot import HeapSnapshot, heap_at_rest
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import STORAGE
from byname.table import Column, Rows, Tabled, bytes_text, counted


@dataclass(frozen=True, slots=True)
class Grown(Tabled):
    """Tensors of one pattern that have become more, or larger.

    Attributes:
        name: the pattern of their names, such as ``trainer.history[*]['loss']``.
        count: the increase in the number of tensors; if that did not grow, the increase in the number of memory blocks
            that they keep alive. 0 if existing tensors grew, or if only a graph's nodes became more (then `bytes` is 0
            as well).
        bytes: the increase in the memory that they keep alive, including the graphs behind them; each storage counts
            once, in the largest row that holds it.
        marks: the count at entry and at each mark(), including what a larger row also accounts for; empty without
            marks.
        at: the position of each of these: 0, 1, 2 ..., or the steps at which a command looked.
        holder: the container, and the variable it is reached from.
        cause: one of `byname.memory.leaks.CAUSES`.
        remedy: a change to the program that avoids the growth; empty for an unknown cause.
    """

    name: str
    count: int
    bytes: int
    marks: tuple[int, ...]
    holder: str
    cause: str
    remedy: str
    at: tuple[int, ...] = ()

    @property
    def each(self) -> int:
        """The increase in bytes for each new tensor (or block)."""
        return self.bytes // max(1, self.count)

    @property
    def a_mark(self) -> str:
        """The increase from mark to mark, or step to step: ``+1``, the average as ``+1.5``; empty without marks."""
        return _pace(self.marks, self.at) if self.count else ""

    columns = (
        Column("name"),
        Column("count"),
        Column("bytes"),
        Column("each", spare=2),
        Column("a_mark", spare=1),
        Column("holder", spare=3),
        Column("cause"),
        Column("remedy", printed=False),
    )


def _pace(marks: Sequence[int], at: Sequence[int]) -> str:
    """Return the increase from one position to the next, exact if it is constant, otherwise the average."""
    rates = {(marks[n + 1] - marks[n]) / (at[n + 1] - at[n]) for n in range(len(marks) - 1)}
    if not rates:
        return ""
    return f"{rates.pop():+g}" if len(rates) == 1 else f"{(marks[-1] - marks[0]) / (at[-1] - at[0]):+.1f}"


_NOT_ENTERED = "growth() compares moments: enter it first, as in `with byname.growth() as growth:`"


class Growth(Rows[Grown]):
    """The rows of `growth`, the largest first. A context manager; inside the block it shows the growth so far.

    Inside the block each of these takes a new snapshot, as a mark does: ``rows()``, ``len(growth)``, ``growth[0]``,
    a loop, ``print(growth)``.

    Args:
        collect: whether to collect garbage before each snapshot.
        enough: the number of snapshots from which on what has stopped growing is no row.
        clock: returns the step of a snapshot, where they are at unequal distances; by default they count themselves.
        unit: the word for a step of that clock.
    """

    def __init__(
        self, collect: bool, enough: int = 4, clock: Callable[[], int] | None = None, unit: str = "mark"
    ) -> None:
        self._collect, self._enough, self._clock, self._unit = collect, enough, clock, unit
        self._at: list[int] = []
        self._marks: list[dict[Key, Size]] = []
        self._graphs: list[dict[Key, GraphExtent]] = []
        self._known = Known(())
        self._entered = False
        self._found: Sequence[Grown] = ()
        self._longer: Sequence[Grown] = ()

    def __enter__(self) -> Growth:
        self._entered, self._marks, self._graphs = True, [], []
        try:
            self.mark()
            return self
        except BaseException:
            self._entered = False
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._entered:  # else it was left before; a look that was interrupted is taken when this is called again
            self.mark()
            self._entered = False

    def end(self) -> None:
        """Leave the block without another snapshot: the rows stay those of the last mark."""
        self._entered = False

    @dynamo_skip
    def mark(self) -> None:
        """Take a snapshot, for instance at the end of each step: the table then shows the growth per step.

        Raises:
            BadArgumentError: outside of the ``with`` block.
        """
        if not self._entered:
            raise BadArgumentError(_NOT_ENTERED)
        if self._collect:
            gc.collect()
        with heap_at_rest():
            look = HeapSnapshot()
            groups = groups_of(look)
            marks = [*self._marks, {key: group.size(look) for key, group in groups.items()}]
            graphs = [*self._graphs, {key: group.graph for key, group in groups.items() if group.graph}]
            at = [*self._at[: len(marks) - 1], len(marks) - 1 if self._clock is None else self._clock()]
            if len(marks) > 1:
                course = Course(marks, graphs, at, slack=self._clock is None)
                grown = _grown(look, groups, course, self._known, len(marks) >= self._enough)
                self._longer = _longer(look, growing_graph(groups, graphs)) or self._longer
                self._found = grown or self._longer
            else:
                self._known, self._found, self._longer = Known(look.blocks), (), ()
            self._marks, self._graphs, self._at = marks, graphs, at

    @property
    def items(self) -> Sequence[Grown]:  # type: ignore[override]
        """The rows; inside the block as of now."""
        if self._entered:
            self.mark()
            self._marks.pop()
            self._graphs.pop()
        elif not self._marks:
            raise BadArgumentError(_NOT_ENTERED)
        return self._found

    def _columns(self) -> Sequence[Column]:
        return [replace(one, title=f"a {self._unit}") if one.key == "a_mark" else one for one in Grown.columns]

    def _shown(self) -> list[dict[str, Any]]:
        return super()._shown() if self._marks else []

    def _title(self) -> str:
        found = self._found  # as the rows above the title's table are: `_shown` has just taken them
        if not self._marks:
            return "not entered yet, as in `with byname.growth() as growth:`"
        if not found:
            return "no tensors became more or larger"
        if found is self._longer:
            return "no tensors became more or larger, but a graph became longer"
        return f"{bytes_text(sum(one.bytes for one in found))} more, in {counted(len(found), 'place')}"

    def _notes(self) -> Sequence[str]:
        return list(dict.fromkeys(f"{one.cause}: {one.remedy}" for one in self._found if one.remedy))


def growth(*, collect: bool = False) -> Growth:
    """Return a context manager that finds the tensors that became more or larger, with names, holders and causes.

    It takes a snapshot at entry, at each ``.mark()`` and at exit, and compares them by the patterns of names:
    ``history[0]``, ``history[1]`` and so on are ``history[*]``. A tensor that only replaces another is no growth.
    Memory that only a graph holds counts for the tensor at the root of the graph. Nothing is kept alive between
    snapshots. Enter it after the first step, which creates gradients and optimizer state.

    Args:
        collect: whether to collect garbage before each snapshot. Otherwise tensors in reference cycles count as well.

    Returns:
        `Growth`, a context manager and a sequence of `Grown`; ``.rows()`` has ``name``, ``count``, ``bytes``, ``each``,
        ``holder``, ``cause`` and ``remedy``.

    Raises:
        BadArgumentError: `collect` is neither True nor False.

    >>> import byname, torch
    >>> history = []
    >>> def step():
    ...     weight = torch.ones(1000, requires_grad=True)
    ...     history.append(weight.exp().sum())
    >>> with byname.growth() as growth:
    ...     for _ in range(3):
    ...         step()
    >>> [(row["name"], row["count"], row["cause"]) for row in growth.rows()]
    [('history[*]', 3, 'stored-graph')]
    """
    if type(collect) is not bool:
        raise BadArgumentError(f"growth(collect=...) must be True or False, but got {type(collect).__name__}")
    return Growth(collect)


class Course(NamedTuple):
    """The sizes and graphs of the groups at each snapshot, with the positions of these.

    Attributes:
        marks, graphs: for each snapshot the size of each group, and how far its graph goes.
        at: the step of each snapshot.
        slack: whether the last snapshot may come just after the one before, as at the end of a block.
    """

    marks: Sequence[dict[Key, Size]]
    graphs: Sequence[Mapping[Key, GraphExtent]]
    at: Sequence[int]
    slack: bool


def _grown(
    look: HeapSnapshot, groups: dict[Key, Group], course: Course, known: Known, enough: bool
) -> tuple[Grown, ...]:
    """Return the groups that grew, the largest first; memory of one group does not count again in later ones."""
    groups, marks = _widened(look, groups, course.marks)
    course = course._replace(marks=marks)
    old = {number for number, block in enumerate(look.blocks) if known.has(block)}
    first, sizes = marks[0] | _renamed(look, groups, marks[0], old), marks[-1]
    grown = [key for key in groups if _more(first.get(key, Size()), sizes[key])]
    if enough:
        grown = [key for key in grown if _goes_on(groups[key], course)]
    new = {key for key in grown if _is_new(groups[key], course)}
    first |= {key: next(mark[key] for mark in reversed(marks[:-1]) if key in mark) for key in new}
    grown.sort(key=lambda key: (key in new, _order(groups[key], first.get(key, Size()), sizes[key])))
    claimed: set[int] = set()
    found = []
    for key in grown:
        group, before = groups[key], first.get(key, Size())
        now, fresh = group.size(look, claimed), group.size(look, claimed | old)
        if _more(before, now) and fresh.pieces:  # otherwise what others held before is held through it now
            claimed |= group.blocks
            between = [mark.get(key, Size()) for mark in marks[1:-1]]
            found.append(_row(leak_of(look, group, [before, *between, now]), before, now, between, course.at))
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _is_new(group: Group, course: Course) -> bool:
    """Return whether a group is a single result that is computed anew, so that another variable keeps its graph.

    The graph of a state that is carried on contains the node of the former state; that of a loss, no former loss.
    """
    if group.graph is None or len(group.tensors) > 1 or "[*]" in group.key.pattern:
        return False
    former = {extents[group.key].newest for extents in course.graphs if group.key in extents} - {group.graph.newest}
    return bool(former) and former.isdisjoint(group.numbers)


def _longer(look: HeapSnapshot, graph: GrowingGraph | None) -> tuple[Grown, ...]:
    """Return the row of a graph that grows without memory of tensors; programs in which some grows have other rows."""
    if graph is None:
        return ()
    leak = leak_of(look, graph.group, [Size(), graph.group.size(look)])
    return (Grown(leak.name, 0, 0, (), leak.holder, "retained-graph", graph.remedy),)


def _renamed(
    look: HeapSnapshot, groups: dict[Key, Group], first: Mapping[Key, Size], old: Collection[int]
) -> dict[Key, Size]:
    """Return the former sizes of groups with new names or none: a new name for an old tensor is no growth."""
    fresh = set(range(len(look.blocks))).difference(old)
    return {key: group.size(look, fresh) for key, group in groups.items() if key not in first or not key.pattern}


def _widened(
    look: HeapSnapshot, groups: dict[Key, Group], marks: Sequence[dict[Key, Size]]
) -> tuple[dict[Key, Group], list[dict[Key, Size]]]:
    """Return groups and marks with the entries of a container that keeps getting new keys joined in one group."""
    known = dict.fromkeys(key for mark in marks for key in mark)
    wide = widened(
        known, [key for key in groups if key not in marks[0]], [key for key in marks[0] if key not in groups]
    )
    if not wide:
        return groups, list(marks)
    parts: dict[Key, list[Group]] = {}
    for key, group in groups.items():
        parts.setdefault(wide.get(key, key), []).append(group)
    whole = {
        key: same[0] if len(same) == 1 and same[0].key == key else joined(key, same) for key, same in parts.items()
    }
    before = [_summed(mark, wide) for mark in marks[:-1]]
    return whole, [*before, {key: group.size(look) for key, group in whole.items()}]


def _summed(mark: Mapping[Key, Size], wide: Mapping[Key, Key]) -> dict[Key, Size]:
    found: dict[Key, Size] = {}
    for key, size in mark.items():
        so_far = found.get(wide.get(key, key), Size())
        found[wide.get(key, key)] = Size(*map(sum, zip(so_far, size, strict=True)))
    return found


def _row(leak: Leak, before: Size, now: Size, between: Sequence[Size], at: Sequence[int]) -> Grown:
    """Return a row; `between` are the sizes at the marks, and `at` the positions of all."""
    count = _pieces if _holds_more(before, now, between) else _members
    return Grown(
        leak.name,
        max(0, count(now) - count(before)),
        max(0, now.bytes - before.bytes),
        tuple(map(count, (before, *between))) if between else (),
        leak.holder,
        leak.cause,
        leak.remedy,
        tuple(at[:-1]) if between else (),
    )


def _holds_more(before: Size, now: Size, between: Sequence[Size]) -> bool:
    """Return whether the members did not increase but keep more blocks alive, as a running total does."""
    first = next((size for size in (before, *between) if size.members), before)
    return now.members <= first.members and (first is before or now.pieces > first.pieces)


_pieces, _members = attrgetter("pieces"), attrgetter("members")


def _more(before: Size, now: Size) -> bool:
    """Return whether the memory grew, or the number of tensors did in the same memory."""
    return now.bytes > before.bytes or (now.members > before.members and now.bytes == before.bytes)


def _goes_on(group: Group, course: Course) -> bool:
    """Return whether a group goes on growing, as far as some snapshots tell.

    It must be as large at the end as ever, have grown more than once, and also lately: in the last quarter of the
    steps, where they are known, and not much more slowly than before. What comes once and stays, such as a cache that
    is full, does not go on growing; nor does an optimizer's state, an entry for each of its parameters, though a
    parameter that is used late gets its entry late.
    """
    if _is_state_of_parameters(group):
        return False
    sizes, at = [mark.get(group.key, Size()) for mark in course.marks], course.at
    grew = [number for number, (before, after) in enumerate(pairwise(sizes)) if _more(before, after)]
    if len(grew) < 2 or sizes[-1].bytes < max(size.bytes for size in sizes):
        return False
    quarter, last = (at[-1] - at[0]) // 4, grew[-1]
    if at[-1] - at[last + 1] > max(quarter, course.slack):
        return False
    return at[last + 1] - at[last] <= quarter or not _slowed(sizes[last - 1 : last + 2], at[last - 1 : last + 2])


def _slowed(sizes: Sequence[Size], at: Sequence[int]) -> bool:
    """Return whether of two intervals the second brought less than half of what the first did in as many steps.

    If it is a long one, then what grew has probably become full within it.
    """
    before, then, now = sizes
    size = _members if now.members > then.members else attrgetter("bytes")
    return bool(2 * (size(now) - size(then)) * (at[1] - at[0]) < (size(then) - size(before)) * (at[2] - at[1]))


def _is_state_of_parameters(group: Group) -> bool:
    """Return whether a group is optimizer state with no more entries than the optimizer has parameters."""
    if not group.ways or not all(named.way.stateful for named in group.ways):
        return False
    passed = {id(one): one for named in group.ways for one in named.way.passed}
    optimizers: list[Any] = [one for one in passed.values() if issubclass(type(one), torch.optim.Optimizer)]
    parameters = sum(len(part["params"]) for one in optimizers for part in one.param_groups)
    return len({id(one) for one in group.tensors}) <= parameters


def _order(group: Group, before: Size, now: Size) -> tuple[int, int, int, int, Key]:
    more = now.bytes - before.bytes
    return -more, before.members - now.members, -group.firsts, len(group.key.pattern), group.key


class Known:
    """Weak references to the storages of some blocks. While one lives, its storage's address is not used again."""

    def __init__(self, blocks: Iterable[StorageRegion]) -> None:
        self._marks: dict[int, StorageWeakRef] = {}
        self._bytes: dict[int, int] = {}
        for block in blocks:
            self._bytes |= dict.fromkeys(block.keys, block.bytes)
            for storage in _storages_of(block):
                if storage._cdata not in self._marks:
                    self._marks[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def has(self, block: StorageRegion) -> bool:
        """Return whether some of this memory existed before and was as large. Callers hold `heap_at_rest`."""
        return any(key in self._marks and block.bytes <= self._bytes[key] for key in block.keys)


def _storages_of(block: StorageRegion) -> Iterator[torch.UntypedStorage]:
    if block.storage is not None:
        yield block.storage
    for tensor, facts in zip(block.tensors, block.facts, strict=True):
        if facts[STORAGE] is not None:
            yield torch._C.TensorBase.untyped_storage(tensor)
