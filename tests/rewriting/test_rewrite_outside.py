"""What a forward asks of PyTorch, of generators and of the clock: the rewritten model asks it too, or is refused."""

import copy
import cProfile
import datetime
import logging
import os
import random
import sys
import time
import uuid
from contextlib import nullcontext
from random import random as drawn

import numpy as np
import pytest
import torch
from torch import nn

from byname.errors import RewriteError
from byname.rewriting.rewrite import rewrite


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


def test_there_is_a_graph_for_each_answer_and_none_for_what_was_not_asked():
    rewritten = rewrite(Graded(), "relu", keep)
    assert len(rewritten.graphs) == 2
    assert "exp" not in rewritten.code
    with torch.no_grad():
        assert "exp" in rewritten.code
    with torch.autocast("cpu"):
        rewritten(torch.ones(2))
    assert len(rewritten.graphs) == 2
    plain = rewrite(nn.Sequential(nn.ReLU()), "0", keep)
    assert len(plain.graphs) == 1


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


PYTHON = "draws random numbers by"
NUMPY = "or an earlier statement does: they would be drawn only once"
CLOCK = "asks for the time by"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (lambda self: random.random(), f"{PYTHON} Random.random, which would happen only once"),
        (lambda self: drawn(), PYTHON),
        (lambda self: random.randint(1, 6), f"{PYTHON} Random.getrandbits"),
        (lambda self: random.gauss(0, 1), PYTHON),
        (lambda self: random.choice([1, 2, 3]), PYTHON),
        (lambda self: random.SystemRandom().random(), f"{PYTHON} posix.urandom" if os.name == "posix" else PYTHON),
        (lambda self: OF_PYTHON.random(), PYTHON),
        (lambda self: self.of_python.random(), PYTHON),
        (lambda self: uuid.uuid4().int % 7, PYTHON),
        (lambda self: int.from_bytes(os.urandom(1), "big"), PYTHON),
        (lambda self: np.random.rand(), f"draws numbers by numpy.random, {NUMPY}"),
        (lambda self: np.random.normal(), NUMPY),
        (lambda self: np.random.randint(5), NUMPY),
        (lambda self: OF_NUMPY.random(), f"draws numbers by a numpy.random.Generator, {NUMPY}"),
        (lambda self: LEGACY.rand(), f"draws numbers by a numpy.random.RandomState, {NUMPY}"),
        (lambda self: self.of_numpy.random(), NUMPY),
        (closed_over(), NUMPY),
        (lambda self: np.random.default_rng().random(), PYTHON),
        (lambda self: self.generator.initial_seed(), f"{PYTHON} Generator.initial_seed"),
        (lambda self: torch.initial_seed(), PYTHON),
        (lambda self: time.time(), f"{CLOCK} time.time, which would happen only once"),
        (lambda self: time.perf_counter_ns(), CLOCK),
        (lambda self: datetime.datetime.now().second, CLOCK),
    ],
)
def test_what_is_another_each_time_is_refused_in_the_statement_that_asks_for_it(number, reason):
    states = random.getstate(), torch.get_rng_state()
    with pytest.raises(RewriteError) as refused:
        rewrite(Scaled(number), "relu", keep)
    message = str(refused.value)
    assert reason in message
    assert message.startswith("Scaled cannot be rewritten: `")
    assert message.endswith("byname.interject(model, where, interjection) works on the model as it is")
    assert f"({os.path.basename(__file__)}:" in message  # noqa: PTH119 - as the message has it
    assert sys.getprofile() is None
    assert torch.equal(torch.get_rng_state(), states[1])


def test_a_seed_and_a_number_that_nobody_uses_are_refused_too():
    with pytest.raises(RewriteError, match="`torch.manual_seed\\(0\\)` in Seeds.forward"):
        rewrite(Seeds(), "relu", keep)
    with pytest.raises(RewriteError, match="Unused cannot be rewritten: .* draws numbers by numpy.random"):
        rewrite(Unused(), "relu", keep)


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


class Caught(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        try:
            scale = random.random()
        except BaseException:  # noqa: BLE001 - such code there is
            scale = 1.0
        return y * scale


def test_code_that_catches_everything_is_refused_all_the_same():
    with pytest.raises(RewriteError, match="draws random numbers by"):
        rewrite(Caught(), "relu", keep)


def test_a_profiler_that_was_on_goes_on():
    seen = []

    def profile(frame, event, argument):
        seen.append(event)

    sys.setprofile(profile)
    try:
        rewrite(Graded(), "relu", keep)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    profiler = cProfile.Profile()
    profiler.enable()
    rewrite(Graded(), "relu", keep)
    sum([1, 2])
    profiler.disable()
    assert any("sum" in str(entry.code) for entry in profiler.getstats())
