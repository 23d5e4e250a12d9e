"""Where was every storage allocated?"""

import copy
import gc
import io
import sys
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import byname
from byname.errors import BadArgumentError
from byname.tracking.allocations import AllocationLog, AllocationMode, living_allocations


def allocation_of(tensor):
    """What is known of a tensor's storage."""
    (found,) = [one for one in living_allocations() if one.storage is tensor.untyped_storage()]
    return found


def statement_of(tensor):
    site = allocation_of(tensor).line.site
    return None if site is None else site.statement


def statements():
    """How many living storages each statement has allocated."""
    found = {}
    for one in living_allocations():
        statement = None if one.line.site is None else one.line.site.statement
        found[statement] = found.get(statement, 0) + 1
    return found


def stacks():
    """Everything that a tracker with allocations installs."""
    dispatch = torch.utils._python_dispatch
    return (
        [torch._C._get_function_stack_at(level) for level in range(torch._C._len_torch_function_stack())],
        [torch._C._get_dispatch_stack_at(level) for level in range(torch._C._len_torch_dispatch_stack())],
        threading.Thread.start,
        nn.Module._call_impl,
        torch.from_numpy,
        dispatch._is_in_torch_dispatch_mode,
        dispatch._is_in_any_mode_without_ignore_compile_internals,
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 5)
        self.outer = nn.Linear(5, 2)

    def forward(self, x):
        hidden = F.relu(self.inner(x))
        return self.outer(hidden)


def test_every_storage_has_the_line_that_allocated_it():
    with byname.track(allocations=True) as tracker:
        weight = torch.randn(3, requires_grad=True)
        plain = torch.tensor([1.0, 2.0])
        old = torch.FloatTensor([3.0])
        product = weight * 2
        viewed = product[1:].detach()
        product.add_(1)
        several = torch.unbind(torch.stack([plain, plain]).exp())
        halves = torch._foreach_mul([plain, old], 0.5)
        sparse = torch.eye(3).to_sparse()
    assert statement_of(weight) == "weight = torch.randn(3, requires_grad=True)"
    assert statement_of(plain) == "plain = torch.tensor([1.0, 2.0])"
    assert statement_of(old) == "old = torch.FloatTensor([3.0])"
    assert statement_of(product) == statement_of(viewed) == "product = weight * 2"
    assert statement_of(several[0]) == "several = torch.unbind(torch.stack([plain, plain]).exp())"
    assert {statement_of(half) for half in halves} == {"halves = torch._foreach_mul([plain, old], 0.5)"}
    assert {statement_of(part) for part in (sparse._indices(), sparse._values())} == {
        "sparse = torch.eye(3).to_sparse()"
    }
    assert tracker


def test_modules_backward_and_the_optimizer_allocate_on_the_users_line():
    with byname.track(allocations=True) as tracker:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
    assert allocation_of(model.inner.weight).line.site.statement == "self.inner = nn.Linear(3, 5)"
    assert {statement_of(parameter.grad) for parameter in model.parameters()} == {"loss.backward()"}
    state = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert {statement_of(tensor) for tensor in state} == {"optimizer.step()"}
    assert statement_of(loss) == "loss = model(torch.ones(4, 3)).square().mean()"
    assert tracker


def test_what_was_there_before_has_no_line():
    model, array = Net(), torch.arange(3.0)
    with byname.track(allocations=True) as tracker:
        model.requires_grad_(True)
        assert model(array).shape == (2,)
        turned = model.inner.weight.t()
        array.add_(1)
        other = torch.empty(0).set_(array.untyped_storage())
    assert [allocation_of(tensor).line.code for tensor in (turned, array, other)] == [None, None, None]
    assert tracker


def test_copies_and_loaded_tensors_are_allocated_where_they_are_asked_for():
    file = io.BytesIO()
    torch.save({"state": torch.ones(3)}, file)
    file.seek(0)
    before = torch.ones(4)
    with byname.track(allocations=True) as tracker:
        loaded = torch.load(file)["state"]
        copied = copy.deepcopy(before)
        model = copy.deepcopy([nn.Linear(2, 2), before])
    assert statement_of(loaded) == 'loaded = torch.load(file)["state"]'
    assert statement_of(copied) == "copied = copy.deepcopy(before)"
    assert {statement_of(model[0].weight), statement_of(model[1])} == {
        "model = copy.deepcopy([nn.Linear(2, 2), before])"
    }
    assert tracker


