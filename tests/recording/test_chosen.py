"""Which iterations stay, and after which a recording ends: keep=, by= and stop_when=, against a sort by hand."""

import gc
import math
import signal

import h5py
import pytest
import torch
from several import run_ranks
from torch import nn

import byname
from byname.errors import BadArgumentError, RecordingWarning


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        h = self.fc(x)
        loss = h.pow(2).mean()
        word = "some"
        return loss


def batches(number, seed=1):
    torch.manual_seed(seed)
    return [torch.randn(3, 2) for _ in range(number)]


def largest(figures, keep):
    """The iterations of the largest figures; of equal ones the first."""
    order = sorted(range(len(figures)), key=lambda at: (-math.inf if math.isnan(figures[at]) else -figures[at], at))
    return sorted(order[:keep])


PLACES = ["forward.loss", "forward.x", "forward.h.grad", "fc.weight", "fc.weight.grad", "forward.word"]


@pytest.mark.parametrize("by", ["forward.loss", lambda values: values["forward.loss"]])
@pytest.mark.parametrize("to", [None, "run.h5"])
@pytest.mark.parametrize("number", [3, 40])
def test_the_iterations_of_the_largest_value_stay_with_all_that_they_had(by, to, number, tmp_path):
    net, inputs = Net(), batches(number)
    figures = [net(x).item() for x in inputs]
    stay = largest(figures, 5)
    with byname.record(net, PLACES, keep=5, by=by, to=to and tmp_path / to) as recorder:
        for x in inputs:
            net.zero_grad()
            net(x).backward()
    found = byname.open(tmp_path / to) if to else recorder.results
    assert all(found[path].iterations == stay for path in PLACES)
    assert [value.item() for value in found["forward.loss"].values] == [figures[at] for at in stay]
    for at, x, gradient, weight in zip(
        stay, *(found[path].values for path in ("forward.x", "fc.weight.grad", "fc.weight")), strict=True
    ):
        net.zero_grad()
        net(inputs[at]).backward()
        assert torch.equal(x, inputs[at]) and torch.equal(gradient, net.fc.weight.grad)
        assert torch.equal(weight, net.fc.weight)
    if to:
        assert found.complete and found.run["keep"] == 5 and found.run["by"] in ("forward.loss", "<lambda>")


def test_nan_is_the_largest_and_of_equal_ones_the_first_stay():
    figures = [1.0, math.nan, 2.0, 3.0, math.inf, 3.0, -1.0, 3.0]
    net = nn.Identity()
    with byname.record(net, "forward", keep=4, by="forward") as recorder:
        for figure in figures:
            net(torch.tensor(figure))
    assert recorder.results["forward"].iterations == largest(figures, 4) == [1, 3, 4, 5]


def test_training_and_evaluation_compete_and_a_late_gradient_stays_with_its_iteration():
    net, inputs = Net(), batches(6)
    with byname.record(
        net, ["forward.loss", "forward.h.grad"], keep=2, by=lambda values: values["forward.loss"]
    ) as rec:
        losses = []
        for x in inputs:
            losses.append(net.train()(x))
            net.eval()(x * 3 if x is inputs[0] else x * 0)
            losses[-1].backward()
    best = max(range(6), key=lambda at: losses[at].item())
    series = rec.results["forward.loss"]
    assert dict(zip(series.modes, series.iterations, strict=True)) == {"train": best, "eval": 0}
    assert rec.results["forward.h.grad"].iterations == [best]


def test_of_several_calls_the_last_counts_and_all_stay():
    net, inputs = Net(), batches(12)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with byname.record(net, "forward.loss", count=optimizer, keep=2, by="forward.loss") as recorder:
        figures = []
        for step in range(4):
            figures.append([net(x).item() for x in inputs[3 * step : 3 * step + 3]])
            optimizer.step()
    series, stay = recorder.results["forward.loss"], largest([last for *_, last in figures], 2)
    assert series.iterations == [at for at in stay for _ in range(3)] and series.calls == [0, 1, 2] * 2
    assert [value.item() for value in series.values] == [figure for at in stay for figure in figures[at]]


def test_functions_of_a_program_are_kept_too():
    def step(x):
        loss = x * 2
        batch = [x]
        return loss

    with byname.record(None, ["step.loss", "step.batch"], keep=2, by="step.loss") as recorder:
        for x in (1, 5, 3, 9, 2):
            step(x)
    assert recorder.results["step.loss"].iterations == recorder.results["step.batch"].iterations == [1, 3]


