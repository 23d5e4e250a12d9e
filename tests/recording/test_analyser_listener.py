"""`record` of an analyser: its figures are recorded after each due forward, one series a place and figure."""

import pytest
import torch
import torch.distributed as dist
from several import run_ranks
from small import nothing_left
from torch import nn

import byname
from byname.analyse import Analyser, ClassVersusRest, Extremes, PerClass
from byname.errors import BadArgumentError, RecordingWarning


class Largest(Analyser):
    def begin(self, sample):
        return Extremes()

    def take(self, kept, sample):
        kept.add(sample.value.abs())

    def figures(self, kept):
        return {"largest": float(kept.max().max()), "each": kept.max().double().flatten()}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))


def batches(count=5):
    torch.manual_seed(1)
    return [torch.randn(6, 4) * (1 + number) for number in range(count)]


def stepped(net):
    """A step of gradient descent."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
    net.zero_grad()


def largest_until(net, batch, place):
    """The largest magnitudes of each feature, batch after batch."""
    seen = []
    with byname.record(net, place, on_change=False) as recorder:
        for x in batch:
            net(x)
    for values in recorder.results[place].values:
        now = values.abs().amax(0)
        seen.append(now if not seen else torch.maximum(seen[-1], now))
    return seen


def test_each_figure_of_each_place_is_a_series_of_what_it_was_after_each_forward():
    net, largest = model(), Largest()
    wanted = largest_until(net, batches(), "1")
    with nothing_left(net):
        with byname.observe(net, ["1", "2.0"], largest), byname.record(net, largest) as recorder:
            for x in batches():
                net(x)
    results = recorder.results
    assert [*results] == ["1.Largest.largest", "1.Largest.each", "2.0.Largest.largest", "2.0.Largest.each"]
    assert results["1.Largest.each"].iterations == [0, 1, 2, 3, 4]
    for value, expected in zip(results["1.Largest.each"].values, wanted, strict=True):
        assert value.equal(expected.double())
    assert results["1.Largest.largest"].values == [float(expected.max()) for expected in wanted]
    assert type(results["1.Largest.largest"].values[0]) is float
    assert [*results["*.Largest.largest"]] == ["1.Largest.largest"]
    assert [*results["**.Largest.largest"]] == ["1.Largest.largest", "2.0.Largest.largest"]


def test_a_figure_that_has_not_changed_is_recorded_once():
    net, largest = model(), Largest()
    x = batches(1)[0]
    with byname.observe(net, "1", largest), byname.record(net, {largest: {}, "1": {}}) as changes:
        with byname.record(net, largest, on_change=False) as all_of_them:
            for factor in (1, 1, 0.5, 2):
                net(x * factor)
    assert changes.results["1.Largest.each"].iterations == [0, 3]
    assert changes.results["1.Largest.largest"].iterations == [0, 3]
    assert all_of_them.results["1.Largest.each"].iterations == [0, 1, 2, 3]


def test_schedules_and_modes_hold_for_analysers_among_places():
    net, slow, fast = model(), Largest(), Largest()
    where = {
        "1": {"every": 3, "mode": "train"},
        slow: {"every": 4, "start": 1, "mode": "train"},
        fast: {"mode": "eval"},
    }
    with byname.observe(net, "1", slow), byname.observe(net, "2.0", fast):
        with byname.record(net, where, on_change=False) as recorder:
            for number, x in enumerate(batches(8)):
                net.train(number % 4 != 3)
                net(x)
    assert recorder.results["1"].iterations == [0, 3]
    assert recorder.results["1.Largest.each"].iterations == [1, 5]
    series = recorder.results["2.0.Largest_2.largest"]
    assert series.iterations == [0, 1] and series.modes == ["eval"] * 2


def test_an_analyser_stands_in_a_sequence_of_places():
    net, largest = model(), Largest()
    with byname.observe(net, "1", largest), byname.record(net, ["2", largest, "1.weight"]) as recorder:
        net(batches(1)[0])
        assert set(recorder.paths) == {"2", "1.weight", "1.Largest.largest", "1.Largest.each"}
    assert set(recorder.results) == {"2", "1.weight", "1.Largest.largest", "1.Largest.each"}


def test_where_steps_are_counted_each_forward_of_a_step_has_its_own_call():
    net, largest = model(), Largest()
    with byname.observe(net, "1", largest), byname.record(net, largest, count="step", on_change=False) as recorder:
        for x in batches(4):
            net(x), net(x)
            recorder.step()
    series = recorder.results["1.Largest.largest"]
    assert series.iterations == [0, 0, 1, 1, 2, 2, 3, 3] and series.calls == [0, 1] * 4


def test_parameters_and_the_output_of_the_model_are_seen_before_they_are_reported():
    net, largest = model(), Largest()
    largest.enabled = False
    weights = []
    with byname.observe(net, ["1.weight", "forward"], largest), byname.record(net, largest) as recorder:
        largest.enabled = True  # its hooks come later than those of the recorder
        for x in batches(3):
            loss = net(x).sum()
            weights.append(float(net[1].weight.detach().abs().max()))
            loss.backward()
            stepped(net)
    assert recorder.results["forward.Largest.largest"].iterations[0] == 0
    series = recorder.results["1.weight.Largest.largest"]
    assert series.values == sorted(series.values) and series.values[0] == weights[0]
    assert series.values[-1] == max(weights)


class Gradients(Largest):
    listens = frozenset({"gradient"})


def test_gradients_are_reported_at_the_end_of_the_forward_after_theirs():
    net, gradients = model(), Gradients()
    after = []
    with byname.observe(net, "1", gradients), byname.record(net, gradients, on_change=False) as recorder:
        for x in batches(3):
            net(x).square().sum().backward()
            after.append(gradients.result()["1"]["largest"])
    series = recorder.results["1.Gradients.largest"]
    assert series.iterations == [1, 2] and series.values == after[:2]


def test_while_it_is_disabled_or_removed_nothing_is_recorded():
    net, largest = model(), Largest()
    seen = byname.observe(net, "1", largest)
    with byname.record(net, largest, on_change=False) as recorder:
        for number, x in enumerate(batches(6)):
            largest.enabled = number not in (2, 3)
            if number == 5:
                seen.remove()
            net(x)
    assert recorder.results["1.Largest.largest"].iterations == [0, 1, 4]


@pytest.mark.sees_nothing  # nothing runs
def test_an_analyser_that_is_nowhere_is_refused_before_anything_is_installed():
    net, largest = model(), Largest()
    with nothing_left(net):
        with pytest.raises(BadArgumentError, match=r"Largest observes no place .*byname\.observe"):
            byname.record(net, ["1", largest])
        with byname.observe(net, "1", largest):
            with pytest.raises(BadArgumentError, match="`Largest`: there is no option 'evry'; did you mean 'every'"):
                byname.record(net, {largest: {"evry": 2}})
        with pytest.raises(BadArgumentError, match="observes no place"):
            byname.record(net, largest)


def test_classes_stand_in_the_path():
    net = model()
    classes, against = PerClass(Largest()), ClassVersusRest(Largest())
    classes.targets = against.targets = torch.tensor([0, 0, 1, 1, 7, 7])
    with byname.observe(net, "2.0", classes), byname.observe(net, "2.0", against):
        with byname.record(net, [classes, against]) as recorder:
            net(batches(1)[0])
    found = recorder.results["2.0.PerClass.*.largest"]
    assert [*found] == [f"2.0.PerClass.{label}.largest" for label in (0, 1, 7)]
    assert found["2.0.PerClass.7.largest"].values == [classes.result()["2.0"][7]["largest"]]
    assert len(recorder.results["2.0.ClassVersusRest.*.rest.each"]) == 3


class Pairs(Largest):
    def figures(self, kept):
        return {"cka": {"1": 0.5, "2.0": float(kept.max().max())}}


def test_a_figure_that_is_a_dict_has_a_series_for_each_key():
    net, pairs = model(), Pairs()
    with byname.observe(net, "2.0", pairs), byname.record(net, pairs) as recorder:
        for x in batches(3):
            net(x)
    assert [*recorder.results] == ["2.0.Pairs.cka['1']", "2.0.Pairs.cka['2.0']"]
    assert recorder.results["2.0.Pairs.cka['1']"].values == [0.5]
    assert len(recorder.results["2.0.Pairs.cka[*]"]) == 2


def test_figures_in_a_file_are_those_in_memory(tmp_path):
    net, largest = model(), Largest()
    file = tmp_path / "run.h5"
    with byname.observe(net, "1", largest), byname.record(net, ["1", largest]) as memory:
        with byname.record(net, ["1", largest], to=file) as recorder:
            for x in batches():
                net(x)
            recorder.flush()
            assert len(byname.open(file)["1.Largest.largest"]) == 5
    with byname.open(file) as run:
        assert run.complete and run.run["where"] == ["1", "Largest"]
        for path in ("1.Largest.largest", "1.Largest.each"):
            assert run[path].iterations == memory.results[path].iterations
        assert [*run["1.Largest.largest"].values] == memory.results["1.Largest.largest"].values
        assert [value.tolist() for value in run["1.Largest.each"].values] == [
            value.tolist() for value in memory.results["1.Largest.each"].values
        ]
        assert [*run["*.Largest.*"]] == ["1.Largest.largest", "1.Largest.each"]


def test_reductions_types_and_callbacks_are_applied_to_figures():
    net, largest = model(), Largest()
    told = []
    options = {"reduce": "max", "dtype": "float16", "on_value": lambda path, value, iteration: told.append(path)}
    with byname.observe(net, "1", largest), byname.record(net, {largest: options}) as recorder:
        for x in batches(2):
            net(x)
    values = recorder.results["1.Largest.each"].values
    assert values[1].shape == () and values[1].dtype == torch.float16
    assert float(values[1]) == pytest.approx(largest.result()["1"]["largest"], rel=1e-3)
    assert told == ["1.Largest.largest", "1.Largest.each"] * 2


def test_windows_of_an_analyser_are_gathered():
    net, largest = model(), Largest()
    windows = []
    with byname.observe(net, "1", largest):
        with byname.record(net, largest, gather_every=2, after_gather=lambda path, series: windows.append(len(series))):
            for x in batches(5):
                net(x)
    assert windows == [2, 2, 2, 2, 1, 1]


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
@pytest.mark.parametrize("gather", [None, 2])
def test_each_rank_records_its_own_figures(tmp_path, gather):
    run_ranks(
        tmp_path,
        f"""
