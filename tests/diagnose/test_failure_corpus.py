"""Does every program of the failure corpus fail as its comments say, and for the reason they give?"""

import contextlib
import re
import sys
import warnings

import pytest
import torch
from corpus import mend, named, programs, run, user_frames
from torch.overrides import TorchFunctionMode

import byname

SAYS = {
    "backward-twice": "backward through the graph a second time",
    "modified-in-place": "modified by an inplace operation",
    "optimizer-step-between": "modified by an inplace operation",
    "leaf-in-place": "leaf Variable that requires grad is being used in an in-place operation",
    "no-grad-path": "element 0 of tensors does not require grad",
    "non-leaf-grad": "NoneType|can't optimize a non-leaf Tensor",
    "input-without-grad": "One of the differentiated Tensors does not require grad",
    "non-scalar-backward": "only for scalar outputs",
    "numpy-of-graph": "Can't call numpy",
    "empty-optimizer": "empty parameter list",
    "unused-input": "appears to not have been used in the graph",
    "checkpoint-mismatch": "torch.utils.checkpoint",
    "ddp-unused": "Expected to have finished reduction",
    "gradient-count": "incorrect number of gradients",
    "gradient-shape": "returned an invalid gradient at index",
    "no-derivative": "the derivative for '.*' is not implemented",
    "wrong-device": "not on the expected device",
    "wrong-dtype": "same dtype|Found dtype|expected target dtype",
    "index-out-of-range": "out of (range|bounds)",
    "unknown": "shapes cannot be multiplied|is invalid for input of size",
}

SAVED = ("backward-twice", "modified-in-place", "optimizer-step-between")


def run_silent(program, monkeypatch):
    """Runs the program with a `byname.check` that keeps what it was given."""
    calls = []

    def check(loss, model=None, optimizer=None):
        calls.append((loss, model, optimizer))
        return []

    monkeypatch.setattr(byname, "check", check, raising=False)
    namespace, error = run(program)
    if error is not None:
        raise error
    return namespace, calls


def test_every_program_is_of_a_known_kind_and_every_cause_has_two():
    every = programs()
    assert {program.kind for program in every} == {"error", "check", "non-finite"}
    causes = [program.cause for program in every]
    assert not [cause for cause in causes if causes.count(cause) < 2]
    for program in every:
        assert program.path.stem.startswith(program.cause.replace("-", "_"))
        assert list(program.story) == list(range(1, len(program.story) + 1))
        assert program.culprits or program.cause in ("unknown", "no-derivative")


@pytest.mark.grid(fast=10)
@named(lambda program: program.kind == "error")
def test_an_error_program_raises_at_the_line_marked_last(program):
    _, error = run(program)
    assert error is not None
    assert re.search(SAYS[program.cause], str(error)), error
    assert user_frames(program, error)[-1] == program.story[max(program.story)]


@pytest.mark.grid(fast=10)
@named(lambda program: program.kind == "error" and program.mended)
def test_changing_the_marked_line_mends_the_program(program, tmp_path):
    _, error = run(mend(program, tmp_path))
    assert error is None


@contextlib.contextmanager
def anomalies(told):
    """Adds to `told` what PyTorch's anomaly mode says."""
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            yield
        finally:
            told.extend(str(warning.message) for warning in caught)


@named(lambda program: program.kind == "error" and program.cause in SAVED)
def test_anomaly_mode_blames_the_line_marked_first(program):
    told = []
    run(program, anomalies(told))
    (blame,) = [text for text in told if "Traceback of forward call" in text]
    frames = re.findall(r'File "(.*)", line (\d+)', blame)
    mine = [(file, int(line)) for file, line in frames if file.startswith(f"{program.folder}/")]
    name, line = program.story[1]
    assert mine[-1] == (f"{program.folder}/{name}", line)


@pytest.mark.grid(fast=3)
@named(lambda program: program.kind == "check")
@pytest.mark.skipif(not hasattr(byname, "check"), reason="byname.check is not there yet")
def test_a_silent_program_raises_nothing(program):
    namespace, error = run(program)
    assert error is None
    assert isinstance(namespace["FOUND"], list)


def parameter_names(program, model, wanted):
    """The names, as the program's culprits write them, of the model's parameters that are wanted."""
    found = {name for name, parameter in model.named_parameters() if wanted(parameter)}
    told = {re.sub(r'\["?(\w+)"?\]', r".\1", culprit).split(".", 1)[1] for culprit in program.culprits}
    return found, told


def nodes(loss):
    """How many nodes the graph has."""
    seen, waiting = {loss.grad_fn}, [loss.grad_fn]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def assert_witnessed(program, check, witnessed, monkeypatch):
    """Runs the program with this `byname.check`, and compares what it has witnessed with what the program tells."""
    monkeypatch.setattr(byname, "check", check)
    _, error = run(program)
    assert error is None
    found, told = witnessed[-1]
    assert found == told