def test_what_only_cpp_holds_is_found():
    x = torch.ones(6, 4, requires_grad=True)
    with byname.track(allocations=True) as tracker:
        loss = F.cross_entropy(x, torch.zeros(6, dtype=torch.long))
        base = x * 2
        base[0].exp_()
        nodes = [(x * 3).sin().sum().grad_fn]
    found = {one.line.site.statement for one in living_allocations() if one.line.site}
    assert "loss = F.cross_entropy(x, torch.zeros(6, dtype=torch.long))" in found
    sizes = {one.line.site.statement: one.storage.nbytes() for one in living_allocations() if one.line.site}
    assert sizes["nodes = [(x * 3).sin().sum().grad_fn]"] == 6 * 4 * 4
    assert statements()["base = x * 2"] == 1
    del loss, nodes
    gc.collect()
    assert "nodes = [(x * 3).sin().sum().grad_fn]" not in statements()
    assert tracker


def test_a_tensor_saved_inside_an_in_place_change_of_a_view_is_found():
    x = torch.ones(6, 4, requires_grad=True)
    with byname.track(allocations=True) as tracker:
        base = x * 2
        base[0].mul_(x[1].exp())
    assert base.grad_fn.name().endswith("CopySlices")
    assert statements()["base[0].mul_(x[1].exp())"] == 2  # the exp, and the copy of base[0] that mul_ saves
    assert tracker


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_the_bucket_of_distributed_training_is_found(tmp_path):
    model = nn.Linear(100, 7, bias=False)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with byname.track(allocations=True) as tracker:
            model = nn.parallel.DistributedDataParallel(model)
            model(torch.ones(2, 100)).sum().backward()
    finally:
        dist.destroy_process_group()
    buckets = [
        one
        for one in living_allocations()
        if one.line.site and one.line.site.statement.startswith("model = nn.parallel")
    ]
    assert max(one.storage.nbytes() for one in buckets) == 2800
    assert tracker


def test_a_tracker_can_be_entered_again_and_says_what_it_holds():
    tracker = byname.track(allocations=True)
    kept = []
    for _ in range(2):
        with tracker:
            kept.append(torch.ones(3))
    assert [statement_of(one) for one in kept] == ["kept.append(torch.ones(3))"] * 2
    assert repr(tracker).endswith("2 living storages>")


def test_threads_started_in_the_block_are_followed_and_share_what_is_known():
    box = {}

    def work(given):
        box["made"] = torch.ones(7)
        box["view"] = given[1:]

    with byname.track(allocations=True) as tracker:
        mine = torch.zeros(9)
        thread = threading.Thread(target=work, args=(mine,))
        thread.start()
        thread.join()
    assert statement_of(box["made"]) == 'box["made"] = torch.ones(7)'
    assert statement_of(box["view"]) == "mine = torch.zeros(9)"
    assert tracker


def test_a_thread_that_outlives_the_block_is_not_followed_any_more():
    go, box = threading.Event(), []

    def work():
        box.append(torch.ones(2))
        started.set()
        go.wait(10)
        box.append(torch.ones(3))

    started = threading.Event()
    with byname.track(allocations=True) as tracker:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait(10)
    go.set()
    thread.join()
    found = [one.storage for one in living_allocations()]
    assert [any(one is tensor.untyped_storage() for one in found) for tensor in box] == [True, False]
    del tracker
    assert living_allocations() == []


def test_the_dead_are_forgotten_and_nothing_is_kept_alive(no_collection):
    def dead():
        return sum(type(one) is weakref.ref and one() is None for one in gc.get_objects())

    before, in_their_place = dead(), []
    with byname.track(allocations=True, limit=50) as tracker:
        kept = [torch.ones(1) for _ in range(100)]
        for _ in range(20):
            freed = [torch.ones(1) for _ in range(100)]
            del freed
            in_their_place += [torch.UntypedStorage(0) for _ in range(200)]
        last = torch.ones(1000)
        watched = weakref.ref(last), weakref.ref(last.untyped_storage())
        del last
        assert [one() for one in watched] == [None, None]
        assert dead() - before <= 100 + 50 + 10
    assert len(living_allocations()) == len(kept)
    assert tracker


def test_what_is_known_goes_with_the_tracker():
    with byname.track(allocations=True) as tracker:
        kept = torch.ones(3)
    assert len(living_allocations()) == 1
    del tracker
    assert living_allocations() == []
    assert kept is not None


@pytest.mark.parametrize("make", [lambda p: torch.optim.AdamW(p), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_training_is_bitwise_the_same(make):
    def train():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Flatten(),
            nn.Linear(32, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2),
        )  # fmt: skip
        optimizer = make(model.parameters())
        attention = nn.MultiheadAttention(4, 2, batch_first=True)
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(5, 3, 4)
            x = x + attention(x, x, x)[0].detach()
            F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1, 0])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]

    plain = train()
    with byname.track(allocations=True):
        tracked = train()
    assert all(torch.equal(one, other) for one, other in zip(plain, tracked, strict=True))


