"""Watcher: which calls of modules are shown before they begin, and what is left when the search is over."""

import os
import threading
import warnings

import pytest
import torch
from torch import nn

from byname.cli.watcher import Calls, Undo

CALL = nn.Module.__dict__["__call__"]


@pytest.fixture
def seen():
    """What is shown, as pairs of class name and whether it is an outermost call."""
    found = []

    def look(module, outermost):
        found.append((type(module).__name__, outermost))
        return False

    calls = Calls(look)
    calls.begin(Undo())
    yield found
    calls.end()
    assert nn.Module.__dict__["__call__"] is CALL


def small():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def test_every_call_is_shown_and_whether_it_is_an_outermost_one(seen):
    small()(torch.ones(1, 2))
    nn.MSELoss()(torch.ones(1), torch.ones(1))
    assert seen == [("Sequential", True), ("Linear", False), ("ReLU", False), ("MSELoss", True)]


def test_a_call_that_fails_leaves_the_next_one_an_outermost_one(seen):
    model = small()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 3))
    assert seen == [("Sequential", True), ("Linear", False)] * 2


def test_what_is_hooked_when_a_call_is_shown_runs_in_that_call():
    model, log = small(), []

    def look(module, outermost):
        module.register_forward_pre_hook(lambda *_: log.append("before"))
        module.register_forward_hook(lambda *_: log.append("after"))
        return True

    calls = Calls(look)
    calls.begin(Undo())
    model(torch.ones(1, 2))
    assert log == ["before", "after"]
    assert nn.Module.__dict__["__call__"] is CALL
    calls.end()


@pytest.mark.slow
def test_a_compiled_module_is_shown_without_a_warning_and_runs_eagerly(seen):
    compiled = torch.compile(small(), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(1, 2))
    assert seen[:2] == [("OptimizedModule", True), ("Sequential", False)]


def test_in_a_compiled_function_the_modules_are_seen(seen):
    model = small()
    torch.compile(lambda x: model(x) + 1, backend="eager")(torch.ones(1, 2))
    assert seen[0] == ("Sequential", True)


def test_what_a_tracer_calls_is_no_call_of_the_program(seen):
    model, x = small(), torch.ones(1, 2)
    torch.fx.symbolic_trace(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.trace(model, x, check_trace=False)
    torch.export.export(model, (x,))
    assert seen == []


def test_in_another_thread_a_call_is_an_outermost_one_of_its_own(seen):
    class Threaded(nn.Module):
        def forward(self, x):
            thread = threading.Thread(target=nn.ReLU(), args=(x,))
            thread.start()
            thread.join()

    Threaded()(torch.ones(1))
    assert seen == [("Threaded", True), ("ReLU", True)]


def test_in_a_forked_process_nothing_is_shown(seen):
    model = small()
    child = os.fork()
    if not child:
        model(torch.ones(1, 2))
        os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_program_that_puts_its_own_call_in_place_keeps_it():
    calls = Calls(lambda *_: True)
    calls.begin(Undo())
    ours = nn.Module.__dict__["__call__"]
    log = []

    def theirs(module, *args):
        log.append(type(module).__name__)
        return ours(module, *args)

    nn.Module.__call__ = theirs
    try:
        small()(torch.ones(1, 2))
        calls.end()
        assert nn.Module.__dict__["__call__"] is theirs
        nn.ReLU()(torch.ones(1))
    finally:
        nn.Module.__call__ = CALL
    assert log == ["Sequential", "Linear", "ReLU", "ReLU"]
