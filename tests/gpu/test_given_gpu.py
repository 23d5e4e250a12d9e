"""Errors that only a GPU raises: tensors of two devices, kernels that refuse an index, and memory that is full."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import byname

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.positions = torch.arange(4.0)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden + self.positions


def explained(run):
    with pytest.raises(RuntimeError) as caught:
        run()
    return byname.explain(caught.value)


def test_a_plain_attribute_that_stays_on_the_cpu():
    model, x = Encoder().cuda(), torch.randn(2, 4, device="cuda")
    why = explained(lambda: model(x))
    assert why.message.startswith("`model.positions` is on cpu, and "), why
    assert "register_buffer('positions', ...)" in why.remedy, why


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Linear(4, 4), "batch"),
        (lambda: nn.LSTM(4, 4), "batch"),
        (lambda: nn.Sequential(nn.Linear(4, 4)), "batch"),
        (Encoder, "x"),
    ],
    ids=["linear", "lstm", "sequential", "encoder"],
)
def test_a_batch_that_stays_on_the_cpu(make, name):
    model, batch = make().cuda(), torch.randn(2, 4)
    why = explained(lambda: model(batch))
    assert f"`{name}` is on cpu" in why.message and "on cuda:0" in why.message, why
    assert f"{name}.to('cuda:0')" in why.remedy or "move it there with .to('cuda:0')" in why.remedy, why


def test_images_for_a_convolution_that_stay_on_the_cpu():
    model, images = nn.Conv2d(3, 4, 3).cuda(), torch.randn(2, 3, 8, 8)
    assert (
        "`images` is on cpu, and `model.weight` and `model.bias` are on cuda:0"
        in explained(lambda: model(images)).message
    )


def test_a_model_that_stays_on_the_cpu():
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4, device="cuda")
    why = explained(lambda: model(x))
    assert why.message.startswith("`model[0].weight` and `model[0].bias` are on cpu, and `x` is on cuda:0"), why
    assert "call .to('cuda:0') on the whole model" in why.remedy, why


LABELS = """
import torch
from torch import nn
model = nn.Linear(8, 10).cuda()
x, labels = torch.randn(64, 8, device="cuda"), torch.arange(64, device="cuda") % 10 + 1
scores = model(x)
loss = nn.functional.cross_entropy(scores, labels)
loss.backward()
print(loss.item())
"""
TOKENS = """
import torch
from torch import nn
embedding, head = nn.Embedding(100, 8).cuda(), nn.Linear(8, 2).cuda()
ids = torch.full((4, 16), 100, device="cuda")
print(head(embedding(ids)).sum().item())
"""


@pytest.mark.parametrize(("program", "named"), [(LABELS, "`labels`"), (TOKENS, "`ids`")], ids=["labels", "tokens"])
def test_a_kernel_that_refuses_an_index(program, named, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(program)
    for blocking in ("0", "1"):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
        command = [sys.executable, "-m", "byname", "run", "train.py"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert "byname: index-out-of-range: the GPU has stopped at train.py:" in ran.stderr, ran.stderr
        assert ("CUDA_LAUNCH_BLOCKING=1" in ran.stderr.partition("  remedy: ")[2]) == (blocking == "0"), ran.stderr
        assert blocking == "0" or f"an index in {named} is out of range for " in ran.stderr, ran.stderr


FULL = """
import torch
from torch import nn
torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)
model = nn.Linear(1024, 1024).cuda()
history = []
for step in range(1000):
    x = torch.randn(4096, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    history.append(loss)
"""


def test_memory_that_is_full_of_graphs(tmp_path):
    (tmp_path / "train.py").write_text(FULL)
    command = [sys.executable, "-m", "byname", "run", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "byname: out-of-memory: there was not enough memory left for the 16.0 MiB at train.py:" in ran.stderr
    assert "saved for the backward of `history[*]`" in ran.stderr and "byname.growth()" in ran.stderr
    assert "PassedFrame" not in ran.stderr
