"""Growth: the tensors that become more, or larger, within a ``with`` block, by the patterns of their names."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from byname.memory.patterns import GraphExtent, Group, Key, Size, groups_of, growing_graph, widened, wider_group
from byname.memory.snapshot import HeapSnapshot, heap_at_rest
from byname.naming.search import Targets
from byname.reading.quiet import dynamo_skip
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
        at: the position of each of these: 0, 1, 2 ..., or the steps at which a command took a snapshot.
        holder: the container, and the variable that leads to it.
        cause: the kind of leak, such as ``stored-graph`` (`byname.memory.leaks` has all); ``unknown`` without one.
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
        """The increase in bytes per new tensor (or block)."""
        return self.bytes // max(1, self.count)

    @property
    def a_mark(self) -> str:
        """The increase per mark or step: ``+1``, or if it is not constant the average, ``+1.5``; "" without marks."""
        marks, at = self.marks, self.at
        rates = {(marks[n + 1] - marks[n]) / (at[n + 1] - at[n]) for n in range(len(marks) - 1)}
        if not self.count or not rates:
            return ""
        return f"{rates.pop():+g}" if len(rates) == 1 else f"{(marks[-1] - marks[0]) / (at[-1] - at[0]):+.1f}"

    columns = (
        Column("name"),
        Column("count"),
        Column("bytes"),
        Column("each", drop_order=2),
        Column("a_mark", drop_order=1),
        Column("holder", drop_order=3),
        Column("cause"),
        Column("remedy", printed=False),
    )


_NOT_ENTERED = "growth() compares moments: enter it first, as in `with byname.growth() as growth:`"


class Growth(Rows[Grown]):
    """The rows of `growth`, the largest first. A context manager; inside the block it shows the growth so far.

    Inside the block each of these takes a new snapshot, as a mark does: ``rows()``, ``len(growth)``, ``growth[0]``,
    a loop, ``print(growth)``.

    Args:
        collect: whether to collect garbage before each snapshot.
        enough: the number of snapshots after which a group that has stopped growing gets no row.
        clock: returns the step at which a snapshot is taken, for unequal distances; by default snapshots are counted.
        unit: the word for a step of that clock.
    """

    def __init__(
        self, collect: bool, enough: int = 4, clock: Callable[[], int] | None = None, unit: str = "mark"
    ) -> None:
        self._collect, self._enough, self._clock, self._unit = collect, enough, clock, unit
        self._at: list[int] = []
        self._marks: list[dict[Key, Size]] = []
        self._graphs: list[dict[Key, GraphExtent]] = []
        self._known = LiveStorages(())
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
        if self._entered:  # if an interrupt stops the mark, a second call takes it
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
            snapshot = HeapSnapshot()
            groups = groups_of(snapshot)
            marks = [*self._marks, {key: group.size(snapshot) for key, group in groups.items()}]
            graphs = [*self._graphs, {key: group.graph for key, group in groups.items() if group.graph}]
            at = [*self._at[: len(marks) - 1], len(marks) - 1 if self._clock is None else self._clock()]
            if len(marks) > 1:
                history = SizeHistory(marks, graphs, at, slack=self._clock is None)
                grown = _grown(snapshot, groups, history, self._known, len(marks) >= self._enough)
                self._longer = _longer(snapshot, groups, graphs) or self._longer
                self._found = grown or self._longer
            else:
                self._known, self._found, self._longer = LiveStorages(snapshot.blocks), (), ()
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
        return [one._replace(title=f"a {self._unit}") if one.key == "a_mark" else one for one in Grown.columns]

    def _shown(self) -> list[dict[str, Any]]:
        return super()._shown() if self._marks else []

    def _title(self) -> str:
        found = self._found  # `_shown` has just taken the snapshot
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


class SizeHistory(NamedTuple):
    """The sizes and graphs of the groups at each snapshot."""

    marks: Sequence[dict[Key, Size]]
    graphs: Sequence[Mapping[Key, GraphExtent]]
    at: Sequence[int]  # the step at which each was taken
    slack: bool  # the last may come right after the one before, as at the end of a block


def _grown(
    snapshot: HeapSnapshot, groups: dict[Key, Group], history: SizeHistory, known: LiveStorages, enough: bool
) -> tuple[Grown, ...]:
    """Return the groups that grew, the largest first; no memory counts for two of them."""
    groups, marks = _widened(snapshot, groups, history.marks)
    history = history._replace(marks=marks)
    old = {number for number, block in enumerate(snapshot.blocks) if known.has(block)}
    first, sizes = marks[0] | _renamed(snapshot, groups, marks[0], old), marks[-1]
    grown = [key for key in groups if _has_grown(first.get(key, Size()), sizes[key])]
    if enough:
        grown = [key for key in grown if _keeps_growing(groups[key], history)]
    new = {key for key in grown if _is_new(groups[key], history)}
    first |= {key: next(mark[key] for mark in reversed(marks[:-1]) if key in mark) for key in new}
    grown.sort(key=lambda key: (key in new, _order(groups[key], first.get(key, Size()), sizes[key])))
    claimed: set[int] = set()
    found = []
    for key in grown:
        group, before = groups[key], first.get(key, Size())
        now, fresh = group.size(snapshot, claimed), group.size(snapshot, claimed | old)
        if _has_grown(before, now) and fresh.pieces:  # otherwise it only took over memory that others held before
            claimed |= group.blocks
            between = [mark.get(key, Size()) for mark in marks[1:-1]]
            leak = leak_of(snapshot, _new_part(snapshot, group, old), [before, *between, now])
            found.append(_row(leak, before, now, between, history.at))
    return tuple(sorted(found, key=lambda row: -row.bytes))


def _new_part(snapshot: HeapSnapshot, group: Group, old: Collection[int]) -> Group:
    """Return the new tensors of the group without a name, in which old ones may have other holders; else the group."""
    if group.paths:
        return group
    tensors = Targets(one for one in group.tensors if snapshot.block_of(one) not in old)
    return replace(group, tensors=tensors, blocks=group.blocks.difference(old))


def _is_new(group: Group, history: SizeHistory) -> bool:
    """Return whether a group is a result computed anew at each step, such as a loss, and no state carried over.

    The graph of such a state contains the node of the former one.
    """
    if group.graph is None or len(group.tensors) > 1 or "[*]" in group.key.pattern:
        return False
    former = {extents[group.key].newest for extents in history.graphs if group.key in extents} - {group.graph.newest}
    return bool(former) and former.isdisjoint(group.numbers)


def _longer(
    snapshot: HeapSnapshot, groups: Mapping[Key, Group], graphs: Sequence[Mapping[Key, GraphExtent]]
) -> tuple[Grown, ...]:
    """Return the row of a graph that grows by nodes alone, for programs in which no tensors grow."""
    found = growing_graph(groups, graphs)
    if found is None:
        return ()
    group, nodes = found
    leak = leak_of(snapshot, group, [Size(), group.size(snapshot)])
    remedy = (
        f"its graph became longer by {counted(nodes, 'node')} and still began where it had begun: for a running "
        "total, add loss.item() or loss.detach(); for a state that is carried over, detach it at the beginning of each "
        "iteration"
    )
    return (Grown(leak.name, 0, 0, (), leak.holder, "retained-graph", remedy),)


def _renamed(
    snapshot: HeapSnapshot, groups: dict[Key, Group], first: Mapping[Key, Size], old: Collection[int]
) -> dict[Key, Size]:
    """Return the former sizes of groups with a new name or none: a new name, or a stand-in, is no growth."""
    fresh = set(range(len(snapshot.blocks))).difference(old)
    renamed = [key for key in groups if key not in first or not key.pattern]
    return {key: max(groups[key].size(snapshot, fresh), first.get(key, Size())) for key in renamed}


def _widened(
    snapshot: HeapSnapshot, groups: dict[Key, Group], marks: Sequence[dict[Key, Size]]
) -> tuple[dict[Key, Group], list[dict[Key, Size]]]:
    """Return groups and marks, with one group for all entries of a container that keeps getting new keys."""
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
        key: same[0] if len(same) == 1 and same[0].key == key else wider_group(key, same) for key, same in parts.items()
    }
    before = [_summed(mark, wide) for mark in marks[:-1]]
    return whole, [*before, {key: group.size(snapshot) for key, group in whole.items()}]


def _summed(mark: Mapping[Key, Size], wide: Mapping[Key, Key]) -> dict[Key, Size]:
    found: dict[Key, Size] = {}
    for key, size in mark.items():
        so_far = found.get(wide.get(key, key), Size())
        found[wide.get(key, key)] = Size(*map(sum, zip(so_far, size, strict=True)))
    return found


def _row(leak: Leak, before: Size, now: Size, between: Sequence[Size], at: Sequence[int]) -> Grown:
    """Return a row; `between` has the sizes at the marks, `at` the positions of all snapshots."""
    first = next((size for size in (before, *between) if size.members), before)
    # members that did not increase may keep more blocks alive, as a running total does
    holds_more = now.members <= first.members and (first is before or now.pieces > first.pieces)
    count = attrgetter("pieces") if holds_more else _members
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


_members = attrgetter("members")


def _has_grown(before: Size, now: Size) -> bool:
    return now.bytes > before.bytes or (now.members > before.members and now.bytes == before.bytes)


def _keeps_growing(group: Group, history: SizeHistory) -> bool:
    """Return whether a group goes on growing, judged by its snapshots.

    It must be largest at the end, have grown more than once, and have grown lately: in the last quarter of the steps,
    where these are known, and not much more slowly than before. A cache that is full has stopped growing. So has an
    optimizer's state, an entry for each parameter (or step, of LBFGS), although one that is used late gets it late.
    """
    if _is_state_of_parameters(group):
        return False
    sizes, at = [mark.get(group.key, Size()) for mark in history.marks], history.at
    grew = [number for number, (before, after) in enumerate(pairwise(sizes)) if _has_grown(before, after)]
    if len(grew) < 2 or sizes[-1].bytes < max(size.bytes for size in sizes):
        return False
    quarter, last = (at[-1] - at[0]) // 4, grew[-1]
    if at[-1] - at[last + 1] > max(quarter, history.slack):
        return False
    return at[last + 1] - at[last] <= quarter or not _slowed(sizes[last - 1 : last + 2], at[last - 1 : last + 2])


def _slowed(sizes: Sequence[Size], at: Sequence[int]) -> bool:
    """Return whether a group grew less than half as fast in the second interval: it has then probably become full."""
    before, then, now = sizes
    size = _members if now.members > then.members else attrgetter("bytes")
    return bool(2 * (size(now) - size(then)) * (at[1] - at[0]) < (size(then) - size(before)) * (at[2] - at[1]))


def _is_state_of_parameters(group: Group) -> bool:
    if not group.paths or not all(named.path.stateful for named in group.paths):
        return False
    passed = {id(one): one for named in group.paths for one in named.path.passed}
    optimizers: list[Any] = [one for one in passed.values() if issubclass(type(one), torch.optim.Optimizer)]
    parameters = {id(parameter) for one in optimizers for part in one.param_groups for parameter in part["params"]}
    only = optimizers[0].param_groups if len(optimizers) == 1 else []
    most = max([len(parameters), *(int(part.get("history_size", 0)) for part in only)])  # of LBFGS
    return len({id(one) for one in group.tensors}) <= most


def _order(group: Group, before: Size, now: Size) -> tuple[int, int, int, int, Key]:
    more = now.bytes - before.bytes
    return -more, before.members - now.members, -group.firsts, len(group.key.pattern), group.key


class LiveStorages:
    """Weak references to the storages of some blocks. While one lives, its storage's address is not used again."""

    def __init__(self, blocks: Iterable[StorageRegion]) -> None:
        storages = ((storage, block.bytes) for block in blocks for storage in block.storages)
        self._known = {storage._cdata: (StorageWeakRef(storage), size) for storage, size in storages}  # type: ignore[no-untyped-call]

    def has(self, block: StorageRegion) -> bool:
        """Return whether some of this memory existed before and was as large. Callers hold `heap_at_rest`."""
        before = (self._known.get(storage._cdata, (None, -1)) for storage in block.storages)
        return any(block.bytes <= size for _, size in before)
