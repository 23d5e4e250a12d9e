"""Variables of plain functions, recorded without a model: which function is meant, and what an iteration is."""

import asyncio
import gc
import itertools
import sys
import threading
import time
import types

import functions_of_a_program as program
import pytest
import torch
from functions_of_a_program import Trainer
from functions_of_a_program import step as one_step
from torch import nn

import byname
from byname.errors import BadArgumentError, NoMatchError, RecordingWarning

X = torch.tensor([1.0, 3.0])


def recorded(where, run, **options):
    """What was recorded while something ran, and that the code of all functions is as before."""
    before = {name: one.__code__ for name, one in vars(program).items() if hasattr(one, "__code__")}
    with byname.record(None, where, **options) as recorder:
        run()
    assert all(getattr(program, name).__code__ is code for name, code in before.items())
    return recorder.results


def training(run, times):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    figures = [run(model, torch.randn(3, 2), optimizer) for _ in range(times)]
    return figures, [one.detach().clone() for one in model.parameters()]


def test_the_figures_of_a_training_are_recorded_and_its_results_are_the_same_bit_by_bit():
    plain, weights = training(one_step, 5)
    seen = []
    found = recorded(
        ["one_step.total", "one_step.loss", "one_step.out.grad"], lambda: seen.append(training(one_step, 5))
    )
    assert seen[0][0] == plain and all(map(torch.equal, seen[0][1], weights))
    assert list(found["one_step.total"].values) == [one for figure in plain for one in (0.0, figure)]
    assert [one.item() for one in found["one_step.loss"].values] == plain
    assert found["one_step.loss"].iterations == found["one_step.out.grad"].iterations == [0, 1, 2, 3, 4]
    assert found["one_step.out.grad"].values[0].shape == (3, 2)


def test_paths_may_come_first_and_a_wildcard_takes_all_variables():
    with byname.record("program.three.loss", "same.y") as recorder:
        program.three(X)
        twice_here(X)
    assert recorder.paths == ("program.three.loss", "same.y")
    for paths in (["program.three.loss", "same.y"], ("program.three.loss", "same.y")):
        with byname.record(paths) as listed:
            program.three(X)
            twice_here(X)
        assert listed.paths == recorder.paths
    assert [one.tolist() for one in recorder.results["program.three.loss"].values] == [[5, 15], [2, 6], [2, 6]]
    with byname.record("program.three.*", on_change=False) as recorder:
        program.three(X)
    assert {path: len(series) for path, series in recorder.results.items()} == {
        "program.three.x": 1,
        "program.three.loss": 3,
    }


def twice_here(x):
    y = x * 2
    return y


same = twice_here


@pytest.mark.parametrize(
    ("where", "run"),
    [
        ("Trainer.Inner.run.loss", lambda: Trainer.Inner().run(X)),
        ("functions_of_a_program.Trainer.norm.loss", lambda: Trainer.norm(X)),
        ("Trainer.make.loss", lambda: Trainer.make(X)),
        *[
            (f"program.{name}.loss", lambda name=name: getattr(program, name)(X))
            for name in ("decorated", "unnamed", "quiet", "cached", "compiled")
        ],
        ("program.later.loss", lambda: asyncio.run(program.later(X))),
        ("program.generated.loss@2", lambda: [*program.generated(X)]),
        ("program.around.inside.loss", lambda: program.around(X)),
        ("program.made.inside.loss", lambda: program.made(0.0)(X)),
        ("program.cache.held['k'][1]", lambda: program.cache(X)),
        ("program.three.loss@-1", lambda: program.three(X)),
        ("program.twice", lambda: program.twice(X)),
        ("decorated.loss", lambda: program.decorated(X)),
        ("**.decorated.loss", lambda: program.decorated(X)),
        ("functions_of_a_program.Trainer.*.loss", lambda: Trainer.norm(X)),
    ],
)
def test_functions_of_every_kind_are_found(where, run):
    found = recorded(where, run)
    (series,) = found.values()
    assert series.iterations == [0] and torch.equal(series.values[0], X * 2)


