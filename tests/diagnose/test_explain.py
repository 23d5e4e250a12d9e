"""Every failing program of the corpus is explained: the cause, the variables and the lines are the true ones."""

import warnings
from pathlib import Path

import corpus
import pytest
import torch
from checking import checking
from corpus import named

import byname


def places(finding, program):
    """The lines of a story as the corpus writes them, each once."""
    found = [(Path(site.file).relative_to(program.folder).as_posix(), site.line) for site in finding.sites]
    return list(dict.fromkeys(found))


def plain(name):
    """A name as it is compared: one kind of quotes, and without the wrapper that names see through."""
    return name.replace('"', "'").replace("ddp.module.", "ddp.")


def last(name):
    return plain(name).rpartition(".")[2]


def is_called(culprit, wanted):
    """Whether a culprit is the variable wanted; what a method calls ``self.x`` may be told as ``model.x``."""
    if wanted.startswith("self."):
        return last(culprit) == last(wanted)
    return plain(culprit) == plain(wanted)


def assert_blames(findings, program):
    culprits = [culprit.path for finding in findings for culprit in finding.culprits]
    if program.also and any(is_called(culprit, name) for name in program.also for culprit in culprits):
        return
    for wanted in program.culprits:
        assert any(is_called(culprit, wanted) for culprit in culprits), (wanted, culprits)


@pytest.mark.grid(fast=20)
@named(lambda program: program.kind == "error" and program.cause != "unknown")
def test_an_error_is_explained_by_a_note(program):
    _, error = corpus.run(program, byname.explaining())

    why = byname.explain(error)

    assert why.cause == program.cause, why
    assert_blames([why], program)
    assert places(why, program) == list(dict.fromkeys(program.story.values())), why
    assert why.remedy
    assert [note.split(":")[:2] for note in error.__notes__] == [["byname", f" {program.cause}"]]


@named(lambda program: program.cause == "unknown")
def test_an_error_of_another_kind_is_left_alone(program):
    _, error = corpus.run(program, byname.explaining())

    why = byname.explain(error)

    assert (why.cause, why.culprits) == ("unknown", ())
    assert not hasattr(error, "__notes__")


@pytest.mark.grid(fast=16)
@named(lambda program: program.kind == "error")
def test_without_preparation_nothing_wrong_is_said(program):
    """After the fact fewer things are known; what is said is true all the same."""
    _, error = corpus.run(program)

    why = byname.explain(error)

    allowed = {program.cause, "unknown"} | ({"optimizer-step-between"} if "weight" in str(program.culprits) else set())
    assert why.cause in allowed, why
    assert set(places(why, program)) <= set(program.story.values()), why
    if len(why.culprits) == 1 and not why.culprits[0].relation:
        assert_blames([why], program)


@pytest.mark.grid(fast=7)
@named(lambda program: program.kind == "check")
def test_a_silent_failure_is_found_before_backward(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variables, error = corpus.run(program, byname.explaining())

    assert error is None
    findings = [finding for finding in variables["FOUND"] if finding.cause == program.cause]
    assert findings, variables["FOUND"]
    assert_blames(findings, program)
    if program.story:
        told = [place for finding in findings for place in places(finding, program)]
        assert set(program.story.values()) <= set(told), findings
        assert len(findings) > 1 or list(program.story.values()) == told, findings


def test_the_note_is_below_the_ordinary_traceback():
    import traceback

    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError) as caught, byname.explaining():
        h = weight.exp()
        h += 1
        h.sum().backward()

    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert any(line.startswith("byname: modified-in-place: autograd saved `h`") for line in lines)
    assert not any(str(Path(byname.__file__).parent) in line for line in lines)


class Squaring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        scaled = (grad * x).exp()
        scaled.add_(1)
        return scaled


def test_what_a_backward_of_the_program_changes_in_place_is_told_by_its_lines():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError) as caught, byname.explaining():
        (gradient,) = torch.autograd.grad(Squaring.apply(x).sum(), x, create_graph=True)
        gradient.sum().backward()
    (note,) = caught.value.__notes__
    assert "autograd saved `scaled`" in note and "scaled.add_(1)  (in Squaring.backward" in note


def test_an_error_in_the_head_of_a_loop_is_told_by_its_head():
    with pytest.raises(RuntimeError) as caught, byname.explaining():
        for gradient in map(torch.Tensor.backward, [torch.ones(2)]):
            print(gradient)
    assert "in map(torch.Tensor.backward, [torch.ones(2)]):" in caught.value.__notes__[0]
    assert "print" not in caught.value.__notes__[0]


@named(lambda program: program.kind == "non-finite")
def test_the_operation_that_first_gives_nan_or_inf_is_found(program):
    found = []

    _, error = corpus.run(program, checking(non_finite=found.append))

    assert error is None
    assert found and found[0].cause == program.cause, found
    assert_blames(found[:1], program)
    assert places(found[0], program)[0] == program.story[1], found
    assert program.first in found[0].message, found
    assert program.masked is None or program.masked in places(found[0], program), found


def test_a_tracker_that_outlives_its_block_has_not_seen_what_came_later():
    with byname.track() as tracker:
        torch.ones(1, requires_grad=True).exp()
    weights = torch.ones(2, 3, requires_grad=True).softmax(dim=1)
    weights[:, 0] = 0
    with pytest.raises(RuntimeError) as raised:
        weights.square().sum().backward()
    assert "byname.explaining() remembers the line" in str(byname.explain(raised.value))
    assert tracker.logs
