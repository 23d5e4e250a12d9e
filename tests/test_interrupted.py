"""An interrupt or an error at any line of entering, leaving, closing and removing: all or nothing, and it can be done again."""

import copyreg
import functools
import gc
import itertools
import signal
import sys
import threading

import pytest
import torch
from checking import checking
from interrupting import (
    Calls as Moments,
)
from interrupting import (
    at_a_line,
    begin_of,
    by_signal,
    interrupted,
    lines_of,
    of_each_line,
    of_each_line_once,
    of_some_lines,
    of_some_lines_once,
    signals_come,
)
from torch import nn

import byname
from byname import Recorder
from byname.cli.watcher import Calls
from byname.undo import Undo


def cases(kinds, *whole):
    """Every kind, each line of it interrupted by an error, every third by a signal; of a few also its last time.

    Every third moment of the first of these few is fast.
    """
    others = [one for one in itertools.product(kinds, (at_a_line, by_signal)) if one not in whole]
    return [
        *(pytest.param(kind, throw, of_some_lines, id=f"{kind}-{throw.__name__}-some") for kind, throw in whole[:1]),
        *(
            pytest.param(kind, throw, of_each_line, marks=pytest.mark.slow, id=f"{kind}-{throw.__name__}")
            for kind, throw in whole
        ),
        *(
            pytest.param(kind, throw, moments, marks=pytest.mark.slow, id=f"{kind}-{throw.__name__}-once")
            for kind, throw in others
            for moments in [of_each_line_once if throw is at_a_line else of_some_lines_once]
        ),
    ]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.act = nn.ReLU()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        h = self.fc(x)
        return torch.tanh(self.act(h)) + self.count


CODE = Net.forward.__code__


class Both(byname.WrappedForwardBackwardInterjection):
    def process_backward(self, name, module, grad_input, grad_output):
        return None


def changed(name, module, value):
    return value + 100


PLACES = ["fc", "act", "forward.h", "tanh", "fc.weight", "fc.weight.grad", "count", "act.grad"]
HANDLES = {
    "interject": lambda model: byname.interject(model, ["fc", "tanh", "fc.weight"], changed),
    "interject in both directions": lambda model: byname.interject(model, ["fc", "forward.h"], Both()),
    "attach": lambda model: byname.watch.attach(model, PLACES, lambda event: None),
    "attach by a selector": lambda model: byname.interject(model, byname.select.tanh, changed),
    "observe": lambda model: byname.observe(model, "act", byname.analyse.DeadUnits()),
    "replace": lambda model: byname.replace(model, nn.ReLU, lambda old: nn.GELU()),
}
CONTEXTS = {
    "track": byname.track,
    "track allocations": lambda: byname.track(allocations=True),
    "explaining": byname.explaining,
    "explaining all": lambda: checking(print, non_finite=print),
}
REGISTRIES = [
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_pre_hooks",
]


