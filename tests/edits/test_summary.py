"""Are the figures of a summary those that PyTorch counts, and is the model as before?"""

import copy

import pytest
import torch
from tiny import gpt2, llama, logits, plain, untouched
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from watching import differences, run

import byname
from byname.errors import BadArgumentError


def rows_of(summary):
    return {row["path"]: row for row in summary.rows()}


@pytest.mark.parametrize("make", [plain, gpt2, llama])
def test_figures_are_those_that_pytorch_counts(make):
    model, x = make()
    check = untouched(model)
    found = byname.summary(model, x)
    counter = FlopCounterMode(display=False)
    with counter:
        output = model(x)
    rows = rows_of(found)
    assert list(rows) == [path for path, _ in model.named_modules()]
    counts = counter.get_flop_counts()
    for path, module in model.named_modules():
        row = rows[path]
        assert row["parameters"] == sum(one.numel() for one in module.parameters())
        assert row["own_parameters"] == sum(one.numel() for one in module.parameters(recurse=False))
        if row["calls"]:
            assert row["flops"] == sum(counts.get(f"{type(model).__name__}.{path}".rstrip("."), {}).values())
        assert row["seconds"] >= 0
    assert sum(row["own_flops"] for row in rows.values()) == counter.get_total_flops() == found.totals["flops"] > 0
    parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
    held = {}
    for one in byname.saved(logits(output)):
        if one.tensor.ndim:  # else a Python number, which PyTorch does not show to hooks
            storage = one.tensor.untyped_storage()
            held |= {} if storage.data_ptr() in parameters else {storage.data_ptr(): storage.nbytes()}
    assert rows[""]["saved_bytes"] == sum(held.values()) > 0
    assert check()


def test_outputs():
    model, x = plain()
    rows = rows_of(byname.summary(model, x))
    assert rows[""]["output"] == (3, 4) and rows[""]["output_bytes"] == 48
    assert (
        rows["blocks.0.attn"]["output"] == ((3, 5, 8), (3, 2, 5, 5))
        and rows["blocks.0.attn"]["output_bytes"] == 480 + 600
    )
    assert rows["blocks"]["output"] is None and rows["blocks"]["calls"] == 0
    assert rows["blocks"]["flops"] == 3 * rows["blocks.0"]["flops"]
    assert rows["blocks"]["saved_bytes"] <= rows[""]["saved_bytes"]


def test_a_module_that_runs_twice_and_one_that_does_not():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    model.unused = nn.Linear(3, 3)
    del model._modules["unused"]
    model[1].extra = nn.Linear(2, 2)
    rows = rows_of(byname.summary(model, torch.ones(4, 3)))
    assert rows["0"]["calls"] == 2 and rows["0"]["flops"] == 2 * 2 * 4 * 3 * 3 == rows[""]["flops"]
    assert rows[""]["parameters"] == 12 + 6 and rows["1.extra"]["calls"] == rows["1.extra"]["flops"] == 0


def test_training_goes_on_as_without():
    model, x = plain()
    model.train()
    other = copy.deepcopy(model)
    run(model, [x]), run(other, [x])
    gradients = [one.grad for one in model.parameters()]
    state, input = torch.get_rng_state(), x.clone()
    recorder = byname.record(model, "head")
    byname.summary(model, x)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(x, input) and x.grad is None
    assert all(one.grad is grad for one, grad in zip(model.parameters(), gradients))
    assert not differences(run(model, [x]), run(other, [x]))
    recorder.close()
    assert len(recorder.results["head"].values) == 1


def test_without_gradients_nothing_is_saved():
    model, x = plain()
    with torch.no_grad():
        assert byname.summary(model, x).totals["saved_bytes"] == 0


def test_keywords_and_checkpoints():
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x, *, careful):
            inner = lambda x: self.fc(x).exp().exp()
            return checkpoint(inner, x, use_reentrant=False) if careful else inner(x)

    x = torch.ones(2, 4, requires_grad=True)
    with_it, without = (byname.summary(Saves(), x, careful=careful).totals["saved_bytes"] for careful in (True, False))
    assert with_it < without == 32 * 3


def test_parameters_of_scripted_modules():
    x = torch.ones(2, 3)
    rows = rows_of(byname.summary(nn.Sequential(torch.jit.trace(nn.Linear(3, 3), x), nn.Linear(3, 1)), x))
    assert rows[""]["parameters"] == 12 + 4 and rows["0"]["parameters"] == rows["0"]["own_parameters"] == 12


def test_edits_count():
    model, x = plain()
    whole = byname.summary(model, x).totals["flops"]
    with byname.skip(model, "blocks.1"):
        rows = rows_of(byname.summary(model, x))
    assert rows["blocks.1"]["flops"] == 0 and rows[""]["flops"] < whole


def test_it_prints_as_a_table():
    model, x = plain()
    found = byname.summary(model, x)
    title, head, *_ = str(found).splitlines()
    assert title.startswith("Model: 31 modules, 1,756 parameters, 53,472 FLOPs, ")
    assert head.split() == [
        "path",
        "module",
        "calls",
        "output",
        "output_bytes",
        "parameters",
        "own_parameters",
        "flops",
        "own_flops",
        "saved_bytes",
        "seconds",
    ]
    assert "3×5×8, 3×2×5×5" in str(found) and "<table>" in found._repr_html_() and len(found.to_pandas()) == 31
    assert {*found.totals} == {"parameters", "flops", "output_bytes", "saved_bytes", "seconds"}


def test_errors_leave_nothing():
    model, x = plain()
    check = untouched(model)
    with pytest.raises(RuntimeError):
        byname.summary(model, torch.ones(2, 5, 7))
    assert check()
    with pytest.raises(BadArgumentError, match="lazy parameter"):
        byname.summary(nn.LazyLinear(2), x)
