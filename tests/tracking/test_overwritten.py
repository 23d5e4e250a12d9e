"""Under a tracker the name of an overwritten tensor is exact wherever the program kept it."""

import inspect

import pytest
import torch

import byname


def leaf():
    return torch.ones(1, requires_grad=True)


class Agent:
    def __init__(self):
        self.temperature = leaf()
        self.config = {"scale": leaf()}
        self.items = [leaf()]

    def attribute(self):
        self.temperature = self.temperature * 0.9
        return self.temperature

    def method(self):
        self.temperature = self.temperature.clamp(min=0.1)
        return self.temperature

    def deeper(self):
        self.temperature = (torch.nn.functional.softplus(self.temperature) + 1).exp()
        return self.temperature

    def key(self):
        self.config["scale"] = self.config["scale"] * 2
        return self.config["scale"]

    def position(self):
        i = 0
        self.items[i] = torch.mul(self.items[i], 3)
        return self.items[i]

    def last(self):
        self.items[-1] = -self.items[-1]
        return self.items[-1]

    def joined(self):
        self.config["scale"] = torch.cat([self.config["scale"], torch.ones(1)])
        return self.config["scale"]

    def stacked(self):
        self.items[0] = torch.stack((torch.ones(1), self.items[0]), 0)
        return self.items[0]

    def joined_with_another_item(self):
        self.items.append(None)
        self.items[1] = torch.cat([torch.ones(1), self.items[0]])
        self.items[0] = None
        return self.items[1]

    def by_another_variable(self):
        held = self.temperature
        self.temperature = held + 1
        return self.temperature

    def another_item(self):
        self.items.append(None)
        self.items[1] = self.items[0] * 2
        self.items[0] = None
        return self.items[1]


EXACT = {
    "attribute": ("self.temperature", "attribute"),
    "method": ("self.temperature", "attribute"),
    "deeper": ("self.temperature", "attribute"),
    "key": ("self.config['scale']", "item"),
    "position": ("self.items[i]", "item"),
    "last": ("self.items[-1]", "item"),
    "joined": ("self.config['scale']", "item"),
    "stacked": ("self.items[0]", "item"),
}


def test_every_way_of_keeping_a_tensor_is_told_exactly_with_the_line_that_overwrote_it():
    for method, (path, how) in EXACT.items():
        function = getattr(Agent, method)
        lines, first = inspect.getsourcelines(function)
        rebinding = first + next(
            number for number, line in enumerate(lines) if line.replace('"', "'").strip().startswith(path + " =")
        )
        with byname.track():
            name = byname.leaves(getattr(Agent(), method)().sum())[0].name
        assert (name.path, name.how, name.exact, name.rebound_at.line) == (path, how, True, rebinding), method
        assert name.scope.startswith(f"Agent.{method} ("), method


@pytest.mark.parametrize("method", ["by_another_variable", "another_item", "joined_with_another_item"])
def test_a_statement_that_took_the_tensor_from_elsewhere_makes_no_name_exact(method):
    agent = Agent()
    with byname.track():
        name = byname.leaves(getattr(agent, method)().sum())[0].name
    assert not name.exact and name.rebound_at is None


def test_a_variable_of_the_enclosing_function():
    kept = leaf()

    def step():
        nonlocal kept
        kept = kept * 2
        return kept.sum()

    with byname.track():
        name = byname.leaves(step())[0].name
    assert (name.path, name.how, name.exact) == ("kept", "closure", True)


def test_a_variable_of_the_module(tmp_path):
    program = "import torch\ng = torch.ones(1, requires_grad=True)\ndef step():\n    global g\n    g = g * 2\n    return g.sum()\n"
    path = tmp_path / "program.py"
    path.write_text(program)
    names = {"__name__": "__main__"}
    exec(compile(program, str(path), "exec"), names)
    with byname.track():
        name = byname.leaves(names["step"]())[0].name
    assert (name.path, name.how) == ("g", "global") or not name.exact, "no loaded module has this code: nothing certain"


def test_a_view_that_is_written_into_was_never_a_variable():
    grid = torch.ones(3)
    weight = leaf()
    with byname.track():
        grid[0] = grid[0] * weight[0].detach()
        part = grid[0] * weight
        saved = [row.name for row in byname.saved(part.sum()) if row.name.path.startswith("grid")]
    assert all(name.rebound_at is None for name in saved)
