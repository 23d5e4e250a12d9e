"""The table of children: what lists them, objects alone or with steps, and classes that a third party adds."""

import collections

import pytest
import torch

import byname
from byname.naming.children.registry import Children, add_children
from byname.reading.quiet import DisableTorchFunction


class Pool:
    """Keeps tensors in a named tuple, and gives them by a method."""

    def __init__(self, *tensors):
        self.take = collections.namedtuple("Taken", "tensors")(tensors)

    def row(self, number):
        return self.take.tensors[number]


class SmallPool(Pool):
    pass


@pytest.mark.parametrize("kind", [Pool, SmallPool])
def test_a_class_that_was_added_is_read_as_was_said_until_it_is_taken_out(kind):
    def name():
        pool = kind(torch.ones(1), torch.ones(2))
        return str(byname.name(pool.row(1)))

    before = name()
    remove = add_children(Pool, lambda pool: ((f".row({at})", one) for at, one in enumerate(pool.take.tensors)))
    try:
        assert name() == "pool.row(1)"
    finally:
        remove()
    assert name() == before == "pool.take[0][1]"


def test_the_class_that_was_added_last_comes_first():
    removes = [add_children(Pool, lambda pool, text=text: [(text, pool.row(0))]) for text in (".a", ".b")]
    pool = Pool(torch.ones(1))
    assert str(byname.name(pool.row(0))) == "pool.b"
    removes[1]()
    assert str(byname.name(pool.row(0))) == "pool.a"
    removes[0]()


class Slotted:
    __slots__ = ("one", "two")

    def __init__(self):
        self.one = torch.ones(1)


@pytest.mark.parametrize(
    "held",
    [
        [torch.ones(1), 3, "text", [torch.ones(1)]],
        (torch.ones(1), None, {}),
        {"key": torch.ones(1), (1, 2): 3, torch.ones(1): "value", int: 4, 5: [6]},
        collections.OrderedDict(a=torch.ones(1)),
        collections.deque([torch.ones(1), 1]),
        {1, (torch.ones(1),)},
        torch.nn.Linear(2, 2),
        torch.optim.SGD(torch.nn.Linear(2, 2).parameters()),
        Pool(torch.ones(1)),
        Slotted(),
        lambda value=torch.ones(1): value,
        3,
        object(),
    ],
    ids=lambda held: type(held).__name__,
)
def test_the_objects_alone_are_those_that_steps_lead_to(held):
    children = Children()
    with DisableTorchFunction():
        assert [id(one) for one in children.of(held)] == [id(one) for _, _, one in children.list(held)]
