"""`record`: which values come into a recording, when, and that nothing is left on the model."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from small import net, nothing_left
from torch import nn

import byname
from byname.errors import BadArgumentError, NoMatchError, NotStorableError, RecordingWarning


def steps(model, x, count, optimizer=None):
    for _ in range(count):
        model.zero_grad()
        model(x).sum().backward()
        if optimizer is not None:
            optimizer.step()


def test_values_come_with_their_iterations_and_calls():
    model, x = net()
    with nothing_left(model):
        with byname.record(model, ["head", "blocks.0.forward.weights", "blocks.*.qkv.weight.grad"]) as recorder:
            steps(model, x, 3)
    results = recorder.results
    assert results["head"].iterations == [0, 1, 2]
    assert results["blocks.0.forward.weights"].iterations == [0, 0, 1, 1, 2, 2]
    assert results["blocks.0.forward.weights"].calls == [0, 1, 0, 1, 0, 1]
    assert sorted(results["blocks.*.qkv.weight.grad"]) == [f"blocks.{i}.qkv.weight.grad" for i in range(3)]
    assert results["head"].values[1].equal(model(x)) and recorder["head"].rows() == results["head"].rows()
    assert results["head"].modes == ["train"] * 3 and results["head"].ranks == [0] * 3
    assert [*recorder] == [*results]


def test_train_and_eval_are_counted_apart():
    model, x = net()
    with byname.record(model, {"head": {"mode": "train"}, "embed": {"mode": "eval"}, "blocks.0": {}}) as recorder:
        for train in (True, True, False, True, False):
            model.train(train)
            model(x)
    results = recorder.results
    assert results["head"].iterations == [0, 1, 2]
    assert results["embed"].iterations == [0, 1] and results["embed"].modes == ["eval"] * 2
    assert [*zip(results["blocks.0"].modes, results["blocks.0"].iterations)] == [
        ("train", 0), ("train", 1), ("eval", 0), ("train", 2), ("eval", 1)]  # fmt: skip


def test_several_schedules_hold_at_once_also_for_gradients():
    model, x = net()
    where = {
        "head": {"every": 3},
        "embed": {"start": 2, "stop": 4},
        "blocks.0.forward.scores.grad": {"every": 2},
        "embed.weight.grad": {"every": 4, "start": 1},
    }
    with nothing_left(model):
        with byname.record(model, where) as recorder:
            steps(model, x, 8)
    assert {path: series.iterations for path, series in recorder.results.items()} == {
        "head": [0, 3, 6],
        "embed": [2, 3],
        "blocks.0.forward.scores.grad": [0, 2, 4, 6],
        "embed.weight.grad": [1, 5],
    }


def test_a_forward_that_raises_raises_its_own_error_whatever_is_due_next_and_the_next_is_recorded():
    class Picky(nn.Module):
        def forward(self, x):
            h = x + 1
            if x in (1, 4, 5):
                raise KeyError("the program's own")
            if x == 9:
                raise KeyboardInterrupt
            return h

    model = Picky()
    where = {"input": {"every": 2, "mode": "train"}, "forward.h": {"start": 6, "stop": 8}, "forward": {}}
    with byname.record(model, where) as recorder:
        for x in range(11):
            with pytest.raises(KeyboardInterrupt if x == 9 else KeyError) if x in (1, 4, 5, 9) else nullcontext():
                model(torch.tensor(x))
    found = {path: list(zip(s.iterations, map(int, s.values), strict=True)) for path, s in recorder.results.items()}
    assert found["input"] == [(i, i) for i in (0, 2, 4, 6, 8, 10)]
    assert found["forward.h"] == [(6, 7), (7, 8)]
    assert found["forward"] == [(i, i + 1) for i in (0, 2, 3, 6, 7, 8, 10)]
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_gradient_belongs_to_the_iteration_of_its_value_however_late_its_backward_is():
    model, x = net()
    with byname.record(model, {"blocks.0.forward.scores.grad": {"every": 2}}) as recorder:
        losses = [model(x).sum() * factor for factor in (1, 1, 10)]
        losses[2].backward()
        losses[1].backward()
        losses[0].backward()
    series = recorder.results["blocks.0.forward.scores.grad"]
    assert series.iterations == [0, 2]
    torch.testing.assert_close(series.values[1], series.values[0] * 10)


def test_steps_are_counted_where_steps_are_asked_for():
    model, x = net()
    with byname.record(model, "head", count="step") as recorder:
        for _ in range(3):
            model(x), model(x)
            recorder.step()
    series = recorder.results["head"]
    assert series.iterations == [0, 0, 1, 1, 2, 2] and series.calls == [0, 1, 0, 1, 0, 1]
    assert recorder.iteration == 3


def test_steps_of_an_optimizer_are_counted_and_gradients_numbered_in_the_order_of_the_values():
    model, x = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    hooks = len(optimizer._optimizer_step_post_hooks)
    place = "blocks.0.forward.scores.grad"
    with byname.record(model, place, count=optimizer) as recorder:
        for _ in range(2):
            model.zero_grad()
            (model(x).sum() + 10 * model(x).sum()).backward()
            optimizer.step()
    series = recorder.results[place]
    assert series.iterations == [0, 0, 1, 1]
    first = dict(zip(zip(series.iterations, series.calls), series.values))
    torch.testing.assert_close(first[0, 1], first[0, 0] * 10)
    assert len(optimizer._optimizer_step_post_hooks) == hooks


def test_a_callback_may_flush_while_the_gradients_of_a_step_come():
    model, x = net()
    with byname.record(model, ["head.grad"], count="step", on_value=lambda *_: recorder.flush()) as recorder:
        for _ in range(2):
            (model(x).sum() + 2 * model(x).sum()).backward()
            recorder.step()
    series = recorder.results["head.grad"]
    assert sorted(zip(series.iterations, series.calls)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_gradients_in_a_reentrant_checkpoint_are_numbered_however_many_iterations_come_before_a_window_ends():
    class Checkpointed(nn.Linear):
        def inner(self, x):
            y = x * 2
            return y

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=True)

    model, count = Checkpointed(1, 1), 70
    with byname.record(model, ["inner.y.grad"], gather_every=count) as recorder:
        for _ in range(count):
            model(torch.ones(1, requires_grad=True)).backward()
    assert recorder.results["inner.y.grad"].iterations == [*range(count)]


def test_what_the_model_does_outside_of_its_forward_is_recorded_by_steps():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def encode(self, x):
            h = self.fc(x) * 2
            return h

    model = Encoder()
    with byname.record(model, ["encode.h", "fc"], count="step") as recorder:
        for _ in range(3):
            model.encode(torch.ones(1, 2))
            model.encode(torch.ones(1, 2))
            recorder.step()
    for path in ("encode.h", "fc"):
        assert recorder.results[path].iterations == [0, 0, 1, 1, 2, 2], path
        assert recorder.results[path].calls == [0, 1] * 3, path


def test_a_place_that_two_entries_match_is_refused_before_anything_is_installed():
    model, x = net()
    with nothing_left(model):
        with pytest.raises(BadArgumentError, match=r"`blocks\.0` and `blocks\.\*` match `blocks\.0` and ask"):
            byname.record(model, {"blocks.0": {"every": 2}, "blocks.*": {}})


def test_options_that_there_are_not_are_refused():
    model, x = net()
    with pytest.raises(BadArgumentError, match="`head`: there is no option 'evry'; did you mean 'every'"):
        byname.record(model, {"head": {"evry": 2}})
    with pytest.raises(BadArgumentError, match="`head`: stop=2 is not after start=4"):
        byname.record(model, {"head": {"start": 4, "stop": 2}})
    with pytest.raises(BadArgumentError, match="count= takes 'forward', 'step' or an optimizer"):
        byname.record(model, "head", count="forwards")
    with pytest.raises(BadArgumentError, match="gather_every"):
        byname.record(model, "head", gather_every=0)


def test_a_path_that_does_not_exist_is_refused_and_the_closest_named():
    model, x = net()
    with nothing_left(model):
        with pytest.raises(NoMatchError, match="blocks.0"):
            byname.record(model, "block.0")


def test_a_value_that_cannot_be_stored_is_an_error_where_it_was_asked_for_by_its_own_path():
    class Odd(nn.Module):
        def forward(self, x):
            source = object()
            y = x + 1
            return y

    model = Odd()
    with pytest.raises(NotStorableError, match="forward.source"):
        with byname.record(model, "forward.source"):
            model(torch.ones(2))
    with pytest.warns(RecordingWarning, match="forward.source"):
        with byname.record(model, "forward.*") as recorder:
            model(torch.ones(2))
            model(torch.ones(2))
    assert [*recorder.results] == ["forward.x", "forward.y"]
    assert any("forward.source" in note for note in recorder.notes)


def test_nothing_of_the_program_is_kept_alive():
    model, x = net()
    recorder = byname.record(model, ["head", "blocks.0.forward.scores", "blocks.0.forward.scores.grad"])
    kept = []
    hook = model.head.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    steps(model, x, 2)
    hook.remove()
    gc.collect()
    assert [one() for one in kept] == [None, None]
    alive = weakref.ref(model)
    recorder.close()
    del model, hook
    gc.collect()
    assert alive() is None
    assert len(recorder.results["head"]) == 2


def test_an_error_in_the_block_leaves_the_model_as_it_was_and_the_values():
    model, x = net()
    with nothing_left(model):
        with pytest.raises(KeyboardInterrupt):
            with byname.record(model, "head") as recorder:
                steps(model, x, 2)
                raise KeyboardInterrupt
    assert recorder.results["head"].iterations == [0, 1]
    assert any("KeyboardInterrupt" in note for note in recorder.notes)


def test_results_can_be_read_while_it_goes_on():
    model, x = net()
    with byname.record(model, "head") as recorder:
        model(x)
        assert recorder.results["head"].iterations == [0]
        model(x)
        assert recorder.results["head"].iterations == [0, 1]
        assert "head" in repr(recorder) and recorder.iteration == 1


def test_the_end_of_the_program_closes_a_recorder_while_h5py_still_works(tmp_path, monkeypatch):
    registered, log = [], tmp_path / "run.h5.log"  # the last that is registered comes first, and h5py registers, too
    monkeypatch.setattr("atexit.register", lambda function, *_: registered.append((function, log.exists())))
    model, x = net()
    byname.record(model, "head", to=tmp_path / "run.h5")
    model(x)
    *_, (at_exit, after_the_store) = registered
    assert after_the_store
    at_exit()
    assert byname.open(tmp_path / "run.h5").complete and not log.exists()


def test_numbers_of_many_windows_come_back_as_they_were():
    class Numbers(nn.Module):
        def forward(self, number):
            real, whole, large, mixed = float("nan") if number == 3 else -0.0, number, 2**62 + number, number
            mixed = 0.5 if number == 80 else number
            large = 2**80 if number == 90 else large
            return real, whole, large, mixed

    model, names, told = Numbers(), ("real", "whole", "large", "mixed"), []
    places = [f"forward.{name}@-1" for name in names]
    with byname.record(model, places, gather_every=1, on_change=False) as recorder:
        for number in range(100):
            told.append(model(number))
            if number == 70:
                recorder.results[places[0]].values.append(3)  # a list of its own
    for place, expected in zip(places, zip(*told)):
        assert repr(recorder.results[place].values) == repr([*expected])


def test_what_has_told_nothing_yet_is_an_empty_series_and_what_was_not_asked_for_an_error():
    model, x = net()
    said = pytest.warns(RecordingWarning, match=r"`blocks\.0\.spare`: it was not called in 1 forward of Net")
    with said, byname.record(model, ["head", "spare" if hasattr(model, "spare") else "blocks.0.spare"]) as recorder:
        model(x)
    assert len(recorder.results["blocks.0.spare"]) == 0
    with pytest.raises(NoMatchError, match="`heads`; recorded: head"):
        recorder.results["heads"]
    assert recorder.results["head.forward"] is recorder.results["head"] or len(recorder.results["head.forward"]) == 1


def test_windows_go_through_the_callbacks_the_last_one_too():
    model, x = net()
    seen = []

    def before(path, series):
        seen.append(("before", series.iterations))

    def after(path, series):
        return torch.stack([*series.values]).mean(0)

    with byname.record(
        model, "head", gather_every=2, before_gather=before, after_gather=[after], at_end=byname.stack
    ) as recorder:
        steps(model, x, 5)
    assert seen == [("before", [0, 1]), ("before", [2, 3]), ("before", [4])]
    series = recorder.results["head"]
    assert series.iterations == [1, 3, 4]
    assert series.values.shape == (3, 2, 5, 2)
    torch.testing.assert_close(series.values[0], model(x))


def test_a_callback_that_raises_says_where_and_leaves_the_model_usable():
    model, x = net()

    def broken(path, value, iteration):
        raise ZeroDivisionError("mine")

    with nothing_left(model):
        with pytest.raises(ZeroDivisionError) as caught:
            with byname.record(model, "head", on_value=broken):
                model(x)
    assert any("`head`" in note for note in caught.value.__notes__)
    model(x)


def test_parameters_are_stored_when_they_changed_only():
    model, x = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with byname.record(model, ["head.weight", "seen", "forward.x"]) as recorder:
        for iteration in range(6):
            model.zero_grad()
            model(x).sum().backward()
            if iteration in (1, 2):
                optimizer.step()
    assert recorder.results["head.weight"].iterations == [0, 2, 3]
    assert recorder.results["seen"].iterations == [0, 1, 2, 3, 4, 5]
    assert recorder.results["forward.x"].iterations == [0]


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("how", ["the model as a wrapper", "the model in place", "a function around it"])
def test_every_iteration_of_a_compiled_program_is_counted_also_where_nothing_is_due(how):
    model, x = net()
    if how == "the model in place":
        model.compile(backend="eager")
    whole = {"the model as a wrapper": model, "a function around it": lambda x: model(x) * 2}.get(how)
    run = model if whole is None else torch.compile(whole, backend="eager")
    run(x)
    with byname.record(model, "head", every=3) as recorder:
        for _ in range(8):
            run(x)
    assert recorder.results["head"].iterations == [0, 3, 6]
    assert any("eagerly" in note for note in recorder.notes)


def test_a_file_says_by_what_its_program_was_left_and_not_that_it_was_never_closed(tmp_path):
    model, x = net()
    with pytest.raises(ValueError, match="mine"):
        with byname.record(model, "head", to=tmp_path / "run.h5"):
            model(x)
            raise ValueError("mine")
    with byname.open(tmp_path / "run.h5") as recording:
        assert not recording.complete and len(recording["head"]) == 1
        assert recording.missing == ("the recorded program was left in iteration 0 by a ValueError",)
