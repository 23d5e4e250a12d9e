"""Sketch: a sample of the values of many features, from which any quantile is computed within a proven bound.

There is one line of values for each feature. Values go into a buffer; a full buffer is sorted and thinned out to a run,
in which each value stands for `step` of them. Two runs of the same weight are sorted together and every second value is
kept, for twice the weight: runs are put in places as bits are in a binary counter (Munro and Paterson 1980; Manku,
Rajagopalan and Lindsay 1998; the same as in Karnin, Lang and Liberty 2016, with runs of one size).

The bound. Let r of the values of a sorted run be below x, each standing for w, and let those at o, o + s, o + 2s ... be
kept, each for s w. Of them ceil((r - o) / s) are below x (0 if r < o), so the number of values below x, which was r w,
is now counted as at most (s - 1 - o) w more and at most o w less. The sums of these over all steps, `over` and
`under`, bound the error of any rank for any data, and the sums of two sketches bound that of both together. Looking
for rank j at rank j + (over - under) / 2 is off by at most (over + under) / 2.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor


def sort_lines(lines: Tensor) -> Tensor:
    """Sort each line in place, and return all; on the CPU by numpy, whose sort uses vector instructions."""
    if lines.device.type != "cpu":
        return lines.copy_(lines.sort(1).values)
    small = lines.dtype.itemsize == 1  # numpy sorts bytes by counting, but only if it is asked for a stable sort
    lines.numpy().sort(axis=1, kind="stable" if small else None)
    return lines


def thinned(lines: Tensor, step: int, offset: Tensor) -> Tensor:
    """Return every `step`-th value of each line, from an offset for each line."""
    first = int(offset[0])
    if bool((offset == first).all()):
        return lines[:, first::step].clone()
    columns = torch.arange(0, lines.shape[1], step, device=lines.device)
    return lines.gather(1, offset[:, None] + columns)


def at_ranks(values: Tensor, weights: Tensor, ranks: Tensor) -> Tensor:
    """Return the value of each line at ranks from 0, where a value counts as often as its weight."""
    ordered, order = values.sort(1)
    upto = weights.gather(1, order).cumsum(1)
    found = torch.searchsorted(upto, ranks.contiguous(), right=True)
    return ordered.gather(1, found.clamp(max=values.shape[1] - 1))


_READ_AT_ONCE = 1 << 22


class Sketch:
    """Values of many features, thinned out to runs of `resolution` values."""

    def __init__(self, features: int, resolution: int, kind: torch.dtype, device: torch.device) -> None:
        self.resolution = resolution
        self.step = max(2, 64 // max(1, features))  # few features get a large buffer, and so a small error
        self.room = self.step * resolution
        self.buffer = torch.zeros(features, 0, dtype=kind, device=device)
        self.runs: list[Tensor | None] = []  # those of weight step, 2 step, 4 step ..., each sorted
        self.counts: int | Tensor = 0  # values of each feature; one number as long as all have as many
        self.over, self.under = torch.zeros(2, features, dtype=torch.int64, device=device)
        self.min, self.max = torch.zeros(2, features, dtype=kind, device=device)  # of what was thinned out

    @classmethod
    def on(cls, state: dict[str, Any]) -> Self:
        """Return a sketch that uses `state`, tensors and plain values, as its attributes."""
        sketch = cls.__new__(cls)
        sketch.__dict__ = state
        return sketch

    def each(self) -> Tensor:
        """Return the number of values of each feature."""
        if isinstance(self.counts, Tensor):
            return self.counts
        return torch.full((len(self.buffer),), self.counts, device=self.buffer.device)

    def ready(self, kind: torch.dtype) -> None:
        """Convert the values to a wider dtype."""
        if self.buffer.dtype is not kind:
            self.buffer, self.min, self.max = self.buffer.to(kind), self.min.to(kind), self.max.to(kind)
            self.runs = [None if run is None else run.to(kind) for run in self.runs]

    # Taking values in: until the buffer is full, then it becomes a run.

    def add(self, values: Tensor, part: Tensor | None) -> None:
        """Take values of shape (features, values), all of them or those that take part."""
        if part is not None and len(values) == 1:
            values, part = values[part][None], None
        if part is None and isinstance(self.counts, int):
            self._add_even(values)
            return
        part = torch.ones_like(values, dtype=torch.bool) if part is None else part
        counts = self.counts = self.each()
        for chunk, there in zip(torch.split(values, self.room, 1), torch.split(part, self.room, 1), strict=True):
            self._add_uneven(chunk, there, counts)

    def _add_even(self, values: Tensor) -> None:
        """Add equally many values for each feature, if each has had equally many before."""
        start = 0
        while start < values.shape[1]:
            assert isinstance(self.counts, int)
            fill = self.counts % self.room
            take = min(self.room - fill, values.shape[1] - start)
            self._widen(fill + take)
            self.buffer[:, fill : fill + take] = values[:, start : start + take]
            if fill + take == self.room:
                self._thin_out(None)
            start += take
            self.counts += take

    def _add_uneven(self, values: Tensor, part: Tensor, counts: Tensor) -> None:
        """Add the values that take part; at most enough to fill one buffer."""
        fill, added = counts % self.room, part.sum(1)
        places = fill[:, None] + part.cumsum(1) - 1
        if part.numel():
            self._widen(min(self.room, int((fill + added).max())))
        line = torch.arange(len(values), device=values.device)[:, None].expand_as(values)
        now = part & (places < self.room)
        later = part & ~now
        self.buffer[line[now], places[now]] = values[now]
        full = (fill + added >= self.room).nonzero().squeeze(1)
        if len(full):
            self._thin_out(full)
        self.buffer[line[later], places[later] - self.room] = values[later]
        counts += added

    def _widen(self, size: int) -> None:
        features, have = self.buffer.shape
        if size > have:
            wider = self.buffer.new_zeros(features, min(self.room, max(size, 2 * have)))
            wider[:, :have] = self.buffer
            self.buffer = wider

    def _thin_out(self, full: Tensor | None) -> None:
        """Make runs of the full buffers, of all if None; `counts` are those before they were filled."""
        lines = torch.arange(len(self.buffer), device=self.buffer.device) if full is None else full
        block = sort_lines(self.buffer if full is None else self.buffer[full])
        before = self.each()[lines] // self.room
        self._stretch(lines, block[:, 0], block[:, -1], before)
        offset = self.step // 2 - _turn(before, -1)  # about the middle
        self.over[lines] += self.step - 1 - offset
        self.under[lines] += offset
        self._insert(thinned(block, self.step, offset), 0, lines, before)

    def _stretch(self, lines: Tensor, low: Tensor, high: Tensor, before: Tensor) -> None:
        """Update the smallest and largest values with those of blocks."""
        self.min[lines] = torch.where(before > 0, torch.minimum(self.min[lines], low), low)
        self.max[lines] = torch.where(before > 0, torch.maximum(self.max[lines], high), high)

    def _insert(self, run: Tensor, level: int, lines: Tensor, before: Tensor) -> None:
        """Put runs in their places; if a place is taken, both runs become one of the next level.

        `before` is the number of blocks that each of these features had: its bits say which places are taken.
        """
        after = before + (1 << level)
        while len(lines):
            taken = (before >> level & 1).bool()
            self._put(run[~taken], level, lines[~taken])
            run, lines, before, after = run[taken], lines[taken], before[taken], after[taken]
            if len(lines):
                offset = _turn(after >> (level + 1), level)
                run = thinned(sort_lines(torch.cat([self._pull(level, lines), run], 1)), 2, offset)
                weight = self.step << level
                self.over[lines] += weight * (1 - offset)
                self.under[lines] += weight * offset
            level += 1

    def _put(self, run: Tensor, level: int, lines: Tensor) -> None:
        self.runs += [None] * (level + 1 - len(self.runs))
        there = self.runs[level]
        if len(lines) == len(self.buffer):
            self.runs[level] = run
        elif len(lines):
            self.runs[level] = there = run.new_zeros(len(self.buffer), self.resolution) if there is None else there
            there[lines] = run

    def _pull(self, level: int, lines: Tensor) -> Tensor:
        """Return the runs of some features, and free their places."""
        run = self.runs[level]
        assert run is not None
        if len(lines) == len(run):
            self.runs[level] = None
        return run[lines]

    def merge(self, other: Self) -> None:
        """Take in another with values of the same type on the same device."""
        blocks, counts = other.each() // self.room, other.counts
        self.over += other.over
        self.under += other.under
        for level, run in enumerate(other.runs):
            lines = (blocks >> level & 1).nonzero().squeeze(1)
            if run is not None and len(lines):
                before = self.each()[lines] // self.room
                self._stretch(lines, other.min[lines], other.max[lines], before)
                self._insert(run[lines], level, lines, before)
                self._count(lines, self.room << level)
        if isinstance(counts, int):
            self.add(other.buffer[:, : counts % self.room], None)
        else:
            columns = torch.arange(other.buffer.shape[1], device=counts.device)
            self.add(other.buffer, columns < (counts % self.room)[:, None])

    def _count(self, lines: Tensor, more: int) -> None:
        if isinstance(self.counts, int) and len(lines) == len(self.buffer):
            self.counts += more
        else:
            self.counts = self.each().clone()
            self.counts[lines] += more

    # Reading.

    def read(self, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values on both sides of quantiles, for each feature.

        The third result is the position between the two, from 0 to 1. Features without values give arbitrary numbers.
        """
        places = (self.each()[:, None] - 1).clamp(min=0) * shares  # as numpy.quantile has it, to the last digit
        low = places.floor()
        wanted = torch.stack([low, places.ceil()]).long()
        lines = torch.arange(len(self.buffer), device=self.buffer.device)
        length = self.buffer.shape[1] + self.resolution * len(self.runs)
        at_once = max(1, _READ_AT_ONCE // max(1, length))
        parts = [self._at(some, wanted[:, some]) for some in torch.split(lines, at_once)]
        found = torch.cat(parts, 1) if parts else wanted.to(self.buffer.dtype)
        return found[0], found[1], places - low

    def _at(self, lines: Tensor, wanted: Tensor) -> Tensor:
        """Return the values of some features at ranks of shape (2, features, ranks)."""
        values, weights = self._weighted(lines)
        if not values.shape[1]:
            return torch.zeros(wanted.shape, dtype=values.dtype, device=values.device)
        last = (self.each()[lines, None] - 1).clamp(min=0)
        shifted = wanted + ((self.over[lines] - self.under[lines]) // 2)[:, None]
        ranks = torch.cat([torch.zeros_like(last), last, *torch.minimum(shifted.clamp(min=0), last)], 1)
        found = at_ranks(values, weights, ranks)
        inside, thin = torch.stack(found[:, 2:].tensor_split(2, 1)), (last + 1 >= self.room).squeeze(1)
        low = torch.where(thin, torch.minimum(found[:, 0], self.min[lines]), found[:, 0])[:, None]
        high = torch.where(thin, torch.maximum(found[:, 1], self.max[lines]), found[:, 1])[:, None]
        inside = torch.where((wanted == 0) | (shifted < 0), low, inside)
        return torch.where((wanted == last) | (shifted > last), high, inside)

    def _weighted(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Return the kept values of some features, and their weights; 0 for unused places."""
        counts = self.each()[lines, None]
        columns = torch.arange(self.buffer.shape[1], device=self.buffer.device)
        values, weights = [self.buffer[lines]], [(columns < counts % self.room).long()]
        for level, run in enumerate(self.runs):
            if run is not None:
                values.append(run[lines])
                taken = (counts // self.room) >> level & 1
                weights.append((taken * (self.step << level)).expand(-1, self.resolution))
        return torch.cat(values, 1), torch.cat(weights, 1)


def _turn(number: Tensor, level: int) -> Tensor:
    """Return 0 or 1 for the n-th time at a level: one of each two in a row is 0, in a fixed pseudo-random order."""
    mixed = ((number >> 1) * 0x2545F491 + (level + 2) * 0x9E3779B1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return ((mixed >> 17) ^ number) & 1