def test_memory_and_file_hold_only_what_stays(tmp_path):
    class Big(nn.Module):
        def forward(self, x):
            h = torch.full((1 << 16,), float(x))
            figure = x
            return h

    net = Big()

    def held():
        return sum(type(one) is torch.Tensor and one.numel() == 1 << 16 for one in gc.get_objects())

    places = ["forward.h", "forward.figure"]
    with byname.record(net, places, keep=3, by="forward.figure", to=tmp_path / "run.h5") as recorder:
        for number in range(50):
            net(number % 7)
            assert number % 24 < 23 or 3 <= held() <= 4
        for _ in range(3):
            recorder.flush()
            assert recorder.results["forward.figure"].iterations == [6, 13, 20]
        size = (tmp_path / "run.h5.log").stat().st_size
        assert 3 << 18 < size < 4 << 18  # nothing new, nothing written again
    assert (tmp_path / "run.h5").stat().st_size < 4 << 18
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["forward.h/values"].shape == (3, 1 << 16)


def test_what_was_flushed_survives_a_kill_and_a_later_flush_takes_its_place(tmp_path):
    net = nn.Identity()
    with byname.record(net, "forward", keep=2, by="forward", to=tmp_path / "run.h5") as recorder:
        for number, figure in enumerate([3.0, 1.0, 2.0, 5.0, 4.0, 0.0]):
            net(torch.tensor(figure))
            recorder.flush()
            (tmp_path / f"killed{number}.h5.log").write_bytes((tmp_path / "run.h5.log").read_bytes())
    for number, stay in enumerate([[], [0], [0, 1], [0, 2], [0, 3], [3, 4]]):
        with byname.open(tmp_path / f"killed{number}.h5") as recording:
            assert [*(recording["forward"].iterations if stay else ())] == stay and not recording.complete
        assert byname.repair(tmp_path / f"killed{number}.h5")
        with byname.open(tmp_path / f"killed{number}.h5") as recording:
            assert [*(recording["forward"].iterations if stay else ())] == stay


def test_an_error_of_the_program_leaves_what_stays_and_is_the_error_that_is_seen():
    net, inputs = Net(), batches(5)
    with pytest.raises(ZeroDivisionError), byname.record(net, ["forward.loss"], keep=2, by=_of_the_word) as recorder:
        for x in inputs:
            net(x)
            if x is inputs[3]:
                raise ZeroDivisionError
    assert "train iteration 3 was not kept, since `by` raised KeyError" in recorder.notes


def _of_the_word(values):
    if _of_the_word.asked > 2:
        return values["never.there"]
    _of_the_word.asked += 1
    return values["forward.loss"]


_of_the_word.asked = 0


def test_ctrl_c_while_by_judges_an_iteration_loses_none():
    net, inputs = Net(), batches(5)

    def judged(values):
        if torch.equal(values["forward.x"], inputs[1]):
            signal.raise_signal(signal.SIGINT)
        return values["forward.loss"]

    with byname.record(net, PLACES[:2], keep=4, by=judged) as recorder:
        net(inputs[0])
        net(inputs[1])
        with pytest.raises(KeyboardInterrupt):
            net(inputs[0])  # iteration 1 is judged when this one begins
        for x in inputs[2:]:
            net(x)
    places = recorder.results["forward.x"]
    assert len(places) == 4 and any(torch.equal(x, inputs[1]) for x in places)


@pytest.mark.parametrize("to", [None, "run.h5"])
def test_stop_when_ends_the_recording_with_its_reason_and_the_training_goes_on(to, tmp_path):
    def diverged(values):
        seen.append(values["forward.loss"].item())
        return seen[-1] > 1.0

    net, inputs, seen = Net(), batches(30), []
    plain = [net(x).item() for x in inputs]
    end = next(at for at, figure in enumerate(plain) if figure > 1)
    with byname.record(net, ["forward.loss", "fc.weight"], stop_when=diverged, to=to and tmp_path / to) as recorder:
        assert [net(x).item() for x in inputs] == plain
        assert not net._forward_hooks and not net._forward_pre_hooks and "forward" not in vars(net)
        assert Net.forward.__code__.co_names == _CODE.co_names and Net.forward.__code__ is _CODE
    reason = f"stop_when (diverged) was true after train iteration {end}"
    assert recorder.notes == (f"the recording ended: {reason}",) and seen == plain[: end + 1]
    assert recorder.results["forward.loss"].iterations == [*range(end + 1)]
    if to:
        with byname.open(tmp_path / to) as recording:
            assert recording.complete and recording.run["stopped"] == reason and not recording.missing


_CODE = Net.forward.__code__


