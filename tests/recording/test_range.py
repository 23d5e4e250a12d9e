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


def rows_of(places, tmp_path):
    with byname.open(written(tmp_path / "run.h5", places)) as recording:
        return recording.rows(ranges=True)


def test_numbers_of_python_beyond_every_float_are_infinite(tmp_path):
    (row,) = rows_of({"a": [10**400, 3, -(10**400), complex(1e308, 1e308)]}, tmp_path)
    assert (row["min"], row["max"]) == (-math.inf, math.inf) and math.isnan(row["mean"])


def value_of(dtype, odd):
    numbers = torch.randn(50) * 5
    if odd is not None:
        numbers[[3, 4] if odd != "all NaN" else slice(None)] = math.nan if odd == "all NaN" else odd
    return torch.complex(numbers, numbers).to(dtype) if dtype.is_complex else numbers.abs().to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_that_of_numpy(dtype, tmp_path):
    odd = (None, math.nan, math.inf, "all NaN") if dtype.is_floating_point or dtype.is_complex else (None,)
    values = {f"v{number}": value_of(dtype, one) for number, one in enumerate(odd)}
    places = {path: [value[:20].view(5, 4).mT, value[20:]] for path, value in values.items()}
    rows = rows_of(places, tmp_path)
    for row, value in zip(rows, values.values(), strict=True):
        figures, nan = expected(value)
        assert row.get("nan", 0) == nan
        for name, figure in zip(("min", "max", "mean"), figures):
            assert row[name] == (None if figure is None else pytest.approx(figure, rel=1e-5, nan_ok=True))
