"""Out of memory: the report of what fills the memory, and the address space held back so that there is room for it.

The report has the largest groups of memory by name, their main holders, and the memory in no known tensor.
"""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Iterator
from contextlib import suppress

import torch
from torch import nn

from byname.autograd.walk import is_node
from byname.memory.blocks import StorageRegion, unattributed
from byname.memory.census import POSITION, Kinds
from byname.memory.patterns import Group, groups_of
from byname.memory.snapshot import HeapSnapshot, heap_at_rest
from byname.naming.reference_path import ReferencePath, pattern_of
from byname.table import bytes_text, counted, totals_by_key
from byname.text import printable
from byname.undo import Shared

GROUPS, HOLDERS = 10, 3


def memory_report() -> tuple[int, tuple[str, ...]]:
    """Return the bytes that are alive, and a screenful of lines: their ten largest groups, and who holds most."""
    with heap_at_rest():
        snapshot = HeapSnapshot()
        total = sum(block.bytes for block in snapshot.blocks)
        lines = [f"alive: {bytes_text(total)} in {counted(len(snapshot.blocks), 'storage')}; the largest groups:"]
        lines += _largest(snapshot)
        holding = ", ".join(_largest_holders(snapshot))
        if holding:
            lines.append(f"holding most, with their graphs: {holding}")
        lacking = unattributed(snapshot.blocks)
        if lacking is not None:
            words = "that the allocator has given out and no tensor accounts for, such as workspaces of cuBLAS"
            lines.append(f"unattributed: {bytes_text(lacking)} {words}")
        return total, tuple(map(printable, lines))


def _largest(snapshot: HeapSnapshot) -> Iterator[str]:
    kinds = Kinds(snapshot)
    totals = totals_by_key((_group_of(snapshot, kinds, block), None, block.bytes) for block in snapshot.blocks)
    shown = [(words, count, size) for words, count, size in totals[:GROUPS] if size]
    width = max((len(bytes_text(size)) for _, _, size in shown), default=0)
    for words, count, size in shown:
        yield f"  {bytes_text(size):>{width}}  {words}" + (f" ({count:,})" if count > 1 else "")
    others = sum(size for _, _, size in totals[GROUPS:])
    if others:
        yield f"  {bytes_text(others):>{width}}  {counted(len(totals) - GROUPS, 'other group')}"


def _group_of(snapshot: HeapSnapshot, kinds: Kinds, block: StorageRegion) -> Hashable:
    """Return the group of a block in words: one for each model and each optimizer, others by pattern."""
    kind = kinds.of(block.tensors)
    named = next((path for tensor in block.tensors for path in snapshot.paths(tensor)), None)
    if named is not None:
        words = _OWNED.get(kind)
        return f"`{pattern_of(named.path)}`" if words is None else f"{words} of `{_owner(named.path)}`"
    for link in (link for tensor in block.tensors for link in snapshot.links(tensor)):
        name = snapshot.graphs.name(link.owner) if is_node(link.owner) else None
        if name is not None:
            return f"saved for the backward of `{POSITION.sub('[*]', name.path)}`"
    return f"without a name: {snapshot.describe_holder(block.tensors)}"


def _owner(path: ReferencePath) -> str:
    owners = (nn.Module, torch.optim.Optimizer)
    paths = (to for to, one in zip(path.parts(), path.passed, strict=False) if issubclass(type(one), owners))
    return next(paths, next(path.parts())).text.source


_OWNED = {"parameter": "parameters", "buffer": "buffers", "gradient": "gradients", "optimizer": "state"}


def _is_owned(group: Group) -> bool:
    paths = [named.path for named in group.paths]
    return any(step.kind in ("parameter", "buffer") for path in paths for step in path.steps) or any(
        issubclass(type(one), torch.optim.Optimizer) for path in paths for one in path.passed
    )


def _largest_holders(snapshot: HeapSnapshot) -> Iterator[str]:
    """Yield the patterns that hold most, without models and optimizers, and without those that add nothing."""
    groups = {key: group for key, group in groups_of(snapshot).items() if key.pattern and not _is_owned(group)}
    sizes = {key: group.size(snapshot).bytes for key, group in groups.items()}
    claimed: set[int] = set()
    shown = 0
    for key in sorted(groups, key=lambda key: (-sizes[key], -groups[key].firsts, key)):
        if shown == HOLDERS or not sizes[key]:
            return
        if not groups[key].blocks <= claimed:
            claimed |= groups[key].blocks
            shown += 1
            yield f"`{key.pattern}` {bytes_text(sizes[key])}"


class _Reserve(Shared):
    """Address space of the process, reserved while a block may need it; unwritten, so that it takes no memory."""

    size = 128 * 2**20

    def __init__(self) -> None:
        super().__init__(self.reserve, self.give_back)
        self._held: mmap.mmap | None = None

    def reserve(self) -> None:
        """Reserve it, also again after `give_back`, while there are holders; nothing if there is no room for it."""
        with self.lock:
            if self._held is None and self.holders:
                with suppress(OSError, ValueError, AttributeError):  # no room; or Windows, whose mmap has no flags
                    self._held = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give_back(self) -> None:
        """Release it, so that the process can allocate as much."""
        with self.lock:
            held, self._held = self._held, None
        if held is not None:
            held.close()


RESERVE = _Reserve()
"""One object for the process, because the process has one address space."""
