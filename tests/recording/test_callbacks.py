"""Callbacks: each gets and returns a series or a value; a wrong one is refused, named, and spoils nothing."""

import functools

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_series import series_of

import byname
from byname import Series, stack, stack_padded
from byname.errors import BadArgumentError, BynameError
from byname.recording.callbacks import applied, callables, values_called


def mean_of_window(path, series):
    return sum(series) / len(series)


def test_stack_makes_one_tensor_of_a_window():
    series = series_of([torch.full((2, 3), float(one)) for one in range(4)])
    stacked = stack("fc1", series)
    assert stacked.values.shape == (4, 2, 3) and stacked.values[2].tolist() == [[2] * 3] * 2
    assert stacked.shapes == [(2, 3)] * 4 and stacked.iterations == [0, 1, 2, 3]
    assert stack("fc1", stacked) is stacked


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2**60 + 1], torch.int64),
        ([0.5, 1], torch.float64),
        ([True, False], torch.bool),
        ([1j, 2j], torch.complex128),
    ],
)
def test_stack_of_plain_numbers(values, dtype):
    stacked = stack("loss", series_of(values)).values
    assert stacked.dtype == dtype and stacked.tolist() == values


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.bool, torch.uint16, torch.complex64])
@pytest.mark.parametrize("stacking", [stack, stack_padded])
def test_every_type_of_tensor_is_stacked_as_it_is(dtype, stacking):
    sizes = (2, 2) if stacking is stack else (2, 3)
    values = [torch.ones(size).to(dtype) for size in sizes]
    stacked = stacking("fc1", series_of(values)).values
    assert stacked.dtype == dtype and all(
        torch.equal(row[: len(value)].view(torch.uint8), value.view(torch.uint8)) for row, value in zip(stacked, values)
    )


@pytest.mark.parametrize("stacking", [stack, stack_padded])
def test_what_is_stacked_has_no_graph(stacking):
    values = [torch.ones(size, requires_grad=True) for size in ((2, 2) if stacking is stack else (2, 3))]
    assert not stacking("fc1", series_of(values)).values.requires_grad


@pytest.mark.parametrize("stacking", [stack, stack_padded])
def test_what_is_no_number_is_kept(stacking):
    for values in (["a", "b"], [None, None], [{"a": torch.ones(1)}], []):
        series = series_of(values)
        assert stacking("fc1", series) is series


def test_stack_names_the_place_and_the_shapes_that_differ():
    with pytest.raises(BynameError, match=r"values of fc1 have different shapes \(\(2,\), \(3,\)\): use stack_padded"):
        stack("fc1", series_of([torch.ones(2), torch.ones(3)]))


@pytest.mark.parametrize("stacking", [stack, stack_padded])
@pytest.mark.parametrize(
    "values", [[torch.ones(2), torch.ones(2).int()], [torch.ones(2), None], [1.0, "a"], [torch.tensor(1.0), 1.0]]
)
def test_types_are_not_mixed(stacking, values):
    with pytest.raises(BynameError, match="of fc1 are of different types"):
        stacking("fc1", series_of(values))


def test_numbers_that_no_tensor_holds_are_refused():
    with pytest.raises(BynameError, match="no dtype holds the numbers of fc1"):
        stack("fc1", series_of([2**70]))
    with pytest.raises(BynameError, match="bool, int"):
        stack("fc1", series_of([True, 2]))


def test_stack_padded_refuses_another_number_of_dimensions():
    with pytest.raises(BynameError, match=r"number of dimensions \(\(2,\), \(2, 1\)\)"):
        stack_padded("fc1", series_of([torch.ones(2), torch.ones(2, 1)]))


def test_padding_twice_pads_the_values_and_not_the_padding():
    padded = stack_padded("fc1", series_of([torch.ones(1), torch.ones(4)]))
    again = stack_padded("fc1", Series("fc1", list(padded.values)[:1], [0], [0], [0], ["train"], [(1,)]))
    assert again.values.tolist() == [[1.0]]


