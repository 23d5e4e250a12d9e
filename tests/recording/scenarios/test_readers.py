"""Readers beside a writer: each sees a part of the recording from its beginning, whole and right, at any moment."""

import os
import time

import pytest
import torch
from stored_runs import Writer

import byname
from byname.errors import BynameError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the readers")


def value(number):
    return torch.full((500 + number % 3,), float(number))


def looked(path):
    """How many records a reader has seen; all are those of the writer."""
    with byname.open(path) as recording:
        found = recording["a"] if "a" in recording else ()
        for number, one in enumerate(found):
            assert one.equal(value(number))
        assert not len(found) or [*found.iterations] == [*range(len(found))] == [*recording["b"].iterations]
        assert not recording.complete or len(found) % 100 == 0
        return len(found), recording.complete


def reader(path):
    """Look again and again, until the recording is complete; the exit code of the process that does it."""
    seen, looks, until = 0, 0, time.monotonic() + 60
    while time.monotonic() < until:
        count, complete = looked(path)
        assert count >= seen
        seen, looks = count, looks + 1
        if complete:
            return 0 if looks > 1 else 3
    return 2


@pytest.mark.parametrize(("readers", "windows"), [(3, 100), pytest.param(12, 400, marks=pytest.mark.slow)])
def test_readers_beside_a_writer_see_whole_records_in_order(readers, windows, tmp_path):
    path = tmp_path / "run.h5"
    writer = Writer(path, "ab")
    children = []
    for _ in range(readers):
        child = os.fork()
        if not child:
            code = 1
            try:
                code = reader(path)
            except (BynameError, AssertionError) as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            finally:
                os._exit(code)
        children.append(child)
    time.sleep(0.1)  # so that each has looked at a recording that runs
    for window in range(windows):
        numbers = range(window * 2, window * 2 + 2)
        writer.window({"a": [*map(value, numbers)], "b": [*map(float, numbers)]})
    writer.close()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * readers
    assert looked(path) == (2 * windows, True)