def of_process():
    """What byname puts its own in the place of, and what it adds to, in the whole process."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "call": nn.Module.__dict__["__call__"],
        "call_impl": nn.Module._call_impl,
        "Parameter": nn.Parameter.__dict__["__new__"],
        "apply": torch.autograd.Function.__dict__["apply"],
        "functions": (torch.from_numpy, torch.compile, torch.jit.trace, threading.Thread.start),
        "record_function": torch.autograd.profiler.record_function.__exit__,
        "engine": (torch.autograd.graph._engine_run_backward, torch.autograd._engine_run_backward),
        "steps": (len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)),
        "arrivals": len(module._global_module_registration_hooks),
        "copies": len(copyreg.dispatch_table),
        "compiler": getattr(sys.modules.get("torch._dynamo.eval_frame"), "_callback_from_stance", None),
        "finders": [type(one).__name__ for one in sys.meta_path],
        "collector": gc.isenabled(),
        "signals": signals_come(),
    }


def of_model(model, x):
    """Which values the model gives, which modules it has, every hook on it, and whether its code is as it is written."""
    registries = {name: sum(len(vars(one).get(name, ())) for one in model.modules()) for name in REGISTRIES}
    hooks = [(one._backward_hooks or {}, one._post_accumulate_grad_hooks or {}) for one in model.parameters()]
    parts = [id(one) for one in (*model.modules(), *model.parameters(), *model.buffers())]
    return model(x).tolist(), parts, registries, [[*map(len, pair)] for pair in hooks], Net.forward.__code__ is CODE


@pytest.fixture(autouse=True)
def everything_as_before():
    """The collector does not get between an interrupt and what is told of it, and nothing is left of any trial."""
    for make in CONTEXTS.values():
        with make():
            torch.ones(1, requires_grad=True).exp()
    gc.collect()
    gc.disable()
    before = of_process()
    yield before
    gc.enable()
    assert of_process() == {**before, "collector": True}


def used(model):
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()


def new_model():
    torch.manual_seed(0)
    return Net()


def append_made(made, make, *args):
    made.append(make(*args))


def left(context):
    context.__exit__(None, None, None)


ALL = "kind, throw, moments"
ATTACHED, REPLACED = ("attach", at_a_line), ("replace", at_a_line)


@pytest.mark.sees_nothing  # no forward runs
class TestHandles:
    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize(ALL, cases(HANDLES, REPLACED))
    def test_that_are_made_whole_or_not_at_all(self, kind, throw, moments, everything_as_before):
        model, x = new_model(), torch.ones(1, 2)
        before = of_model(model, x)
        for _ in range(2):  # the second time nothing is new
            seen = lines_of(functools.partial(append_made, made := [], HANDLES[kind], model))
            handle = made.pop()
            handle.remove()
        begins = seen.index(begin_of(type(handle).switched))  # nothing is put in place before
        for moment in [one for one in moments(seen) if one >= begins]:
            at = interrupted(functools.partial(append_made, made, HANDLES[kind], model), moment, throw)
            if at is None:  # what is known by now makes it a few lines shorter
                assert moment > 0.9 * len(seen)
                made.pop().remove()
            assert (of_model(model, x), of_process()) == (before, everything_as_before), at

    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize(ALL, cases(HANDLES, ATTACHED, REPLACED))
    def test_that_are_removed_as_a_whole(self, kind, throw, moments, everything_as_before):
        model, x = new_model(), torch.ones(1, 2)
        before = of_model(model, x)

        def begun():
            handle = HANDLES[kind](model)
            used(model)
            return handle

        for moment in moments(lines_of(begun().remove)):
            handle = begun()
            at = interrupted(handle.remove, moment, throw)
            handle.remove()
            assert (of_model(model, x), of_process()) == (before, everything_as_before), at

    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize(ALL, cases(HANDLES, ("attach", by_signal), REPLACED))
    def test_whose_block_is_left_as_a_whole(self, kind, throw, moments, everything_as_before):
        model, x = new_model(), torch.ones(1, 2)
        before = of_model(model, x)

        def begun():
            handle = HANDLES[kind](model).__enter__()
            used(model)
            return handle

        for moment in moments(lines_of(functools.partial(left, begun()))):
            handle = begun()
            at = interrupted(lambda: left(handle), moment, throw)
            if throw is at_a_line or not moment:  # before the first line of `__exit__` nothing holds a signal
                left(handle)
            assert (of_model(model, x), of_process()) == (before, everything_as_before), at

    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize("wanted", [False, True])
    @pytest.mark.parametrize(ALL, cases(HANDLES, REPLACED))
    def test_that_are_switched_off_and_on(self, kind, throw, moments, wanted, everything_as_before):
        model, x = new_model(), torch.ones(1, 2)
        before = of_model(model, x)
        handle = HANDLES[kind](model)
        used(model)
        handle.enabled = wanted
        state = of_model(model, x)

        def switched(enabled):
            handle.enabled = enabled

        switched(not wanted)
        for moment in moments(lines_of(lambda: switched(wanted))):
            switched(not wanted)
            at = interrupted(lambda: switched(wanted), moment, throw)
            switched(wanted)
            assert (of_model(model, x), handle.enabled) == (state, wanted), at
        handle.remove()
        assert (of_model(model, x), of_process()) == (before, everything_as_before)


class TestContexts:
    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize(ALL, cases(CONTEXTS, ("explaining all", at_a_line), ("track allocations", by_signal)))
    def test_that_are_entered_whole_or_not_at_all(self, kind, throw, moments, everything_as_before):
        context = CONTEXTS[kind]()
        seen = lines_of(context.__enter__)
        left(context)
        for moment in moments(seen):
            context = CONTEXTS[kind]()
            at = interrupted(context.__enter__, moment, throw)
            assert at is not None
            assert of_process() == everything_as_before, at
            left(context)  # there is nothing to leave, and nothing is raised
            with context:
                torch.ones(1, requires_grad=True).exp()
            assert of_process() == everything_as_before, at

    @pytest.mark.grid(fast=1)
    @pytest.mark.parametrize(ALL, cases(CONTEXTS, ("explaining all", by_signal), ("track allocations", at_a_line)))
    def test_that_are_left_as_a_whole(self, kind, throw, moments, everything_as_before):
        def begun():
            context = CONTEXTS[kind]().__enter__()
            torch.ones(1, requires_grad=True).exp()
            return context

        for moment in moments(lines_of(functools.partial(left, begun()))):
            context = begun()
            at = interrupted(lambda: left(context), moment, throw)
            if throw is at_a_line or moment < 2:  # nothing holds a signal before
                left(context)
            assert of_process() == everything_as_before, at
            left(context)


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("throw", [at_a_line, by_signal])
def test_the_search_for_the_model_of_a_program_begins_and_ends_as_a_whole(throw, everything_as_before):
    def searched(calls):
        calls.begin(Undo())
        calls.end()

    for moment in range(len(lines_of(lambda: searched(Calls(lambda *_: False))))):
        calls = Calls(lambda *_: False)
        at = interrupted(lambda: searched(calls), moment, throw)
        calls.end()
        assert of_process() == everything_as_before, at


def held(throw):
    """On their way from the windows to the file records are safe from signals only, which are all that comes there."""
    return ("recording/flush.py",) if throw is at_a_line else ()


WAYS = {"close": Recorder.close, "with": left}


@pytest.mark.parametrize(ALL, cases(WAYS, ("close", at_a_line)))
def test_a_recording_that_is_closed_has_every_record(kind, throw, moments, tmp_path, everything_as_before):
    end = WAYS[kind]

    def recorded(path, moment):
        model = new_model()
        recorder = byname.record(model, ["act", "fc.weight.grad"], to=path, mode="train")
        for _ in range(3):
            used(model)
        if moment is None:
            return lines_of(lambda: end(recorder), held(throw))
        at = interrupted(lambda: end(recorder), moment, throw, held(throw))
        if kind == "close" or throw is at_a_line or not moment:
            end(recorder)
        hooks = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())
        with byname.open(path) as recording:
            found = {place: len(recording[place]) for place in recording.paths}
            assert (found, recording.complete, hooks) == ({"act": 3, "fc.weight.grad": 3}, True, 0), at
        return []

    for moment in moments(recorded(tmp_path / "first.h5", None))[:: 1 if moments is of_each_line_once else 4]:
        recorded(tmp_path / f"{moment}.h5", moment)
    assert of_process() == everything_as_before


@pytest.mark.filterwarnings("ignore::byname.errors.RecordingWarning")  # where only a second close() comes to its end
@pytest.mark.parametrize("throw", [at_a_line, pytest.param(by_signal, marks=pytest.mark.slow)])
def test_a_recording_that_does_not_come_to_begin_leaves_nothing(throw, tmp_path, everything_as_before):
    model, x = new_model(), torch.ones(1, 2)
    before = of_model(model, x)

    def begun():
        return byname.record(model, "act", to=tmp_path / "run.h5", mode="train")

    for _ in range(2):
        seen = lines_of(functools.partial(append_made, made := [], begun))
        made.pop().close()
        (tmp_path / "run.h5").unlink()
    begins = seen.index(begin_of(Recorder.begin))
    for moment in [one for one in of_each_line(seen) if one >= begins][:: 1 if throw is by_signal else 6]:
        at = interrupted(begun, moment, throw)
        assert at is not None
        assert (of_model(model, x), of_process()) == (before, everything_as_before), at
        assert not [*tmp_path.iterdir()], at


@pytest.mark.slow
def test_growth_that_was_interrupted_as_it_was_left_can_be_left_again(monkeypatch):
    held = []
    grown = byname.growth().__enter__()
    held.append(torch.ones(1000))
    with monkeypatch.context() as patched:
        patched.setattr("byname.memory.growth._grown", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            left(grown)
    left(grown)
    held.append(torch.ones(1000))
    left(grown)
    assert [(row["name"], row["count"]) for row in grown.rows()] == [("held[*]", 1)]


def captured(model):
    return byname.capture(model, ["fc", "act", "fc.weight.grad"], stop=True)


BLOCKS = {
    "track": lambda model: byname.track(),
    "capture": captured,
    "track allocations": lambda model: byname.track(allocations=True),
    "explaining": lambda model: byname.explaining(),
    "attach": lambda model: byname.watch.attach(model, ["fc", "tanh"], lambda event: None),
    "interject": lambda model: byname.interject(model, "fc", changed),
    "observe": HANDLES["observe"],
    "skip": lambda model: byname.skip(model, "act"),
    "ablate": lambda model: byname.ablate(model, "act"),
    "record": lambda model: byname.record(model, "act"),
}


@pytest.mark.sees_nothing
@pytest.mark.filterwarnings("ignore::byname.errors.RecordingWarning")
@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_signal_at_any_moment_of_entering_and_leaving_leaves_nothing_in_force(kind, everything_as_before):
    model, x = new_model(), torch.ones(1, 2)
    before = of_model(model, x)

    def used_in(context):
        context.__enter__()
        try:
            model(x)
        except BaseException as stopped:  # a capture ends the forward where nothing more is wanted
            if "ended this forward early" not in str(stopped):
                raise

    for begins in (True, False):
        for moment in itertools.count():
            context = BLOCKS[kind](model)
            if begins:
                step = context.__enter__
            else:
                used_in(context)
                step = functools.partial(context.__exit__, None, None, None)
            calls = Moments(moment, by_signal)
            try:
                calls(step)
            except KeyboardInterrupt:
                pass
            else:
                assert calls.thrown is None, f"the interrupt at {calls.thrown} was lost"
            if calls.thrown is None:
                if begins:
                    left(context)
                break
            if kind == "capture" and not begins:
                context.forget()  # it waits for gradients until then
            assert (of_model(model, x), of_process()) == (before, everything_as_before), (begins, calls.thrown)
