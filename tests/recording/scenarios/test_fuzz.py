"""No file ends the process that reads it, takes its memory or its time, or raises what is none of byname's errors."""

import fuzzing
import pytest
from processes import run

import byname

pytest.importorskip("resource")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("recordings")
    fuzzing.make(made)
    return made


def tried(directory, first, count):
    """What the recordings of some seeds were; the seed of one that does harm is the last in the message."""
    program = [fuzzing.__file__, str(directory), str(first), str(count)]
    child = run(program, capture_output=True, text=True, timeout=900)
    answers = child.stdout.split()
    assert child.returncode == 0, f"exit {child.returncode} at seed {answers[-1:]}: {child.stderr[-3000:]}"
    return answers[1::2]


@pytest.mark.slow
def test_the_recordings_that_are_changed_can_be_read(directory):
    for name in ("plain.h5", "gzip.h5"):
        fuzzing.read(directory / name)
    with byname.open(directory / "left.h5") as recording:
        assert len(recording.paths) == 7


def test_changed_recordings_are_read_or_refused(directory):
    assert {"read", "refused"} == set(tried(directory, 0, 16))


@pytest.mark.slow
@pytest.mark.parametrize("first", [10**6, 2 * 10**6, 3 * 10**6])
def test_many_changed_recordings_are_read_or_refused(directory, first):
    assert {"read", "refused"} == set(tried(directory, first, 120))
