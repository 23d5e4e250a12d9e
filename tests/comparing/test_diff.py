"""The first difference is found where it was planted, with the error that a formula gives, and nothing else is claimed."""

import copy
import math
import random
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import as_rank
from torch import nn

import byname
from byname.errors import BadArgumentError, NoRecordingError


def series(path, values, iterations=None, calls=None, modes=None, ranks=None, **more):
    count = len(values)
    shapes = [tuple(value.shape) if isinstance(value, torch.Tensor) else () for value in values]
    return byname.Series(
        path,
        values,
        iterations or [*range(count)],
        ranks or [0] * count,
        calls or [0] * count,
        modes or ["train"] * count,
        shapes,
        **more,
    )


def run(*several):
    return {one.path: one for one in several}


def planted(data, dtype):
    """A recording of places that run in a loop or not, and the same with one element changed."""
    places = [f"p{number}" for number in range(data.draw(st.integers(1, 4)))]
    iterations, calls = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (2, 2, 2)]))
    torch.manual_seed(0)
    moments = [(iteration, call) for iteration in range(iterations) for call in range(calls)]
    values = {path: [(torch.randn(shape) * 50).to(dtype) for _ in moments] for path in places}
    where = data.draw(st.sampled_from([(path, number) for number in range(len(moments)) for path in places]))
    other = copy.deepcopy(values)
    element = other[where[0]][where[1]].view(-1)[data.draw(st.integers(0, math.prod(shape) - 1))]
    element.copy_(~element if dtype is torch.bool else element + 64)
    both = [
        run(*(series(path, own[path], [one for one, _ in moments], [call for _, call in moments]) for path in places))
        for own in (values, other)
    ]
    return both, where[0], moments[where[1]], values[where[0]][where[1]], other[where[0]][where[1]]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]))
def test_one_changed_element_is_found_where_it_is(data, dtype):
    (a, b), path, (iteration, call), one, other = planted(data, dtype)
    found = byname.diff(a, b)
    assert found and not found.equal
    assert (found.first.path, found.first.iteration, found.first.call) == (path, iteration, call)
    gap = (one.double() - other.double()).abs()
    assert found.first.error == gap.max().item() and found.first.elements == 1 and found.first.size == one.numel()
    assert [row.path for row in found if row.state != "equal"] == [path]
    assert found.first.where() == found.first_value.where() and found.first.state == "different"
    assert byname.diff(a, a).equal and not byname.diff(b, copy.deepcopy(b))
    assert byname.diff(a, b, tolerance=gap.max().item()).equal
    assert dtype in (torch.bool, torch.uint8) or byname.diff(a, b, tolerance=gap.max().item() * 0.99).first is not None


def test_the_errors_are_those_of_assert_close():
    torch.manual_seed(0)
    a, b = torch.randn(50, 7), torch.randn(50, 7)
    first = byname.diff(run(series("x", [a])), run(series("x", [b]))).first
    assert first.error == (a.double() - b.double()).abs().max().item()
    assert first.relative == ((a.double() - b.double()).abs() / b.double().abs()).max().item()
    with pytest.raises(AssertionError) as raised:
        torch.testing.assert_close(a, b)
    assert f"Greatest absolute difference: {first.error:.6f}"[:37] in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_the_tolerances_by_dtype_are_those_of_assert_close(dtype):
    torch.manual_seed(0)
    for scale in (1e-9, 1e-6, 1e-4, 1e-2):
        a = torch.randn(30, dtype=dtype if dtype.is_complex else torch.float64).to(dtype)
        b = (a * (1 + scale)).to(dtype)
        try:
            torch.testing.assert_close(a, b)
            close = True
        except AssertionError:
            close = False
        found = byname.diff(run(series("x", [a])), run(series("x", [b])))
        assert all(row.state != "different" for row in found) == close
        assert found.equal == torch.equal(a, b)
        assert byname.diff(run(series("x", [a])), run(series("x", [b])), tolerance={}).equal == close
        assert byname.diff(run(series("x", [a])), run(series("x", [b])), tolerance={dtype: (1.0, 1.0)}).equal