@settings(max_examples=40)
@given(st.integers(0, 3).flatmap(lambda dims: st.lists(st.tuples(*[st.integers(0, 3)] * dims), min_size=1, max_size=5)))
def test_stack_padded_against_its_definition(shapes):
    values = [torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape) for shape in shapes]
    padded = stack_padded("fc1", series_of(values))
    largest = [max(sizes) for sizes in zip(*shapes)]
    assert list(padded.values.shape) == [len(values), *largest] and padded.shapes == shapes
    for row, value in zip(padded.values, values):
        rest = row.clone()
        rest[tuple(slice(0, size) for size in value.shape)] = 0
        assert torch.equal(row[tuple(slice(0, size) for size in value.shape)], value) and not rest.any()


def test_returning_nothing_keeps_the_series():
    series = series_of([1.0, 2.0])
    assert applied(lambda path, series: None, "fc1", series, "at_end").values == [1.0, 2.0]
    assert applied((), "fc1", series, "at_end") is series


def test_a_value_stands_for_the_whole_window():
    series = series_of([1.0, 5.0], iterations=[3, 4], calls=[0, 2], modes=["train", "eval"])
    whole = applied(mean_of_window, "fc1", series, "before_gather")
    assert (list(whole), whole.iterations, whole.ranks, whole.calls, whole.modes, whole.shapes) == (
        [3.0],
        [4],
        [0],
        [0],
        ["eval"],
        [()],
    )
    both = applied(
        [stack, lambda path, series: series.values.mean(0)],
        "fc1",
        series_of([torch.ones(2), torch.zeros(2)], ranks=[0, 1]),
        "after_gather",
    )
    assert both.ranks == [-1] and both.shapes == [(2,)] and both[0].tolist() == [0.5, 0.5]


def test_callbacks_run_one_after_the_other():
    seen = []
    steps = [
        stack,
        lambda path, series: series.with_values(series.values * 2),
        lambda path, series: seen.append((path, series.values.tolist())),
    ]
    result = applied(steps, "fc1", series_of([1.0, 2.0]), "before_gather")
    assert seen == [("fc1", [2.0, 4.0])] and result.values.tolist() == [2.0, 4.0]


def test_a_series_without_records_is_not_shown():
    assert len(applied(mean_of_window, "fc1", series_of([]), "at_end")) == 0


def test_the_lists_of_the_recorder_are_its_own():
    series = series_of([1.0, 2.0])
    kept = []

    def spoil(path, series):
        kept.append(series)
        series.values.clear(), series.iterations.clear(), series.modes.append("x")

    result = applied(spoil, "fc1", series, "before_gather")
    assert series.values == [1.0, 2.0] and series.iterations == [0, 1] and series.modes == ["train"] * 2
    assert list(result) == [1.0, 2.0] and result.iterations == [0, 1]
    result = applied(lambda path, series: kept.append(series) or series, "fc1", series, "before_gather")
    kept[-1].values.clear()
    assert result.values == [1.0, 2.0]


def test_a_value_changed_in_place_is_refused():
    series = series_of([torch.ones(2), {"a": [torch.ones(2)]}])
    for spoil in (lambda path, series: series[0].mul_(2), lambda path, series: series[1]["a"][0].zero_()):
        with pytest.raises(BynameError, match="changed a value in place: return series.with_values"):
            applied(spoil, "fc1", series, "before_gather")


def test_the_result_of_a_callback_before_may_be_changed_in_place():
    result = applied(
        [stack, lambda path, series: series.with_values(series.values.mul_(2))], "fc1", series_of([1.0]), "at_end"
    )
    assert result.values.tolist() == [2.0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda series: Series("fc2", [1], [0], [0], [0], ["train"], [()]),
            "series of fc2; return one of fc1",
        ),
        (lambda series: Series("fc1", [1, 2, 3], *series_columns(series)), "3 values but 2 entries in iterations"),
        (
            lambda series: Series("fc1", torch.ones(2), [0], *series_columns(series)[1:]),
            "2 values but 1 entry in iterations",
        ),
        (lambda series: Series("fc1", [1, 2], *series_columns(series), [None]), "1 entry in shards"),
    ],
)
def test_a_series_that_does_not_fit_is_refused(change, says):
    def broken(path, series):
        return change(series)

    with pytest.raises(BynameError, match=says) as caught:
        applied(broken, "fc1", series_of([1.0, 2.0]), "after_gather")
    assert caught.value.__notes__ == ["byname: in after_gather callback `broken` at `fc1`"]


