"""What if the program does what nobody expects? Interrupts, removals in the middle, other threads, replaced parts."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as function_modes

import byname
from byname import attach


class Calls(nn.Module):
    """Calls two functions, and something of the test's between them."""

    def __init__(self, between: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x) * self.weight
        self.between()
        return torch.relu(y)


def told(events: list[Any]) -> Callable[[Any], None]:
    return lambda event: events.append((event.path, event.iteration, event.call))


def interrupt() -> None:
    raise KeyboardInterrupt


class Gradients(byname.WrappedForwardBackwardInterjection):
    def __init__(self) -> None:
        self.seen: list[list[bool]] = []

    def process_backward(self, name: str, module: Any, grad_input: Any, grad_output: Any) -> None:
        self.seen.append([one is not None for one in grad_input])


def test_an_edit_of_a_function_that_returned_its_input_leaves_the_input() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + F.dropout(x, 0.5, self.training) + x.contiguous() * 0

    model, x = Same().eval(), torch.ones(3)
    with attach(model, ["dropout", "contiguous"], lambda event: event.value * 10):
        y = model(x)
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(y, torch.full((3,), 11.0))


def test_an_edit_of_what_is_written_to_out_or_in_place_by_keyword_takes_effect() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            first, second = torch.zeros(3), x.clone()
            torch.add(x, x, out=first)
            F.relu(input=second, inplace=True)
            return torch.stack([first, second])

    model = Writes()
    with attach(model, ["add", "relu"], lambda event: event.value * 10):
        y = model(torch.ones(3))
    assert y.tolist() == [[20.0] * 3, [10.0] * 3]


def test_the_gradients_of_two_forwards_before_one_backward_are_all_told() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
    seen: list[Any] = []
    gradients = Gradients()
    with attach(model, "0.forward.input.grad", told(seen)), byname.interject(model, "0", gradients):
        inputs = [torch.ones(1, 2, requires_grad=True) for _ in range(2)]
        sum(model(x).sum() for x in inputs).backward()
    assert sorted(seen) == [("0.forward.input.grad", 0, 0), ("0.forward.input.grad", 1, 0)]
    assert gradients.seen == [[True], [True]]
    assert all(not x._backward_hooks for x in inputs)


@pytest.mark.filterwarnings("ignore:byname. nothing was seen")  # no backward runs
def test_a_leaf_that_goes_in_again_and_again_has_one_hook() -> None:
    model = nn.Sequential(nn.Identity())
    x = torch.ones(1, 2, requires_grad=True)
    gradients = Gradients()
    with attach(model, "0.grad", lambda event: None), byname.interject(model, "0", gradients):
        for _ in range(5):
            model(x)
        assert len(x._backward_hooks or ()) == 2


def test_after_an_interrupt_calls_outside_of_the_model_are_not_taken_for_its_own() -> None:
    model = Calls()
    seen: list[Any] = []
    with attach(model, "relu*", told(seen)):
        model(torch.ones(3))
        model.between = interrupt
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(3))
        seen.clear()
        torch.relu(torch.ones(3))
        assert seen == []
        model.between = lambda: None
        model(torch.ones(3))
        assert seen == [("relu", 2, 0), ("relu_1", 2, 0)]
        assert function_modes() == []


def test_a_handle_that_is_removed_by_its_own_callback_leaves_no_mode() -> None:
    model = Calls()
    seen: list[Any] = []
    handle = attach(model, "relu*", lambda event: (seen.append(event.path), handle.remove())[1])
    with attach(model, "relu*", told(seen)):
        model(torch.ones(3))
    assert seen == ["relu", ("relu", 0, 0), ("relu_1", 0, 0)]
    assert function_modes() == []
    assert not model._forward_hooks
    assert not model._forward_hooks_always_called


def test_a_handle_that_another_thread_removes_leaves_no_mode() -> None:
    reached, removed = threading.Event(), threading.Event()
    model = Calls(lambda: (reached.set(), removed.wait(10)))
    seen: list[Any] = []
    left: list[Any] = []

    def run() -> None:
        model(torch.ones(3))
        left.append(function_modes())

    handle = attach(model, "relu*", told(seen))
    thread = threading.Thread(target=run)
    thread.start()
    reached.wait(10)
    handle.remove()
    removed.set()
    thread.join()
    assert seen == [("relu", 0, 0)]
    assert left == [[]]
    assert not model._forward_hooks


