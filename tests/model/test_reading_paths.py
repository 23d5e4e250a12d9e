"""How a path is read in a model, and what is said of one that can be read in two ways or in none."""

import re

import pytest
import torch
from small import net
from torch import nn

from byname import attach, select
from byname.errors import BadArgumentError, NoMatchError


class Odd(nn.Module):
    """A method without Python code, a variable called grad, a container."""

    compiled = staticmethod(len)

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x):
        between = self.parts[0](x)
        grad = between * 2
        return grad


def test_patterns_pass_over_methods_without_python_code():
    with attach(Odd(), "*.grad", print) as handle:
        assert handle.paths == ("forward.grad",)
    with pytest.raises(BadArgumentError, match="staticmethod"):
        attach(Odd(), "compiled.x", print)


def test_a_path_that_may_be_a_gradient_says_how_it_was_read():
    with attach(Odd(), "forward.grad", print) as handle:
        assert handle.notes == ("`forward.grad` was read as the variable; it could also be the gradient of `forward`",)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("parts", "never called; its children are `parts.*`"),
        ("other.between", "close to it: `forward.between`"),
        ("grad", "`forward.grad`"),
    ],
)
def test_what_was_probably_meant_is_named(path, said):
    with pytest.raises(NoMatchError, match=re.escape(said)):
        attach(Odd(), path, print)


def test_with_an_example_the_paths_of_operations_are_known_at_once():
    model, x = net()
    for where in ("blocks.*.softmax_1", select.op("softmax")[1] | select.op("softmax")[3] | select.op("softmax")[5]):
        with attach(model, [where, "head"], print, example=x) as handle:
            assert set(handle.paths) == {"head", *(f"blocks.{block}.softmax_1" for block in range(3))}


def test_a_selector_that_meant_nothing_in_the_first_forward_says_what_there_was():
    model, x = net()
    with attach(model, select.gelu, print), pytest.raises(NoMatchError, match="its functions .*softmax"):
        model(x)


@pytest.mark.parametrize("path", ["ps[1]", "ps.1", "pd['k']", "pd.k"])
def test_parameters_in_lists_and_dicts_are_reached_as_in_python(path):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.ps = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(2)])
            self.pd = nn.ParameterDict({"k": nn.Parameter(torch.ones(2))})

        def forward(self, x):
            return x * self.ps[1] * self.pd["k"]

    model = Listed()
    with attach(model, path, lambda event: event.value * 3):
        assert torch.equal(model(torch.ones(2)), torch.full((2,), 3.0))
