"""A subscription reports the variables of a function, also of a compiled one: that is interrupted, and reports as eagerly.

`attach` runs compiled functions eagerly, so only here it is seen what the compiler makes of rewritten code.
"""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.watch.variables.subscribe import FunctionReceiver, Subscription


@contextmanager
def listen(function, owner, variables, change=lambda value: value):
    """Subscribes to variables; gives what is reported: (moment, variable, value)."""
    told = []

    def receive(run, variable, value, moment):
        told.append((moment, variable, value.tolist()))
        return change(value)

    one = Subscription(function, owner, variables, FunctionReceiver(receive))
    one.begin()
    try:
        yield told
    finally:
        one.remove()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.query(x) @ x.transpose(-1, -2)
        scores = scores + 1
        scores.mul_(2)
        return scores.softmax(-1) @ x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def counted():
    """A compiled model, and how many graphs were compiled for it."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = Model()
    yield model, torch.compile(model, backend=backend), graphs
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read by the compiler itself (PyTorch 2.13)
@pytest.mark.parametrize("compiled_before", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_code_tells_what_eager_code_tells(counted, compiled_before):
    model, compiled, graphs = counted
    x = torch.randn(3, 4)
    expected = model(x)
    if compiled_before:
        assert torch.allclose(compiled(x), expected)
        assert len(graphs) == 1
    wanted = ["x", "scores", "return"]
    with listen(Attention.forward, model.blocks[1], wanted) as eager:
        model(x)
    with listen(Attention.forward, model.blocks[1], wanted) as told:
        assert torch.allclose(compiled(x), expected)
    with listen(Attention.forward, model.blocks[1], wanted) as again:
        compiled(x)
    assert [event[:2] for event in told] == [event[:2] for event in eager]
    assert [event[:2] for event in again] == [event[:2] for event in eager]
    assert ("changed", "scores") in [event[:2] for event in told]
    graphs.clear()
    assert torch.allclose(compiled(x), expected)
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_values_are_replaced_in_compiled_code(counted):
    model, compiled, _ = counted
    x = torch.randn(3, 4)
    with listen(Attention.forward, model.blocks[1], ["return"], lambda value: value * 0):
        first = compiled(x)
        assert torch.allclose(first, model(x))
    assert torch.allclose(first, x + model.blocks[0](x))


def test_a_graph_that_must_be_whole_says_who_interrupts_it(counted):
    model, _, _ = counted
    whole = torch.compile(model, backend="eager", fullgraph=True)
    with listen(Attention.forward, model.blocks[0], ["scores"]):
        with pytest.raises(torch._dynamo.exc.Unsupported, match="byname listens to local variables"):
            whole(torch.randn(3, 4))
    assert whole(torch.zeros(3, 4)).shape == (3, 4)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_code_without_source_is_read_also_when_compiled():
    scope = {}
    exec("def f(self, x):\n    h = x + 1\n    return h * 2\n", scope)
    f, owner = scope["f"], Model()
    compiled = torch.compile(lambda x: f(owner, x), backend="eager")
    assert compiled(torch.zeros(1)).item() == 2.0
    with listen(f, owner, ["h"]) as told:
        assert compiled(torch.zeros(1)).item() == 2.0
    assert told == [("assigned", "h", [1.0]), ("exit", "h", [1.0])]
    assert compiled(torch.zeros(1)).item() == 2.0
    torch._dynamo.reset()


def test_what_a_function_and_a_nested_one_return_can_be_replaced():
    def f(x):
        def g(u):
            return u

        return g(x) + 1

    x = torch.tensor(2)
    with listen(f, x, ["return", "g.return"], lambda value: value * 10):
        assert f(x) == 210


def test_the_variables_of_a_function_are_named_and_counted():
    def many(a, b, c, d, e, f, g, h, i, j):
        return a

    with pytest.raises(BadArgumentError, match=r"it has a, b, c, d, e, f, g, h, and 2 more$"), listen(many, 1, ["zzz"]):
        pass
