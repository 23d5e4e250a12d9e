"""Is what is recorded what the model itself noted by hand, value by value, iteration by iteration, call by call?"""

import math

import pytest
import torch
from noted import PLACES, TWELVE_KINDS, copied, noted, records, same, train, wrong
from torch import nn

import byname
from byname.errors import RecordingWarning

STEPS = 80


@pytest.fixture(params=["memory", "file"])
def run_recorded(request, tmp_path):
    """Records while `run` runs, and gives the results by path: those of the recorder, or those of the opened file."""

    def recorded(model, where, run, whole=True, **options):
        to = tmp_path / "run.h5" if request.param == "file" else None
        with byname.record(model, where, to=to, **options) as recorder:
            run(recorder)
        if to is None:
            return recorder.results
        recording = byname.open(to)
        request.addfinalizer(recording.close)
        assert (recording.complete, recording.missing == ()) == (whole, whole)
        return recording

    return recorded


def compare(model, results, schedules):
    """What differs from the notes of the model, over all places."""
    found = []
    for path, options in schedules.items():
        series = results[path]
        assert set(series.ranks) <= {0}
        assert series.path == path
        got = records(series)
        for mode in ("train", "eval"):  # counted apart
            expected = [row for row in model.truth.expected(path, **options) if row[0] == mode]
            found += wrong(path, expected, [row for row in got if row[0] == mode])
    return found


@pytest.mark.grid(fast=1)
def test_every_kind_of_variable_in_every_iteration_is_what_the_model_noted(run_recorded):
    model = noted()
    results = run_recorded(model, PLACES, lambda recorder: train(model, STEPS), mode="train")
    assert compare(model, results, {path: {} for path in PLACES}) == []
    assert set(results["forward.x"].iterations) == set(range(STEPS))
    assert set(results["lin.weight.grad"].iterations) == set(range(STEPS))


@pytest.mark.slow
@pytest.mark.grid(fast=1)
def test_without_change_detection_every_value_of_train_and_eval_is_stored(run_recorded):
    model = noted(checkpointed=False)
    options = {"on_change": False, "mode": "both"}
    places = [path for path in PLACES if not path.endswith(".grad")]
    results = run_recorded(model, places, lambda recorder: train(model, STEPS), **options)
    assert compare(model, results, dict.fromkeys(places, options)) == []
    assert len(results["still"]) == STEPS + STEPS // 5
    still = results["still"]
    for mode, count in (("train", STEPS), ("eval", STEPS // 5)):
        assert [number for number, its in zip(still.iterations, still.modes) if its == mode] == list(range(count))


@pytest.mark.grid(fast=1)
def test_eval_iterations_alone_are_counted_from_zero(run_recorded):
    model = noted()
    places = [path for path in PLACES if not path.endswith(".grad")]
    results = run_recorded(model, places, lambda recorder: train(model, 60), mode="eval")
    assert compare(model, results, {path: {"mode": "eval"} for path in places}) == []
    assert list(results["lin"].iterations) == list(range(12))
    assert set(results["lin"].modes) == {"eval"}


SCHEDULES = {
    "forward.h": {"every": 3},
    "lin": {"every": 7, "start": 2},
    "forward.total": {"start": 5, "stop": 17},
    "softmax": {"every": 4, "start": 10, "stop": 31},
    "lin.weight": {"every": 10},
    "norm.running_mean": {"every": 5, "mode": "eval"},
    "lin.weight.grad": {"every": 6, "start": 1},
    "forward.h.grad": {"every": 2, "stop": 9},
    "forward.i": {"every": 2, "on_change": False},
    "forward.scale": {"every": 3, "mode": "both"},
    "forward.word": {"mode": "both", "on_change": False, "every": 2, "start": 1},
    "forward.cache['k'][0]": {"mode": "eval", "stop": 4},
    "forward.flag": {},
    "forward.long": {"start": 39},
    "forward.low": {"start": 40},
    "block.forward.u": {"every": 1000},
}


@pytest.mark.grid(fast=1)
def test_each_place_keeps_its_own_schedule(run_recorded):
    model = noted()
    with pytest.warns(RecordingWarning, match="`forward.low`: start=40, but there were only 40 iterations in training"):
        results = run_recorded(model, SCHEDULES, lambda recorder: train(model, 40), whole=False, mode="train")
    schedules = {path: options for path, options in SCHEDULES.items() if path != "forward.low"}
    assert compare(model, results, schedules) == []
    assert [len(results["lin"]), list(results["block.forward.u"].iterations)] == [6, [0, 0]]
    assert list(results["lin"].iterations) == [2, 9, 16, 23, 30, 37]


def test_options_of_a_place_override_those_of_the_recorder(run_recorded):
    model = noted()
    where = {"lin": {}, "forward.h": {"every": 4, "start": 0}, "forward.scale": {"on_change": True, "stop": None}}
    keywords = {"every": 5, "start": 1, "stop": 12, "on_change": False, "mode": "train"}
    results = run_recorded(model, where, lambda recorder: train(model, 20), **keywords)
    assert compare(model, results, {path: {**keywords, **options} for path, options in where.items()}) == []
    assert list(results["lin"].iterations) == [1, 6, 11]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (4, 5), (3, 20), (11, None)])
