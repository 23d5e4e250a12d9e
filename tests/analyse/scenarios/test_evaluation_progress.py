"""The bar of a long pass: in a terminal only, after a second, and gone afterwards."""

import io
import os
import pty
import sys

import pytest
import torch
from largest import Largest
from torch import nn

import byname
from byname.analyse import Evaluation
from byname.text import with_progress


class Clock:
    """Each look takes so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.now = 0.0

    def __call__(self):
        self.now += self.seconds
        return self.now


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal when it is called; gives what reads all that came to it."""
    reader, writer = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def read():
        sys.stderr.flush()
        os.write(writer, b"#")
        got = b""
        while not got.endswith(b"#"):
            got += os.read(reader, 4096)
        return got[:-1].decode()

    with open(writer, "w", closefd=False) as stream:

        def begin():  # in the test itself: pytest puts its own stream there between the fixtures and the test
            monkeypatch.setattr(sys, "stderr", stream)
            return read

        yield begin
    os.close(reader)
    os.close(writer)


def test_a_long_pass_has_a_bar_in_a_terminal_that_is_gone_afterwards(terminal):
    read = terminal()
    assert list(with_progress([7, 8, 9], "snapshot at step 5", clock=Clock(0.6))) == [7, 8, 9]
    written = read()
    assert "snapshot at step 5" in written
    assert "1/3" in written and "2/3" in written and "3/3" in written
    assert written.endswith("\x1b[2K")  # the line is erased


def test_a_bar_may_count_bytes(terminal):
    read = terminal()
    pieces = [b"x" * 1_000_000] * 3
    assert list(with_progress(pieces, "finishing run.h5", bytes_of=len, total=3_000_000, clock=Clock(0.6))) == pieces
    written = read()
    assert "finishing run.h5" in written
    assert "1.0/3.0 MB" in written and "2.0/3.0 MB" in written and "3.0/3.0 MB" in written


def test_a_short_pass_has_none(terminal):
    read = terminal()
    assert list(with_progress(iter(range(3)), "snapshot", clock=Clock(0.1))) == [0, 1, 2]
    assert list(with_progress([1], "snapshot", wanted=False, clock=Clock(9))) == [1]
    assert read() == ""


def test_where_standard_error_is_no_terminal_there_is_none(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(with_progress([1, 2, 3], "snapshot", clock=Clock(9))) == [1, 2, 3]
    assert stream.getvalue() == ""


def test_an_interrupted_pass_leaves_no_bar_and_the_cursor_back(terminal):
    def prepare(batch):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(batch)
        return batch

    seen, read = [], terminal()
    model, analyser = nn.Sequential(nn.Linear(2, 2)), Largest()
    byname.observe(model, "0", analyser)
    evaluation = Evaluation(analyser, [torch.ones(1, 2)] * 4, prepare=prepare, progress=True)
    with pytest.raises(KeyboardInterrupt):
        evaluation.take(model, step=3)
    written = read()
    assert "snapshot at step 3" in written and "0/4" in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1
