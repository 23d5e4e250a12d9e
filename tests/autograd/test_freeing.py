"""What lies behind a mark is freed without recursion on Python 3.13; the other versions need no such class."""

import threading
import weakref
from itertools import islice

from byname.autograd.freeing import _Deferred, gaps, mark


class Thing:
    pass


def nested(depth, inside):
    held = _Deferred(((inside, 0),))
    for _ in range(depth):
        held = _Deferred(((held, 0),))
    return held


def test_marks_in_marks_are_freed_on_a_small_stack():
    ends = []

    def work():
        thing = Thing()
        alive = weakref.ref(thing)
        held = nested(100_000, thing)
        del thing
        ends.append(alive() is not None)
        del held
        ends.append(alive() is None)

    before = threading.stack_size(256 * 1024)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    threading.stack_size(before)
    assert ends == [True, True]


def test_a_node_keeps_its_edges_and_no_more():
    class Node:
        metadata = {}

    mark(Node, ((None, 0),))
    assert len(Node.metadata) == 1


def test_one_node_in_sixteen_is_marked_and_never_many_in_a_row_are_not():
    drawn = list(islice(gaps(), 10_000))
    first, then = drawn[0], drawn[1:]
    assert first <= 500
    assert max(then) < 150
    assert 14 < sum(then) / len(then) < 18
