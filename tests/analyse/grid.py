"""The grid of types, batch sizes, offsets and parts over which figures are compared with numpy's."""

import pytest
import torch

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
SIZES = [1, 7, 4096]
OFFSETS = [0.0, 1e3, 1e7]


def over_the_grid(test):
    """Has a test run for all of it, with the slow ones; `rows` is enough for some batches of each size."""

    @pytest.mark.slow
    @pytest.mark.parametrize("ways", [1, 4])
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("offset", OFFSETS)
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    def whole(dtype, offset, size, ways):
        test(dtype, offset, size, ways, rows={1: 1024, 4096: 9000}.get(size, 2048))

    return whole


def near_a_large_offset(test):
    """Has a test run for a part of it that takes no time."""

    @pytest.mark.parametrize("size", [7, 4096])
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    def part(dtype, size):
        test(dtype, 1e7, size, ways=4, rows=600)

    return part


def representable(dtype, offset):
    """The offset, or the largest that the type has room for."""
    return min(offset, 6e4) if dtype is torch.float16 else offset


def added(statistic, batches):
    for batch in batches:
        statistic.add(batch)
    return statistic


def in_parts(make, rows, size, ways):
    """Added in batches of a size, in several statistics that are merged."""
    parts = [added(make(), part.split(size)) for part in rows.chunk(ways)]
    for part in parts[1:]:
        parts[0].merge(part)
    return parts[0]
