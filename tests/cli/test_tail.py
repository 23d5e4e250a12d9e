"""Tail: the newest numbers of each place as bars, on a line that fits the terminal."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import byname
from byname.cli.tail import Sparklines, sparkline

BARS = "▁▂▃▄▅▆▇█"


@given(st.lists(st.floats(), max_size=50))
def test_each_number_is_a_bar_and_larger_ones_are_no_lower(numbers):
    line = sparkline(numbers)
    assert len(line) == len(numbers)
    bars = [(one, BARS.index(bar)) for one, bar in zip(numbers, line) if math.isfinite(one)]
    assert [bar for _, bar in sorted(bars)] == sorted(bar for _, bar in bars)
    assert {bar for one, bar in zip(numbers, line) if not math.isfinite(one)} <= {"·"}
    if len({one for one, _ in bars}) > 1 and max(bars)[0] - min(bars)[0] > 1e-300:
        assert (min(bars)[1], max(bars)[1]) == (0, len(BARS) - 1)


class Model(nn.Module):
    def forward(self, x):
        mean, word, bad = x.mean().item(), "some words", float("nan")
        return x


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_newest_numbers_are_kept_and_a_line_fits(width):
    model, course, before = Model(), Sparklines(), {}
    with byname.record(model, ["forward.mean", "forward.word", "forward.bad", "forward.x"]) as recorder:
        for step in range(60):
            model(torch.full((2, 3), float(step)))
            if step in (3, 58, 59):
                records = {path: len(series) for path, series in recorder.results.items()}
                course.add(recorder.results, {path: count - before.get(path, 0) for path, count in records.items()})
                before = records
    lines = course.lines(width)
    assert all(len(line) <= width for line in lines)
    told = {line.split()[0]: line.split()[1:] for line in lines}
    shown = len(told["forward.mean"][0])
    assert shown == 40 or width < 80 and shown < 40
    assert told["forward.mean"] == [sparkline(range(60 - shown, 60)), "59"]
    assert told["forward.bad"] == ["·", "nan"] and "forward.word" not in told
    assert told["forward.x"][1] == "59"


class Doubled(nn.Module):
    def forward(self, x):
        value_with_a_rather_long_name = 2 * x
        return value_with_a_rather_long_name


class Places(nn.Sequential):
    def forward(self, x):
        much = 10**400
        return super().forward(x)


def test_places_whose_names_end_the_same_have_a_line_each_and_a_number_beyond_floats_is_a_dot():
    model, course = Places(Doubled(), Doubled()), Sparklines()
    with byname.record(model, ["*.forward.value_with_a_rather_long_name", "forward.much"]) as recorder:
        model(torch.ones(1))
    course.add(recorder.results, {path: len(series) for path, series in recorder.results.items()})
    lines = course.lines(30)
    assert lines[1].split()[0] == lines[2].split()[0]  # too long for the terminal: the ends are the same
    assert [line.split()[1:] for line in lines] == [["·", "inf"], ["▁", "2"], ["▁", "4"]]
