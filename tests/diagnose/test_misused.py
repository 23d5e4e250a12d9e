"""Tools of PyTorch that were misused: the program fails without byname, and runs to its end once the remedy is pasted."""

import contextlib
import gc
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

import byname

BEGIN = """
import copy
from torch.utils.checkpoint import checkpoint
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
x = torch.ones(4, 3)
"""
FEW = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor
Scale.apply(model(x), 0.5).sum().backward()
"""
MANY = FEW.replace("return gradient * ctx.factor", "return gradient * ctx.factor, None, gradient")
COPIED = """
model.last = model(x)
twin = copy.deepcopy(model)
"""
COPIED_BY_ANOTHER = """
class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.hidden = nn.Linear(3, 3), None
        self.fc.register_forward_hook(lambda *given: setattr(self, "hidden", given[-1]))
    def forward(self, x):
        self.fc(x)
        return self.hidden
class Learner:
    def __init__(self, online):
        self.online = online
    def twin(self):
        return copy.deepcopy(self.online)
    def learn(self):
        out = self.online(x)
        self.twin()
Learner(Keeps()).learn()
"""
COPIED_ITEM = """
cache = {"h": model(x)}
twin = copy.deepcopy(cache)
"""
UNSCALED_TWICE = """
for _ in range(2):
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
NEVER_UPDATED = """
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    optimizer.step()
"""
STEPPED_TWICE = """
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
"""
UNSCALED_LATE = """
scaler.scale(model(x).sum()).backward()
scaler.step(optimizer)
scaler.unscale_(optimizer)
scaler.update()
"""
ZEROED = """
scaler.scale(model(x).sum()).backward()
optimizer.zero_grad()
scaler.step(optimizer)
scaler.update()
"""
NOT_SCALED = """
model(x).sum().backward()
scaler.step(optimizer)
scaler.update()
"""
INPLACE_LAYER = """
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
net[0].register_full_backward_hook(lambda *given: None)
net(x).sum().backward()
"""
INPLACE_LINE = """
model.register_full_backward_hook(lambda *given: None)
h = model(x)
h += 1
h.sum().backward()
"""
EXPANDED = """
bias = torch.zeros(1, 3).expand(3, 3)
bias += torch.eye(3)
"""
WORKERS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return model(x[index])
for batch in torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="fork"):
    batch.sum()
"""
DDP = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block = nn.Linear(3, 3), nn.Linear(3, 3)
    def forward(self, x):
        x = self.stem(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return x
ddp = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
for _ in range(2):
    ddp(x).sum().backward()
"""

NORM = """
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
torch.vmap(lambda row: net(row.expand(2, 3)).sum())(x)
"""

HALVED = """
def halve(module, given, gradients):
    return given[0] / 2
net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
net[1].register_full_backward_hook(halve)
net(x).sum().backward()
"""
AVERAGED = """
def average(gradient):
    return gradient.mean(0)
h = model(x)
h.register_hook(average)
h.sum().backward()
"""
LONELY = """
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
for batch in x.split(3):
    net(batch).sum().backward()
"""

HOOKED_FROZEN = """
model.requires_grad_(False)
h = model(x)
h.register_hook(print)
"""
RETAINED_FROZEN = HOOKED_FROZEN.replace("register_hook(print)", "retain_grad()")
HOOKED_LAYER = """
net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
net[1].register_full_backward_hook(lambda *given: None)
h = net(x)
h += 1
h.sum().backward()
"""
TOTAL = """
total = torch.tensor(0.0, requires_grad=True)
for row in x:
    total += model(row).sum()
total.backward()
"""
RENORMALIZED = """
items = nn.Embedding(4, 3, max_norm=0.1)
scores = (nn.Linear(3, 3)(x) @ items.weight.t()).tanh() + items(torch.arange(4)).sum()
scores.sum().backward()
"""
PENALTY_OF_CHECKPOINT = """
point = x.clone().requires_grad_()
score = checkpoint(model, point, use_reentrant=True)
slope, = torch.autograd.grad(score.sum(), point)
"""
CALLED_CLASS = """
loss = nn.CrossEntropyLoss(model(x), torch.ones(4, dtype=torch.long))
loss.backward()
"""
BRANCH = """
def positive(row):
    total = row.sum()
    return total if total > 0 else -total
torch.vmap(positive)(x)
"""
MASKED = """
def positive(row):
    return row[row > 0].sum()
torch.vmap(positive)(x)
"""
RANDOM = """
net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
torch.vmap(net)(x)
"""
NUMBER = """
loss = 0.0
for row in x:
    loss += model(row).sum().item()
loss.backward()
"""
UNUSED = """
predicted = model(x)
loss = (x[:, 0] - x[:, 1]).square().mean()
loss.backward()
"""
MASKED_WEIGHT = """
class Masked(nn.Linear):
    def forward(self, x):
        self.weight = self.weight * 0.5
        return nn.functional.linear(x, self.weight)
Masked(3, 2)(x).sum().backward()
"""
VECTORS = """
losses = [model(row) for row in x]
torch.tensor(losses).sum().backward()
"""
BAG = """
loss = [model(row).sum() for row in x]
loss.backward()
"""

