"""What a recorder must get right where programs do what nobody expects."""

import signal
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname


class Chain(nn.Module):
    """Goes three times through a part, which may be checkpointed."""

    def __init__(self, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.reentrant = reentrant

    def part(self, x):
        k = self.again(x)
        return torch.tanh(k)

    def forward(self, x):
        h = self.first(x)
        for _ in range(3):
            h = self.part(h) if self.reentrant is None else checkpoint(self.part, h, use_reentrant=self.reentrant)
        return h


def keys(series):
    return list(zip(series.modes, series.iterations, series.calls, strict=True))


def gradients_of(model, every, count, place):
    torch.manual_seed(1)
    with byname.record(model, place, every=every, count=count) as recorder:
        for _ in range(8):
            model(torch.randn(2, 3)).sum().backward()
            if count == "step":
                recorder.step()
    series = recorder.results[place]
    return dict(zip(keys(series), series.values, strict=True)), len(series)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("count", ["forward", "step"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("place", ["part.k.grad", "again.grad"])
def test_gradients_of_a_checkpoint_have_the_iterations_and_calls_of_those_without(reentrant, count, every, place):
    found, records = gradients_of(Chain(reentrant), every, count, place)
    expected, _ = gradients_of(Chain(), every, count, place)
    assert records == len(found)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("count", ["forward", "step"])
@pytest.mark.parametrize("flushed", [True, False])
def test_several_backwards_of_one_forward_are_numbered_on(count, flushed):
    model, truth = Chain(), []
    with byname.record(model, ["first.grad", "again.grad", "first.weight.grad"], count=count) as recorder:
        for _ in range(2):
            loss = model(torch.randn(2, 3)).sum()
            for factor in (1, 2, 3):
                (factor * loss).backward(retain_graph=True)
                truth.append(model.first.weight.grad.clone())
                if flushed:
                    recorder.flush()
            if count == "step":
                recorder.step()
    for path, times in (("first.grad", 3), ("again.grad", 9), ("first.weight.grad", 3)):
        series = recorder.results[path]
        assert sorted(keys(series)) == [("train", iteration, call) for iteration in (0, 1) for call in range(times)]
    weights = recorder.results["first.weight.grad"]
    assert all(torch.equal(value, expected) for value, expected in zip(weights.values, truth, strict=True))


def test_a_gradient_of_a_train_forward_is_not_lost_by_an_eval_forward_before_its_backward():
    model = Chain()
    with byname.record(model, ["first.grad", "first.weight.grad"], count="step") as recorder:
        for _ in range(2):
            loss = model(torch.randn(2, 3)).sum()
            model.eval()
            with torch.no_grad():
                model(torch.randn(2, 3))
            model.train()
            loss.backward()
            recorder.step()
    for path in ("first.grad", "first.weight.grad"):
        assert keys(recorder.results[path]) == [("train", 0, 0), ("train", 1, 0)]


def test_modes_that_take_turns_within_a_step_are_numbered_apart():
    model = Chain()
    with byname.record(model, "first", count="step", mode="both") as recorder:
        for _ in range(2):
            for training in (True, False, True):
                model.train(training)(torch.randn(2, 3))
            recorder.step()
    one = [("train", 0), ("eval", 0), ("train", 1)]
    assert keys(recorder.results["first"]) == [(mode, step, call) for step in (0, 1) for mode, call in one]


@pytest.mark.parametrize("recorder_first", [True, False])
def test_a_parameter_is_recorded_itself_and_not_what_an_interjection_puts_in_its_place(recorder_first):
    model, paths, truth = Chain(), ["first.weight", "first.weight.grad"], []
    recorder = byname.record(model, paths) if recorder_first else None
    with byname.interject(model, "first.weight", lambda name, module, value: value * 2):
        recorder = recorder or byname.record(model, paths)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            truth.append(model.first.weight.grad.clone())
    recorder.close()
    weight, gradient = (recorder.results[path] for path in paths)
    assert weight.iterations == [0]
    assert torch.equal(weight.values[0], model.first.weight)
    assert gradient.iterations == [0, 1, 2]
    assert all(map(torch.equal, gradient.values, truth))
    assert recorder.notes == ()


def test_what_is_recorded_in_inference_mode_can_be_trained_with_later():
    model = Chain()
    with torch.inference_mode(), byname.record(model, ["first", "forward.h"], reduce=None) as recorder:
        model(torch.randn(2, 3))
    values = [value for path in recorder.results for value in recorder.results[path].values]
    assert len(values) == 5
    assert not any(value.is_inference() for value in values)
    weight = torch.ones(3, 3, requires_grad=True)
    (values[0] @ weight).sum().backward()
    assert weight.grad is not None


def test_another_thread_may_flush_and_read_while_the_model_trains(tmp_path):
    model, errors, ended = Chain(), [], threading.Event()
    recorder = byname.record(model, ["forward.x", "first.grad"], to=tmp_path / "run.h5")

    def flush():
        while not ended.is_set():
            try:
                recorder.flush()
                len(recorder.results["forward.x"])
            except Exception as error:  # whatever it is, the test shows it
                errors.append(error)
                return

    threads = [threading.Thread(target=flush) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        model(torch.full((2, 3), float(number))).sum().backward()
    ended.set()
    for thread in threads:
        thread.join()
    recorder.close()
    assert errors == []
    with byname.open(tmp_path / "run.h5") as recording:
        assert [value[0, 0].item() for value in recording["forward.x"].values] == list(range(60))
        assert recording["first.grad"].iterations == list(range(60))


def test_what_is_done_to_a_result_is_not_done_to_what_goes_on_being_recorded():
    model = Chain()
    with byname.record(model, "first") as recorder:
        model(torch.ones(1, 3))
        series = recorder.results["first"]
        series.values.clear()
        with pytest.raises(ValueError, match="read-only"):
            series.records["iteration"][0] = 7
        series.iterations[0] = 7
        model(torch.ones(1, 3))
    assert recorder.results["first"].iterations == [0, 1]
    assert len(recorder.results["first"].values) == 2


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_waits_for_the_window_and_then_comes_to_the_program(times):
    done = []

    def before(path, series):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        done.append(path)

    handler = signal.getsignal(signal.SIGINT)
    model = Chain()
    recorder = byname.record(model, "first", before_gather=before)
    model(torch.ones(1, 3))
    with pytest.raises(KeyboardInterrupt):
        recorder.close()
    assert signal.getsignal(signal.SIGINT) is handler
    assert done == (["first"] if times == 1 else [])
    assert recorder.results["first"].iterations == ([0] if times == 1 else [])


def test_nothing_written_in_python_runs_when_a_tensor_dies_for_an_interrupt_in_it_would_be_lost():
    model, value = nn.Identity(), torch.ones(3)
    with byname.record(model, "forward") as recorder:
        model(value), model(value)
        callbacks = [one.__callback__ for one in weakref.getweakrefs(value.untyped_storage())]
        assert len(callbacks) == 1
        assert not isinstance(callbacks[0], types.FunctionType | types.MethodType)
        del value
        model(torch.ones(3))
    assert recorder.results["forward"].iterations == [0, 2]
