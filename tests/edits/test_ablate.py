"""Do ablated values tell nothing of the input, and does a reference leave no trace of its run?"""

import copy
import gc
import random
import weakref

import pytest
import torch
from tiny import by_hook, gpt2, llama, logits, plain, untouched
from torch import nn
from watching import differences, run

import byname
from byname.errors import BadArgumentError, BadExampleError, BynameError, InterjectionError, NoMatchError

PLACES = [(plain, "blocks.1"), (gpt2, "transformer.h.1"), (llama, "model.layers.0")]


def tensors(model, x):
    """Inputs for a model."""
    return torch.randn(4, 5, 8) if x.is_floating_point() else torch.randint(0, 32, (4, 5))


def test_a_sparse_value_keeps_its_shape():
    model, x = nn.Sequential(nn.Identity(), nn.Identity()), torch.randn(3, 4).to_sparse()
    with byname.ablate(model, "0"):
        ablated = model(x)
    assert ablated.is_sparse and torch.equal(ablated.to_dense(), torch.zeros(3, 4))


@pytest.mark.parametrize(("make", "path"), PLACES)
def test_zero_and_mean_are_those_of_a_hook_by_hand(make, path):
    model, x = make()
    check = untouched(model)
    first, second = tensors(model, x), tensors(model, x)
    seen = [byname.capture(model, path)(one)[path] for one in (first, second)]
    with byname.ablate(model, path):
        assert torch.equal(logits(model(x)), by_hook(model, path, torch.zeros_like, x))
    with byname.ablate(model, path, "mean", reference=byname.capture(model, path)(first)):
        found = logits(model(x))
    assert torch.equal(
        found, by_hook(model, path, lambda value: seen[0].mean((0, 1), keepdim=True).expand_as(value), x)
    )
    mean = torch.cat(seen).double().mean((0, 1)).float()
    with byname.ablate(model, path, "mean", reference=(batch for batch in (first, [second]))):
        found = logits(model(x))
    assert torch.equal(found, by_hook(model, path, lambda value: mean.expand_as(value), x))
    assert check()


@pytest.mark.parametrize("merged", [True, False])
def test_a_head_by_its_mean(merged):
    model, x = plain()
    path = "blocks.1.attn.forward.merged" if merged else "blocks.1.attn.forward.scores"
    reference = byname.capture(model, path)(torch.randn(4, 5, 8))
    before = byname.capture(model, path)(x)[path]
    with byname.ablate(model, path, "mean", heads=1, reference=reference):
        after = byname.capture(model, path)(x)[path]
    values = reference[path]
    if merged:
        assert torch.equal(after[..., 4:], values.mean((0, 1))[4:].expand(3, 5, 4))
        assert torch.equal(after[..., :4], before[..., :4])
    else:
        assert torch.equal(after[:, 1], values.mean((0, 2))[1].expand(3, 5, 5))
        assert torch.equal(after[:, 0], before[:, 0])


class TestResampling:
    def test_each_sample_takes_another_one_the_same_at_all_places(self):
        model, x = plain()
        reference = byname.capture(model, ["blocks.0", "blocks.1"])(x)
        with byname.ablate(model, ["blocks.0", "blocks.1"], "resample", reference=reference):
            found = byname.capture(model, ["blocks.0", "blocks.1"])(x)
        taken = [[k for k in range(3) if torch.equal(reference["blocks.0"][k], one)] for one in found["blocks.0"]]
        assert sorted(taken) == [[0], [1], [2]] and all(one != [k] for k, one in enumerate(taken))
        assert torch.equal(found["blocks.1"], reference["blocks.1"][torch.tensor(taken).flatten()])

    @pytest.mark.parametrize("samples", [1, 2, 3, 4, 9])
    def test_of_any_number(self, samples):
        model, x = plain()
        with byname.ablate(
            model, "blocks.0", "resample", reference=[torch.randn(samples, 5, 8)], positions=2
        ) as handle:
            model(x), model(x[:1])
        assert handle.paths == ("blocks.0",)

    def test_the_seed_says_which(self):
        model, x = plain()
        reference = byname.capture(model, "blocks.0")(torch.randn(50, 5, 8))
        state, outputs = torch.get_rng_state(), []
        for seed in (0, 0, 1):
            edit = byname.ablate(model, "blocks.0", "resample", reference=reference, seed=seed)
            with edit, torch.device("meta" if seed else "cpu"):  # where the program makes new tensors
                outputs.append([model(x), model(x)])
        assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1])
        assert not torch.equal(outputs[0][0], outputs[2][0]) and not torch.equal(outputs[0][0], outputs[0][1])
        assert torch.equal(torch.get_rng_state(), state)

    def test_another_shape_is_an_error(self):
        model, x = plain()
        with (
            byname.ablate(model, "blocks.0", "resample", reference=[torch.randn(3, 4, 8)]),
            pytest.raises(InterjectionError, match=r"shape \(5, 8\).*\(4, 8\)"),
        ):
            model(x)