def test_nan_is_equal_to_nan_and_counted_where_it_is_in_one_alone():
    nan, inf = math.nan, math.inf
    a = run(series("x", [torch.tensor([nan, 1.0, inf, -inf, nan, 2.0])]))
    assert byname.diff(a, copy.deepcopy(a)).equal
    b = run(series("x", [torch.tensor([nan, nan, inf, -inf, 0.0, 2.0])]))
    first = byname.diff(a, b).first
    assert (first.nan, first.elements) == (2, 2) and math.isnan(first.error)
    c = run(series("x", [torch.tensor([nan, 1.5, inf, -inf, 0.0, 2.0])]))
    first = byname.diff(a, c).first
    assert (first.nan, first.elements, first.error) == (1, 2, 0.5)
    d = run(series("x", [torch.tensor([nan, 1.0, 3.0, -inf, nan, 2.0])]))
    assert byname.diff(a, d, tolerance=1e9).first.error == inf


def test_whole_numbers_that_no_float_holds_are_told_apart():
    a = run(series("x", [torch.tensor([2**62, -(2**63)])]), series("n", [2**62]))
    b = run(series("x", [torch.tensor([2**62 + 1, 2**63 - 1])]), series("n", [2**62 + 1]))
    found = byname.diff(a, b)
    assert found.first.error == float(2**64 - 1)
    assert byname.diff(run(a["n"]), run(b["n"])).first.error == 1.0


def test_plain_values_and_containers():
    a = [0.5, True, "adam", None, {"lr": 0.1, "h": torch.ones(2)}, (torch.zeros(2), 3)]
    b = [0.75, False, "sgd", 1, {"lr": 0.1, "h": torch.ones(2) + 1e-3}, (torch.zeros(2), 4)]
    for one, other in zip(a, b, strict=True):
        same = byname.diff(run(series("x", [one])), run(series("x", [copy.deepcopy(one)])))
        assert same.equal, one
        assert not byname.diff(run(series("x", [one])), run(series("x", [other]))).equal, one
    text = byname.diff(run(series("x", ["adam"])), run(series("x", ["sgd"]))).first
    assert text.error is None and text.what == "'adam' and 'sgd'"
    nested = byname.diff(run(series("x", [a[4]])), run(series("x", [b[4]])), tolerance=1e-2)
    assert nested.equal and nested.items[0].error == pytest.approx(1e-3, rel=1e-3)


def test_shapes_and_dtypes():
    a, b = run(series("x", [torch.ones(2, 3)])), run(series("x", [torch.ones(3, 2)]))
    assert byname.diff(a, b).first.what == "float32 2×3 and float32 3×2"
    rounded = run(series("x", [torch.ones(2, 3).bfloat16()]))
    found = byname.diff(a, rounded)
    assert found.equal and found.items[0].state == "equal"
    thirds = run(series("x", [torch.full((2, 3), 1 / 3)]))
    found = byname.diff(thirds, run(series("x", [torch.full((2, 3), 1 / 3).bfloat16()])))
    assert found.equal and found.items[0].state == "within tolerance"  # rounding is no difference between two dtypes
    assert "are equal within the tolerances of their dtypes: 1 value of 1 place" in str(found)
    ragged = series("x", [torch.ones(2), torch.ones(3)]), series("x", [torch.ones(2), torch.zeros(3)])
    assert byname.diff(run(ragged[0]), run(ragged[1])).first.iteration == 1


def test_a_change_of_one_run_alone_is_compared_with_the_value_in_force(tmp_path):
    for name, freeze in (("a", 9), ("b", 4)):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with byname.record(model, ["weight", "forward"], to=tmp_path / f"{name}.h5"):
            for step in range(8):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                if step < freeze:
                    optimizer.step()
    found = byname.diff(tmp_path / "a.h5", tmp_path / "b.h5")
    assert (found.first.path, found.first.iteration) == ("weight", 5)  # before the output that it makes
    assert found.first.error == pytest.approx(0.1)
    assert {row.path: row.iteration for row in found} == {"weight": 5, "forward": 5}
    assert byname.diff(tmp_path / "a.h5", tmp_path / "a.h5").equal


def test_what_only_one_has_is_told_and_is_no_first_difference():
    a = run(series("x", [1.0] * 5), series("y", [2.0] * 5))
    found = byname.diff(a, run(series("x", [1.0] * 3)))
    assert found.first is None and not found.equal
    assert found.only == ("only a has values after iteration 2, up to 4", "1 place only in a: `y`")
    assert [row.state for row in found] == ["equal", "only in a"]
    several = byname.diff(run(series("x", [1.0, 2.0], ranks=[0, 1])), run(series("x", [1.0])))
    assert several.only == ("only a has values of rank 1",)


