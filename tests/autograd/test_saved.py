"""Saved tensors: their names, sizes and states."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname


def table(found):
    return [(row.node, row.slot, row.state, row.bytes) for row in found]


def test_every_state_of_a_slot():
    x = torch.ones(4, requires_grad=True)
    h = x * 2
    y = h * h
    assert {row.state for row in byname.saved(y.sum())} == {"live"}
    h += 1
    assert [row.state for row in byname.saved(y.sum()) if row.node == "MulBackward0"][:2] == ["modified", "modified"]
    z = (x * x).sum()
    z.backward()
    assert [row.state for row in byname.saved(z)] == ["freed", "freed"]
    assert byname.saved(z).bytes == 0


def test_a_slot_never_filled_is_no_row():
    x = torch.ones(3, requires_grad=True)
    loss = (x * 2.0).sum()
    assert [row.slot for row in byname.saved(loss)] == ["other"]


def test_each_storage_counts_once_and_sharing_is_marked():
    x = torch.ones(8, requires_grad=True)
    loss = (x * x + x[:4].repeat(2) * x).sum()
    found = byname.saved(loss)
    own = [row for row in found if row.card.tensor is x]
    assert len(own) >= 3
    assert all(len(row.shares_with) >= 2 for row in own)
    storages = {row.card.tensor.untyped_storage()._cdata: row.card.storage_bytes for row in found}
    assert found.bytes == sum(storages.values())
    assert sum(size for _, _, size in found.by("node")) == found.bytes


def test_inputs_results_and_views_have_the_names_of_the_program():
    model = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    y = model(x).exp()
    found = {(row.node, row.slot): row.name for row in byname.saved((y * x).sum())}
    assert str(found["AddmmBackward0", "mat1"]) == "x"
    assert str(found["AddmmBackward0", "mat2"]) == "view of model.weight"
    assert not found["AddmmBackward0", "mat2"].exact
    assert str(found["ExpBackward0", "result"]) == "y"
    assert found["AddmmBackward0", "mat1"].exact


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, None, factor)
        ctx.extra = [torch.ones(5)]
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[2], None


def test_a_custom_function_shows_what_it_saved_and_what_it_put_on_ctx():
    x, factor = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    loss = Scale.apply(x, factor).sum()
    found = [(row.slot, str(row.name), row.bytes) for row in byname.saved(loss)]
    assert found == [
        ("saved_tensors[0]", "x", 12),
        ("saved_tensors[2]", "factor", 12),
        ("ctx.extra[0]", "unnamed", 20),
    ]
    loss.backward()
    assert [(row.slot, row.state) for row in byname.saved(loss)] == [
        ("saved_tensors", "freed"),
        ("ctx.extra[0]", "live"),
    ]


def test_a_changed_input_of_a_custom_function_is_modified():
    x, factor = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    loss = Scale.apply(x, factor).sum()
    factor.add_(1)
    assert {row.slot: row.state for row in byname.saved(loss)}["saved_tensors[2]"] == "modified"


def refuse(*_):
    raise AssertionError("a hook was called")


def test_hooks_are_never_called():
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: ("packed", tensor), refuse):
        loss = (x.exp() * x).sum()
        custom = Scale.apply(x, torch.ones(3)).sum()
    assert {row.state for row in byname.saved(loss)} == {"packed"}
    assert {row.state for row in byname.saved(custom) if row.slot != "ctx.extra[0]"} == {"packed"}
    assert byname.saved(loss)[0].bytes == 12


def test_a_checkpoint_is_not_recomputed():
    runs = []

    def block(x):
        runs.append(1)
        return (x.exp() * x).sin()

    x = torch.ones(3, requires_grad=True)
    loss = checkpoint(block, x, use_reentrant=False).sum()
    found = byname.saved(loss)
    assert found
    assert {row.state for row in found} == {"packed"}
    reentrant = checkpoint(block, x, use_reentrant=True).sum()
    assert any("reentrant checkpoint" in note for note in byname.saved(reentrant).opaque)
    assert len(runs) == 2


def test_offloaded_tensors_stay_where_they_are():
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        loss = (x * x).sum()
    assert [row.state for row in byname.saved(loss)] == ["packed", "packed"]


def test_lists_of_saved_tensors_are_slots_of_their_own():
    x = torch.ones(4, requires_grad=True)
    picked = x[torch.tensor([0, 2])]
    assert [row.slot for row in byname.saved(picked)] == ["indices[0]"]


def test_totals_by_module_and_site_under_track():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    with byname.track() as tracker:
        loss = model(torch.ones(2, 4)).sum()
    found = byname.saved(loss)
    modules = {key: count for key, count, _ in found.by("module")}
    assert set(modules) >= {"model[1]", "model[2]"}
    assert len(found.by("site")) == 1
    assert tracker is not None


def test_slicing_and_negative_positions():
    x = torch.ones(3, requires_grad=True)
    found = byname.saved((x * x).sum())
    assert found[-1] == found[len(found) - 1]
    assert list(found[:2]) == [found[0], found[1]]
    with pytest.raises(IndexError):
        found[len(found)]


def test_a_saved_result_keeps_no_tensor_alive(no_collection):
    import weakref

    x = torch.ones(3, requires_grad=True)
    h = x * 2
    loss = (h * h).sum()
    watched = weakref.ref(h)
    found = byname.saved(loss)
    del h, loss
    assert watched() is None
    assert found[0].tensor is None
