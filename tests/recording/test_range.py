"""The range of all numbers of a place, of every type that a tensor may have."""

import math

import numpy as np
import pytest
import torch
from stored_runs import written

import byname

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
TYPES += [torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool]


def expected(value):
    wide = value.to(torch.complex128).abs() if value.is_complex() else value.to(torch.float64)
    numbers = wide.numpy()[~np.isnan(wide.numpy())]
    figures = (numbers.min(), numbers.max(), numbers.mean()) if numbers.size else (None, None, None)
    return figures, wide.numel() - numbers.size


def row_of(values, tmp_path):
    with byname.open(written(tmp_path / "run.h5", {"a": values})) as recording:
        (row,) = recording.rows(ranges=True)
    return row


def test_numbers_of_python_beyond_every_float_are_infinite(tmp_path):
    row = row_of([10**400, 3, -(10**400), complex(1e308, 1e308)], tmp_path)
    assert (row["min"], row["max"]) == (-math.inf, math.inf) and math.isnan(row["mean"])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("odd", [None, math.nan, math.inf, "all NaN"], ids=str)
def test_it_is_that_of_numpy(dtype, odd, tmp_path):
    numbers = torch.randn(50) * 5
    if odd is not None:
        if not (dtype.is_floating_point or dtype.is_complex):
            pytest.skip("has neither NaN nor infinity")
        numbers[[3, 4] if odd != "all NaN" else slice(None)] = math.nan if odd == "all NaN" else odd
    value = torch.complex(numbers, numbers).to(dtype) if dtype.is_complex else numbers.abs().to(dtype)
    row = row_of([value[:20].view(5, 4).mT, value[20:]], tmp_path)
    figures, nan = expected(value)
    assert row.get("nan", 0) == nan
    for name, figure in zip(("min", "max", "mean"), figures):
        assert row[name] == (None if figure is None else pytest.approx(figure, rel=1e-5, nan_ok=True))
