"""Copies from a GPU: no step waits for them, and the program may do what it wants with its tensors meanwhile."""

import pytest
import torch
from torch import nn

from byname.errors import NotStorableError
from byname.recording.values.change import ChangeDetector, same_bits
from byname.recording.values.copy import Copies, plain_copy
from byname.recording.values.reduce import FIGURES, reduction

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def waiting_is_an_error():
    torch.ones(1, device="cuda").add_(1)  # the context is there
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def busy(milliseconds=20):
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_taking_a_copy_waits_for_nothing(waiting_is_an_error):
    value = torch.randn(256, 256, device="cuda")
    copies = Copies()
    made = [copies.take({"x": value, "t": value.t()}, "x") for _ in range(3)]
    for name in FIGURES:
        copies.take(reduction(name, "x")(value), "x")
    done = torch.cuda.Event()
    busy(200)
    copies.take(value, "x")
    done.record()
    assert not done.query()  # the GPU is still at work on what came before
    torch.cuda.set_sync_debug_mode("default")
    copies.settle()
    assert torch.equal(made[0]["t"], value.cpu().t()) and made[0]["t"].is_contiguous()


def test_settling_waits_for_the_copies_and_for_nothing_after_them():
    copies, value = Copies(), torch.ones(1000, device="cuda")
    made = copies.take(value, "x")
    done = torch.cuda.Event()
    busy(300)
    done.record()
    copies.settle()
    assert made.eq(1).all() and not done.query()


def test_a_copy_has_the_value_of_its_moment_also_when_the_tensor_is_overwritten_or_freed_at_once():
    copies, made = Copies(), []
    value = torch.zeros(1 << 20, device="cuda")
    for number in range(50):
        value.fill_(number)
        made.append(copies.take(value, "x"))
        fresh = torch.full((1 << 20,), -number, device="cuda")
        made.append(copies.take(fresh, "x"))
        del fresh  # the allocator gives this memory to the next one
        value.fill_(1e9)
    copies.settle()
    assert all(one.eq(number).all() for number, one in enumerate(made[::2]))
    assert all(one.eq(-number).all() for number, one in enumerate(made[1::2]))


def test_values_made_in_another_stream_are_copied_in_its_order():
    copies, stream = Copies(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy()
        value = torch.arange(1000, device="cuda") * 2
        made = copies.take(value, "x")
        value.zero_()
    copies.settle()
    assert torch.equal(made, torch.arange(1000) * 2)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool], ids=str
)
def test_copies_are_exact_plain_and_in_ordinary_memory(dtype):
    value = torch.randn(3, 50).to(dtype).cuda()
    copies = Copies()
    for one in (value, value.t(), value[:, ::2], value[:0], value[0, 0], nn.Parameter(value, requires_grad=False)):
        made = copies.take(one, "x")
        copies.settle()
        assert (
            type(made) is torch.Tensor
            and not made.is_pinned()
            and made.is_contiguous()
            and same_bits(plain_copy(one, path="x"), made)
        )
        assert same_bits(one.detach().cpu(), made)


SEGMENT = 2 << 20
"""What PyTorch's allocator may take once more for small blocks, depending on what ran before; a window is twice that."""


def test_memory_stays_flat_over_a_thousand_windows():
    copies, value = Copies(), torch.randn(1 << 18, device="cuda")
    used, reserved = [], []
    for window in range(1000):
        made = [copies.take(value, "x") for _ in range(4)]
        copies.settle()
        if window in (50, 999):
            host = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
            host = {name: number for name, number in host.items() if name.endswith("bytes.current")}
            if host.get("active_bytes.current", 0) > host.get("allocated_bytes.current", 0):
                del host["active_bytes.current"]  # PyTorch 2.11 never takes off what is used again
            used.append((torch.cuda.memory_allocated(), host))
            reserved.append(torch.cuda.memory_reserved())
    assert used[0] == used[1] and all(torch.equal(one, made[0]) for one in made)
    assert reserved[1] - reserved[0] <= SEGMENT


def test_while_a_graph_is_captured_a_copy_is_refused():
    copies, graph = Copies(), torch.cuda.CUDAGraph()
    value = torch.ones(4, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        result = value * 2
        with pytest.raises(NotStorableError, match="CUDA graph"):
            copies.take(result, "x")
    graph.replay()
    made = copies.take(result, "x")
    copies.settle()
    assert made.eq(2).all()


@pytest.mark.parametrize("name", FIGURES)
def test_reductions_on_the_gpu_equal_those_on_the_cpu(name):
    value = torch.randn(10_000, dtype=torch.float64)
    there, here = reduction(name, "x")(value.cuda()), reduction(name, "x")(value)
    for a, b in zip(there.values(), here.values(), strict=True) if name == "histogram" else [(there, here)]:
        assert a.is_cuda and torch.allclose(a.cpu(), b)


def test_a_change_that_only_the_content_tells_is_doubtful_and_told_by_the_copies():
    norm = nn.BatchNorm1d(2).cuda()
    last, copies = ChangeDetector(), Copies()
    first = copies.take(norm.running_mean, "x")
    last.stored(norm.running_mean, first)
    assert last.changed(norm.running_mean) and last.doubtful
    norm(torch.randn(8, 2, device="cuda") + 3)
    assert last.changed(norm.running_mean)
    second = copies.take(norm.running_mean, "x")
    copies.settle()
    assert not same_bits(second, first)
