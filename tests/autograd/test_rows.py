"""Rows of results: they compare without a look at tensors, and have their columns as attributes."""

import pickle
import sys
import weakref

import pytest
import torch

import byname
from byname.errors import NoGraphError, NotATensorError, NotInstalledError


def results(loss, leaf):
    with byname.growth() as growth:
        kept = [torch.ones(1000) for _ in range(3)]
    assert len(kept) == 3
    return [
        byname.leaves(loss),
        byname.saved(loss),
        byname.graph(loss),
        byname.path(loss, leaf),
        byname.census(),
        byname.census(names=False),
        growth,
        byname.points(torch.nn.Linear(2, 2)),
    ]


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("tracked", [False, True])
def test_rows_compare_hash_and_have_their_columns(tracked):
    x = torch.ones(3, requires_grad=True)
    y = x.detach().requires_grad_()
    if tracked:
        with byname.track():
            loss = (x * 2 + y * 3).exp().sum()
            found = results(loss, x)
    else:
        loss = (x * 2 + y * 3).exp().sum()
        found = results(loss, x)
    for result in found:
        rows = list(result)
        assert rows
        assert [row in result for row in rows] == [True] * len(rows)
        assert all(result[result.index(row)] == row for row in rows)
        assert len(set(rows)) <= len(rows)
        lacking = {
            column
            for row, columns in zip(rows, result.rows(), strict=True)
            for column in columns
            if not hasattr(row, column)
        }
        assert lacking == set(), type(result).__name__


def test_leaves_can_be_stored_and_keep_no_tensor_for_the_names_that_nobody_has_asked_for():
    parameter = torch.nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([parameter], lr=0.1)
    box = torch.nn.Module()
    box.register_buffer("mean", torch.ones(2, requires_grad=True))
    opt.state[parameter]["mean"] = box.mean
    found = byname.leaves((parameter * box.mean).sum())
    stored = pickle.dumps(found)
    alive = [weakref.ref(one) for one in (parameter, box, opt)]
    del parameter, box, opt
    assert [one() for one in alive] == [None, None, None]
    names = {leaf.name.path: [name.path for name in leaf.names[1:]] for leaf in found}
    assert names == {"parameter": ["opt.param_groups[0]['params'][0]"], "box.mean": ["opt.state[parameter]['mean']"]}
    assert [leaf.names for leaf in pickle.loads(stored)] == [leaf.names for leaf in found]


def test_two_leaves_in_one_storage_are_two_rows():
    x = torch.ones(3, requires_grad=True)
    y = x.detach().requires_grad_()
    loss = (x * 2 + y * 3).sum()
    leaves, again = byname.leaves(loss), byname.leaves(loss)
    assert [leaves.index(row) for row in leaves] == [0, 1]
    assert leaves[0] != leaves[1]
    assert leaves[0].card != leaves[1].card
    assert list(leaves) == list(again)
    assert set(map(hash, leaves)) == set(map(hash, again))
    assert (leaves[0].shape, leaves[0].dtype) == ((3,), torch.float32)


def test_rows_compare_and_hash_when_their_tensors_are_gone():
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    leaves = byname.leaves(loss)
    same = byname.leaves(loss)[0]
    del loss
    assert leaves[0].tensor is None
    assert leaves[0] == same
    assert hash(leaves[0]) == hash(same)
    stored, other = (pickle.loads(pickle.dumps(leaves[0].card)) for _ in range(2))
    assert stored == other
    assert hash(stored) == hash(other)
    assert stored != leaves[0].card
    assert stored != "a card"


def test_events_are_compared_by_identity():
    model, events = torch.nn.ReLU(), []
    with byname.attach(model, "forward", lambda event: events.append(event) or event.value):
        for _ in range(2):
            model(torch.ones(3))
    one, other = events
    assert one == one  # noqa: PLR0124 - the comparison is what is tested
    assert one != other
    assert other in [one, other]


def test_a_path_is_a_table():
    w = torch.ones(3, requires_grad=True)
    path = byname.path(w.exp().sum(), w)
    assert [(row["node"], row["index"]) for row in path.rows()] == [
        ("SumBackward0", 0),
        ("ExpBackward0", 0),
        ("AccumulateGrad", None),
    ]
    assert str(path).splitlines()[0] == "3 nodes from SumBackward0 to AccumulateGrad"
    assert "ExpBackward0" in repr(path) and "ExpBackward0" not in path.head(1)


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("function", [byname.leaves, byname.saved, byname.graph, byname.check])
def test_the_same_roots_are_taken_by_all(function):
    w = torch.ones(2, requires_grad=True)
    losses = [w.sum(), (w * 2).sum()]
    by_name = {"first": losses[0], "second": losses[1]}
    for given in (losses, tuple(losses), set(losses), frozenset(losses), by_name, by_name.values(), losses[0].grad_fn):
        function(given)
    with pytest.raises(NoGraphError, match="empty"):
        function(set())
    with pytest.raises(NotATensorError):
        function({1, 2})
    with pytest.raises(NotATensorError):
        function({"epoch": 3})


def test_without_pandas_the_error_is_an_import_error(monkeypatch):
    leaves = byname.leaves(torch.ones(2, requires_grad=True).sum())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"byname\[frames\]") as caught:
        leaves.to_pandas()
    assert type(caught.value) is NotInstalledError


def test_a_result_is_not_displayed_by_being_printed(monkeypatch):
    """As rich recognises Jupyter: by the class of the shell."""
    shell = type("ZMQInteractiveShell", (), {"config": {}})()
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    displayed = []
    display = type(sys)("IPython.display")
    display.display = lambda *given, **how: displayed.append(given)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    points = byname.points(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert "0.weight" in str(points)
    assert "0.weight" in repr(points)
    assert "0.weight" in points.head(3)
    assert displayed == []
