"""A real training that is recorded, to be killed at any moment; and what its values must be, without byname.

As a program it waits for lines ``steps directory rank world`` and forks a training for each: Python and PyTorch are
loaded once. A training tells by lines of ``side<rank>`` how far it has come.
"""

import os
import sys
from pathlib import Path

import torch
from torch import nn

PLACES = [
    "forward.h",
    "lin",
    "forward.i",
    "forward.word",
    "lin.weight",
    "norm.running_mean",
    "lin.weight.grad",
    "forward.ragged",
]
FLUSH_EVERY = 7


class Net(nn.Module):
    """A layer, running statistics, a loop, a string, a shape that changes."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.noted = None

    def forward(self, x, step):
        h = self.lin(x)
        self.note(step, "lin", 0, h)
        self.note(step, "forward.h", 0, h)
        h = torch.relu(self.norm(h))
        self.note(step, "forward.h", 1, h)
        for i in range(2):
            self.note(step, "forward.i", i, i)
        word = f"step {step // 3}"
        if step % 3 == 0:  # else it has not changed
            self.note(step, "forward.word", 0, word)
        ragged = h[: step % 4].double()
        self.note(step, "forward.ragged", 0, ragged)
        self.note(step, "lin.weight", 0, self.lin.weight)
        self.note(step, "norm.running_mean", 0, self.norm.running_mean)
        return h

    def note(self, step, path, call, value):
        if self.noted is not None:
            value = value.detach().clone() if isinstance(value, torch.Tensor) else value
            self.noted[path, step, call] = value


def steps_of_training(model, steps, rank):
    """Trains; comes back after every step."""
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator), step).square().sum().backward()
        model.note(step, "lin.weight.grad", 0, model.lin.weight.grad)
        optimizer.step()
        yield step


def fresh(rank):
    """The model of a rank, always of the same numbers."""
    torch.manual_seed(rank)
    return Net()


def truth(steps, rank=0):
    """What every record must be, by ``(path, iteration, call)``."""
    model = fresh(rank)
    model.noted = {}
    for _ in steps_of_training(model, steps, rank):
        continue
    return model.noted


def recorded(steps, directory, rank, world):
    """One training, recorded to ``run.h5`` in the directory."""
    import byname

    if world > 1:
        meeting = f"file://{directory}/meet"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    side = os.open(directory / f"side{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    model = fresh(rank)
    recorder = byname.record(model, PLACES, to=directory / "run.h5")
    os.write(side, b"recording\n")
    for step in steps_of_training(model, steps, rank):
        os.write(side, b"step %d\n" % step)
        if step % FLUSH_EVERY == FLUSH_EVERY - 1:
            recorder.flush()
            os.write(side, b"flushed %d\n" % (step + 1))
    os.write(side, b"closing\n")
    recorder.close()
    os.write(side, b"closed\n")


def _warm():
    """Has everything imported that a training needs, without a backward, whose threads no fork may find."""
    import tempfile

    import byname

    with tempfile.TemporaryDirectory() as directory:
        model = fresh(0)
        with byname.record(model, PLACES, to=Path(directory) / "run.h5"):
            model(torch.randn(16, 8), 0)
        torch.optim.SGD(model.parameters(), lr=0.1).step()


def _main():
    import torch.distributed  # noqa: F401

    torch.set_num_threads(1)
    _warm()
    print("ready", flush=True)
    for line in sys.stdin:
        steps, directory, rank, world = line.split()
        child = os.fork()
        if not child:
            code = 1
            os.dup2(2, 1)  # gloo of PyTorch 2.10 prints when it connects
            try:
                recorded(int(steps), Path(directory), int(rank), int(world))
                code = 0
            finally:
                sys.stderr.flush()
                if code:
                    import traceback

                    traceback.print_exc()
                os._exit(code)
        print(child, flush=True)


if __name__ == "__main__":
    _main()
