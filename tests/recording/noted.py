"""A model that notes its own values by hand, and what a recorder must have made of them."""

import struct

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def copied(value):
    """As it is now: what happens later does not show."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(copied(one) for one in value)
    return {key: copied(one) for key, one in value.items()} if type(value) is dict else value


def same(one, other):
    """Bit for bit, type for type."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        alike = type(one) is type(other) is torch.Tensor and one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(_bytes(one), _bytes(other))
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return struct.pack("d", one) == struct.pack("d", other) if type(one) is float else one == other


def _bytes(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


class Truth:
    """The notes: a list of ``(path, mode, iteration, call, value, fresh)``.

    `fresh` is whether the value is a new tensor each time, which has changed by being another one.
    """

    def __init__(self):
        self.rows = []
        self.counts = {"train": -1, "eval": -1}
        self.mode = "train"
        self.calls = {}

    def begin(self, training):
        self.mode = "train" if training else "eval"
        self.counts[self.mode] += 1
        self.calls = {}

    def note(self, value, *paths, fresh=None, gradient=None):
        """Notes a value at each of these paths, and its gradient at ``gradient``; the value itself."""
        if torch._C._current_graph_task_id() != -1:  # a checkpoint runs this a second time
            return value
        fresh = isinstance(value, torch.Tensor) if fresh is None else fresh
        for path in paths:
            self._add(path, self.mode, self.counts[self.mode], self._call(path), value, fresh)
        if gradient and value.requires_grad:
            moment = self.mode, self.counts[self.mode], self._call(gradient)
            value.register_hook(lambda passed: self._add(gradient, *moment, passed, True))
        return value

    def _call(self, path):
        self.calls[path] = self.calls.get(path, -1) + 1
        return self.calls[path]

    def _add(self, path, mode, iteration, call, value, fresh):
        self.rows.append((path, mode, iteration, call, copied(value), fresh))

    def expected(self, path, *, every=1, start=0, stop=None, mode="train", on_change=True):
        """What must be recorded at a place, by the plainest reading of the words: ``(mode, iteration, call, value)``."""
        kept = []
        for at, its_mode, iteration, call, value, fresh in self.rows:
            due = iteration >= start and (stop is None or iteration < stop) and (iteration - start) % every == 0
            if at != path or mode not in (its_mode, "both") or not due:
                continue
            if not on_change or fresh or not kept or not same(kept[-1][-1], value):
                kept.append((its_mode, iteration, call, value))
        return kept


class Block(nn.Module):
    """A part that may run under a checkpoint."""

    def __init__(self, truth):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.truth = [truth]

    def forward(self, h):
        note = self.truth[0].note
        u = torch.tanh(self.inner(h))
        note(u, "block.forward.u")
        u = u * 2
        note(u, "block.forward.u")
        return u


class Noted(nn.Module):
    """Many kinds of variable, of which every value is noted."""

    def __init__(self, checkpointed=True):
        super().__init__()
        self.truth = Truth()
        self.lin = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.block = Block(self.truth)
        self.head = nn.Linear(6, 3)
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))
        self.register_buffer("still", torch.arange(3.0))
        self.checkpointed = checkpointed

    def encode(self, x):
        z = self.lin(x)
        self.truth.note(z, "lin", "encode.z", "encode")
        return z

    def forward(self, x, step):
        truth = self.truth
        note = truth.note
        truth.begin(self.training)
        note(x, "forward.x")
        note(step, "forward.step")
        h = self.encode(x)
        note(h, "forward.h", gradient="forward.h.grad")
        h = self.norm(h)
        note(h, "forward.h", "norm", gradient="forward.h.grad")
        h = h.relu()
        note(h, "forward.h", "relu", gradient="forward.h.grad")
        total = h * 0
        note(total, "forward.total")
        for i in range(1 + step % 3):
            note(i, "forward.i")
            total = total + h * (i + 1)
            note(total, "forward.total")
        cache = {"k": [h.mean(0), step], "s": "text"}
        note(cache, "forward.cache", fresh=True)
        note(cache["k"][0], "forward.cache['k'][0]")
        note(cache["k"][1], "forward.cache['k'][1]")
        scale = 1.5 + step // 4
        note(scale, "forward.scale")
        word = ("even", None, True, 1, 1.0, "1", b"1")[step % 7]
        note(word, "forward.word")
        flag = step % 10 == 0
        note(flag, "forward.flag")
        ragged = x.new_ones(step % 4, 1 + step % 3) * step
        note(ragged, "forward.ragged")
        changing = torch.zeros((2,) * (step % 3), dtype=(torch.float64, torch.int16)[step % 2]) + step
        note(changing, "forward.changing")
        low = h.detach().to(torch.bfloat16)
        note(low, "forward.low")
        long = (h.detach() * 2**50).to(torch.int64)
        note(long, "forward.long")
        mask = h > 0
        note(mask, "forward.mask")
        turning = torch.complex(h.detach(), -h.detach()).to((torch.complex64, torch.complex128)[step % 2])
        note(turning, "forward.turning")
        tiny = h.detach().to(torch.float8_e4m3fn)
        note(tiny, "forward.tiny")
        if self.checkpointed:
            h = checkpoint(self.block, h, use_reentrant=False)
        else:
            h = self.block(h)
        note(h, "forward.h", "block", gradient="forward.h.grad")
        weights = torch.softmax(h + total, -1)
        note(weights, "softmax", "forward.weights")
        out = self.head(weights * h)
        note(out, "forward", "head", "forward.out", gradient="forward.out.grad")
        self.counter.add_(step % 2)
        for name, parameter in self.named_parameters():
            note(parameter, name, fresh=False)
        for name, buffer in self.named_buffers():
            note(buffer, name, fresh=False)
        return out

    def note_gradients(self):
        """To be called once the gradients of a step are there."""
        for name, parameter in self.named_parameters():
            self.truth.note(parameter.grad, f"{name}.grad", fresh=False)


