"""A rewritten model is compiled with its interjections in it, each acts once, and it is wrapped and sent as any model."""

import copy
import io
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from forwards import GPT, Layer, ResNet, shaken
from processes import run_forked_file
from torch import nn

import byname
from byname import rewrite, select

dynamo = pytest.importorskip("torch._dynamo")

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:Dynamo:UserWarning")


@pytest.fixture(autouse=True)
def compiler_as_before():
    dynamo.reset()
    yield
    dynamo.reset()


class Doubling(byname.ForwardInterjection):
    """Doubles, and notes the places."""

    def __init__(self):
        self.seen = []

    def process(self, name, module, inputs):
        self.seen.append(name)
        return tuple(one * 2 for one in inputs) if isinstance(inputs, tuple) else inputs * 2


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        h.add_(1)
        F.relu_(h)
        h += torch.rand_like(x) * 0
        return h.split(2)[0].sigmoid()


class Breaks(nn.Module):
    """Graph breaks and decisions by data, inside and outside of the modules that own the operations."""

    def __init__(self):
        super().__init__()
        self.fc, self.inner = nn.Linear(4, 4), InnerBreaks()

    def forward(self, x):
        y = F.relu(self.fc(x))
        if y.sum() > 0:
            y = y.relu() + 1
        dynamo.graph_break()
        return self.inner(y).relu()


class InnerBreaks(nn.Module):
    def forward(self, x):
        y = x.relu()
        dynamo.graph_break()
        return y.relu() * F.relu(y)


class Properties(nn.Module):
    def forward(self, x):
        return (x.T @ x).relu()


MODELS = {
    "softmax": (GPT, (torch.randint(11, (2, 6)),), "layers.*.attn.softmax"),
    "wildcards": (GPT, (torch.randint(11, (2, 6)),), "layers.*.attn.{softmax,matmul}*"),
    "modules": (GPT, (torch.randint(11, (2, 6)),), ["layers.*.attn", "norm", "forward"]),
    "resnet": (ResNet, (torch.randn(2, 3, 8, 8),), ["layers.layer?.*.add_", "stem.2", "flatten"]),
    "in place": (InPlace, (torch.randn(4, 4),), ["add_", "relu_", "rand_like", "split", "fc.linear"]),
    "nested": (Layer, (torch.randn(2, 3, 8),), ["add", "attn.softmax", "mlp.0.linear", "mlp"]),
}
BROKEN = {
    "breaks": (Breaks, (torch.randn(2, 4),), ["relu*", "inner.relu*", "inner", "fc"]),
    "inner breaks": (Breaks, (torch.randn(2, 4),), "inner.relu_1"),
    "modules of breaks": (Breaks, (torch.randn(2, 4),), ["fc", "inner"]),
    "properties": (Properties, (torch.randn(2, 4),), ["T", "relu"]),
}


def compiled_twice(make, args, where, **options):
    """The outputs and the places that are told, of the rewritten model and of two calls of what the compiler makes."""
    model, doubling = shaken(make()).eval(), Doubling()
    new = rewrite(model, where, doubling, example=args)
    wanted = new(*args)
    told, found = list(doubling.seen), []
    compiled = torch.compile(new, **options)
    for _ in range(2):
        doubling.seen.clear()
        found.append(compiled(*args))
        assert doubling.seen == told
    return wanted, found


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_compiled_as_a_whole(name, backend, fullgraph):
    wanted, found = compiled_twice(*MODELS[name], backend=backend, fullgraph=fullgraph)
    for one in found:
        torch.testing.assert_close(one, wanted)


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", BROKEN)
def test_after_a_graph_break_each_interjection_acts_once(name, backend):
    wanted, found = compiled_twice(*BROKEN[name], backend=backend)
    for one in found:
        assert torch.equal(one, wanted)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="inductor needs a C compiler")
