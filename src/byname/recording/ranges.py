"""Between which numbers do values lie? Smallest, largest and mean, of one value after the other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from byname.table import Row

__all__ = ["Range"]


class Range:
    """The range of all numbers that were added; NaN is only counted, complex numbers count by their size."""

    def __init__(self) -> None:
        self.smallest, self.largest = math.inf, -math.inf
        self.total, self.count, self.nan = 0.0, 0, 0

    def add(self, value: Any) -> None:
        """Takes a tensor or a number, and nothing of other values."""
        if type(value) in (bool, int, float, complex):
            value = torch.tensor(abs(value) if type(value) is complex else float(value), dtype=torch.float64)
        if type(value) is not Tensor or not value.numel():
            return
        numbers = (value.to(torch.complex128).abs() if value.is_complex() else value.to(torch.float64)).reshape(-1)
        of_all = numbers.numel()
        numbers = numbers[~numbers.isnan()]
        self.nan += of_all - numbers.numel()
        if numbers.numel():
            low, high = torch.aminmax(numbers)
            self.smallest, self.largest = min(self.smallest, low.item()), max(self.largest, high.item())
            self.total, self.count = self.total + numbers.sum().item(), self.count + numbers.numel()

    def row(self) -> Row:
        """The figures as columns of a table; None where there was no number."""
        nan = {"nan": self.nan} if self.nan else {}
        if not self.count:
            return {"min": None, "max": None, "mean": None, **nan}
        figures = {"min": self.smallest, "max": self.largest, "mean": self.total / self.count}
        return {name: float(f"{figure:.6g}") for name, figure in figures.items()} | nan