TWELVE_KINDS = {
    "an output": ["lin", "norm", "block", "head"],
    "an argument": ["forward.x", "forward.step"],
    "a local assigned several times": ["forward.h", "forward.total", "block.forward.u"],
    "a loop variable": ["forward.i"],
    "a parameter": ["lin.weight", "head.bias"],
    "a buffer": ["norm.running_mean", "norm.num_batches_tracked", "counter", "still"],
    "an accumulated gradient": ["lin.weight.grad", "block.inner.bias.grad"],
    "the gradient of a local": ["forward.h.grad", "forward.out.grad"],
    "the result of an operation": ["softmax", "relu"],
    "a nested item": ["forward.cache['k'][0]", "forward.cache['k'][1]", "forward.cache"],
    "a plain number": ["forward.scale"],
    "a string, None, a bool": ["forward.word", "forward.flag"],
    "a changing shape": ["forward.ragged", "forward.changing"],
    "other number types": ["forward.low", "forward.long", "forward.mask", "forward.turning", "forward.tiny"],
    "a method": ["encode", "encode.z"],
    "the whole model": ["forward"],
}
PLACES = [path for paths in TWELVE_KINDS.values() for path in paths]


def noted(checkpointed=True):
    """The model, always of the same numbers."""
    torch.manual_seed(5)
    return Noted(checkpointed)


def train(model, steps, *, evaluate_every=5, after=lambda step: None):
    """Steps of training with other data each, and now and then a forward in eval mode."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(6)
    for step in range(steps):
        x = torch.randn(4, 4, generator=generator)
        optimizer.zero_grad()
        model(x, step).square().sum().backward()
        model.note_gradients()
        optimizer.step()
        if evaluate_every and step % evaluate_every == evaluate_every - 1:
            model.eval()
            with torch.no_grad():
                model(x, step)
            model.train()
        after(step)


def records(series):
    """A series as ``(mode, iteration, call, value)``, in the order of iterations and calls within a mode."""
    assert len(series) == len(series.values) == len(series.iterations) == len(series.modes) == len(series.calls)
    rows = [
        (str(mode), int(iteration), int(call), value)
        for mode, iteration, call, value in zip(series.modes, series.iterations, series.calls, series.values)
    ]
    return rows


def wrong(path, expected, got):
    """What differs, in words; an empty list when nothing does. Gradients come in the order of the backward."""
    if path.endswith(".grad"):
        expected, got = (sorted(rows, key=lambda row: row[:3]) for rows in (expected, got))
    if [row[:3] for row in expected] != [row[:3] for row in got]:
        missing = [row[:3] for row in expected if row[:3] not in [one[:3] for one in got]]
        more = [row[:3] for row in got if row[:3] not in [one[:3] for one in expected]]
        return [f"{path}: {len(got)} records for {len(expected)}; missing {missing[:4]}, too many {more[:4]}"]
    return [
        f"{path} at {mine[:3]}: {theirs[3]!r:.60} for {mine[3]!r:.60}"
        for mine, theirs in zip(expected, got)
        if not same(mine[3], theirs[3])
    ][:3]
