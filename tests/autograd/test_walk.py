"""The nodes of a graph come in one order, whichever way they are asked for, and enough of them are marked.

A marked node keeps its edges, and what lies behind it is freed without recursion.
"""

import threading
import weakref
from itertools import islice

import torch

from byname.autograd.walk import Walk, gaps, mark, nodes_behind


def ladder():
    w = torch.ones(3, requires_grad=True)
    return ((w.exp() * 2).sigmoid() + w.exp()[torch.tensor([0, 2, 1])] * w).sum()


def test_the_nodes_behind_tensors_come_in_the_order_of_the_walk():
    loss, other = ladder(), ladder()
    for roots in ([loss], [loss, other, loss], [loss, other + loss]):
        assert nodes_behind(roots) == Walk(roots).nodes[1:]


class Node:
    def __init__(self):
        self.metadata = {}


def marks(depth, held):
    """Marks: each leads to the next one, and the last to the object that is held."""
    for _ in range(depth):
        node = Node()
        mark(node, ((held, 0),))
        (held,) = node.metadata.values()
    return held


def test_marks_in_marks_are_freed_on_a_small_stack():
    ends = []

    def work():
        end = Node()
        alive = weakref.ref(end)
        held = marks(100_000, end)
        del end
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
    node = Node()
    mark(node, ((None, 0),))
    assert len(node.metadata) == 1


def test_one_node_in_sixteen_is_marked_and_never_many_in_a_row_are_not():
    drawn = list(islice(gaps(), 10_000))
    first, then = drawn[0], drawn[1:]
    assert first <= 500
    assert max(then) < 150
    assert 14 < sum(then) / len(then) < 18