def test_an_iteration_that_was_not_asked_for_is_nothing_that_only_one_has():
    def recorded(steps, **options):
        model = nn.Identity()
        with byname.record(model, "forward", **options) as recorder:
            for step in range(steps):
                model(torch.ones(1, 2) * step)
        return recorder

    every, third = recorded(6), recorded(6, every=3)
    assert byname.diff(every, third).equal and byname.diff(third, every).equal
    assert byname.diff(recorded(7), third).only == ("only a has values after iteration 3, up to 6",)


def test_places_without_a_moment_in_common_are_not_called_equal():
    model = nn.Linear(2, 2)
    recorders = []
    for start in (0, 1):
        with byname.record(model, "forward", every=2, start=start) as recorder:
            for step in range(6):
                model(torch.ones(1, 2) * step)
        recorders.append(recorder)
    found = byname.diff(*recorders)
    assert found.first is None and not found.equal and found.only[-1] == "1 place not compared: `forward`"


def test_files_of_several_ranks_are_compared_rank_by_rank(tmp_path):
    for name, changed in (("a", None), ("b", 1)):
        for rank in (0, 1):
            model = nn.Sequential(OrderedDict(x=nn.Identity()))
            with as_rank(rank, 2, name), byname.record(model, "x", to=tmp_path / f"{name}.h5"):
                for step in range(4):
                    model(torch.full((3,), float(step)) + torch.tensor([rank == changed and step == 2, 0, 0]))
    first = byname.diff(tmp_path / "a.h5", tmp_path / "b.h5").first
    assert (first.path, first.iteration, first.rank, first.error) == ("x", 2, 1, 1.0)
    assert first.where() == "`x`, iteration 2, rank 1"
    assert byname.diff(tmp_path / "a.h5", tmp_path / "a.h5").equal


def test_a_loop_that_runs_once_more_is_a_difference():
    a = run(series("x", [1.0, 1.0, 1.0], [0, 0, 1], [0, 1, 0]))
    b = run(series("x", [1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1], [0, 1, 2, 0]))
    first = byname.diff(a, b).first
    assert (first.iteration, first.call, first.what) == (0, 2, "recorded only in b")


def test_of_a_loop_the_earlier_call_comes_first():
    a = run(series("ih", [1.0] * 3, [0] * 3, [0, 1, 2]), series("hh", [1.0] * 3, [0] * 3, [0, 1, 2]))
    b = run(series("ih", [1.0, 2.0, 2.0], [0] * 3, [0, 1, 2]), series("hh", [3.0, 3.0, 3.0], [0] * 3, [0, 1, 2]))
    first = byname.diff(a, b).first
    assert (first.path, first.call) == ("hh", 0)


def test_of_gradients_the_last_call_comes_first():
    a = run(series("h.grad", [1.0] * 3, [0] * 3, [0, 1, 2]))
    b = run(series("h.grad", [2.0, 2.0, 1.0], [0] * 3, [0, 1, 2]))
    assert byname.diff(a, b).first.call == 1


def test_training_and_evaluation_have_iterations_of_their_own():
    modes, iterations = ["train", "train", "eval", "train", "eval"], [0, 1, 0, 2, 1]
    a = run(series("x", [1.0] * 5, iterations, modes=modes), series("y", [1.0] * 5, iterations, modes=modes))
    b = run(
        series("x", [1.0, 1.0, 1.0, 2.0, 2.0], iterations, modes=modes),
        series("y", [1.0, 1.0, 9.0, 2.0, 2.0], iterations, modes=modes),
    )
    first = byname.diff(a, b).first
    assert (first.path, first.mode, first.iteration) == ("y", "eval", 0)


def test_recorders_results_and_files_are_the_same(tmp_path):
    torch.manual_seed(0)
    model, batches = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(6, 5, 3)
    changed = batches.clone()
    changed[4, 2, 1] += 1
    recorders = []
    for name, several in (("a", batches), ("b", changed)):
        with byname.record(model, ["0", "1", "0.weight"], to=tmp_path / f"{name}.h5", finish=False) as recorder:
            for batch in several:
                model(batch)
        recorders.append(recorder)
    gap = (model[0](batches[4]) - model[0](changed[4])).abs().max().item()
    with byname.open(tmp_path / "a.h5") as opened:
        for a, b in ((*recorders,), (opened, recorders[1].results), (tmp_path / "a.h5", str(tmp_path / "b.h5"))):
            found = byname.diff(a, b)
            assert (found.first.path, found.first.iteration, found.first.error) == (
                "0",
                4,
                pytest.approx(gap, rel=1e-6),
            )
            assert "0.weight" in found.before


