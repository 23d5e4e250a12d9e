"""Hooks of the gradients of values: each is told as a backward has it, can be changed, and the hook leaves nothing."""

import copy
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from custom import Scaled
from processes import run_forked
from torch import nn

from byname.watch.value_gradients import leaf_hook, on_gradient


def on_accumulated(parameter, receive):
    hook = leaf_hook(parameter)
    hook.accumulate(parameter, receive)
    return hook


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_the_whole_gradient_of_a_value_used_several_times():
    x = leaf(3)
    y, told = x * 2, []
    assert on_gradient(y, told.append)
    (y * 3 + y.sin()).sum().backward()
    assert len(told) == 1
    torch.testing.assert_close(told[0], 3 + (2 * x.detach()).cos())


def test_what_is_returned_takes_its_place():
    x = leaf(3)
    y = x * 2
    on_gradient(y, lambda gradient: gradient * 10)
    y.sum().backward()
    assert x.grad.tolist() == [20.0] * 3


def test_a_value_that_requires_no_gradient_says_so():
    assert not on_gradient(torch.ones(2), print)
    with torch.no_grad():
        assert not on_gradient(leaf(2) * 2, print)


def test_removed_hooks_hear_nothing():
    x, told = leaf(3), []
    y = x * 2
    hook = on_gradient(y, told.append)
    hook.remove()
    hook.remove()
    y.sum().backward()
    assert told == []


def test_a_leaf_is_as_before_after_removal():
    x = leaf(3)
    hook = on_gradient(x, lambda gradient: gradient * 2)
    assert hook.lasting
    x.sum().backward()
    hook.remove()
    assert x.grad.tolist() == [2.0] * 3 and x._backward_hooks is None


def test_hooks_of_others_on_a_leaf_stay():
    x, told = leaf(3), []
    other = x.register_hook(lambda gradient: told.append(gradient))
    on_gradient(x, lambda gradient: None).remove()
    x.sum().backward()
    assert len(told) == 1 and len(x._backward_hooks) == 1
    other.remove()


def test_removal_inside_a_backward():
    x = leaf(3)
    parameter = nn.Parameter(torch.ones(3))
    hooks = []
    hooks.append(on_gradient(x, lambda gradient: hooks[0].remove()))
    hooks.append(on_accumulated(parameter, lambda gradient: hooks[1].remove()))
    for _ in range(2):
        (x * parameter).sum().backward()
    hooks[1].remove()
    assert parameter._post_accumulate_grad_hooks is None and x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("in_place", [F.relu_, lambda y: y.add_(1), lambda y: y.mul_(2), lambda y: y.t().mul_(2).t()])
def test_a_value_changed_in_place_afterwards(in_place):
    x, told = leaf(4, 4), []
    y = x * 2
    on_gradient(y, told.append)
    z = in_place(y)
    z.sum().backward()
    assert len(told) == 1
    torch.testing.assert_close(told[0] * 2, x.grad)


def views():
    linear = nn.Linear(4, 4)
    return {
        "linear of three dimensions": (lambda x: F.linear(x, linear.weight, linear.bias)),
        "reshaped": lambda x: F.linear(x, linear.weight).reshape(6, 4).view(3, 2, 4),
        "heads": lambda x: F.linear(x, linear.weight, linear.bias).view(2, 3, 2, 2).transpose(1, 2),
        "permuted": lambda x: (x * 3).permute(2, 0, 1),
        "a part": lambda x: x * 3,
    }


@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize("factor", [1, 5])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_view_that_nothing_else_can_reach_changed_in_place_afterwards(name, factor, in_place):
    """PyTorch's own hook on the view is not called here: the gradient goes past it."""
    make = views()[name]
    data = torch.randn(2, 3, 4)

    def run(watching):
        x, told = data.clone().requires_grad_(), []
        y = make(x * 1)
        if watching:
            on_gradient(y, lambda gradient: told.append(gradient.clone()) or gradient * factor)
            y = F.relu_(y) if in_place else F.relu(y)
        else:
            y = F.relu(Scaled.apply(y, factor))
        (y * weights(y)).sum().backward()
        return x.grad, told, y

    found, told, y = run(True)
    wanted, _, _ = run(False)
    assert len(told) == 1 and told[0].shape == y.shape
    torch.testing.assert_close(told[0], weights(y) * (y.detach() > 0))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mode", ["Keeping()", "torch.inference_mode()"])
def test_a_mode_around_the_first_call_of_a_process_changes_nothing_later(mode):
    words = run_forked(
        f"""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from byname.watch.value_gradients import on_gradient

        class Keeping(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                kept.append(function(*args, **kwargs or {{}}))
                return kept[-1]

        kept, reported = [], []
        linear, x = torch.nn.Linear(4, 4), torch.ones(2, 3, 4)
        y = linear(x)
        with {mode}:
            on_gradient(y, lambda gradient: reported.append("first"))
        y = linear(x)
        on_gradient(y, lambda gradient: reported.append("second"))
        torch.relu_(y).sum().backward()
        print(*reported)
        """
    )
    assert words == ["second"]


def weights(y):
    return torch.arange(float(y.numel())).view(y.shape)


def test_a_view_whose_base_is_used_elsewhere_has_its_own_gradient():
    x, told = leaf(2, 3), []
    base = x * 1
    y = base.view(6)
    on_gradient(y, told.append)
    (y.sum() + base.sum() * 5).backward()
    assert told[0].tolist() == [1.0] * 6