def test_gradients_are_not_copied_and_versions_count_as_ever():
    weight = torch.ones(3, requires_grad=True)
    with byname.track(allocations=True) as tracker:
        (weight * 2).sum().backward()
        values = [torch.ones(2), torch.ones(3)]
        torch._foreach_add_(values, 1)
        torch._foreach_copy_(values, [torch.zeros(2), torch.zeros(3)])
    assert [value._version for value in values] == [2, 2]
    assert statements()["(weight * 2).sum().backward()"] == 1
    assert tracker


def test_a_change_by_foreach_still_spoils_a_backward():
    x = torch.ones(3, requires_grad=True)
    with byname.track(allocations=True):
        y = x.exp()
        with torch.no_grad():
            torch._foreach_add_([y], 1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_nothing_is_left_behind_by_errors_and_interrupts():
    before = stacks()
    with pytest.raises(RuntimeError, match="size"), byname.track(allocations=True):
        torch.ones(2) + torch.ones(3)
    with pytest.raises(KeyboardInterrupt), byname.track(allocations=True), byname.track(allocations=True):
        raise KeyboardInterrupt
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError), byname.track(allocations=True):
        y.sum().backward()
    assert stacks() == before


def test_trackers_that_are_left_in_another_order_than_entered():
    before = stacks()
    one, other = byname.track(allocations=True), byname.track(allocations=True)
    with Operators():
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        seen = torch.ones(3) @ torch.ones(3)
        other.__exit__(None, None, None)
    assert stacks() == before
    assert statement_of(seen) == "seen = torch.ones(3) @ torch.ones(3)"


def test_a_generator_closed_by_another_thread():
    before = stacks()
    box = []

    def steps():
        with byname.track(allocations=True):
            box.append(torch.ones(2))
            yield
            box.append(torch.ones(2))

    running = steps()

    def begin():
        next(running)
        box.append(stacks()[1])

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    running.close()
    assert stacks() == before
    assert [type(mode) for mode in box[1]] == [AllocationMode]


def test_a_mode_that_has_stopped_notes_nothing_and_changes_nothing():
    log = AllocationLog(10)
    mode = AllocationMode(log)
    mode.disable()
    with mode:
        values = [torch.ones(2)]
        torch._foreach_add_(values, 1)
    assert len(log) == 0
    assert values[0]._version == 1


def test_nested_trackers_of_both_kinds():
    with byname.track() as calls, byname.track(allocations=True) as outer:
        early = torch.ones(2, requires_grad=True)
        with byname.track(allocations=True) as inner, byname.track():
            late = early.detach() + 1
            loss = (early * late).sum()
    assert statement_of(early) == "early = torch.ones(2, requires_grad=True)"
    assert statement_of(late) == "late = early.detach() + 1"
    living = [repr(tracker).split(", ")[-1] for tracker in (outer, inner)]
    assert living[0] == living[1] and "living storages" in living[0]
    (node,) = [node for node in byname.graph(loss).nodes if node.name == "MulBackward0"]
    assert node.site.statement == "loss = (early * late).sum()"
    assert byname.leaves(loss)[0].site.target == "early"
    assert calls


class Logged(torch.Tensor):
    """Writes down the functions that are called on it."""

    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Seeing(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, tuple(types)))
        return func(*args, **(kwargs or {}))


def calls_seen(context):
    """What a program's own class and modes see of it."""
    Logged.seen.clear()
    x = torch.ones(3).as_subclass(Logged).requires_grad_()
    pair = TwoTensor(torch.ones(3), torch.zeros(3))
    with Seeing() as functions, context(), Operators() as operators:
        torch.autograd.backward((x * x).sum())
        assert type(pair * 2) is TwoTensor
        torch.FloatTensor([1.0])
    with Operators() as outside, context():
        torch.autograd.backward((x * x).sum())
        assert type(pair * 2) is TwoTensor
    return list(Logged.seen), functions.seen, operators.seen, outside.seen


def test_the_programs_own_classes_and_modes_see_what_they_always_see():
    plain = calls_seen(byname.track)
    assert calls_seen(lambda: byname.track(allocations=True)) == plain
    assert plain[0]
    assert plain[2]


def test_the_storages_inside_a_wrapper_are_found_and_the_wrapper_has_none():
    with byname.track(allocations=True) as tracker:
        one, other = torch.ones(3), torch.zeros(3)
        pair = TwoTensor(one, other)
        doubled = pair * 2
        summed = (doubled + pair).sum()
    assert statement_of(doubled.a) == statement_of(doubled.b) == "doubled = pair * 2"
    assert statements() == {
        "one, other = torch.ones(3), torch.zeros(3)": 2,
        "doubled = pair * 2": 2,
        "summed = (doubled + pair).sum()": 2,
    }
    assert type(summed) is TwoTensor
    assert tracker