@pytest.mark.parametrize("name", [*MODELS, *BROKEN])
def test_inductor_compiles_it(name):
    model = {**MODELS, **BROKEN}[name]
    wanted, found = compiled_twice(*model, backend="inductor", fullgraph=name in MODELS)
    for one in found:
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("where", ["softmax", "relu", "block.1.relu", ["softmax", "relu", "block", "block.0.linear"]])
def test_parts_that_the_model_compiles_itself(where, backend):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.fast = torch.compile(lambda x: F.softmax(x, -1) * 2, backend=backend)
            self.block.compile(backend=backend)

        def forward(self, x):
            return self.fast(self.block(self.fc(x))).relu()

    new, x = rewrite(Model(), where, lambda name, module, value: value * 3), torch.randn(2, 4)
    found = [new(x), new(x)]
    with torch.compiler.set_stance("force_eager"):
        wanted = new(x)
    assert all(torch.allclose(one, wanted) for one in found)


@pytest.mark.slow
def test_gradients_of_what_is_compiled():
    model, x = shaken(Layer()).eval(), torch.randn(2, 3, 8)
    new = rewrite(model, ["attn.softmax", "mlp"], Doubling(), example=x)
    found = []
    for one in (new, torch.compile(new, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        one(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


class Reversing(byname.WrappedForwardBackwardInterjection):
    def process_backward(self, name, module, grad_input, grad_output):
        return tuple(None if one is None else -one for one in grad_input)


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("where", ["attn.softmax", "mlp"])
def test_gradients_of_a_call_in_what_is_compiled(where):
    model, x = shaken(Layer()).eval(), torch.randn(2, 3, 8)
    new = rewrite(model, where, Reversing(), example=x)
    found = []
    for one in (new, torch.compile(new, backend="eager")):
        model.zero_grad()
        one(x).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_selector_without_example_is_resolved_in_the_first_call_of_what_is_compiled():
    model, x, doubling = shaken(Layer()).eval(), torch.randn(2, 3, 8), Doubling()
    new = rewrite(model, select.softmax | select.op("gelu") | select.module(nn.GELU), doubling)
    compiled = torch.compile(new, backend="eager")
    found = [compiled(x), compiled(x)]
    assert all(torch.equal(one, new(x)) for one in found)
    assert doubling.seen == ["attn.softmax", "mlp.1"] * 4


def test_a_copy_that_is_loaded_by_another_process_keeps_its_interjections_when_it_gets_more_hooks(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for _ in range(20):  # so that the number of the hook is not the first one
        model[1].register_forward_hook(print).remove()
    new = rewrite(model, ["1", "0.linear"], Doubling())
    torch.save(new, tmp_path / "new.pt")
    printed = run_forked_file(tmp_path, LOADS.format(folders=sys.path, file=str(tmp_path / "new.pt")))
    assert printed == [str(new(torch.ones(1, 2)).tolist())]


LOADS = """
import sys
sys.path[:] = {folders!r}
import torch
new = torch.load({file!r}, weights_only=False)
for _ in range(40):
    new[1].register_forward_hook(lambda *_: None)
print(new(torch.ones(1, 2)).tolist())
"""


def test_distributed_data_parallel_trains_it(tmp_path):
    assert run_forked_file(tmp_path, TRAINS.format(folders=sys.path)) == ["same"]


# Its own process never destroys what it made: PyTorch 2.13 may hang there, a thread of gloo waiting for the GIL.
TRAINS = """
import sys
sys.path[:] = {folders!r}
import torch
import torch.distributed as dist
from forwards import GPT, shaken
from test_compiled import Doubling
from byname import rewrite

model, x = shaken(GPT()), torch.randint(11, (2, 6))
new = rewrite(model, ["layers.*.attn.softmax", "layers.*.mlp"], Doubling()).eval()
new(x).square().sum().backward()
wanted = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
wrapped = torch.nn.parallel.DistributedDataParallel(new)
out = wrapped(x)
out.square().sum().backward()
assert torch.equal(out, new(x))
found = [parameter.grad for parameter in model.parameters()]
assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
print("same")
"""


def test_a_compiled_model_is_copied_with_its_interjections():
    model, x = shaken(Layer()).eval(), torch.randn(2, 3, 8)
    new = rewrite(torch.compile(model, backend="eager"), ["attn.softmax"], Doubling())
    file = io.BytesIO()
    torch.save(copy.deepcopy(new), file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    assert torch.equal(other(x), new(x)) and not torch.equal(other(x), model(x))
