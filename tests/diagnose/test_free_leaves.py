"""Is a leaf that the program made to ask for its gradient told from one that nobody asks about?"""

import linecache
import sys
import types

import pytest
import torch
from torch import nn

import byname

HEADER = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn(6, 2)
"""
PENALTY = """
class Penalty:
    def of(self, critic, real):
        between = (real * torch.rand(len(real), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()
loss = net(data).mean() + Penalty().of(net, data)
"""
EQUATION = """
from torch import autograd
def slope(value, place):
    return autograd.grad(value, place, torch.ones_like(value), create_graph=True)[0]
def residual():
    points = torch.rand(6, 2, requires_grad=True)
    value = net(points)
    return (slope(slope(value, points)[:, :1], points) - value).square().mean()
loss = residual()
"""
FORCES = """
class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, batch):
        energy = self.net(batch["positions"]).sum()
        return energy, -torch.autograd.grad(energy, batch["positions"], create_graph=True)[0]
model = Potential()
inputs = {"positions": data.clone().requires_grad_()}
energy, forces = model(inputs)
loss = energy + forces.square().sum()
"""
SALIENCY = """
def explained(image):
    image = image.clone().requires_grad_()
    score = net(image).sum()
    score.backward(retain_graph=True)
    return score, image.grad.abs().sum()
loss, _ = explained(data)
"""
ADVERSARIAL = """
def attacked(x):
    delta = torch.zeros_like(x, requires_grad=True)
    first = net(x + delta).square().mean()
    step = torch.autograd.grad(first, delta, retain_graph=True)[0].sign()
    return first + net(x + 0.1 * step).square().mean()
loss = attacked(data)
"""
HEALTHY = {
    "gradient penalty": PENALTY,
    "differential equation": EQUATION,
    "forces": FORCES,
    "saliency": SALIENCY,
    "adversarial": ADVERSARIAL,
}


def check_of(text):
    """The findings of the program's last lines, run as a program of its own is."""
    main = types.ModuleType("program_of_a_free_leaf")
    main.__file__ = "<program of a free leaf>"
    text = HEADER + text
    linecache.cache[main.__file__] = (len(text), None, text.splitlines(keepends=True), main.__file__)
    sys.modules[main.__name__] = main
    try:
        exec(compile(text, main.__file__, "exec"), main.__dict__)
        model = main.__dict__.get("model", main.net)
        return byname.check(main.loss, model=model, optimizer=main.optimizer)
    finally:
        del sys.modules[main.__name__], linecache.cache[main.__file__]


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("explained", [False, True], ids=["plain", "explaining"])
@pytest.mark.parametrize("program", HEALTHY)
def test_a_leaf_whose_gradient_was_asked_for_is_silent(program, explained):
    if not explained:
        assert check_of(HEALTHY[program]) == []
        return
    with byname.explaining():
        assert check_of(HEALTHY[program]) == []


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("program", HEALTHY)
def test_a_forgotten_leaf_beside_it_is_found_by_its_name(program):
    forgotten = "temperature = torch.ones(1, requires_grad=True)\nloss = loss * temperature\n"
    with byname.explaining():
        (finding,) = check_of(HEALTHY[program] + forgotten)
    assert (finding.cause, [str(name) for name in finding.culprits]) == ("free-leaf", ["temperature"])
    if program != "forces":  # there the model asks for the gradient of an argument, which may be any tensor
        assert [name.path for one in check_of(HEALTHY[program] + forgotten) for name in one.culprits] == ["temperature"]


LOST = """
def scaled():
    temperature = torch.ones(1, requires_grad=True)
    return net(data).mean() * temperature
loss = loss + scaled()
"""


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("program", HEALTHY)
def test_a_forgotten_leaf_that_no_variable_holds_is_found_where_the_engine_is_listened_to(program):
    with byname.explaining():
        (finding,) = check_of(HEALTHY[program] + LOST)
    assert (finding.cause, [name.path for name in finding.culprits]) == ("free-leaf", ["temperature"])


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.ones(3, requires_grad=True)


def test_of_an_optimizer_without_parameters_the_tensor_that_should_be_one_is_told():
    model = nn.Sequential(Rates(), nn.ReLU())
    with pytest.raises(ValueError, match="empty parameter list") as error, byname.explaining():
        torch.optim.SGD(model.parameters(), lr=0.1)
    (note,) = error.value.__notes__
    assert "`rate` of Rates is a plain tensor with requires_grad" in note and "self.rate = nn.Parameter(...)" in note