def test_fake_and_meta_tensors_have_no_bytes():
    outside = FakeTensorMode()
    with outside:
        given = torch.ones(3)
    with byname.track(allocations=True) as tracker:
        with FakeTensorMode():
            fake = nn.Linear(3, 4)(torch.ones(2, 3))
        other = given * 2
        meta = torch.ones(3, device="meta") + 1
    assert (fake.shape, type(other), meta.shape) == ((2, 4), type(given), (3,))
    assert living_allocations() == []
    assert tracker


@pytest.mark.filterwarnings("ignore")  # PyTorch scripts its own derivatives, which is deprecated
def test_functional_transforms_inference_and_scripts():
    script = torch.jit.script(line)
    with byname.track(allocations=True) as tracker:
        mapped = torch.vmap(lambda x: x.sin().sum())(torch.ones(3, 2))
        slope = torch.func.grad(lambda x: x.sin().sum())(torch.ones(3))
        hessian = torch.func.hessian(lambda x: (x**3).sum())(torch.ones(2))
        value, tangent = torch.func.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),))
        with torch.inference_mode():
            guess = torch.ones(3) * 2
        ran = script(torch.ones(3))
        jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged) * 2
        recomputed = torch.utils.checkpoint.checkpoint(
            torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False
        )
        recomputed.sum().backward()
    assert torch.equal(hessian, torch.eye(2) * 6)
    assert statement_of(mapped).startswith("mapped =")
    assert statement_of(slope).startswith("slope =")
    assert {statement_of(value), statement_of(tangent)} == {
        "value, tangent = torch.func.jvp(torch.sin, (torch.ones(3),), (torch.ones(3),))"
    }
    assert statement_of(guess) == "guess = torch.ones(3) * 2"
    assert statement_of(ran) == "ran = script(torch.ones(3))"
    assert statement_of(jagged.values()).startswith("jagged =")
    assert tracker


def line(x):
    return x * 2 + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_control_flow_operators_and_tracing_work():
    def branch(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    expected = branch(torch.ones(3))
    layer = nn.Linear(3, 3)
    x = torch.ones(2, 3)
    with byname.track(allocations=True):
        assert torch.equal(branch(torch.ones(3)), expected)
        exported = torch.export.export(layer, (x,)).module()
        traced = torch.jit.trace(layer, x)
        made = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.sin() + 1)(x)
    assert torch.equal(exported(x), layer(x))
    assert torch.equal(traced(x), layer(x))
    assert [node.name for node in made.graph.nodes][1:3] == ["sin", "add"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_what_is_met_under_the_mode_is_compiled_once_and_runs_compiled_afterwards():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    model = Net()
    run = torch.compile(lambda x: model(x).sum(), backend=counter)
    x = torch.ones(2, 3)
    with byname.track(allocations=True) as tracker:
        run(x).backward()
        assert counter.frame_count == 1
        run(x).backward()
        after = torch.ones(3)
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    run(x).backward()
    assert counter.frame_count == 1
    assert all(torch.allclose(old * 1.5, new.grad) for old, new in zip(grads, model.parameters(), strict=True))
    assert statement_of(after) == "after = torch.ones(3)"
    assert tracker


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_function_that_ran_eagerly_beside_a_thread_is_compiled_afterwards():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    run = torch.compile(lambda x: x.sin() * 2, backend=counter)
    x = torch.ones(3)
    entered, done = threading.Event(), threading.Event()

    def work():
        entered.set()
        done.wait(10)

    with byname.track(allocations=True) as tracker:
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(10)
        result = run(x)
        done.set()
        thread.join()
    assert counter.frame_count == 0
    assert statement_of(result).startswith("run = ")
    run(x)
    run(x)
    assert counter.frame_count == 1
    assert tracker


def test_a_user_frame_is_found_though_the_work_is_done_by_nobodys():
    with byname.track(allocations=True) as tracker:
        made = eval("torch.ones(3)", {"torch": torch})
    site = allocation_of(made).line.site
    assert (site.file, site.statement) == ("<string>", "")
    assert tracker


def test_bad_arguments_are_refused():
    for wrong in (1, None, "yes"):
        with pytest.raises(BadArgumentError, match="allocations"):
            byname.track(allocations=wrong)


def test_the_cheap_mode_installs_no_dispatch_mode():
    with byname.track():
        assert torch._C._len_torch_dispatch_stack() == 0
        assert threading.Thread.start is stacks()[2]
    assert living_allocations() == []
    assert sys.modules["byname.tracking.allocations"]


def test_an_allocation_in_a_helper_is_noted_with_what_called_it():
    def made():
        return torch.ones(7)

    with byname.track(allocations=True) as tracker:
        tensor = made()
    (found,) = [one for one in living_allocations() if one.storage is tensor.untyped_storage()]
    assert found.line.site.caller.statement == "tensor = made()"
    assert tracker