def test_a_class_beside_the_function_is_asked_nothing(monkeypatch):
    class Meta(type):
        def __getattribute__(cls, name):
            raise AssertionError(f"{name} of the class was read")

    kind = Meta("Odd", (), {"__module__": program.__name__, "run": lambda self: None})
    monkeypatch.setattr(program, "Odd", kind, raising=False)
    with byname.record(None, "step.loss") as recorder:
        training(program.step, 1)
    assert len(recorder.results) == 1


def test_a_closure_a_local_function_and_a_method_have_the_names_of_the_program():
    shift = program.made(5.0)

    def own(x):
        kept = x + 1
        return kept

    trainer = Trainer()
    found = recorded(["shift.loss", "own.kept"], lambda: [shift(X), own(X)])
    assert found["shift.loss"].values[0].tolist() == [7, 11] and found["own.kept"].values[0].tolist() == [2, 4]
    found = recorded("Trainer.train_step.loss", lambda: [trainer.train_step(X), Trainer().train_step(X + 1)])
    assert [one.tolist() for one in found["Trainer.train_step.loss"].values] == [[1, 3], [2, 4]]


def test_the_outermost_calls_of_the_first_function_are_the_iterations():
    found = recorded(["program.fibonacci.result", "program.twice.x"], _fibonacci_and_twice, on_change=False)
    assert found["program.fibonacci.result"].iterations == [0, 0, 0, 1, 1, 1, 1, 1]
    assert found["program.fibonacci.result"].calls == [0, 1, 2, 0, 1, 2, 3, 4]
    assert found["program.fibonacci.result"].values[-1] == 2
    assert found["program.twice.x"].iterations == [0, 1]


def _fibonacci_and_twice():
    program.fibonacci(2)
    program.twice(1)
    program.fibonacci(3)
    program.twice(1)


@pytest.mark.parametrize("count", ["call", "step", "optimizer"])
@pytest.mark.parametrize(
    ("options", "due"), [({}, [0, 1, 2, 3, 4, 5]), ({"every": 2}, [0, 2, 4]), ({"start": 2, "stop": 4}, [2, 3])]
)
def test_an_iteration_is_a_call_a_step_or_an_optimizers_step(count, options, due):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counted = {"call": {}, "step": {"count": "step"}, "optimizer": {"count": optimizer}}[count]
    where = ["one_step.turn", "one_step.out.grad"]
    with byname.record(None, where, on_change=False, **options, **counted) as recorder:
        for _ in range(6):
            one_step(model, X, optimizer, times=2)
            if count == "step":
                recorder.step()
    for path in where:
        assert recorder.results[path].iterations == [number for number in due for _ in range(2)]
        assert recorder.results[path].calls == [0, 1] * len(due)
    assert list(recorder.results["one_step.turn"].values) == [0, 1] * len(due)


def test_a_model_and_functions_are_recorded_together_by_the_forwards_of_the_model():
    model = nn.Sequential(nn.Linear(2, 2))
    with byname.record(model, {"0": {}, "one_step.total": {"on_change": False}}) as recorder:
        totals = [one_step(model, X) for _ in range(3)]
    assert recorder.results["0"].iterations == [0, 1, 2]
    series = recorder.results["one_step.total"]
    assert [value for value in series.values if value] == totals and series.iterations == [0, 0, 0, 1, 1, 2]
    with pytest.raises(NoMatchError, match=r"`one_step\.ttl` matches nothing in this Sequential"):
        byname.record(model, ["0", "one_step.ttl"])


def test_the_gradient_of_an_argument_that_lives_on_comes_once_a_call():
    weight = torch.ones(2, requires_grad=True)
    found = recorded(
        "program.twice.x.grad", lambda: [program.twice(weight).sum().backward() for _ in range(4)], on_change=False
    )
    assert found["program.twice.x.grad"].iterations == [0, 1, 2, 3] and not weight._backward_hooks


