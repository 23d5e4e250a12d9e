"""`forward.x@0` is one assignment of a variable; `@-1` the last of a call. Braces and slices name several places."""

import pytest
import torch
from torch import nn

import byname
from byname.errors import BadPathError, InterjectionError, NoMatchError, NothingSeenWarning


class Steps(nn.Module):
    def __init__(self, steps=3):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        for number in range(self.steps):
            x = x + number + 1
        h = {"k": x}
        h = {"k": x * 2}
        return h["k"]


class Projections(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return q + k + v


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Projections() for _ in range(5)])

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return states


X = torch.zeros(2)


def told(model, where, x=X):
    found = []
    with byname.attach(model, where, lambda event: found.append((event.path, event.value))):
        model(x)
    return found


@pytest.mark.parametrize(("nth", "expected"), [(0, 0), (1, 1), (2, 3), (3, 6), (-1, 6)])
def test_one_assignment_is_told(nth, expected):
    """The entry value of an argument is the first."""
    ((path, value),) = told(Steps(), f"forward.x@{nth}")
    assert path == f"forward.x@{nth}" and value.tolist() == [expected] * 2


def test_it_alone_is_changed():
    with byname.interject(Steps(), "forward.x@1", lambda name, module, value: value + 10) as handle:
        pass
    model = Steps()
    with byname.interject(model, "forward.x@1", lambda name, module, value: value + 10) as handle:
        assert model(X).tolist() == [32, 32]
    assert handle.notes == ()
    with byname.interject(model, "forward.x", lambda name, module, value: value + 10) as handle:
        assert model(X).tolist() == [92, 92]
    assert "changed 4 times in one call" in handle.notes[0]


def test_the_last_cannot_be_changed_and_the_error_says_what_can():
    model = Steps()
    with byname.interject(model, "forward.x@-1", lambda name, module, value: value * 0):
        with pytest.raises(InterjectionError, match="cannot be changed.*from `@0`"):
            model(X)


def test_beyond_what_ran_is_an_error_that_says_how_many_there_were():
    with pytest.raises(NoMatchError, match="`x` was assigned 4 times in this call"):
        told(Steps(), "forward.x@9")
    with pytest.warns(NothingSeenWarning, match="no such assignment of `x` was reached in 1 forward"):
        assert not told(Steps(), "*.x@9")


def test_a_call_with_fewer_assignments_later_is_no_error():
    model, found = Steps(), []
    with byname.attach(model, "forward.x@3", lambda event: found.append(event.value[0].item())):
        model(X)
        model.steps = 1
        model(X)
    assert found == [6]


def test_items_and_gradients_of_one_assignment():
    ((path, value),) = told(Steps(), "forward.h@0['k']")
    assert path == "forward.h@0['k']" and value.tolist() == [6, 6]
    grads, x = [], torch.zeros(2, requires_grad=True)
    model = Steps()
    with byname.attach(model, "forward.x@2.grad", lambda event: grads.append(event.value.tolist())):
        model(x).sum().backward()
    assert grads == [[2, 2]]


def test_several_assignments_and_all_of_them_together():
    found = told(Steps(), ["forward.x@0", "forward.x", "forward.x@2"])
    assert [path for path, _ in found] == [
        "forward.x@0",
        "forward.x",
        "forward.x",
        "forward.x",
        "forward.x@2",
        "forward.x",
    ]


def test_recorded_under_its_path():
    model = Steps()
    with byname.record(model, ["forward.x@0", "forward.x@-1"]) as recorder:
        for number in range(3):
            model(X + number)
    assert [value[0].item() for value in recorder.results["forward.x@0"]] == [0, 1, 2]
    assert [value[0].item() for value in recorder.results["forward.x@-1"]] == [6, 7, 8]


def test_braces_name_several():
    model = Layers()
    paths = [path for path, _ in told(model, "layers.0.{q,v}_proj")]
    assert paths == ["layers.0.q_proj", "layers.0.v_proj"]
    assert [path for path, _ in told(model, "layers.1.forward.{q,k}")] == ["layers.1.forward.q", "layers.1.forward.k"]
    assert [path for path, _ in told(model, "layers.{0,3}.k_proj.{weight,bias}")] == [
        f"layers.{number}.k_proj.{name}" for number in (0, 3) for name in ("weight", "bias")
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("1:3", [1, 2]),
        ("::2", [0, 2, 4]),
        ("-2:", [3, 4]),
        (":", [0, 1, 2, 3, 4]),
        ("::-2", [0, 2, 4]),
        ("3:9", [3, 4]),
    ],
)
def test_slices_of_lists_of_modules(part, expected):
    model = Layers()
    assert [path for path, _ in told(model, f"layers[{part}]")] == [f"layers.{number}" for number in expected]
    assert [path for path, _ in told(model, f"layers[{part}].q_proj")] == [f"layers.{n}.q_proj" for n in expected]


def test_slices_of_values():
    found = told(Layers(), "forward[1:3]")
    assert [path for path, _ in found] == ["forward[1]", "forward[2]"]
    assert [path for path, _ in told(Layers(), "forward[-1:]")] == ["forward[5]"]


def test_a_slice_that_holds_nothing_is_an_error():
    with pytest.raises(NoMatchError):
        told(Layers(), "layers[7:9]")


@pytest.mark.parametrize("path", ["layers[1:2:0]", "{q,v", "q}_proj", "{a.b}_proj", "{a,{b}}"])
def test_malformed_ones_are_refused(path):
    with pytest.raises(BadPathError):
        byname.attach(Layers(), path, print)


def test_names_with_braces_are_escaped():
    model = nn.Sequential()
    model.add_module("{a}", nn.Linear(2, 2))
    assert [path for path, _ in told(model, "*")] == [r"\{a\}"]
    assert [path for path, _ in told(model, r"\{a\}")] == [r"\{a\}"]
