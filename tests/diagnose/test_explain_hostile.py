"""Programs that are out to make byname say something false, break, or break them."""

import copy
import dataclasses
import pickle
import threading
import types

import pytest
import torch
from checking import checking
from custom import Twice
from torch import nn

import byname


def explained(run):
    """What byname says of the error of a function, and whether that stands on the error as a note."""
    with pytest.raises(Exception) as caught, byname.explaining():  # noqa: PT011 - of any kind
        run()
    why = byname.explain(caught.value)
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == (why.cause != "unknown")
    return why


WORDS = [
    "Trying to backward through the graph a second time",
    "one of the variables needed for gradient computation has been modified by an inplace operation",
    "a leaf Variable that requires grad is being used in an in-place operation.",
    "element 0 of tensors does not require grad and does not have a grad_fn",
    "The differentiated Tensor at index 0 appears to not have been used in the graph",
    "Function 'MulBackward0' returned nan values in its 0th output.",
    "Expected to have finished reduction in the prior iteration before starting a new one",
    "torch.utils.checkpoint: a different number",
    "not enough memory: you tried to allocate 7 bytes",
]


@pytest.mark.parametrize("words", WORDS)
def test_an_error_that_the_program_raises_in_pytorchs_words_is_the_programs(words):
    def run():
        raise RuntimeError(words)

    assert explained(run).cause == "unknown"
    assert byname.explain(RuntimeError(words)).cause == "unknown"


def test_a_hook_of_the_users_that_raises_in_pytorchs_words():
    def refuse(gradient):
        raise RuntimeError("Trying to backward through the graph a second time, says my hook")

    def run():
        h = torch.ones(2, requires_grad=True).exp()
        h.register_hook(refuse)
        h.sum().backward()

    assert explained(run).cause == "unknown"


def test_errors_whose_text_raises_or_whose_class_is_frozen_pass_unchanged():
    class Odd(RuntimeError):
        def __str__(self):
            raise ValueError("no text")

    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        reason: str

    for error in (Odd("one of the variables has been modified by an inplace operation"), Frozen("early")):
        with pytest.raises(type(error)) as caught, byname.explaining():
            raise error
        assert caught.value is error


@pytest.mark.parametrize("notes", [(), "text", None, 3, {}])
def test_what_somebody_has_put_in_place_of_the_notes_stays(notes):
    class Odd(RuntimeError):
        pass

    error = Odd("x")
    error.__notes__ = notes
    with pytest.raises(Odd), byname.explaining():
        raise error
    assert error.__notes__ is notes


def test_a_gradient_that_was_only_looked_at_is_not_blamed_for_a_none_elsewhere():
    class Unbound(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def run():
        model = Unbound()
        h = model.a * 2
        h.sum().backward()
        print(h.grad)
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad.data

    with pytest.warns(UserWarning, match="not a leaf"):
        finding = explained(run)
    assert finding.cause == "input-without-grad"
    assert "the .grad of `model.b`, which is read at" in finding.message
    assert "requires_grad_()" not in finding.remedy


def test_an_argument_is_not_blamed_for_what_was_changed():
    table = {"t": torch.ones(2, requires_grad=True)}
    other = torch.ones(2, requires_grad=True)

    def run():
        table.get("t").add_(other)

    why = explained(run)
    assert why.cause == "leaf-in-place"
    assert "other" not in [name.path for name in why.culprits]


def test_a_metric_is_not_blamed_for_a_loss_that_was_computed_from_data():
    def run():
        weight = torch.ones(3, requires_grad=True)
        accuracy = (weight * 2).sum().item()
        loss = torch.randn(3).square().mean()
        assert accuracy == 6
        loss.backward()

    assert explained(run).culprits == ()


def test_what_was_freed_unseen_is_not_blamed_on_a_backward_that_was_seen():
    weight = torch.ones(3, requires_grad=True)
    g = weight.tanh()
    early = weight.exp()
    early.sum().backward()

    def run():
        g.sum().backward()
        loss = (early * 2).sum() + g.sum()
        loss.backward()

    why = explained(run)
    assert why.cause == "backward-twice"
    assert {name.path for name in why.culprits} >= {"early"}
    if len(why.culprits) == 1:
        assert why.culprits[0].path == "early"


def test_a_custom_function_that_never_reads_what_it_saved_is_not_blamed():
    weight = torch.ones(3, requires_grad=True)
    with byname.track():
        k = weight * 1.0
        y = Twice.apply(k).sum()
        k += 1
        assert byname.check(y) == []
    y.backward()


@pytest.mark.grid(fast=3)
@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("h += b", "h = h + b"),
        ("h *= b + 1", "h = h * (b + 1)"),
        ("h.mul_(2)", "h = h.mul(2)"),
        ("torch._foreach_mul_([h], 2.0)", None),
        ("torch.add(b, 1, out=h)", None),
        ("F.relu_(h)", None),
        ("h.copy_(b)", None),
        ("h[0] = 1", None),
        ("for one in [h]: one.clamp_(0, 1)", "one = one.clamp(0, 1); `h` then keeps its values"),
        (
            "def f(h): h.mul_(2)\nf(h)",
            "h = h.mul(2); every other variable of this tensor then keeps its values: a hook or helper returns",
        ),
        ("r = h[:2]; r /= r.norm()", "r = r / r.norm(); the tensor that it is a view of then keeps its values"),
    ],
)
def test_a_rewritten_statement_does_what_was_meant(statement, remedy, tmp_path):
    source = f"h = w.exp()\n{statement}\nh.sum().backward()\n"
    file = tmp_path / "cell.py"
    file.write_text(source)
    variables = {"w": torch.ones(3, requires_grad=True), "torch": torch, "b": torch.ones(3), "F": nn.functional}
    if "out=" in statement:
        source = source.replace("h = w.exp()", "h = w.exp(); torch.set_grad_enabled(False)")
        source = source.replace("h.sum()", "torch.set_grad_enabled(True); h.sum()")
        file.write_text(source)
    why = explained(lambda: exec(compile(source, str(file), "exec"), variables))

    assert why.cause == "modified-in-place"
    assert why.remedy.startswith(f"write it out of place: {remedy}" if remedy else "change a copy instead"), why.remedy


