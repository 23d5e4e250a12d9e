"""The map of a model: lines, values of variables, functions that ran, inputs; and what looking leaves behind: nothing."""

import gc
import importlib
import random
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from small import net, nothing_left
from torch import nn
from torch.nn import functional as F

import byname
from byname import attach, points

torch.set_num_threads(1)


def rotate(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def twice(x):
    return rotate(x) + rotate(x * 2)


def one_way(x, scale):
    y = x * scale
    return y


def another_way(x, scale):
    z = x + scale
    return z


WAYS = {"one": one_way, "another": another_way}


class Rotating(nn.Module):
    def __init__(self, way="one"):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.way = way

    def forward(self, x, *, scale=None):
        h = twice(self.fc(x))
        for part in h.unbind():
            h = h + part
        h += 1
        if scale is None:
            unused = h
            return unused
        return WAYS[self.way](h, scale)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Rotating(), Rotating("another")
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(F.dropout(self.b(self.a(x), scale=torch.ones(4))))


X = torch.randn(3, 4)


def of(found):
    return {point.path: point for point in found}


def line_with(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_lines_of_operations_calls_and_variables():
    known = of(points(Two(), example=X))
    expected = {
        "b": "return self.norm(F.dropout(self.b(self.a(x), scale=torch.ones(4))))",
        "b.fc": "h = twice(self.fc(x))",
        "b.fc.input": "h = twice(self.fc(x))",
        "b.twice": "h = twice(self.fc(x))",
        "b.forward.h": "h = twice(self.fc(x))",
        "b.forward.scale": "def forward(self, x, *, scale=None):",
        "b.forward.part": "for part in h.unbind():",
        "b.add_": "h += 1",
        "b.rotate": "return rotate(x) + rotate(x * 2)",
        "b.rotate.first": "first, second = x.chunk(2, -1)",
        "b.rotate.cat": "return torch.cat([-second, first], -1)",
        "b.cat": "return torch.cat([-second, first], -1)",
        "b.another_way": "return WAYS[self.way](h, scale)",
    }
    for path, source in expected.items():
        point = known[path]
        assert point.source == source, path
        assert point.site.file == __file__
        assert point.site.line == line_with(source), path
    assert known["a.fc.weight"].site is None
    row = next(row for row in points(Two(), example=X).rows() if row["path"] == "b.add_")
    assert (row["site"], row["source"]) == (f"test_map.py:{line_with('h += 1')}", "h += 1")


def test_the_lines_of_variables_are_known_without_running():
    known = of(points(Two()))
    assert known["a.forward.unused"].source == "unused = h"
    assert known["a.rotate.second"].site.line == line_with("first, second = x.chunk(2, -1)")
    assert known["a.rotate.second"].site.function == "rotate"
    assert known["a"].site is None
    assert known["a.rotate"].site is None


def test_a_module_in_a_sequence_has_the_line_that_calls_the_sequence():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.layers(x)

    known = of(points(Around(), example=X))
    assert known["layers.1"].source == "return self.layers(x)"
    assert known["forward"].site is None
    assert of(points(nn.Sequential(nn.ReLU()), example=X))["0"].site is None


def told(model, paths, *inputs):
    """What `attach` tells at places in one forward: the number of values, and the shape of the first."""
    counts, shapes = Counter(), {}

    def see(event):
        counts[event.path] += 1
        if event.path not in shapes:
            shapes[event.path] = tuple(event.value.shape) if isinstance(event.value, torch.Tensor) else None

    with attach(model, paths, see):
        model(*inputs)
    return counts, shapes


@pytest.mark.parametrize("make", [lambda: (Two(), X), net], ids=["functions", "net"])
def test_numbers_and_shapes_are_those_that_attach_tells(make):
    model, x = make()
    found = [point for point in points(model, example=x) if point.calls]
    counts, shapes = told(model, [point.path for point in found], x)
    assert {point.path: point.calls for point in found} == counts
    for point in found:
        if shapes[point.path] is not None:
            assert point.shape == shapes[point.path], point.path


def test_variables_by_hand():
    known = of(points(Two(), example=X))
    assert (known["a.forward.h"].calls, known["a.forward.h"].shape) == (1 + 3 + 1, (3, 4))
    assert (known["a.forward.part"].calls, known["a.forward.part"].shape) == (3, (4,))
    assert (known["a.rotate.first"].calls, known["a.rotate.first"].shape) == (2, (3, 2))
    assert (known["a.rotate"].calls, known["a.rotate"].shape) == (2, (3, 4))
    assert (known["a.twice"].calls, known["a.twice.x"].calls) == (1, 1)
    assert (known["a.forward.scale"].calls, known["a.forward.scale"].shape) == (1, None)
    assert (known["b.forward.scale"].calls, known["b.forward.scale"].shape) == (1, (4,))


def test_functions_that_are_only_in_a_table_are_listed_where_they_ran():
    without = points(Two()).paths
    found = points(Two(), example=X)
    assert not [path for path in without if "way" in path]
    assert [path for path in found.paths if "way" in path] == [
        "b.another_way", "b.another_way.x", "b.another_way.scale", "b.another_way.z", "b.another_way.add",
    ]  # fmt: skip
    assert of(found)["b.another_way.z"].shape == (3, 4)


def test_operations_are_listed_in_the_function_that_calls_them_and_found_in_those_around_it():
    found = points(Two(), example=X)
    assert [path for path in found.paths if path.startswith("a.rotate.")] == [
        "a.rotate.x", "a.rotate.first", "a.rotate.second",
        "a.rotate.chunk", "a.rotate.neg", "a.rotate.cat", "a.rotate.chunk_1", "a.rotate.neg_1", "a.rotate.cat_1",
    ]  # fmt: skip
    assert [path for path in found.paths if path.startswith("a.twice.")] == ["a.twice.x", "a.twice.mul", "a.twice.add"]
    assert points(Two(), "a.twice.cat_1", example=X)[0].calls == 1


def test_what_did_not_run_is_set_apart():
    found = points(Two(), example=X)
    assert [point.path for point in found if point.ran is False] == ["b.forward.unused"]
    above, below = str(found).split("\n\nnot run by the example: 1 variable\n")
    assert "b.forward.unused" in below
    assert "b.forward.unused" not in above
    assert "not run by the example: 1 variable" in found._repr_html_()
    model, x = net()
    apart = [point.path for point in points(model, "blocks.1.**", example=x) if point.ran is False]
    assert apart == ["blocks.1.spare", "blocks.1.spare.weight", "blocks.1.spare.bias"]
    assert {point.ran for point in points(model)} == {None}
    assert "not run" not in str(points(model))


def test_inputs_are_listed():
    found = points(Two(), example=X)
    inputs = {point.path: (point.shape, point.calls) for point in found if point.kind == "input"}
    assert inputs == {
        "input": ((3, 4), 1),
        "a.input": ((3, 4), 1),
        "a.fc.input": ((3, 4), 1),
        "b.input": ((3, 4), 1),
        "b.input['scale']": ((4,), 1),
        "b.fc.input": ((3, 4), 1),
        "norm.input": ((3, 4), 1),
    }
    assert points(Two(), "**.input", example=X).paths == tuple(path for path in inputs if path.endswith("input"))
    assert points(Two(), "a.fc.*", example=X).paths == ("a.fc.weight", "a.fc.bias", "a.fc.linear")


def test_looking_leaves_nothing_behind():
    model = Two().train()
    states = torch.get_rng_state(), random.getstate()
    before = {name: (one.clone(), one._version) for name, one in model.state_dict(keep_vars=True).items()}
    with nothing_left(model):
        codes = [one.__code__ for one in (rotate, twice, one_way, another_way, Rotating.forward)]
        points(model, example=X)
        assert [one.__code__ for one in (rotate, twice, one_way, another_way, Rotating.forward)] == codes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    for name, one in model.state_dict(keep_vars=True).items():
        assert torch.equal(one, before[name][0]), name
        assert one._version == before[name][1], name


def test_no_tensor_is_kept():
    seen = []

    class Telling(nn.Module):
        def forward(self, x):
            h = rotate(x)
            seen.append(weakref.ref(h))
            return h

    x = torch.randn(2, 4)
    seen.append(weakref.ref(x))
    gc.disable()
    try:
        found = points(Telling(), example=x)
        del x
        assert [one() for one in seen] == [None] * len(seen)
    finally:
        gc.enable()
    assert found.paths


def test_an_error_of_the_example_leaves_nothing_behind():
    model = Two()
    with nothing_left(model), pytest.raises(RuntimeError):
        points(model, example=torch.ones(3, 7))
    assert rotate.__code__.co_filename == __file__
    assert "_byname" not in str(rotate.__code__.co_names)
    assert byname.points(model, example=X).paths


def test_what_is_attached_does_not_hear_it_and_counts_stay():
    model, heard = Two(), []
    with attach(model, ["a.forward.h", "a.rotate.first", "a.fc", "a.fc.input"], heard.append) as handle:
        known = of(points(model, example=X))
        assert heard == []
        assert (known["a.forward.h"].calls, known["a.rotate.first"].calls, known["a.fc.input"].calls) == (5, 2, 1)
        model(X)
        assert Counter(event.path for event in heard) == {
            "a.forward.h": 5, "a.rotate.first": 2, "a.fc": 1, "a.fc.input": 1,
        }  # fmt: skip
    assert handle.removed


def test_code_without_source():
    space = {"nn": nn}
    exec(  # noqa: S102 - to have a class without source
        "def steps(x):\n    y = x * 2\n    yield y\n"
        "class Hidden(nn.Module):\n    def forward(self, x):\n        h = x + 1\n        for g in steps(h):\n"
        "            h = h + g\n        return h\n",
        space,
    )
    known = of(points(space["Hidden"](), example=X))
    assert (known["forward.h"].calls, known["forward.h"].shape, known["forward.h"].site) == (2, (3, 4), None)
    assert known["add"].site.line == 6
    assert known["add"].source == ""
    assert (known["steps.y"].calls, known["steps.y"].ran) == (None, None)  # a generator: it runs after its call
    assert known["steps.mul"].shape == (3, 4)


def test_a_scripted_module_is_one_place():
    inner = torch.jit.trace(nn.Linear(4, 4), X)
    found = points(nn.Sequential(inner, nn.ReLU()), example=X)
    assert [point.path for point in found if point.kind == "module"] == ["forward", "1", "0"]


def test_a_property_a_generator_and_a_nested_function():
    class Ways(nn.Module):
        @property
        def scale(self):
            two = torch.full((4,), 2.0)
            return two

        def steps(self, x):
            for i in range(2):
                y = x + i
                yield y

        def forward(self, x):
            def inner(z):
                u = z * self.scale
                return u

            for step in self.steps(inner(x)):
                x = x + step
            return x

    known = of(points(Ways(), example=X))
    expected = {"scale": 1, "scale.two": 1, "steps.y": 2, "forward.inner.u": 1, "forward.step": 2, "forward.x": 3}
    assert {path: known[path].calls for path in expected} == expected
    assert known["scale"].source == "u = z * self.scale"
    assert known["forward.inner.u"].site.function.endswith("forward.<locals>.inner")


def test_operations_in_a_function_of_another_library_are_found_and_not_listed(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "arranging_for_test.py").write_text("def arranged(x):\n    y = x.mT\n    return y.exp()\n")
    monkeypatch.syspath_prepend(folder)
    arranging = importlib.import_module("arranging_for_test")

    class Arranging(nn.Module):
        def forward(self, x):
            return arranging.arranged(x)

    found = points(Arranging(), example=X)
    assert not [path for path in found.paths if path.startswith("arranged")]
    exp = points(Arranging(), "arranged.exp", example=X)[0]
    assert (exp.shape, exp.calls) == ((4, 3), 1)
    assert told(Arranging(), "arranged.exp", X)[0] == {"arranged.exp": 1}
    assert of(found)["exp"].source == "return y.exp()"


def test_a_parameter_that_others_use_is_not_set_apart():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.spare = nn.Embedding(5, 4), nn.Embedding(5, 4)
            self.attention = nn.MultiheadAttention(4, 1)

        def forward(self, x):
            return F.linear(self.attention(x, x, x)[0], self.table.weight)

    found = points(Tied(), example=X)
    assert {point.path for point in found if point.ran is False} == {
        "attention.out_proj", "table", "spare", "spare.weight",
    }  # fmt: skip
