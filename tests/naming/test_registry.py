"""The table of children: what lists them, objects alone or with steps."""

import collections

import pytest
import torch

from byname.naming.children.registry import Children


class Pool:
    """Keeps tensors in a named tuple."""

    def __init__(self, *tensors):
        self.take = collections.namedtuple("Taken", "tensors")(tensors)


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
    with torch._C.DisableTorchFunction():
        assert [id(one) for one in children.of(held)] == [id(one) for _, _, one in children.list(held)]
