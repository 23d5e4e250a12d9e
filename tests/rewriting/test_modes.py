"""What a forward asks of PyTorch, of generators and of the clock: the rewritten model asks it too."""

import copy
import logging
import os
import random
import time
import uuid
from contextlib import nullcontext
from random import random as drawn

import numpy as np
import pytest
import torch
from torch import nn

from byname import rewrite


def keep(name, module, value):
    return None


def double(name, module, value):
    return value * 2


class Graded(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y * 2 if torch.is_grad_enabled() else y.exp()


class GradedInside(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            inner = torch.is_grad_enabled()
            y = torch.relu(x)
        return y * 2 if torch.is_grad_enabled() and not inner else y


class Cast(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y * 3 if torch.is_autocast_enabled("cpu") else y


class CastTo(nn.Module):
    def forward(self, x):
        return torch.relu(x).to(torch.get_autocast_dtype("cpu"))


class Inferring(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y + 1 if torch.is_inference_mode_enabled() else y


class Made(nn.Module):
    def forward(self, x):
        return torch.relu(x).to(torch.get_default_dtype())


class Placed(nn.Module):
    def forward(self, x):
        return torch.relu(x) + torch.zeros(2, device=torch.get_default_device()).to("cpu").numel()


class Exact(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y + 1 if torch.are_deterministic_algorithms_enabled() else y


class OfTorch(nn.TransformerEncoderLayer):
    """A forward of PyTorch that asks for the grad mode, and is traced because the class is the user's."""

    def forward(self, x):
        y = torch.relu(x)
        return y * 5 if torch.is_grad_enabled() and self.training else y


class DefaultDtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


class Deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


MODES = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast to half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default dtype": DefaultDtype,
    "deterministic": Deterministic,
}
ASKING = (Graded, GradedInside, Cast, CastTo, Inferring, Made, Placed, Exact)


@pytest.mark.parametrize("written_under", ["plain", "no_grad", "autocast"])
@pytest.mark.parametrize("make", ASKING)
def test_a_mode_of_pytorch_is_asked_for_anew(make, written_under):
    model, x = make(), torch.tensor([-1.0, 2.0])
    with MODES[written_under]():
        rewritten = rewrite(model, "relu", double)
    copied = copy.deepcopy(rewritten)
    for _ in range(2):
        for mode in MODES.values():
            with mode():
                expected = model(2 * x)
                for one in (rewritten, copied):
                    now = one(x)
                    assert now.dtype is expected.dtype
                    assert torch.equal(now, expected)


def test_places_of_either_mode_can_be_meant():
    told = []
    rewritten = rewrite(Graded(), ["exp", "mul"], lambda name, module, value: told.append(name))
    rewritten(torch.ones(2))
    with torch.no_grad():
        rewritten(torch.ones(2))
    assert told == ["mul", "exp"]


def test_a_forward_of_pytorch_that_asks_for_the_grad_mode_has_it_asked_anew():
    model = OfTorch(4, 2, 8, batch_first=True, dropout=0.0)
    rewritten, x = rewrite(model, "relu", keep), torch.ones(1, 2, 4)
    for training in (True, False):
        model.train(training)
        rewritten.train(training)
        for mode in (nullcontext, torch.no_grad):
            with mode():
                assert torch.equal(rewritten(x), model(x))


@pytest.mark.slow
def test_what_asks_for_a_mode_can_be_compiled_whole():
    for make in (Graded, Cast, Made):
        torch._dynamo.reset()
        rewritten, x = rewrite(make(), "relu", keep), torch.ones(2)
        compiled = torch.compile(rewritten, backend="eager", fullgraph=True)
        for mode in ("plain", "no_grad", "autocast"):
            with MODES[mode]():
                assert torch.equal(compiled(x), make()(x))


OF_NUMPY = np.random.default_rng(0)
LEGACY = np.random.RandomState(0)
OF_PYTHON = random.Random(0)


class Scaled(nn.Module):
    """Multiplies by a number that comes from elsewhere.

    Args:
        number: what gives it.
    """

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.of_numpy = np.random.default_rng(1)
        self.of_python = random.Random(1)
        self.generator = torch.Generator()

    def forward(self, x):
        return torch.relu(x) * float(self.number(self))


def closed_over():
    generator = np.random.default_rng(2)
    return lambda self: generator.random()


class Seeds(nn.Module):
    def forward(self, x):
        torch.manual_seed(0)
        return torch.relu(x) + torch.rand(2)


class Unused(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        np.random.rand()
        return y


@pytest.mark.parametrize(
    "number",
    [
        lambda self: random.random(),
        lambda self: drawn(),
        lambda self: random.gauss(0, 1),
        lambda self: OF_PYTHON.random(),
        lambda self: self.of_python.random(),
        lambda self: np.random.rand(),
        lambda self: OF_NUMPY.random(),
        lambda self: LEGACY.rand(),
        lambda self: self.of_numpy.random(),
        closed_over(),
        lambda self: np.random.default_rng().random(),
        lambda self: torch.rand((), generator=self.generator),
        lambda self: uuid.uuid4().int % 10**9,
        lambda self: int.from_bytes(os.urandom(4), "big"),
        lambda self: time.perf_counter_ns() % 10**6,
    ],
)
def test_what_is_another_each_time_is_so_in_the_rewritten_model(number):
    new, x = rewrite(Scaled(number), "relu", keep), torch.ones(2)
    assert len({new(x)[0].item() for _ in range(5)}) > 1


def test_numbers_are_drawn_as_by_the_model():
    def by_python(self):
        return random.random() + np.random.rand() + self.of_python.random() + self.of_numpy.random() + torch.rand(())

    model, x = Scaled(by_python), torch.ones(2)
    new = rewrite(model, "relu", keep)
    found = []
    for one in (model, new):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        found.append([one(x) for _ in range(3)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_seed_in_the_forward_is_set_in_each_call():
    model, x = Seeds(), torch.ones(2)
    new = rewrite(model, "relu", double)
    assert torch.equal(new(x), new(x)) and torch.equal(new(x), model(x) + 1)
    assert rewrite(Unused(), "relu", keep)(x).tolist() == [1, 1]


class Logs(nn.Module):
    def forward(self, x):
        logging.getLogger("of a model").debug("a line of a log has its time")
        return torch.relu(x) + torch.rand(2)


def test_what_a_library_asks_for_itself_and_numbers_of_pytorch_are_no_hindrance():
    model, x = Logs(), torch.ones(2)
    logging.getLogger("of a model").setLevel(logging.DEBUG)
    rewritten = rewrite(model, "relu", keep)
    torch.manual_seed(0)
    one, other = rewritten(x), rewritten(x)
    torch.manual_seed(0)
    assert torch.equal(one, model(x))
    assert not torch.equal(one, other)