def series_columns(series):
    return series.iterations, series.ranks, series.calls, series.modes, series.shapes


def test_errors_keep_their_type_and_say_where():
    def divides(path, series):
        return 1 / 0

    for callback, name in ((divides, "divides"), (functools.partial(divides), "partial")):
        with pytest.raises(ZeroDivisionError) as caught:
            applied(callback, "fc1", series_of([1.0]), "at_end")
        assert caught.value.__notes__ == [f"byname: in at_end callback `{name}` at `fc1`"]
    with pytest.raises(ZeroDivisionError) as caught:
        values_called(lambda path, value, iteration: 1 / 0, "fc1", 1.0, 3)
    assert caught.value.__notes__ == ["byname: in on_value callback `<lambda>` at `fc1`"]


@pytest.mark.parametrize("wrong", [3, "stack", [stack, None], {"a": stack}])
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(BadArgumentError, match="before_gather= takes"):
        callables(wrong, "before_gather")


def test_on_value_sees_the_value_without_its_graph():
    weight = torch.ones(3, requires_grad=True)
    value = weight * 2
    seen = []

    def look(path, value, iteration):
        seen.append((path, iteration, value.requires_grad, torch.is_grad_enabled(), value.data_ptr()))

    assert values_called([look], "fc1", value, 5) is value
    assert seen == [("fc1", 5, False, False, value.data_ptr())]
    assert values_called(lambda path, value, iteration: value, "fc1", value, 5) is value
    assert values_called((), "fc1", value, 5) is value


def test_on_value_replaces_what_is_recorded():
    double = lambda path, value, iteration: value * 2
    assert values_called([double, double], "fc1", torch.ones(2), 0).tolist() == [4, 4]
    assert values_called(lambda path, value, iteration: iteration, "fc1", None, 7) == 7


def test_on_value_may_not_change_the_training():
    value = torch.ones(2)
    with pytest.raises(BynameError, match="changed a value in place: it belongs to the running program"):
        values_called(lambda path, value, iteration: value.add_(1), "fc1", value, 0)
    with pytest.raises(BynameError, match="in place"):
        values_called(lambda path, value, iteration: value["a"][0].add_(1), "fc1", {"a": [torch.ones(2)]}, 0)
    largest = torch.ones(2).max(0)
    with pytest.raises(BynameError, match="in place"):
        values_called(lambda path, value, iteration: value.values.add_(1), "fc1", largest, 0)


def test_a_container_changed_by_on_value_is_that_of_the_program_no_longer():
    value = {"a": [1, 2]}
    assert values_called(lambda path, value, iteration: value["a"].clear(), "fc1", value, 0) is value
    assert value == {"a": [1, 2]}

    def longer(path, value, iteration):
        value["a"].append(3)
        return value

    assert values_called(longer, "fc1", value, 0) == {"a": [1, 2, 3]} and value == {"a": [1, 2]}


def test_on_value_gets_through_containers_that_contain_themselves_and_inference_tensors():
    loop = []
    loop.append(loop)
    assert values_called(lambda path, value, iteration: len(value), "fc1", loop, 0) == 1
    with torch.inference_mode():
        made = torch.ones(2)
    assert values_called(lambda path, value, iteration: value.sum(), "fc1", made, 0) == 2


def test_arrays_that_a_callback_returns_have_their_shapes():
    model = torch.nn.Linear(2, 3)
    arrays = {"after_gather": lambda _, series: series.with_values([one.numpy() for one in series])}
    for options in (arrays, {"at_end": arrays["after_gather"]}):
        with byname.record(model, "forward", on_change=False, **options) as recorder:
            for size in (1, 2):
                model(torch.ones(size, 2))
        series = recorder.results["forward"]
        assert series.shapes == [(1, 3), (2, 3)]
        assert [one.shape for one in series.to_pandas().value] == [(1, 3), (2, 3)]
    with byname.record(model, "forward", after_gather=lambda _, series: numpy.stack([*series]).mean(0)) as recorder:
        model(torch.ones(1, 2))
    assert recorder.results["forward"].shapes == [(1, 3)]