STATES = """
from collections import namedtuple
State = namedtuple("State", "h")
state, states, other, gru = State(w), [torch.zeros(1, 3)], w, torch.nn.GRU(4, 3)
def named():
    global state
    state = State(torch.tanh(state.h))
    return state.h.sum()
def outside():
    global other
    other = torch.tanh(other)
    return other.sum()
def run(step):
    for _ in range(2):
        step().backward()
"""


LOOP = "for _ in range(2):\n    "
UNPACKED = f"{LOOP}out, h = gru(w[None], states[-1])\n    states.append(h)\n    out.sum().backward()"


AVERAGED = f"""mean = None
{LOOP}loss = (w ** 2).sum()
    mean = loss if mean is None else 0.9 * mean + 0.1 * loss
    (loss / mean).backward()"""


@pytest.mark.parametrize("run", [f"{LOOP}named().backward()", UNPACKED, AVERAGED, "run(outside)"])
def test_no_line_is_advised_that_does_not_detach_what_is_carried_over(run, tmp_path):
    file = tmp_path / "cell.py"
    file.write_text(source := f"{STATES}{run}\n")
    why = explained(
        lambda: exec(compile(source, str(file), "exec"), {"w": torch.ones(4, requires_grad=True), "torch": torch})
    )

    assert why.cause == "backward-twice"
    if run == AVERAGED:
        assert "detach what carries it at cell.py:19;" in why.remedy
        exec(
            source.replace("0.9 * mean", "0.9 * mean.detach()"),
            {"w": torch.ones(4, requires_grad=True), "torch": torch},
        )
    else:
        assert "detach it at the beginning" in why.remedy
    assert "put `" not in why.remedy


def test_a_note_crosses_processes_as_text():
    with pytest.raises(RuntimeError) as caught, byname.explaining():
        h = torch.ones(2, requires_grad=True).exp()
        h += 1
        h.sum().backward()

    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error.__notes__[0]) is str
    assert copy.deepcopy(caught.value).__notes__[0].startswith("byname: modified-in-place")


def test_a_decorated_generator_leaves_the_modes_of_its_caller_alone():
    @byname.explaining()
    def steps():
        for _ in range(3):
            yield torch.ones(1)

    running = steps()
    with torch.device("meta"):
        next(running)
    list(running)
    assert torch.ones(1).device.type == "cpu"


def test_one_context_entered_twice_and_in_several_threads():
    before = torch.autograd._engine_run_backward, nn.Module._call_impl, torch.from_numpy
    context = byname.explaining()
    with context, context:
        pass

    def use():
        with context:
            torch.ones(1, requires_grad=True).exp().backward()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch.autograd._engine_run_backward, nn.Module._call_impl, torch.from_numpy) == before


def test_threads_with_a_run_of_their_own():
    ran = []

    class Fixed(threading.Thread):
        @property
        def run(self):
            return lambda: ran.append("property")

    with byname.explaining():
        fixed, own = Fixed(), threading.Thread()
        own.run = types.MethodType(lambda self: ran.append("own"), own)
        for thread in (fixed, own):
            thread.start()
            thread.join()
        with pytest.raises(RuntimeError, match="only be started once"):
            fixed.start()

    assert ran == ["property", "own"]
    assert "run" in vars(own) and "run" not in vars(fixed)


def test_a_traced_module_stays_traceable():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with byname.explaining():
        traced = torch.jit.trace(model, torch.ones(1, 2))
    assert traced(torch.ones(1, 2)).shape == (1, 3)


def test_a_program_that_is_checked_can_trace_its_model():
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(6, 2))
    with checking([].append):
        traced = torch.jit.trace(model, torch.ones(2, 2, 4))  # which compares the graphs of two runs
    assert traced(torch.ones(2, 2, 4)).shape == (2, 2)


def test_leaves_stepped_by_a_helper_are_not_called_idle():
    def step(tensors):
        for tensor in tensors:
            tensor.data -= 0.1 * tensor.grad
            tensor.grad = None

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prompts = [torch.zeros(3, requires_grad=True) for _ in range(2)]

    def train():
        loss = sum(model(prompt).sum() for prompt in prompts)
        found = byname.check(loss, model=model, optimizer=optimizer)
        loss.backward()
        STEP(prompts)
        return found

    global STEP
    STEP = step
    assert train() == []
