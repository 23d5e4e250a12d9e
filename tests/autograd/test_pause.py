"""No backward runs in another thread while the heap is read."""

import threading
import time

import pytest
import torch
from processes import run_forked

import byname
from byname.autograd import pause
from byname.autograd.pause import backward_elsewhere, backward_paused
from byname.memory import living

CODE = torch.autograd.graph._engine_run_backward.__code__


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert torch.autograd.graph._engine_run_backward.__code__ is CODE


class Begun(torch.autograd.Function):
    """Says when its backward runs, and waits until it may go on."""

    @staticmethod
    def forward(ctx, x, begun, go_on):
        ctx.begun, ctx.go_on = begun, go_on
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.begun.set()
        assert ctx.go_on.wait(30)
        return grad, None, None


def in_backward(after=lambda: None):
    """A thread that is in the middle of a backward, and what lets it go on."""
    begun, go_on = threading.Event(), threading.Event()

    def work():
        x = torch.ones(3, requires_grad=True)
        Begun.apply(x.exp(), begun, go_on).sum().backward()
        after()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    return thread, go_on


def test_a_backward_that_runs_is_waited_for():
    order = []
    thread, go_on = in_backward(after=lambda: order.append("ended"))
    timer = threading.Timer(0.1, go_on.set)
    timer.start()
    with backward_paused():
        assert not backward_elsewhere()
        order.append("looked")
    thread.join()
    timer.join()
    assert sorted(order) == ["ended", "looked"]


def test_a_backward_begins_when_the_look_is_over():
    x = torch.ones(3, requires_grad=True)
    begins, ended = threading.Event(), threading.Event()

    def work():
        loss = x.exp().sum()
        begins.set()
        loss.backward()
        ended.set()

    thread = threading.Thread(target=work)
    with backward_paused(), backward_paused():
        thread.start()
        assert begins.wait(30)
        assert not ended.wait(0.2)
        assert not backward_elsewhere()
        assert x.grad is None
    thread.join()
    assert torch.equal(x.grad, x.detach().exp())


@pytest.mark.slow
def test_the_thread_that_looks_may_call_backward_and_backward_may_look():
    x = torch.ones(3, requires_grad=True)
    seen = []
    y = x.exp()
    y.register_hook(lambda grad: seen.append(len(byname.census())))
    with backward_paused():
        other = x.detach().clone().requires_grad_()
        other.exp().sum().backward()
    y.sum().backward()
    assert seen
    assert torch.equal(other.grad, x.grad)


@pytest.mark.slow
def test_a_backward_that_does_not_end_is_told_and_its_slots_are_not_read(monkeypatch):
    monkeypatch.setattr(pause, "PATIENCE", 0.05)
    thread, go_on = in_backward()
    try:
        begun = time.monotonic()
        census = byname.census()
        assert time.monotonic() - begun < 30
        assert any("another thread had not ended" in note for note in census.notes)
    finally:
        go_on.set()
        thread.join()
    assert not any("another thread" in note for note in byname.census().notes)


def test_a_look_that_is_forgotten_keeps_nobody_waiting():
    look = backward_paused()
    look.__enter__()
    del look
    x = torch.ones(3, requires_grad=True)
    thread = threading.Thread(target=lambda: x.exp().sum().backward())
    thread.start()
    thread.join(30)
    assert x.grad is not None


def test_a_fork_in_the_middle_of_a_look_calls_backward():
    program = """
        import os, threading, torch
        from byname.autograd.pause import backward_paused
        x = torch.ones(3, requires_grad=True)
        def look():
            with backward_paused():
                inside.set()
                over.wait(30)
        inside, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=look)
        thread.start()
        inside.wait(30)
        child = os.fork()
        if not child:
            x.exp().sum().backward()
            os._exit(0 if x.grad is not None else 1)
        print(os.waitpid(child, 0)[1])
        over.set()
        thread.join()
    """
    assert run_forked(program) == ["0"]


@pytest.mark.slow
def test_while_a_census_reads_slots_no_training_beside_is_in_a_backward(monkeypatch):
    stop, seen = threading.Event(), []

    def train():
        x = torch.ones(300_000, requires_grad=True)
        while not stop.is_set():
            y = x
            for _ in range(5):
                y = y.exp().log()
            y.sum().backward()

    def held_by_nodes(nodes):
        time.sleep(0.02)  # others go on meanwhile
        seen.append(backward_elsewhere())
        return read(nodes)

    read = living.held_by_nodes
    monkeypatch.setattr(living, "held_by_nodes", held_by_nodes)
    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        byname.census(names=False)
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen) >= 10
    assert not any(seen)


def hooked(inside, look, results):
    """A thread in whose backward a hook looks once every thread's hook runs."""

    def hook(grad):
        inside.wait(30)
        results.append(look())

    def work():
        y = torch.ones(3, requires_grad=True).exp()
        y.register_hook(hook)
        y.sum().backward()

    return threading.Thread(target=work)


def test_two_hooks_that_look_do_not_wait_for_each_others_backward(monkeypatch):
    monkeypatch.setattr(pause, "PATIENCE", 1e6)
    inside, notes = threading.Barrier(2), []
    threads = [hooked(inside, lambda: byname.census(names=False).notes, notes) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(notes) == 2
    assert not any("another thread" in note for one in notes for note in one)


def test_a_backward_that_waits_goes_before_the_next_look():
    order, waits, begins = [], threading.Event(), threading.Event()
    x = torch.ones(3, requires_grad=True)

    def train():
        loss = x.exp().sum()
        waits.set()
        loss.backward()
        order.append("backward")

    def look_next():
        begins.set()
        with backward_paused():
            order.append("look")

    threads = [threading.Thread(target=train), threading.Thread(target=look_next)]
    with backward_paused():
        for thread, begun in zip(threads, (waits, begins), strict=True):
            thread.start()
            assert begun.wait(30)
    for thread in threads:
        thread.join(30)
    assert order == ["backward", "look"]


def test_what_a_backward_in_another_thread_may_free_is_not_read_by_graph_and_saved(monkeypatch):
    monkeypatch.setattr(pause, "PATIENCE", 0.05)
    x = torch.ones(3, requires_grad=True)
    loss = x.exp().sum()
    assert len(byname.saved(loss)) == len(byname.graph(loss).saved) == 1
    thread, go_on = in_backward()
    try:
        for look in (byname.saved(loss), byname.graph(loss).saved):
            assert not len(look)
            assert "another thread had not ended" in str(look)
    finally:
        go_on.set()
        thread.join()