@pytest.mark.parametrize("where", ["forward", "relu", "**", "weight", "forward.x", byname.select.relu, "forward.grad"])
def test_what_is_attached_while_the_model_runs_begins_with_the_next_forward(where: Any) -> None:
    seen: list[Any] = []
    handles: list[Any] = []
    model = Calls(lambda: handles or handles.append(byname.interject(model, where, lambda *_: seen.append(1))))
    with attach(model, "forward", lambda event: None):
        model(torch.ones(3)).sum().backward()
        seen.clear()
        model(torch.ones(3)).sum().backward()
    assert seen
    assert not handles[0].notes
    handles[0].remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_threads_that_have_ended_are_not_remembered() -> None:
    model = Calls()
    with attach(model, "relu", lambda event: None):
        for _ in range(5):
            thread = threading.Thread(target=model, args=(torch.ones(3),))
            thread.start()
            thread.join()
        gc.collect()
        modes = [one for one in gc.get_objects() if isinstance(one, TorchFunctionMode)]
    assert modes == []


def test_a_state_saved_after_an_interrupt_is_the_models_own() -> None:
    model = Calls(interrupt)
    weight = model.weight
    with attach(model, "weight", lambda event: event.value * 0):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(3))
        assert model.state_dict()["weight"].tolist() == [1.0] * 3
        assert model.weight is weight
    assert not model._state_dict_pre_hooks


def test_what_cannot_be_taken_off_keeps_nothing_else_from_it() -> None:
    class Stuck:
        def install(self) -> None: ...

        def remove(self) -> None:
            raise failing.pop()

    model = Calls()
    failing: list[BaseException] = []
    handle = attach(model, ["**", "relu"], lambda event: None)
    handle.add(Stuck())
    failing.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        handle.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    failing.append(ValueError("stuck"))
    with pytest.raises(ValueError, match="stuck"):
        handle.remove()


def test_many_places_of_one_class_take_time_in_proportion() -> None:
    model = nn.Sequential(*[nn.Identity() for _ in range(2000)])
    seen: list[Any] = []
    with attach(model, ["**", "**.forward.input"], told(seen)) as handle:
        model(torch.ones(1))
        assert not handle.notes
    assert len(seen) == 3 * 2000 + 2  # the outermost module assigns its `input` anew after each of the others


@pytest.mark.filterwarnings("ignore:byname. nothing was seen")  # no backward runs
def test_threads_may_attach_and_remove_while_others_run() -> None:
    model, x = Calls(), torch.ones(3)
    places = ["**", "relu*", "forward.*", "weight.grad", "forward.grad"]
    expected, failures = model(x), list[object]()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if not torch.equal(model(x), expected):
                failures.append("another result")

    def change() -> None:
        for _ in range(40):
            handle = attach(model, places, lambda event: None)
            handle.enabled = False
            handle.enabled = True
            handle.remove()

    def caught(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=caught, args=(one,)) for one in (run, run, change, change)]
    for thread in threads:
        thread.start()
    for thread in threads[2:]:
        thread.join()
    stop.set()
    for thread in threads[:2]:
        thread.join()
    assert failures == []
    assert not model.weight._post_accumulate_grad_hooks
    assert Calls.forward.__code__.co_varnames == ("self", "x", "y")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["**", "**.weight", "**.linear", "*.0.linear", "0.b*", byname.select.linear], ids=str)
def test_paths_are_read_while_another_thread_adds_and_removes_modules_and_buffers(where):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(30)])
    model[0].register_buffer("b", torch.zeros(1))
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for k in range(7):
                model.add_module(f"x{k}", nn.Sequential(nn.Linear(4, 4)))
                model[0].register_buffer(f"b{k}", torch.zeros(1))
                model._modules.pop(f"x{(k + 3) % 7}", None)
                model[0]._buffers.pop(f"b{(k + 3) % 7}", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            byname.attach(model, where, lambda event: None).remove()
    finally:
        done.set()
        thread.join()
    left = [
        hook for one in model.modules() for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values())
    ]
    assert not left
