"""Descriptors: pieces that are written together lie one behind the other, whatever of them the system takes at once."""

import os

import numpy
import pytest

from byname.recording.descriptors import write_together

BEFORE = b"before "


@pytest.fixture
def descriptor(tmp_path):
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(number, BEFORE, 0)
    yield number
    os.close(number)


def pieces(count):
    random = numpy.random.default_rng(count)
    return [random.integers(256, size=random.integers(9), dtype=numpy.uint8) for _ in range(count)]


def held(number):
    return os.pread(number, 1 << 20, 0)


@pytest.mark.parametrize("count", [0, 1, 2, 600])
def test_pieces_lie_one_behind_the_other(descriptor, count):
    several = pieces(count)
    whole = BEFORE + b"".join(map(bytes, several))
    assert write_together(descriptor, several, len(BEFORE)) == len(whole)
    assert held(descriptor) == whole


@pytest.mark.parametrize("most", [0, 1, 5, 40])
def test_a_system_that_takes_less_than_all_gets_the_rest(descriptor, monkeypatch, most):
    several = pieces(30)

    def short(number, views, offset):
        return os.pwrite(number, b"".join(views)[:most], offset)

    monkeypatch.setattr(os, "pwritev", short)
    write_together(descriptor, several, len(BEFORE))
    assert held(descriptor) == BEFORE + b"".join(map(bytes, several))


def test_a_system_that_takes_one_at_a_time_gets_each(descriptor, monkeypatch):
    monkeypatch.delattr(os, "pwritev")
    several = pieces(5)
    write_together(descriptor, several, len(BEFORE))
    assert held(descriptor) == BEFORE + b"".join(map(bytes, several))