def test_a_call_that_is_a_whole_training_is_in_the_file_before_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", itertools.count(0.0, 2.0).__next__)  # what came is two seconds old
    seen = []

    def training_to_its_end():
        for number in range(50):
            value = number
            seen.append(sum(len(series) for series in byname.open(tmp_path / "run.h5").values()))

    with byname.record(None, "training_to_its_end.value", to=tmp_path / "run.h5"):
        training_to_its_end()
    with byname.open(tmp_path / "run.h5") as recording:
        series = recording["training_to_its_end.value"]
        assert list(series.values) == series.calls == [*range(50)] and recording.complete and seen[-1] > 40
        assert "model" not in recording.run


def test_an_interrupt_and_a_recorder_that_nobody_keeps_leave_the_code_as_it_was():
    code = one_step.__code__
    with pytest.raises(KeyboardInterrupt), byname.record(None, "one_step.total") as recorder:
        assert one_step.__code__ is not code
        raise KeyboardInterrupt
    assert one_step.__code__ is code and "KeyboardInterrupt" in recorder.notes[0]
    held = byname.record(None, "one_step.total")
    one_step(nn.Linear(2, 2), X)
    del held
    gc.collect()
    assert one_step.__code__ is code


def test_calls_in_several_threads_are_each_counted():
    def run():
        for _ in range(50):
            program.three(X)

    def both():
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = recorded("program.three.loss@1", both, on_change=False)
    assert len(found["program.three.loss@1"]) == 100 and max(found["program.three.loss@1"].iterations) == 99


def test_a_function_that_runs_already_is_an_error_that_says_what_to_do():
    with pytest.raises(BadArgumentError, match=r"test_a_function\S* is already running.*Record before it is called"):
        byname.record(None, f"{sys._getframe().f_code.co_name}.here")
    here = 1
    assert here


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("one_step.totl", r"close to it: `one_step\.total`"),
        ("oen_step.total", r"close to it: `\S*step\.\w+`"),
        ("program.Trainer.train_stp.loss", r"`program\.Trainer\.train_step"),
        ("torch.randn.x", r"torch\.randn cannot be observed"),
        ("program", "matches no variable of a function"),
        ("gc.collect.x", r"gc\.collect cannot be observed"),
        ([], "without a model, record needs a path"),
        (byname.select.relu, "without a model a place is a path"),
        (["one_step.total", 7], "without a model a place is a path"),
        (None, "without a model a place is a path"),
    ],
)
def test_what_means_nothing_is_refused_and_the_closest_named(where, words):
    with pytest.raises((NoMatchError, BadArgumentError), match=words):
        byname.record(None, where)
    with pytest.raises(BadArgumentError, match="without a model a place is a path"):
        byname.record([torch.nn.Linear(1, 1)], "program.three.loss")


def test_beside_a_model_a_mistyped_function_is_told_with_the_closest():
    model = torch.nn.Linear(2, 2)
    for where in ("one_step.totl", ["weight", "one_step.totl"], ["one_step.total", "one_step.totl"]):
        with pytest.raises(NoMatchError, match=r"`one_step.totl` matches nothing in this Linear.*`one_step\.total`"):
            byname.record(model, where)
    with pytest.raises(NoMatchError) as raised:
        byname.record(model, "wieght")
    assert "`weight`" in str(raised.value) and "functions" not in str(raised.value)


def test_a_name_of_several_functions_is_refused_and_the_ways_to_write_it_named(monkeypatch):
    other = types.ModuleType("another_program")
    exec("def ambiguous():\n    word = 'of the other'\n    return word", vars(other))
    monkeypatch.setitem(sys.modules, "another_program", other)
    with pytest.raises(BadArgumentError, match=r"may mean `functions_of_a_program\.ambiguous.*`another_program\.amb"):
        byname.record(None, "ambiguous.word")
    found = recorded("another_program.ambiguous.word", lambda: [program.ambiguous(), other.ambiguous()])
    assert list(found["another_program.ambiguous.word"].values) == ["of the other"]
    with pytest.raises(BadArgumentError, match="mode='eval'"):
        byname.record(None, "one_step.total", mode="eval")


def test_a_function_that_is_never_called_is_warned_of():
    with pytest.warns(RecordingWarning, match=r"`one_step\.total`: it was not assigned .* not called"):
        recorded("one_step.total", lambda: None)
