"""Signals and Ctrl-C while a recording is written, at any moment: what is written stays whole."""

import os
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch
from interrupting import of_each_line_once
from stored_runs import Writer

import byname


class Alarm(Exception):
    pass


@pytest.fixture
def alarms():
    """Raises `Alarm` wherever the program is, again and again."""

    def handler(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_in_the_middle_of_writing_come_up_after_it(tmp_path, alarms):
    writer = Writer(tmp_path / "run.h5", "a")
    interrupted, values = 0, [torch.full((3000,), float(number)) for number in range(120)]
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number, value in enumerate(values):
        for _ in range(9):
            writer.forward(a=value)
        try:
            try:
                alarms(0.00001 * (number + 1))
                writer.recorder.flush()
            finally:
                alarms(0)
        except Alarm:
            interrupted += 1
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    writer.close()
    assert interrupted > 10
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete and recording["a"].iterations == [*range(9 * 120)]
        assert all(torch.equal(value, values[number // 9]) for number, value in enumerate(recording["a"]))


class Lines:
    """Presses Ctrl-C twice when a function comes to a line of what writes recordings, counted from 0."""

    NAMES = ("log_file", "recording_file", "finish", "hdf5", "frame", "stored", "value_type")
    FILES = tuple(f"recording{os.sep}{name}.py" for name in NAMES)

    def __init__(self, at=None):
        self.at, self.seen = at, []

    def __call__(self, function):
        sys.settrace(self._follow)
        try:
            function()
        finally:
            sys.settrace(None)

    def _follow(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line":
            self.seen.append((frame.f_code, frame.f_lineno))
            if len(self.seen) - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
        return self._follow


assert all(Path(byname.__file__).parent.joinpath(name).is_file() for name in Lines.FILES)


def ready_to_close(path):
    writer = Writer(path, "art")
    for size in (2, 4):
        writer.window({"a": [torch.ones(3)] * 2, "r": [torch.ones(size)] * 2, "t": ["x", {"k": torch.ones(2)}]})
    return writer


@pytest.mark.parametrize(
    "moments",
    [
        lambda seen: range(0, len(seen), 101),
        pytest.param(of_each_line_once, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_ctrl_c_at_a_line_of_close_leaves_a_whole_recording(moments, tmp_path):
    for name in ("first.h5", "run.h5"):  # the first close fills caches, and takes more lines
        whole = Lines()
        whole(ready_to_close(tmp_path / name).close)
    said, states, last = 0, set(), range(len(whole.seen) - 30, len(whole.seen))  # in which the file takes its name
    for at in sorted({*moments(whole.seen), *last}):
        directory = tmp_path / str(at)
        directory.mkdir()
        writer, lines, pressed = ready_to_close(directory / "run.h5"), Lines(at), False
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                lines(writer.close)
            except KeyboardInterrupt:
                pressed = True
        said += any(
            "is complete, but could not be made an HDF5 file (KeyboardInterrupt)" in str(one.message) for one in warned
        )
        writer.close()
        left = {one.name for one in directory.iterdir()}
        assert pressed or len(lines.seen) <= at  # what is cached by now takes fewer lines
        assert left in ({"run.h5"}, {"run.h5.log"}), (at, left)
        states |= left
        with byname.open(directory / "run.h5") as recording:
            assert recording.complete and recording.ended, (at, recording.missing)
            assert [len(recording[name]) for name in "art"] == [4, 4, 4]
        assert byname.repair(directory / "run.h5") == (left == {"run.h5.log"})
    assert states == {"run.h5", "run.h5.log"} and said