def test_stop_when_sees_what_has_not_changed_and_the_last_iteration_too():
    net, seen = nn.Linear(2, 2), []
    with byname.record(net, ["weight", "forward.input"], stop_when=lambda values: seen.append([*values])) as recorder:
        for x in batches(3):
            net(x)
    assert [set(paths) for paths in seen] == [{"weight", "forward.input"}] * 3
    with byname.record(net, "weight", stop_when=lambda values: True) as recorder:
        net(torch.ones(1, 2))
    assert recorder.notes == ("the recording ended: stop_when (<lambda>) was true after train iteration 0",)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"stop_when": lambda values: 1 / 0}, ZeroDivisionError),
        ({"keep": 1, "by": lambda values: 1 / 0}, ZeroDivisionError),
        ({"stop_when": lambda values: values["forward"] > 0}, RuntimeError),  # two truth values
    ],
)
def test_an_error_of_a_function_surfaces_and_says_where(options, kind):
    net = nn.Identity()
    with pytest.raises(kind) as error, byname.record(net, "forward", **options):
        net(torch.ones(2))
        net(torch.ones(2))
    assert any(f"byname: in {[*options][-1]}, at train iteration 0" in note for note in error.value.__notes__)
    assert not net._forward_pre_hooks


def test_an_iteration_without_a_value_of_the_path_does_not_stay_and_that_is_said():
    class Sometimes(nn.Module):
        def forward(self, x):
            if x > 2:
                loss = x
            return x

    net = Sometimes()
    with byname.record(net, ["forward.loss", "forward.x"], keep=3, by="forward.loss") as recorder:
        for x in (1, 3, 5, 2):
            net(torch.tensor(x))
    assert recorder.results["forward.x"].iterations == [1, 2]
    assert recorder.notes[-1] == "2 iterations without a value of `forward.loss` not kept"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 3}, "keep= and by= go together"),
        ({"by": "forward.loss"}, "keep= and by= go together"),
        ({"keep": 0, "by": "forward.loss"}, "keep= takes an integer"),
        ({"keep": True, "by": "forward.loss"}, "keep= takes an integer"),
        ({"keep": 3, "by": 7}, "by= takes a function of a dict of values, or a path"),
        ({"stop_when": "forward.loss"}, "stop_when= takes a function of a dict of values, not"),
        ({"keep": 3, "by": "forward.los"}, r"by='forward\.los' names a place that is not recorded.*forward\.loss"),
        ({"keep": 3, "by": "forward.loss", "gather_every": 5}, "leave out gather_every"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_installed(options, words):
    net = Net()
    with pytest.raises(BadArgumentError, match=words):
        byname.record(net, ["forward.loss", "forward.h"], **options)
    assert not net._forward_pre_hooks and Net.forward.__code__ is _CODE


def test_what_is_no_number_is_an_error_that_says_so():
    net = Net()
    with pytest.raises(BadArgumentError, match=r"by= needs a number, not a value of shape \(3, 2\)"):
        with byname.record(net, ["forward.h"], keep=3, by="forward.h"):
            for x in batches(2):
                net(x)
    with byname.record(net, ["forward.h"], keep=1, by="forward.h", reduce="norm") as recorder:
        for x in batches(4):
            net(x)
    assert len(recorder.results["forward.h"]) == 1


def test_each_rank_keeps_by_its_own_values_and_ends_by_its_own(tmp_path):
    told = run_ranks(
        tmp_path,
        """
import byname
from torch import nn
net = nn.Identity()
file = folder + "/run.h5"
stop = lambda values: values["forward"] == (7.0 if rank else 3.0)
with byname.record(net, "forward", keep=2, by="forward", to=file, stop_when=stop) as recorder:
    for step in range(10):
        net(torch.tensor(float(step)))
tell(iterations=list(recorder.results["forward"].iterations), notes=recorder.notes)
dist.barrier()
if not rank:
    with byname.open(file) as recording:
        tell(complete=recording.complete, kept=sorted(zip(recording["forward"].ranks, recording["forward"].iterations)))
leave()
""",
    )
    assert [facts[0]["iterations"] for facts in told] == [[2, 3], [6, 7]]
    assert told[0][1] == {"complete": True, "kept": [[0, 2], [0, 3], [1, 6], [1, 7]]}


def test_a_full_disk_at_the_end_is_said_and_what_was_kept_is_in_the_results(tmp_path):
    net = nn.Identity()
    recorder = byname.record(net, "forward", keep=2, by="forward", to=tmp_path / "run.h5")
    net(torch.tensor(1.0))
    (tmp_path / "run.h5.log").unlink()
    with pytest.warns(RecordingWarning, match="can no longer be written"), pytest.raises(byname.errors.RecordingError):
        recorder.close()