def test_schedules_are_those_of_the_plainest_definition(every, start, stop):
    model = noted(checkpointed=False)
    options = {"every": every, "start": start, "stop": stop, "mode": "both"}
    places = ["forward.h", "norm.running_mean", "lin.weight", "forward.i"]
    with byname.record(model, places, **options) as recorder:
        train(model, 23, evaluate_every=2)
    assert compare(model, recorder.results, dict.fromkeys(places, options)) == []


def test_a_wildcard_stands_for_all_its_places(run_recorded):
    model = noted()
    with pytest.warns(UserWarning, match=r"`forward\.(truth|note)` cannot be recorded"):
        results = run_recorded(
            model, ["forward.*", "**.weight"], lambda recorder: train(model, 6), whole=False, mode="train"
        )
    paths = {row[0] for row in model.truth.rows}
    variables = [path for path in paths if path.startswith("forward.") and path.count(".") == 1 and "[" not in path]
    weights = [path for path in paths if path.endswith(".weight")]
    assert len(variables) > 12
    assert len(weights) == 4
    assert compare(model, results, {path: {} for path in [*variables, *weights]}) == []


class Counted(nn.Module):
    """One layer, and a place that is reached a given number of times."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        y = self.lin(x)
        return y


def accumulate(model, recorder, optimizer, steps, forwards):
    """Steps of several forwards; what their outputs and gradients were, as ``(iteration, call, value)``."""
    outputs, gradients = [], []
    for step in range(steps):
        optimizer.zero_grad()
        for call in range(forwards):
            output = model(torch.randn(3, 2))
            outputs.append((step, call, copied(output)))
            output.square().sum().backward()
            gradients.append((step, call, copied(model.lin.weight.grad)))
        assert recorder.iteration == step
        optimizer.step()
        recorder.step() if optimizer.param_groups[0].get("by_hand") else None
    return outputs, gradients


def plain(series):
    return [
        (int(iteration), int(call), value)
        for iteration, call, value in zip(series.iterations, series.calls, series.values)
    ]


@pytest.mark.parametrize("count", ["step", "optimizer"])
def test_forwards_between_two_steps_are_calls_of_one_iteration(run_recorded, count):
    model, seen = Counted(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["by_hand"] = count == "step"

    def run(recorder):
        seen.extend(accumulate(model, recorder, optimizer, 5, 2))

    places = ["lin", "forward.y", "lin.weight.grad", "lin.weight"]
    results = run_recorded(model, places, run, count=optimizer if count == "optimizer" else "step")
    outputs, gradients = seen
    assert same(plain(results["lin"]), outputs)
    assert same(plain(results["forward.y"]), outputs)
    assert same(plain(results["lin.weight.grad"]), gradients)
    assert [row[:2] for row in plain(results["lin.weight"])] == [(step, 0) for step in range(5)]


def test_steps_of_another_optimizer_do_not_count():
    model = Counted()
    mine, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with byname.record(model, "lin", count=mine) as recorder:
        for _ in range(4):
            model(torch.randn(3, 2)).sum().backward()
            other.step()
        mine.step()
        model(torch.randn(3, 2))
    assert [row[:2] for row in plain(recorder.results["lin"])] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_every_counts_steps_when_steps_are_counted():
    model = Counted()
    with byname.record(model, "lin", count="step", every=2, start=1) as recorder:
        for _ in range(6):
            model(torch.randn(3, 2))
            model(torch.randn(3, 2))
            recorder.step()
    assert [row[:2] for row in plain(recorder.results["lin"])] == [(1, 0), (1, 1), (3, 0), (3, 1), (5, 0), (5, 1)]


def test_iterations_are_forwards_of_the_outermost_model_only(run_recorded):
    model = nn.Sequential(Counted(), nn.Linear(2, 2))

    def run(recorder):
        for _ in range(3):
            model(torch.randn(1, 2))
        assert recorder.iteration == 2 or recorder.iteration == 3  # of the last forward, or of the next one

    assert list(run_recorded(model, "0.lin", run)["0.lin"].iterations) == [0, 1, 2]


class Shown(nn.Module):
    """Holds one local variable, which a test chooses."""

    def forward(self, value):
        shown = value
        return None


HALF = torch.tensor([[1.5, -0.0, math.nan], [math.inf, -math.inf, 2.0**-24]])
TENSORS = {
    **{
        str(dtype): HALF.to(dtype)
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2fnuz,
        )  # fmt: skip
    },
    "complex64": torch.complex(HALF, -HALF),
    "complex128": torch.complex(HALF.double(), -HALF.double()),
    "int64": torch.tensor([2**63 - 1, -(2**63), 2**40 + 1]),
    "int32": torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),
    "int16": torch.tensor([2**15 - 1, -(2**15)], dtype=torch.int16),
    "int8": torch.tensor([127, -128], dtype=torch.int8),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "uint16": torch.tensor([0, 2**16 - 1], dtype=torch.uint16),
    "uint32": torch.tensor([0, 2**32 - 1], dtype=torch.uint32),
    "uint64": torch.tensor([0, 2**63], dtype=torch.uint64),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.25, dtype=torch.float64),
    "empty": torch.empty(0, 3, 0),
    "one of each": torch.ones(1, 1, 1, 1, 1, 1, 1),
    "not contiguous": torch.arange(12.0).view(3, 4).t()[::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "conjugate": torch.complex(torch.randn(3), torch.randn(3)).conj(),
    "negative": torch.complex(torch.randn(3), torch.randn(3)).conj().imag,
    "with gradient": torch.ones(2, requires_grad=True) * 2,
}
PLAIN = {
    "bool": True,
    "int": 7,
    "large": 2**200,
    "negative": -(2**63) - 1,
    "float": 0.1,
    "nan": math.nan,
    "infinity": -math.inf,
    "minus zero": -0.0,
    "complex": 1.5 - 2j,
    "str": "naïve 名 \U0001f600",
    "empty str": "",
    "nul": "a\0b\0",
    "lines": "one\ntwo\r\n\t",
    "bytes": bytes(range(256)),
    "empty bytes": b"",
    "None": None,
    "list": [1, "two", None, [3.0, (4, True)]],
    "tuple": (1, (2,), []),
    "empties": [[], {}, ()],
    "dict": {"a": {"b": {"c": 1}}, 2: "int key", None: 3, True: 4, 1.5: 5, (1, "x"): 6},
    "with tensors": {"k": [torch.arange(3), {"b": torch.ones(2, dtype=torch.bfloat16)}], "n": torch.tensor(True)},
    "device": [torch.device("cpu"), torch.float16],
}


@pytest.mark.grid(fast=20)
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_every_type_and_form_are_kept_exactly(run_recorded, kind):
    value, model = TENSORS[kind], Shown()
    series = run_recorded(model, "forward.shown", lambda recorder: model(value))["forward.shown"]
    (got,) = series.values
    assert same(got, value.detach().contiguous())
    assert not got.requires_grad
    assert [tuple(shape) for shape in series.shapes] == [tuple(value.shape)]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_numbers_of_half_precision_are_kept_exactly(run_recorded):
    value, model = torch.complex(HALF, -HALF).to(torch.complex32), Shown()
    (got,) = run_recorded(model, "forward.shown", lambda recorder: model(value))["forward.shown"].values
    assert same(got, value)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_values_come_back_as_they_were(run_recorded, kind):
    value, model = PLAIN[kind], Shown()
    (got,) = run_recorded(model, "forward.shown", lambda recorder: model(value))["forward.shown"].values
    assert same(got, value)


def test_one_place_may_hold_a_value_of_another_kind_each_time(run_recorded):
    values = [*TENSORS.values(), *PLAIN.values()]
    model = Shown()
    series = run_recorded(model, "forward.shown", lambda recorder: [model(value) for value in values])["forward.shown"]
    assert list(series.iterations) == list(range(len(values)))
    wrong_ones = [value for value, got in zip(values, series.values) if not same(got, plain_tensor(value))]
    assert wrong_ones == []


def plain_tensor(value):
    return value.detach().contiguous() if isinstance(value, torch.Tensor) else value


CHANGES = {
    "an equal number is no change": ([1, 1, 2, 2, 1], [0, 2, 4]),
    "a number of another type is a change": ([1, 1.0, True, True], [0, 1, 2]),
    "zeros of two signs differ": ([0.0, -0.0, -0.0], [0, 1]),
    "what is not a number stays the same": ([math.nan, math.nan, 1.0], [0, 2]),
    "None": ([None, None, "", None], [0, 2, 3]),
    "an equal list is no change": ([[1, {"a": 2}], [1, {"a": 2}], [1, {"a": 3}], [1]], [0, 2, 3]),
    "a list is no tuple": ([[1], (1,), (1,)], [0, 1]),
    "the order of a dict": ([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 2, "b": 2}], [0, 2]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_plain_value_changed_when_its_content_did(run_recorded, name):
    values, kept = CHANGES[name]
    model = Shown()
    series = run_recorded(model, "forward.shown", lambda recorder: [model(value) for value in values])["forward.shown"]
    assert list(series.iterations) == kept
    assert same(list(series.values), [values[at] for at in kept])


def test_the_same_tensor_untouched_is_stored_once(run_recorded):
    x, model = torch.randn(3), Shown()
    assert list(
        run_recorded(model, "forward.shown", lambda _: [model(x) for _ in range(5)])["forward.shown"].iterations
    ) == [0]


@pytest.mark.parametrize(
    "how", ["in place", "through data", "through numpy", "through a view", "through another tensor"]
)
def test_a_tensor_changed_in_any_way_is_stored_again(run_recorded, how):
    x, model = torch.zeros(3), Shown()
    change = {
        "in place": lambda: x.add_(1),
        "through data": lambda: x.data.add_(1),
        "through numpy": lambda: x.numpy().__iadd__(1),
        "through a view": lambda: x[:1].add_(1),
        "through another tensor": lambda: torch.empty(0).set_(x.untyped_storage(), 0, (3,), (1,)).add_(1),
    }[how]

    def run(_):
        for step in range(6):
            model(x)
            if step in (1, 4):
                change()

    series = run_recorded(model, "forward.shown", run)["forward.shown"]
    assert list(series.iterations) == [0, 2, 5]
    assert [float(value[0]) for value in series.values] == [0, 1, 2]


def test_another_view_of_the_same_storage_is_a_change(run_recorded):
    x, model = torch.arange(6.0), Shown()
    views = [x, x[:3], x[3:], x[3:], x.view(2, 3), x]
    series = run_recorded(model, "forward.shown", lambda _: [model(view) for view in views])["forward.shown"]
    assert list(series.iterations) == [0, 1, 2, 4, 5]
    assert all(same(got, views[at].clone()) for at, got in zip([0, 1, 2, 4, 5], series.values))


def test_a_new_tensor_at_the_address_of_a_dead_one_is_not_taken_for_it(run_recorded):
    model, kept = Shown(), []

    def run(_):
        for step in range(50):
            model(torch.full((1000,), float(step)))  # freed at once: the allocator gives the same address again

    series = run_recorded(model, "forward.shown", run)["forward.shown"]
    assert [float(value[7]) for value in series.values] == list(range(50))


def test_a_buffer_written_with_the_numbers_it_has_is_no_change(run_recorded):
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(2))

        def forward(self, number):
            self.kept.fill_(number)
            return self.kept

    model = Written()
    series = run_recorded(model, "kept", lambda _: [model(number) for number in (1, 1, 2, 2, 2, 1)])["kept"]
    assert list(series.iterations) == [0, 2, 5]


def test_a_value_that_the_model_changes_later_is_kept_as_it_was(run_recorded):
    class Changing(nn.Module):
        def forward(self, x):
            h = x + 1
            items = [1, {"a": h}]
            h.mul_(0)
            items[1]["a"] = None
            items.append(2)
            return h

    model = Changing()
    results = run_recorded(model, ["forward.h", "forward.items"], lambda _: model(torch.ones(2)), on_change=False)
    assert same(results["forward.h"].values[0], torch.full((2,), 2.0))
    assert same(results["forward.items"].values[0], [1, {"a": torch.full((2,), 2.0)}])


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_second_run_of_a_checkpoint_is_not_recorded(run_recorded, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def inner(self, x):
            u = self.lin(x).tanh()
            return u * 2

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=reentrant)

    model, outputs = Checkpointed(), []

    def run(_):
        for _ in range(4):
            output = model(torch.randn(2, 3, requires_grad=True))
            outputs.append(output.detach() / 2)
            output.sum().backward()

    results = run_recorded(model, ["inner.u", "lin", "lin.weight.grad"], run, on_change=False)
    for path in ("inner.u", "lin", "lin.weight.grad"):
        assert (list(results[path].iterations), set(results[path].calls)) == ([0, 1, 2, 3], {0}), path
    assert torch.allclose(torch.stack(list(results["inner.u"].values)), torch.stack(outputs))


@pytest.mark.parametrize("count", ["forward", "step"])
def test_a_look_at_validation_data_before_the_backward_takes_no_gradient_away(run_recorded, count):
    model, gradients = Counted(), []

    def run(recorder):
        for step in range(4):
            loss = model(torch.randn(3, 2)).square().sum()
            model.eval()
            with torch.no_grad():
                model(torch.randn(3, 2))
            model.train()
            loss.backward()
            gradients.append((step, 0, copied(model.lin.weight.grad)))
            model.zero_grad()
            recorder.step() if count == "step" else None

    results = run_recorded(model, ["lin.weight.grad", "forward.y.grad"], run, count=count)
    assert same(plain(results["lin.weight.grad"]), gradients)
    assert list(results["forward.y.grad"].iterations) == [0, 1, 2, 3]


@pytest.mark.parametrize("forwards", [2, 100, 300])
def test_gradients_of_many_forwards_that_one_backward_gives_have_the_iterations_of_their_values(run_recorded, forwards):
    model, passed = Counted(), {}

    def run(_):
        losses = []
        for step in range(forwards):
            output = model(torch.randn(1, 2))
            output.register_hook(lambda gradient, step=step: passed.__setitem__(step, gradient.clone()))
            losses.append(output.square().sum())
        torch.stack(losses).sum().backward()

    series = run_recorded(model, "forward.y.grad", run)["forward.y.grad"]
    got = dict(zip(map(int, series.iterations), series.values))
    assert len(series) == forwards
    assert [step for step in range(forwards) if step not in got or not same(got[step], passed[step])] == []


def test_a_number_type_is_changed_only_on_request(run_recorded):
    model = Shown()
    values = [torch.randn(3, dtype=torch.float64), torch.arange(3), "text", 5]
    run = lambda _: [model(value) for value in values]
    got = run_recorded(model, {"forward.shown": {"dtype": torch.float16}}, run)["forward.shown"].values
    assert same(got[0], values[0].half())
    assert same(list(got[2:]), values[2:])


REDUCTIONS = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_are_those_of_torch(run_recorded, name):
    model, xs = Shown(), [torch.randn(50) for _ in range(5)]
    results = run_recorded(model, "forward.shown", lambda _: [model(x) for x in xs], reduce=name)
    got = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in results["forward.shown"].values])
    assert torch.allclose(got, torch.stack([REDUCTIONS[name](x.double()) for x in xs]))


def test_a_function_reduces_and_several_reductions_have_their_names(run_recorded):
    model, xs = Shown(), [torch.randn(50) for _ in range(3)]
    run = lambda _: [model(x) for x in xs]
    series = run_recorded(model, {"forward.shown": {"reduce": lambda x: x[:2] * 2}}, run)["forward.shown"]
    assert same(list(series.values), [x[:2] * 2 for x in xs])
    with byname.record(model, "forward.shown", reduce=("min", "max")) as recorder:
        run(recorder)
    got = recorder.results["forward.shown"].values
    assert [{key: float(value) for key, value in one.items()} for one in got] == [
        {"min": float(x.min()), "max": float(x.max())} for x in xs
    ]


def test_a_histogram_counts_every_number_once(run_recorded):
    model, x = Shown(), torch.randn(1000)
    series = run_recorded(model, "forward.shown", lambda _: model(x), reduce="histogram")["forward.shown"]
    (histogram,) = series.values
    counts = histogram["counts"] if isinstance(histogram, dict) else histogram
    assert int(torch.as_tensor(counts).sum()) == 1000


@pytest.mark.parametrize("every", [1, 7, 64, 1000])
def test_the_last_partial_window_is_there(run_recorded, every):
    model = Shown()
    options = {"gather_every": every}
    series = run_recorded(model, "forward.shown", lambda _: [model(step) for step in range(100)], **options)[
        "forward.shown"
    ]
    assert list(series.iterations) == list(series.values) == list(range(100))


def test_moments_of_callbacks_come_in_order_and_returning_nothing_keeps(run_recorded):
    model, calls = Shown(), []

    def told(moment):
        def callback(path, value, *rest):
            calls.append((moment, path))

        return callback

    moments = {name: told(name) for name in ("on_value", "before_gather", "after_gather", "at_end")}
    results = run_recorded(
        model, "forward.shown", lambda _: [model(step) for step in range(10)], gather_every=5, **moments
    )
    assert list(results["forward.shown"].values) == list(range(10))
    assert {path for _, path in calls} == {"forward.shown"}
    order = [moment for moment, _ in calls]
    assert order == [
        *["on_value"] * 5,
        "before_gather",
        "after_gather",
        *["on_value"] * 5,
        "before_gather",
        "after_gather",
        "at_end",
    ]


def test_what_a_callback_returns_is_stored(run_recorded):
    model = Shown()
    shown = {"on_value": lambda path, value, iteration: value * 10 + iteration}
    results = run_recorded(model, "forward.shown", lambda _: [model(step) for step in range(5)], **shown)
    assert list(results["forward.shown"].values) == [step * 11 for step in range(5)]


def test_what_a_callback_makes_of_a_value_that_did_not_change_is_stored_once(run_recorded):
    model, x = Shown(), torch.ones(3)
    tenfold = lambda path, value, iteration: value * 10
    results = run_recorded(model, "forward.shown", lambda _: [model(1.5) for _ in range(5)], on_value=tenfold)
    assert list(results["forward.shown"].values) == [15.0]
    with byname.record(model, "forward.shown", on_value=tenfold) as recorder:
        for _ in range(5):
            model(x)
    assert list(recorder.results["forward.shown"].iterations) == [0]


def test_results_are_readable_while_recording():
    model = Shown()
    with byname.record(model, "forward.shown") as recorder:
        for step in range(5):
            model(step)
        recorder.flush()
        assert list(recorder.results["forward.shown"].values) == list(range(5))
        model(5)
    assert list(recorder.results["forward.shown"].values) == list(range(6))


def test_a_file_is_readable_while_it_is_written_and_says_that_it_is_not_complete(tmp_path):
    model = Shown()
    with byname.record(model, "forward.shown", to=tmp_path / "run.h5") as recorder:
        for step in range(5):
            model(step)
        recorder.flush()
        with byname.open(tmp_path / "run.h5") as recording:
            assert list(recording["forward.shown"].values) == list(range(5))
            assert not recording.complete
            assert recording.missing
        for step in range(5, 9):
            model(step)
    with byname.open(tmp_path / "run.h5") as recording:
        assert list(recording["forward.shown"].values) == list(range(9))
        assert (recording.complete, recording.missing) == (True, ())


def test_the_twelve_kinds_are_all_asked_for():
    assert len(TWELVE_KINDS) >= 12
    assert len(PLACES) == len(set(PLACES))