def test_a_run_for_the_reference_leaves_no_trace():
    model, x = plain()
    model.train()
    other = copy.deepcopy(model)
    seen = []
    recorder = byname.record(model, "head")
    hearing = byname.attach(model, "head", lambda event: seen.append(1), reads=True)
    python = random.getstate()
    handle = byname.ablate(model, "blocks.0", "mean", reference=[torch.randn(3, 5, 8), {"x": torch.randn(3, 5, 8)}])
    assert not seen and random.getstate() == python
    assert torch.equal(model.norm.running_mean, other.norm.running_mean)
    handle.remove()
    assert not differences(run(model, [x]), run(other, [x]))
    hearing.remove()
    recorder.close()
    assert len(recorder.results["head"].values) == 1


def test_what_is_attached_takes_part_in_the_reference():
    model, x = plain()
    with byname.patch(model, "blocks.0", torch.ones(())):
        reference = [x]
        handle = byname.ablate(model, "blocks.0", "mean", reference=reference)
    with handle:
        assert byname.capture(model, "blocks.0")(x)["blocks.0"].eq(1).all()


def test_an_embedding_that_is_renormalised_is_put_back():
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.1), nn.Linear(3, 3))
    before = model[0].weight.detach().clone()
    byname.ablate(model, "1", "mean", reference=[torch.arange(4)]).remove()
    assert torch.equal(model[0].weight, before)


def test_a_forward_that_writes_parameters_is_refused_as_a_reference():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            with torch.no_grad():
                self.weight += 1
            return x * self.weight

    with pytest.raises(BadArgumentError, match="parameters in place"):
        byname.ablate(Writes(), "forward", "mean", reference=[torch.ones(2)])


def test_errors():
    model, x = plain()
    check = untouched(model)
    cap = byname.capture(model, ["blocks.0", "blocks.0.attn"])(x)
    for arguments, error, why in [
        ({"how": "median"}, BadArgumentError, "'zero', 'mean', 'resample'"),
        ({"how": "mean"}, BadArgumentError, "needs reference="),
        ({"reference": cap}, BadArgumentError, "takes no reference="),
        ({"how": "mean", "reference": x}, BadArgumentError, r"reference=\[batch\]"),
        ({"how": "mean", "reference": []}, BadArgumentError, "no batches"),
        ({"how": "mean", "reference": [3]}, BadExampleError, "example="),
        ({"how": "mean", "reference": {"blocks.9": x}}, NoMatchError, "blocks.9"),
    ]:
        with pytest.raises(error, match=why):
            byname.ablate(model, "blocks.0", **arguments)
    with pytest.raises(BynameError, match="a tuple has neither mean nor samples"):
        byname.ablate(model, "blocks.0.attn", "mean", reference=cap)
    with pytest.raises(InterjectionError, match="no common mean"):
        byname.ablate(model, "blocks.0.attn.softmax", "mean", reference=[torch.randn(2, 5, 8), torch.randn(2, 4, 8)])
    assert check()


def test_no_tensor_lives_on():
    model, x = plain()
    cap = byname.capture(model, "blocks.0")(x)
    tensor = weakref.ref(cap["blocks.0"])
    handle = byname.ablate(model, "blocks.0", "resample", reference=cap)
    model(x)
    handle.remove()
    del cap
    gc.collect()
    assert tensor() is None


def test_the_mean_of_a_reference_counts_padding_and_a_mean_of_ones_own_does_not():
    model, ids = gpt2()
    model.config.pad_token_id = 0
    mask = torch.tensor([[1, 1, 0, 0, 0], [1] * 5])
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    path, seen = "transformer.h.1.mlp", []
    hook = model.get_submodule(path).register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    model(**batch)
    hook.remove()
    every, real = seen[0].mean((0, 1)), seen[0][mask.bool()].mean(0)
    assert not torch.allclose(every, real, atol=1e-5)
    for reference in ([batch], byname.capture(model, path)(**batch)):
        with byname.ablate(model, path, "mean", reference=reference):
            value = byname.capture(model, path)(ids)[path]
        assert torch.allclose(value, every.expand_as(value), atol=1e-6)
    with byname.patch(model, path, real):
        assert torch.equal(logits(model(ids)), by_hook(model, path, real.expand_as, ids))


def test_batches_of_several_lengths_count_by_their_positions():
    model, _ = gpt2()
    batches = [torch.randint(0, 32, (3, 4)), torch.randint(0, 32, (1, 6))]
    path, seen = "transformer.h.1.mlp", []
    hook = model.get_submodule(path).register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    for batch in batches:
        model(batch)
    hook.remove()
    mean = torch.cat([one.flatten(0, 1) for one in seen]).mean(0)
    with byname.ablate(model, path, "mean", reference=batches):
        value = byname.capture(model, path)(batches[0])[path]
    assert torch.allclose(value, mean.expand_as(value), atol=1e-6)