COMPLEX = """
h = torch.fft.ifft(torch.fft.rfft(model(x)) * 2, n=2)
h.square().mean().backward()
"""
SPARSE = """
words = nn.Embedding(9, 3, sparse=True)
adam = torch.optim.Adam([*words.parameters(), *model.parameters()])
model(words(torch.arange(4))).sum().backward()
adam.step()
"""

CASES = [  # program, PyTorch's words, cause, words of the message, old text, text of the remedy that replaces it
    (FEW, "incorrect number of gradients", "gradient-count", "`Scale.backward` returned 1 gradient at program.py:16",
     "return gradient * ctx.factor", "return gradient * ctx.factor, None"),
    (MANY, "incorrect number of gradients", "gradient-count", "its forward has 2 inputs (x, factor)",
     ", None, gradient", ", None"),
    (COPIED, "deepcopy protocol", "copy-of-graph", "copy.deepcopy at program.py:10 met `model.last`",
     "twin", "model.last = model.last.detach()\ntwin"),
    (COPIED_BY_ANOTHER, "deepcopy protocol", "copy-of-graph", "met `self.online.hidden`",
     "        return copy.", "        self.online.hidden = self.online.hidden.detach()\n        return copy."),
    (COPIED_ITEM, "deepcopy protocol", "copy-of-graph", "computed at program.py:9",
     "twin", "cache['h'] = cache['h'].detach()\ntwin"),
    (UNSCALED_TWICE, "already been called", "scaler-order", "called again for an optimizer without an update() between",
     "    scaler.unscale_(optimizer)\n    scaler.unscale_", "    scaler.unscale_"),
    (NEVER_UPDATED, "already been called", "scaler-order", "unscale_() at program.py:12",
     "    optimizer.step()", "    scaler.step(optimizer)\n    scaler.update()"),
    (STEPPED_TWICE, "step() has already", "scaler-order", "without an update() between",
     "    scaler.step(optimizer)", "    scaler.step(optimizer)\n    scaler.update()"),
    (UNSCALED_LATE, "after step", "scaler-order", "comes after step()",
     "scaler.step(optimizer)\nscaler.unscale_(optimizer)", "scaler.unscale_(optimizer)\nscaler.step(optimizer)"),
    (ZEROED, "No inf checks", "scaler-order", "none of the 2 parameters of this SGD has a .grad",
     "scaler.scale(model(x).sum()).backward()\noptimizer.zero_grad()",
     "optimizer.zero_grad()\nscaler.scale(model(x).sum()).backward()"),
    (NOT_SCALED, "_scale is None", "scaler-order", "before the first scale()",
     "model(x).sum().backward()", "scaler.scale(model(x).sum()).backward()"),
    (INPLACE_LAYER, "being modified inplace", "view-in-place", "a ReLU with inplace=True at program.py:11",
     "inplace=True", "inplace=False"),
    (INPLACE_LINE, "being modified inplace", "view-in-place", "this line at program.py:11", "h += 1", "h = h + 1"),
    (EXPANDED, "written-to tensor", "view-in-place",
     "several elements of `bias` are one number in memory, as expand() makes them at program.py:9", "+=", "= bias +"),
    (WORKERS, "DataLoader worker", "graph-in-worker", "`Rows` gives the workers of the DataLoader at program.py:14",
     "model(x[index])", "model(x[index]).detach()"),
    (NORM, "got a batched tensor", "batch-norm-in-vmap", "BatchNorm1d `net[1]` updates its running statistics in place at",
     "torch.vmap", "net[1].eval()\ntorch.vmap"),
    (HALVED, "invalid number of grad_input", "hook-result", "the backward hook `halve` at program.py:9 cannot replace",
     "return given[0] / 2", "return (given[0] / 2,)"),
    (AVERAGED, "changed the size of value", "hook-result", "the backward hook `average` at program.py:9 cannot replace",
     "gradient.mean(0)", "gradient.mean(0, keepdim=True).expand_as(gradient)"),
    (COMPLEX, "real scalar outputs", "complex-loss", "as the results of fft() and ifft() at program.py:9 are",
     "fft.ifft", "fft.irfft"),
    (SPARSE, "sparse gradients", "sparse-gradient", "the gradients of `words.weight` are sparse",
     "sparse=True", "sparse=False"),
    (LONELY, "Expected more than 1 value", "one-value-norm", "the BatchNorm1d `net[1]` is in training mode, and at",
     "x.split(3)", "x.split(3)[:1]"),
    (HOOKED_FROZEN, "cannot register a hook", "input-without-grad", "`h`, which does not require grad",
     "h.register", "h.requires_grad_()\nh.register"),
    (RETAINED_FROZEN, "can't retain_grad", "input-without-grad", "`h`, which does not require grad",
     "h.retain", "h.requires_grad_()\nh.retain"),
    (HOOKED_LAYER, "being modified inplace", "view-in-place", "changes in place what `net[1]`, with a full backward hook",
     "h += 1", "h = h + 1"),
    (TOTAL, "leaf Variable", "leaf-in-place", "`total` is a leaf", "total += ", "total = total + "),
    (RENORMALIZED, "modified by an inplace", "modified-in-place", "by embedding() at program.py:10",
     "items.weight.t", "items.weight.clone().t"),
    (PENALTY_OF_CHECKPOINT, "use_reentrant=True", "reentrant-checkpoint", "through the checkpoint at program.py:10",
     "use_reentrant=True", "use_reentrant=False"),
    (CALLED_CLASS, "more than one value is ambiguous", "loss-not-made", "CrossEntropyLoss at program.py:9 is a class",
     "nn.CrossEntropyLoss(", "nn.CrossEntropyLoss()("),
    (BRANCH, "vmap", "value-in-vmap", "values of `total` for an `if`",
     "return total if total > 0 else -total", "return torch.where(total > 0, total, -total)"),
    (MASKED, "dynamic shape", "value-in-vmap", "values of `row`", "row[row > 0]", "torch.where(row > 0, row, 0)"),
    (RANDOM, "randomness", "random-in-vmap", "a Dropout draws random numbers at program.py:10",
     "vmap(net)", "vmap(net, randomness='different')"),
    (NUMBER, "no attribute 'backward'", "backward-of-no-tensor", "`loss` at program.py:11 is no tensor, but of type float",
     ".item()", ""),
    (UNUSED, "does not require grad", "no-grad-path", "`predicted` has a graph, and that line does not use it",
     "x[:, 0] - ", "predicted[:, 0] - "),
    (MASKED_WEIGHT, "as parameter 'weight'", "result-as-parameter", "`self.weight` is a parameter, and at program.py:11",
     "self.weight = self.weight * 0.5\n        return nn.functional.linear(x, self.weight)",
     "weight = self.weight * 0.5\n        return nn.functional.linear(x, weight)"),
    (VECTORS, "only one element", "tensor-of-tensors", "made of the numbers in `losses` at program.py:10",
     "torch.tensor(losses)", "torch.stack(losses)"),
    (BAG, "no attribute 'backward'", "backward-of-no-tensor", "`loss` at program.py:9 is no tensor, but of type list",
     "loss.backward", "sum(loss).backward"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def workers_are_not_waited_for(monkeypatch):
    """A worker that does not end is killed after this many seconds, else 5."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)


def run(source, folder, context=None):
    """Run a program, and return the error that it stops at, or None."""
    file = folder / "program.py"
    file.write_text(BEGIN + source)
    names = {"torch": torch, "nn": nn, "__name__": "program"}
    try:
        with context or contextlib.nullcontext():
            exec(compile(BEGIN + source, str(file), "exec"), names)
    except (RuntimeError, AssertionError, AttributeError, TypeError, ValueError) as error:
        return error
    return None


def named(case):
    return next(name for name, value in globals().items() if value is case[0])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_error_has_its_cause_and_the_remedy_mends_it(case, tmp_path):
    source, says, cause, words, old, new = case
    assert says in str(run(source, tmp_path))
    why = byname.explain(run(source, tmp_path, byname.explaining()))
    assert why.cause == cause, why
    assert words in why.message, why
    assert source.count(old) >= 1
    assert run(source.replace(old, new), tmp_path) is None


@pytest.mark.parametrize(
    ("source", "pasted"),
    [
        (FEW, "`return gradient * ctx.factor, None`"),
        (COPIED, "`model.last = model.last.detach()`"),
        (COPIED_ITEM, "`cache['h'] = cache['h'].detach()`"),
        (STEPPED_TWICE, "`scaler.update()`"),
        (UNSCALED_LATE, "before the step"),
        (INPLACE_LAYER, "inplace=False"),
        (INPLACE_LINE, "h = h + 1"),
        (WORKERS, ".detach() in `Rows.__getitem__`"),
        (HOOKED_FROZEN, "h.requires_grad_()"),
        (TOTAL, "total = total + model(row).sum(); and let it begin without requires_grad"),
        (RENORMALIZED, "items.weight.clone()"),
        (CALLED_CLASS, "nn.CrossEntropyLoss()(model(x), torch.ones(4, dtype=torch.long))"),
        (MASKED_WEIGHT, "`weight = self.weight * 0.5`"),
        (VECTORS, "torch.stack(losses)"),
        (NUMBER, "without .item()"),
    ],
)
def test_the_line_to_paste_is_in_the_remedy(source, pasted, tmp_path):
    assert pasted in byname.explain(run(source, tmp_path, byname.explaining())).remedy


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
def test_a_block_in_two_reentrant_checkpoints_is_told_to_ddp(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert "ready only once" in str(run(DDP, tmp_path))
        why = byname.explain(run(DDP, tmp_path, byname.explaining()))
        assert why.cause == "ddp-ready-twice", why
        assert "runs 2 times in a reentrant checkpoint at program.py:16" in why.message, why
        assert "use_reentrant=False" in why.remedy and "static_graph=True" in why.remedy
        assert run(DDP.replace("use_reentrant=True", "use_reentrant=False"), tmp_path) is None
        assert run(DDP.replace("find_unused_parameters=True", "static_graph=True"), tmp_path) is None
    finally:
        dist.destroy_process_group()


def test_errors_that_only_look_alike_have_no_cause(tmp_path):
    raised = 'raise RuntimeError("step() has already been called since the last update().")\n'
    assert byname.explain(run(raised, tmp_path, byname.explaining())).cause == "unknown"
    weight = "w = torch.ones((), requires_grad=True)\nw.sum().backward()\nw += -0.1 * w.grad\n"
    assert "torch.no_grad()" in byname.explain(run(weight, tmp_path, byname.explaining())).remedy
    ambiguous = "if model(x):\n    pass\n"
    assert byname.explain(run(ambiguous, tmp_path, byname.explaining())).cause == "unknown"
    engine = "class Engine: pass\nEngine().backward()\n"
    assert byname.explain(run(engine, tmp_path, byname.explaining())).cause == "unknown"
    other = "raise AssertionError('_scale is None in my own code')\n"
    assert byname.explain(run(other, tmp_path, byname.explaining())).cause == "unknown"


@pytest.mark.slow
def test_an_error_in_a_worker_has_the_traceback_that_it_would_have(tmp_path):
    failing = WORKERS.replace("return model(x[index])", "return x[index] @ torch.ones(5)")
    gc.collect()  # groups of processes that other tests have left: a worker that frees one waits for ever
    plain, watched = (str(run(failing, tmp_path, one)) for one in (None, byname.explaining()))
    assert "in __getitem__" in watched
    assert re.sub(r" 0x\w+", "", watched) == re.sub(r" 0x\w+", "", plain)
