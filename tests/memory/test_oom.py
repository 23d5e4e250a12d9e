"""The report on memory that has run out."""

import subprocess
import sys

import pytest
import torch
from processes import run_forked
from torch import nn
from training import Trainer

import byname

FAR_TOO_MUCH = 10**15


def train():
    trainer = Trainer(nn.Linear(100, 50), retain_graph=True)
    for _ in range(12):
        trainer.step(torch.randn(40, 100))
    features = torch.empty(FAR_TOO_MUCH)
    return features


def test_the_note_lists_what_fills_the_memory_under_the_names_where_it_failed():
    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        with byname.explaining():
            train()
    (note,) = caught.value.__notes__
    assert "out-of-memory: there was not enough memory left for the 3638.0 TiB at test_oom.py:" in note
    assert "features = torch.empty(FAR_TOO_MUCH)" in note
    assert "saved for the backward of `trainer.history[*]['loss']` (24)" in note
    assert "state of `trainer.optimizer` (6)" in note
    assert "parameters of `trainer.model` (2)" in note
    assert "holding most, with their graphs: `trainer.history[*]['loss']`" in note
    assert "remedy: this one request is larger than all that is alive" in note and "byname.growth()" in note
    assert len(note.splitlines()) <= 24


def test_an_out_of_memory_error_of_an_accelerator_is_explained_too():
    def forward():
        activations = torch.ones(321, 123)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity ...")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        forward()
    why = byname.explain(caught.value)
    assert why.cause == "unknown", "an error that the program raises itself is its own"


def test_a_failing_allocation_in_backward_is_explained_where_it_leaves_the_engine():
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.empty(FAR_TOO_MUCH)

    weight = torch.ones(300, requires_grad=True)
    with byname.explaining():
        with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
            Greedy.apply(weight).sum().backward()
    (note,) = caught.value.__notes__
    assert "alive: " in note
    assert "`weight`" in note


def test_what_only_a_function_of_pytorch_holds_is_told_as_its_variable():
    weight = torch.ones(1, requires_grad=True)
    with byname.explaining():
        with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
            weight.expand(FAR_TOO_MUCH)[:1_000_000].backward(torch.ones(1_000_000))
    (note,) = caught.value.__notes__
    assert "3.8 MiB  without a name: `" in note and "` of the function " in note


@pytest.mark.slow
def test_the_explanation_holds_the_lines_and_no_tensor():
    with pytest.raises(RuntimeError) as caught:
        train()
    why = byname.explain(caught.value)
    assert why.cause == "out-of-memory"
    assert why.details[0].startswith("alive: ")
    assert all(type(line) is str for line in why.details)
    assert why.row()["details"] == list(why.details)


NO_ROOM = """
import resource, torch, byname

torch.set_num_threads(1)
weight = torch.ones(256, 256, requires_grad=True)
kept = []

def keep():
    kept.append((torch.ones(64, 256) @ weight).tanh())

with byname.explaining():
    keep()
    kept[0].sum().backward()
    with open("/proc/self/statm") as now:
        limit = int(now.read().split()[0]) * resource.getpagesize() + 60 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    fill = []
    try:
        while True:
            keep()
    except RuntimeError as error:
        try:
            while True:
                fill.append(bytearray(2**16))  # not even Python has memory left
        except MemoryError:
            pass
        raise
"""


@pytest.mark.slow
def test_running_out_is_explained_when_python_has_no_memory_left_either(tmp_path):
    (tmp_path / "train.py").write_text(NO_ROOM)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Cannot allocate memory" in done.stderr
    assert "byname: out-of-memory: there was not enough memory left for the" in done.stderr
    assert "saved for the backward of `kept[*]`" in done.stderr


RESERVED = """
import resource, torch, byname

def pages(column):
    with open("/proc/self/statm") as now:
        return int(now.read().split()[column]) * resource.getpagesize()

def held():
    return pages(0) - before > 100 * 2**20

def learn():
    torch.ones(2, requires_grad=True).sum().backward()

with byname.explaining():
    learn()
before, resident = pages(0), pages(1)
with byname.explaining():
    with byname.explaining():
        print(held())
    print(held(), pages(1) - resident < 8 * 2**20)
print(held())
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (before + 50 * 2**20, most))
with byname.explaining():
    print(held())
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    learn()
    print(held())
print(held())
"""


def test_address_space_is_reserved_as_long_as_a_context_is_open_and_again_once_there_is_room():
    """It takes no memory."""
    assert run_forked(RESERVED) == [*"True True True False False True False".split()]
