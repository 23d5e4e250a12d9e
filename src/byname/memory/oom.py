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


def what_fills_the_memory() -> tuple[int, tuple[str, ...]]:
    """Return the bytes that are alive, and a screenful of lines: their ten largest groups, and who holds most."""
    with heap_at_rest():
        look = HeapSnapshot()
        total = sum(block.bytes for block in look.blocks)
        lines = [f"alive: {bytes_text(total)} in {counted(len(look.blocks), 'storage')}; the largest groups:"]
        lines += _largest(look)
        holding = ", ".join(_holding(look))
        if holding:
            lines.append(f"holding most, with their graphs: {holding}")
        lacking = unattributed(look.blocks)
        if lacking is not None:
            words = "that the allocator has given out and no tensor accounts for, such as workspaces of cuBLAS"
            lines.append(f"unattributed: {bytes_text(lacking)} {words}")
        return total, tuple(map(printable, lines))


def _largest(look: HeapSnapshot) -> Iterator[str]:
    kinds = Kinds(look)
    totals = totals_by_key((_group_of(look, kinds, block), None, block.bytes) for block in look.blocks)
    shown = [(words, count, size) for words, count, size in totals[:GROUPS] if size]
    width = max((len(bytes_text(size)) for _, _, size in shown), default=0)
    for words, count, size in shown:
        yield f"  {bytes_text(size):>{width}}  {words}" + (f" ({count:,})" if count > 1 else "")
    others = sum(size for _, _, size in totals[GROUPS:])
    if others:
        yield f"  {bytes_text(others):>{width}}  {counted(len(totals) - GROUPS, 'other group')}"


def _group_of(look: HeapSnapshot, kinds: Kinds, block: StorageRegion) -> Hashable:
    """Return the group of a block in words: one for each model and each optimizer, others by pattern."""
    kind = kinds.of(block.tensors)
    named = next((way for tensor in block.tensors for way in look.ways(tensor)), None)
    if named is not None:
        words = _OWNED.get(kind)
        return f"`{pattern_of(named.way)}`" if words is None else f"{words} of `{_owner(named.way)}`"
    for link in (link for tensor in block.tensors for link in look.links(tensor)):
        name = look.graphs.name(link.owner) if is_node(link.owner) else None
        if name is not None:
            return f"saved for the backward of `{POSITION.sub('[*]', name.path)}`"
    return f"without a name: {look.stranded(block.tensors)}"


def _owner(way: ReferencePath) -> str:
    owners = (nn.Module, torch.optim.Optimizer)
    paths = (to for to, one in zip(way.parts(), way.passed, strict=False) if issubclass(type(one), owners))
    return next(paths, next(way.parts())).text.source


_OWNED = {"parameter": "parameters", "buffer": "buffers", "gradient": "gradients", "optimizer": "state"}


def _is_owned(group: Group) -> bool:
    ways = [named.way for named in group.ways]
    return any(step.kind in ("parameter", "buffer") for way in ways for step in way.steps) or any(
        issubclass(type(one), torch.optim.Optimizer) for way in ways for one in way.passed
    )


def _holding(look: HeapSnapshot) -> Iterator[str]:
    """Yield the patterns that hold most, without models and optimizers, and without those that add nothing."""
    groups = {key: group for key, group in groups_of(look).items() if key.pattern and not _is_owned(group)}
    sizes = {key: group.size(look).bytes for key, group in groups.items()}
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
