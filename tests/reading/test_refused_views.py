"""Views that PyTorch refuses to tell the graph of, because their base was changed in place, break no question."""

import pytest
import torch

import byname


@pytest.fixture
def refused():
    """One of the two views of a tensor that was changed in place after the split."""
    doubled = torch.ones(4, requires_grad=True) * 2
    part, _ = doubled.split(2)
    doubled.mul_(3)
    with pytest.raises(RuntimeError, match="returns multiple views"):
        part.grad_fn  # noqa: B018
    return part


def test_questions_about_others_are_answered(refused):
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).exp().sum()
    assert [str(leaf.name) for leaf in byname.leaves(loss)] == ["weight"]
    assert byname.saved(loss) and byname.graph(loss).nodes
    assert any(str(row.name) == "refused" for row in byname.census())
    assert byname.holders(refused)


def test_it_has_a_name(refused):
    assert str(byname.name(refused)) == "refused"


@pytest.mark.parametrize("question", [byname.leaves, byname.saved, byname.graph])
def test_its_own_graph_is_refused_with_the_reason(refused, question):
    with pytest.raises(byname.errors.NoGraphError, match="one of several views that were made at once"):
        question(refused)


def test_a_program_that_reads_its_gradient_runs_as_without_byname(refused):
    with pytest.warns(UserWarning, match="not a leaf"):
        assert refused.grad is None
    with byname.track(), pytest.warns(UserWarning, match="not a leaf"):
        assert refused.grad is None
    with byname.explaining(), pytest.warns(UserWarning, match="not a leaf"):
        assert refused.grad is None


def test_the_program_gets_the_error_of_pytorch_where_it_uses_it(refused):
    with byname.track(), pytest.raises(RuntimeError, match="returns multiple views"):
        refused + 1
