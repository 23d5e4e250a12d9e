"""What are the mean of values and the sums of powers of their distances from it: of batch after batch?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from byname.analyse.statistics.joining import Central, at, beside, gathered, joined

__all__ = ["all_finite", "with_batch"]

_SERIAL = (1 << 15) - 1
"""Values that are worked on at a time: as float64 they stay in the cache of one core, and PyTorch shares out no work on
fewer than 32768 (`at::internal::GRAIN_SIZE`, 2.13). For two threads waiting for each other costs more than it saves."""
_EACH = 512
"""Values a figure at a time, at least: below it, putting pieces together takes longer than the pieces."""


def all_finite(figures: Tensor) -> bool:
    """Whether their sum is finite: then each is. A sum that overflows says no, though each may be."""
    return all(math.isfinite(float(part.sum())) for part in _serial(figures))


def _serial(figures: Tensor) -> tuple[Tensor, ...]:
    return torch.split(figures.flatten(), _SERIAL)


def _reduced_dims(ndim: int, channel: int | None) -> tuple[int, ...]:
    """The dimensions along which values belong to one figure."""
    return (0,) if channel is None else tuple(dim for dim in range(ndim) if dim != channel)


def with_batch(
    known: Central | None, samples: Tensor, weights: Tensor | None, order: int, *, channel: int | None
) -> Central:
    """What is known and a batch, as one. Without weights nothing is made meanwhile that is of the size of the batch.

    Args:
        known: what there is already, on the device of the batch; None if nothing.
        samples: along dimension 0, real.
        weights: as checked; where they are zero it does not matter what the samples are.
        order: up to which power there are sums; 1 for the mean alone.
        channel: the dimension that has one figure an index; None for one figure a feature.
    """
    figures = samples.shape[1:] if channel is None else samples.shape[channel : channel + 1]
    if channel is None and weights is None and samples.ndim > 2 and samples.is_contiguous():
        samples = samples.flatten(1)  # can be cut anywhere
    known = known and known.mapped(torch.flatten)
    if not samples.numel():
        found = known or _room((math.prod(figures),), order, samples.device).mapped(Tensor.zero_)
    else:
        found = _put_together(known, _in_pieces(known, samples, weights, order, channel))
    return found.mapped(lambda part: part.reshape(figures))


def _in_pieces(
    known: Central | None, samples: Tensor, weights: Tensor | None, order: int, channel: int | None
) -> Central:
    """Each range of rows for itself, in tensors of shape ``(ranges, figures)``."""
    over = _reduced_dims(samples.ndim, channel)
    shape = tuple(1 if dim in over else size for dim, size in enumerate(samples.shape))
    shift = _shift(samples, weights, over, known, shape)
    rows, wide = _size_of_pieces(samples, math.prod(shape), channel or 1)
    tops = range(0, len(samples), rows)
    room = _room((len(tops), *shape[1:]), order, samples.device)
    for left in range(0, samples.shape[channel or 1] if samples.ndim > 1 else 1, wide):
        columns = (slice(None),) * ((channel or 1) - 1) + (slice(left, left + wide),) * (samples.ndim > 1)
        for row, top in enumerate(tops):
            piece = (slice(top, top + rows), *columns)
            near = shift[(slice(None), *columns)]
            figures = _figures(samples[piece], _cut(weights, piece), near, order, over)
            for place, figure in zip((room.counts, room.mean, *room.sums), figures, strict=True):
                place[(row, *columns)] = figure
    room.shift.copy_(shift)
    return room.mapped(lambda part: part.reshape(len(tops), -1))


def _put_together(known: Central | None, pieces: Central) -> Central:
    """All rows of ``(rows, figures)`` and what is known as one."""
    width = _even(pieces.mean.shape[1], _piece_on(pieces.mean.device))
    wholes = []
    for left in range(0, pieces.mean.shape[1], width):
        cut = slice(left, left + width)
        whole = gathered(at(pieces, (slice(None), cut)))
        wholes.append(whole if known is None else joined(at(known, cut), whole))
    return wholes[0] if len(wholes) == 1 else beside(wholes)


def _room(shape: tuple[int, ...], order: int, device: torch.device) -> Central:
    """Tensors that are still to be filled."""
    empty = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(order + 2)]
    return Central(empty[0], empty[1], empty[2], tuple(empty[3:]))


def _shift(
    samples: Tensor, weights: Tensor | None, over: tuple[int, ...], known: Central | None, shape: tuple[int, ...]
) -> Tensor:
    if known is not None and all(float(part.amin()) > 0 for part in _serial(known.counts)):
        return known.shift.reshape(shape)
    found = _value_in(samples, weights, over)
    found = torch.where(found.isfinite(), found, 0.0)
    return found if known is None else torch.where(known.counts > 0, known.shift, found.flatten()).reshape(shape)


def _value_in(samples: Tensor, weights: Tensor | None, over: tuple[int, ...]) -> Tensor:
    """A value of each figure: the first one; of values with weights the smallest that counts."""
    if weights is None:
        first = (slice(0, 1) if dim in over else slice(None) for dim in range(samples.ndim))
        return samples[tuple(first)].double()
    values = samples.double()
    return torch.where((weights > 0) & values.isfinite(), values, math.inf).amin(over, keepdim=True)


def _figures(
    samples: Tensor, weights: Tensor | None, shift: Tensor, order: int, over: tuple[int, ...]
) -> tuple[Tensor | float, ...]:
    """How many values, the mean of their distances from the shift, and the sums of powers."""
    far = samples.double() - shift if samples.dtype is torch.float64 else samples.double().sub_(shift)
    if weights is not None:
        return _weighted(far, weights, order, over)
    mean = far.mean(over, keepdim=True)
    counts = far.numel() // mean.numel()
    if order == 1:
        return counts, mean
    far.sub_(mean)
    squares = far.square_() if order == 2 else far.square()
    return counts, mean, *_powers(far, squares, order, over)


def _weighted(far: Tensor, weights: Tensor, order: int, over: tuple[int, ...]) -> tuple[Tensor, ...]:
    weights = weights.double().expand(far.shape)
    far = torch.where(weights > 0, far, 0.0)
    counts = weights.sum(over, keepdim=True)
    mean = (far * weights).sum(over, keepdim=True) / torch.where(counts > 0, counts, 1.0)
    if order == 1:
        return counts, mean
    far = torch.where(weights > 0, far - mean, 0.0)
    return counts, mean, *_powers(far, far.square() * weights, order, over)


def _powers(far: Tensor, squares: Tensor, order: int, over: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The sums of the squares, and of each further power; the squares are used up."""
    sums = [squares.sum(over, keepdim=True)]
    for _ in range(order - 2):
        sums.append(squares.mul_(far).sum(over, keepdim=True))
    return tuple(sums)


def _size_of_pieces(samples: Tensor, figures: int, columns: int) -> tuple[int, int]:
    """How many rows a piece of a batch has, and how many indices of the dimension along which it is cut, too."""
    length, each, piece = len(samples), samples.numel() // len(samples), _piece_on(samples.device)
    rows = min(length, max(piece // each, math.ceil(_EACH * figures / each)))
    width = samples.shape[columns] if samples.ndim > 1 else 1
    return rows, _even(width, max(1, width * piece // (rows * each)))


def _even(length: int, most: int) -> int:
    """How long pieces are of which none is longer than allowed, and none much shorter than the others."""
    return math.ceil(length / math.ceil(length / most)) if length else 1


def _piece_on(device: torch.device) -> int:
    threads = torch.get_num_threads()
    if device.type != "cpu":
        return 1 << 24
    return threads << 16 if threads > 2 else _SERIAL + (threads == 1)


def _cut(weights: Tensor | None, piece: tuple[slice, ...]) -> Tensor | None:
    """A piece of what may have one entry for a whole dimension."""
    if weights is None:
        return None
    return weights[tuple(slice(None) if weights.shape[dim] == 1 else part for dim, part in enumerate(piece))]
