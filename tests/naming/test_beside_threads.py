"""A look at the heap beside threads that go on: whatever it lists, what they are building stays theirs alone."""

import collections
import sys
import threading

import pytest
import torch
from checking import checking
from torch import nn

import byname


class Builder:
    """A thread that builds tuples, and goes on whenever it is asked to, as far as the next time CPython resizes one."""

    def __init__(self):
        self._go_on, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self.errors, self._over = [], False
        self._thread = threading.Thread(target=self._build)

    def __enter__(self):
        self._thread.start()
        self._waits.acquire()
        return self

    def __exit__(self, *_):
        self._over = True
        self._go_on.release()
        self._thread.join()

    def go_on(self):
        self._go_on.release()
        self._waits.acquire()

    def _build(self):
        while not self._over:
            try:
                tuple(self._items())
            except SystemError as error:
                self.errors.append(error)

    def _items(self):
        for number in range(12):  # CPython makes room for ten first
            yield LOST[0]
            if number == 9:
                self._waits.release()
                self._go_on.acquire()


LOST = [None]


def beside(builder, look):
    """Looks, and has the thread go on each time that the collector has listed something, up to 50 times for a kind."""
    times = collections.Counter()

    def event(frame, happened, called):
        if happened == "c_return" and called.__module__ == "gc" and times[called.__name__] < 50:
            times[called.__name__] += 1
            builder.go_on()

    sys.setprofile(event)
    try:
        look()
    finally:
        sys.setprofile(None)
    assert times


def grow():
    with byname.growth():
        pass


def check():
    with checking(lambda finding: None):
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()


LOOKS = {
    "census": byname.census,
    "growth": grow,
    "holders": lambda: byname.holders(LOST[0]),
    "name": lambda: byname.name(torch.ones(2)),
    "check": check,
}


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_a_look_leaves_tuples_alone_that_another_thread_is_building(look, monkeypatch):
    monkeypatch.setitem(globals(), "LOST", [torch.ones(3)])
    with Builder() as builder:
        beside(builder, look)
    assert not builder.errors


def test_a_tuple_that_holds_a_tensor_is_still_found_beside_another_thread():
    class Held:
        pass

    one = Held()
    one.pair = (torch.ones(2), 1)
    with Builder():
        assert "one.pair" in str(byname.holders(one.pair[0]))