def of_cause(*causes):
    return named(lambda program: program.kind == "check" and program.cause in causes)


@of_cause("detached-parameter", "ddp-unused")
def test_the_loss_does_not_reach_the_culprits_and_reaches_all_others(program, monkeypatch):
    witnessed = []

    def check(loss, model=None, optimizer=None):
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
        missed = {id(parameter) for parameter, grad in zip(parameters, gradients, strict=True) if grad is None}
        witnessed.append(parameter_names(program, model, lambda parameter: id(parameter) in missed))
        return []

    assert_witnessed(program, check, witnessed, monkeypatch)


@of_cause("not-in-optimizer")
def test_the_optimizer_lacks_the_culprits_and_has_all_others(program, monkeypatch):
    _, calls = run_silent(program, monkeypatch)
    _, model, optimizer = calls[-1]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found, told = parameter_names(
        program, model, lambda parameter: parameter.requires_grad and id(parameter) not in held
    )
    assert found == told


@of_cause("orphaned-parameter")
def test_the_culprits_are_in_the_optimizer_and_not_in_the_model(program, monkeypatch):
    namespace, calls = run_silent(program, monkeypatch)
    _, model, optimizer = calls[-1]
    owned = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    orphans = {id(parameter) for parameter in held if id(parameter) not in owned}
    assert orphans == {id(eval(culprit, {**namespace, "optimizer": optimizer})) for culprit in program.culprits}


@of_cause("free-leaf")
def test_the_graph_has_a_leaf_that_is_no_parameter(program, monkeypatch):
    _, calls = run_silent(program, monkeypatch)
    loss, model, optimizer = calls[-1]
    owned = {id(parameter) for parameter in model.parameters()}
    leaves = [node.variable for node in nodes(loss) if hasattr(node, "variable")]
    free = [leaf for leaf in leaves if id(leaf) not in owned]
    assert len(free) == len(program.culprits)


@of_cause("graph-grows")
def test_the_graph_has_more_nodes_at_every_step(program, monkeypatch):
    sizes = []

    def check(loss, model=None, optimizer=None):
        sizes.append(len(nodes(loss)))
        return []

    monkeypatch.setattr(byname, "check", check, raising=False)
    _, error = run(program)
    assert error is None
    steps = [after - before for before, after in zip(sizes, sizes[1:])]
    assert len(steps) >= 2
    assert min(steps) > 0


@of_cause("graph-in-grad")
def test_the_gradients_of_the_culprits_hold_a_graph(program, monkeypatch):
    witnessed = []

    def check(loss, model=None, optimizer=None):
        held = lambda parameter: parameter.grad is not None and parameter.grad.grad_fn is not None
        witnessed.append(parameter_names(program, model, held))
        return []

    assert_witnessed(program, check, witnessed, monkeypatch)


@named(lambda program: program.kind == "non-finite")
def test_a_gradient_is_not_finite(program):
    namespace, error = run(program)
    assert error is None
    gradients = [parameter.grad for parameter in namespace["model"].parameters() if parameter.grad is not None]
    assert gradients
    assert not all(gradient.isfinite().all() for gradient in gradients)


def finite(tensors):
    return all(tensor.isfinite().all() for tensor in tensors if isinstance(tensor, torch.Tensor))


class FirstNonFinite(TorchFunctionMode):
    """Keeps the line of the program whose operation first gave numbers that are not finite."""

    def __init__(self, program):
        super().__init__()
        self.folder = f"{program.folder}/"
        self.place = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        computed = isinstance(result, torch.Tensor) and result.grad_fn is not None  # torch.empty may hold anything
        if self.place is None and computed and not finite([result]):
            frame = sys._getframe(1)
            while not frame.f_code.co_filename.startswith(self.folder):
                frame = frame.f_back
            self.place = (frame.f_code.co_filename.removeprefix(self.folder), frame.f_lineno)
        return result


@named(lambda program: program.first == "forward")
def test_the_line_marked_first_gives_the_first_numbers_that_are_not_finite(program):
    mode = FirstNonFinite(program)
    run(program, mode)
    assert mode.place == program.story[1]


@named(lambda program: program.first == "backward")
def test_the_backward_of_the_line_marked_first_spoils_the_gradient(program, monkeypatch):
    spoilers = []
    backward = torch.Tensor.backward

    def watched(loss):
        assert finite([loss])
        for node in nodes(loss):
            traceback = node.metadata.get("traceback_")

            def look(inputs, outputs, traceback=traceback):
                if finite(outputs) and not finite(inputs):
                    spoilers.append("".join(traceback))

            node.register_hook(look)
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", watched)
    run(program, torch.autograd.set_detect_anomaly(True, check_nan=False))
    frames = re.findall(r'File "(.*)", line (\d+)', spoilers[0])
    name, line = program.story[1]
    assert [frame for frame in frames if frame[0].startswith(f"{program.folder}/")][-1] == (
        f"{program.folder}/{name}",
        str(line),
    )