import byname
from byname.analyse import Analyser, Extremes
class Largest(Analyser):
    def begin(self, sample):
        return Extremes()
    def take(self, kept, sample):
        kept.add(sample.value)
    def figures(self, kept):
        return {{"largest": float(kept.max().max())}}
net, largest = torch.nn.Sequential(torch.nn.Identity()), Largest()
with byname.observe(net, "0", largest), byname.record(net, largest, to=folder + "/run.h5", gather_every={gather}):
    for number in range(3):
        net(torch.full((2, 1), 10.0 * rank + number))
leave()
""",
    )
    assert len([*tmp_path.glob("*.h5")]) == (2 if gather is None else 1)
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete
        series = recording["0.Largest.largest"]
        found = {(rank, at): value for rank, at, value in zip(series.ranks, series.iterations, series.values)}
    assert found == {(rank, at): 10.0 * rank + at for rank in (0, 1) for at in range(3)}


class Odd(Largest):
    def figures(self, kept):
        return {"fine": 1, "object": object()}


def test_a_figure_that_cannot_be_stored_is_told_and_the_others_are_recorded():
    net, odd = model(), Odd()
    with byname.observe(net, "1", odd), byname.record(net, odd) as recorder:
        with pytest.warns(RecordingWarning, match=r"1\.Odd\.object"):
            net(batches(1)[0])
        net(batches(1)[0])
    assert [*recorder.results] == ["1.Odd.fine"]


class Failing(Largest):
    def figures(self, kept):
        raise ZeroDivisionError("no figure")


@pytest.mark.filterwarnings("ignore::byname.errors.RecordingWarning")  # that there is no figure then
def test_an_error_in_a_figure_comes_out_of_the_forward_and_says_where_it_is_from():
    net, failing = model(), Failing()
    with nothing_left(net):
        with byname.observe(net, "1", failing), byname.record(net, failing):
            with pytest.raises(ZeroDivisionError) as caught:
                net(batches(1)[0])
            assert "recording the result of Failing" in caught.value.__notes__[0]


def test_a_forward_that_raised_reports_nothing():
    net, largest = model(), Largest()
    with byname.observe(net, "1", largest), byname.record(net, largest, on_change=False) as recorder:
        net(batches(1)[0])
        handle = net[2][0].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net(batches(1)[0])
        handle.remove()
        net(batches(1)[0])
    assert recorder.results["1.Largest.largest"].iterations == [0, 2]


def trained(recorded):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
    largest = Largest()
    if recorded:
        byname.observe(net, "*", largest)
        recorder = byname.record(net, largest)
    losses = []
    for x in batches(6):
        loss = net(x).square().mean()
        loss.backward()
        stepped(net)
        losses.append(loss.item())
    if recorded:
        recorder.close()
        assert len(recorder.results) == 8
    return losses, net.state_dict(), torch.random.get_rng_state()


def test_the_training_is_the_same_with_and_without():
    one, other = trained(recorded=True), trained(recorded=False)
    assert one[0] == other[0] and one[2].equal(other[2])
    assert one[1].keys() == other[1].keys()
    assert all(value.equal(other[1][name]) for name, value in one[1].items())


def test_figures_of_inference_are_recorded_as_ordinary_tensors():
    net, largest = model().eval(), Largest()
    with byname.observe(net, "1", largest), byname.record(net, largest, mode="eval") as recorder:
        with torch.inference_mode():
            net(batches(1)[0])
    value = recorder.results["1.Largest.each"].values[0]
    assert not value.is_inference() and not value.requires_grad