def test_a_view_whose_base_was_used_before_has_its_own_gradient():
    x, told = leaf(2, 3), []
    base = x * 1
    other = base * 5
    y = base.view(6)
    del base
    on_gradient(y, told.append)
    (y.sum() + other.sum()).backward()
    assert told[0].tolist() == [1.0] * 6


def test_a_view_whose_base_was_used_in_between_has_its_own_gradient():
    x, told = leaf(2, 3), []
    base = x * 1
    y = base.view(6)
    other = base * 5
    del base
    on_gradient(y, told.append)
    (y.sum() + other.sum()).backward()
    assert told[0].tolist() == [1.0] * 6


@pytest.mark.parametrize("changed", [True, False])
def test_a_gradient_out_of_reach_is_noticed(changed):
    x, told, missed = leaf(2, 3), [], []
    base = x * 1
    y = base.view(6)
    on_gradient(y, told.append, lambda: missed.append(True))
    (F.relu_(y) if changed else F.relu(y)).sum().backward()
    assert (len(told), len(missed)) == ((0, 1) if changed else (1, 0))


def test_noticing_it_keeps_no_memory(no_collection):
    base = leaf(2, 3) * 1
    y = base.view(6)
    on_gradient(y, lambda gradient: None, lambda: None)
    kept = [weakref.ref(one) for one in (base, y, base.untyped_storage())]
    node = y.grad_fn
    del base, y
    assert all(reference() is None for reference in kept) and node is not None


def test_several_hooks_run_in_order():
    x, order = leaf(2, 3, 4), []
    y = nn.Linear(4, 4)(x)
    on_gradient(y, lambda gradient: order.append(gradient[0, 0, 0].item()) or gradient + 1)
    on_gradient(y, lambda gradient: order.append(gradient[0, 0, 0].item()) or gradient + 1)
    F.relu_(y.add_(100)).sum().backward()
    assert order == [1.0, 2.0]


def test_two_backwards_and_gradients_of_gradients():
    x, told = leaf(3), []
    y = x * 2
    on_gradient(y, lambda gradient: told.append(1) or gradient * 3)
    loss = y.pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    (first,) = torch.autograd.grad(loss, [x], create_graph=True)
    torch.testing.assert_close(first, 3 * 8 * x.detach())
    assert len(told) == 3


def test_the_value_is_not_kept_alive(no_collection):
    for make in views().values():
        y = make(leaf(2, 3, 4) * 1)
        hook = on_gradient(y, lambda gradient: None)
        kept, base = weakref.ref(y), y._base is not None and weakref.ref(y._base)
        del y
        assert kept() is None and (not base or base() is None)


def test_an_accumulated_gradient_is_told_and_replaced():
    parameter, told = nn.Parameter(torch.ones(3)), []
    hook = on_accumulated(parameter, lambda gradient: told.append(gradient.clone()) or gradient.clamp(max=4))
    (parameter * 3).sum().backward()
    (parameter * 3).sum().backward()
    assert [one.tolist() for one in told] == [[3.0] * 3, [6.0] * 3] and parameter.grad.tolist() == [4.0] * 3
    hook.remove()
    assert parameter._post_accumulate_grad_hooks is None
    (parameter * 3).sum().backward()
    assert parameter.grad.tolist() == [7.0] * 3 and len(told) == 2


def test_accumulated_hooks_go_in_any_order_and_leave_those_of_others():
    parameter = nn.Parameter(torch.ones(3))
    first, second = (on_accumulated(parameter, lambda gradient: gradient * 2) for _ in range(2))
    first.remove()
    parameter.sum().backward()
    assert parameter.grad.tolist() == [2.0] * 3
    second.remove()
    assert parameter._post_accumulate_grad_hooks is None
    other = parameter.register_post_accumulate_grad_hook(lambda one: None)
    on_accumulated(parameter, lambda gradient: None).remove()
    assert len(parameter._post_accumulate_grad_hooks) == 1
    other.remove()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("hook", [on_accumulated, on_gradient])
def test_a_copy_of_a_parameter_carries_nothing(copied, hook):
    parameter = nn.Parameter(torch.ones(3))
    hook(parameter, lambda gradient: gradient * 2)
    twin = copied(parameter)
    twin.sum().backward()
    assert twin.grad.tolist() == [1.0] * 3
    assert not twin._post_accumulate_grad_hooks and not twin._backward_hooks


def test_an_error_of_the_receiver_comes_out_and_training_goes_on():
    parameter, fail = nn.Parameter(torch.ones(3)), [True]

    def receive(gradient):
        if fail:
            raise KeyError("mine")

    hooks = [on_accumulated(parameter, receive), on_gradient(parameter, receive)]
    with pytest.raises(KeyError, match="mine"):
        parameter.sum().backward()
    fail.clear()
    parameter.sum().backward()
    assert parameter.grad is not None
    for hook in hooks:
        hook.remove()


def test_parameters_of_fully_sharded_models():
    words = run_forked(
        """
        import os, torch, warnings
        warnings.simplefilter("ignore")
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        from byname.watch.value_gradients import leaf_hook
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        told = []
        hook = leaf_hook(model[0].weight)
        hook.accumulate(model[0].weight, lambda gradient: told.append(type(gradient).__name__) or gradient * 0)
        model(torch.ones(3, 4)).sum().backward()
        print(*told, float(model[0].weight.grad.full_tensor().abs().sum()))
        hook.remove()
        print(model[0].weight._post_accumulate_grad_hooks)
        dist.destroy_process_group()
        """
    )
    assert words == ["DTensor", "0.0", "None"]