def test_a_record_larger_than_is_compared_at_once():
    a = torch.arange(2_500_000.0)
    b = a.clone()
    b[2_200_000] = -1
    first = byname.diff(run(series("x", [a])), run(series("x", [b]))).first
    assert (first.error, first.elements, first.size) == (2_200_001.0, 1, 2_500_000)


def test_a_recorder_is_compared_while_it_records(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with byname.record(model, "forward", to=tmp_path / "a.h5"):
        for step in range(4):
            model(torch.ones(1, 2) * step)
    with byname.record(model, "forward", to=tmp_path / "b.h5") as recorder:
        for step in range(3):
            model(torch.ones(1, 2) * step)
        recorder.flush()
        for running in (recorder, tmp_path / "b.h5"):
            found = byname.diff(tmp_path / "a.h5", running)
            assert found.first is None and found.only == ("only a has values after iteration 2, up to 3",)
        model(torch.ones(1, 2) * 9)
        recorder.flush()
        assert byname.diff(tmp_path / "a.h5", tmp_path / "b.h5").first.iteration == 3


@pytest.mark.parametrize(
    "given",
    [
        lambda: byname.diff(nn.ReLU(), nn.ReLU()),
        lambda: byname.diff(nn.ReLU(), "run.h5"),
        lambda: byname.diff({}, {}, example=torch.ones(1)),
        lambda: byname.diff(3, 4),
        lambda: byname.diff({}, {}, tolerance=-1),
        lambda: byname.diff({}, {}, tolerance={"float32": 1}),
        lambda: byname.diff({}, {}, tolerance=math.nan),
    ],
)
def test_what_cannot_be_compared_is_refused(given):
    with pytest.raises(BadArgumentError):
        given()


def test_a_file_that_is_not_there():
    with pytest.raises(NoRecordingError):
        byname.diff("no_such_a.h5", "no_such_b.h5")


def test_empty_recordings_are_equal():
    assert byname.diff({}, {}).equal
    assert "0 places" in repr(byname.diff({}, {}))
    empty = run(series("x", [torch.ones(0, 3)])), run(series("x", [torch.zeros(0, 3)]))
    assert byname.diff(*empty).equal


class Branches(nn.Module):
    """A model that sums its branches in an order that a set of texts gives."""

    def __init__(self, order):
        super().__init__()
        self.branches = nn.ModuleDict({name: nn.Linear(8, 8) for name in "abcde"})
        self.order = order

    def forward(self, x):
        total = torch.zeros_like(x)
        for name in self.order:
            total = total + self.branches[name](x)
        return total


def test_a_run_that_is_not_deterministic_through_the_order_of_a_set():
    torch.manual_seed(0)
    one = Branches("abcde")
    other = Branches("edcba")
    other.load_state_dict(one.state_dict())
    recorders = []
    for model in (one, other):
        with byname.record(model, byname.select.all) as recorder:
            model(torch.linspace(-1, 1, 32).view(4, 8))
        recorders.append(recorder)
    found = byname.diff(*recorders)
    assert found.first.path == "add"  # the branches are equal, the first of their sums is not
    assert {f"branches.{name}" for name in "abcde"} <= {row.path for row in found if row.state == "equal"}


def test_rows_have_the_names_of_the_attributes_and_prints_say_the_first():
    random.seed(0)
    a, b = run(series("fc", [torch.zeros(2)])), run(series("fc", [torch.ones(2)]))
    found = byname.diff(a, b)
    (row,) = found.rows()
    assert all(row[key] == getattr(found.items[0], key) for key in row)
    assert {"path", "iteration", "call", "error", "relative", "elements", "nan", "state"} <= row.keys()
    assert "differ first in `fc`, iteration 0: error 1" in repr(found)
    assert "<table>" in found._repr_html_()
    assert list(found.to_pandas()["path"]) == ["fc"]
