"""A sweep gives what the same loop with plain hooks gives, as a labelled array, and leaves the model as it was."""

import itertools
import math
import signal
import warnings
import weakref

import numpy as np
import pytest
import torch
from tiny import gpt2, llama, plain, t5, untouched
from torch import nn

import byname
from byname.errors import BadArgumentError

LAYERS, POSITIONS = [0, 1, 2], range(5)


def score(output):
    return output.logits[0, -1, 3] - output.logits[0, -1, 5]


def patching(clean):
    def edit(model, layer, position):
        return byname.patch(model, f"transformer.h.{layer}", clean, positions=position)

    return edit


def swept(model, clean, ids, **options):
    over = {"layer": LAYERS, "position": POSITIONS}
    return byname.sweep(model, patching(clean), over=over, metric=score, example=ids, **options)


def by_hand(model, values, ids):
    found = np.empty((3, 5))
    for layer in LAYERS:
        for position in POSITIONS:

            def change(module, args, output, layer=layer, position=position):
                output = output.clone()
                output[:, position] = values[layer][:, position]
                return output

            hook = model.transformer.h[layer].register_forward_hook(change)
            found[layer, position] = score(model(ids)).item()
            hook.remove()
    return found


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_activation_patching_is_that_by_hooks(mode):
    model, ids = gpt2()
    other, same = ids.flip(1), untouched(model)
    with mode():
        clean = byname.capture(model, "transformer.h.*")(ids)
        values = [clean[f"transformer.h.{layer}"] for layer in LAYERS]
        found, expected = swept(model, clean, other), by_hand(model, values, other)
    with torch.device("meta"):  # where the program makes new tensors
        assert np.array_equal(found.values, expected)
    assert np.array_equal(swept(model, clean, other, batch=4).values, expected)
    assert same()
    array = found.to_xarray()
    assert array.dims == ("layer", "position") and array.sel(layer=1, position=4).item() == expected[1, 4]
    assert found.rows()[7] == {"layer": 1, "position": 2, "value": expected[1, 2]}
    assert found.to_pandas().columns.tolist() == ["layer", "position", "value"]
    assert len(found) == 15 and found.complete and not found.notes
    assert "position=4" in repr(found) and "<table>" in found._repr_html_()
    axes = found.plot()
    assert (axes.get_title(loc="left"), axes.get_ylabel(), axes.get_xlabel()) == (
        "GPT2LMHeadModel",
        "layer",
        "position",
    )


@pytest.mark.parametrize(
    ("make", "path", "x"),
    [
        (llama, "model.layers.{}.self_attn.o_proj.input", None),
        (gpt2, "transformer.h.{}.attn.c_proj.input", None),
        (t5, "encoder.block.{}.layer.0.SelfAttention.o.input", {}),
    ],
)
def test_ablation_of_heads_is_that_by_hooks(make, path, x):
    model, ids = make()
    example = ids if x is None else {"input_ids": ids, "decoder_input_ids": ids}
    heads = 4 if make is llama else 2
    with torch.no_grad():
        found = byname.sweep(
            model,
            lambda model, layer, head: byname.ablate(model, path.format(layer), heads=head),
            over={"layer": range(2), "head": range(heads)},
            metric=lambda output: score(output).item(),
            example=example,
        )
        for row in found.rows():
            module = model.get_submodule(path.format(row["layer"]).removesuffix(".input"))

            def change(module, args, head=row["head"]):
                value = args[0].clone()
                value.unflatten(-1, (heads, -1))[..., head, :] = 0
                return (value,)

            hook = module.register_forward_pre_hook(change)
            output = model(**example) if isinstance(example, dict) else model(example)
            hook.remove()
            assert row["value"] == score(output).item()


def run(over, metric=lambda output: output.sum(), edit=None, **options):
    model, x = plain()
    edit = edit or (lambda model, where: byname.ablate(model, where))
    return byname.sweep(model, edit, over=over, metric=metric, example=options.pop("example", x), **options)


def test_modules_and_names_are_labels_and_one_argument_is_a_row():
    model, x = plain()
    blocks = [*model.blocks]
    found = byname.sweep(
        model,
        lambda model, where: byname.skip(model, where),
        over={"where": blocks},
        metric=lambda output: output.detach().sum().numpy(),
        example=(x,),
    )
    assert [row["where"] for row in found.rows()] == ["blocks.0", "blocks.1", "blocks.2"]
    assert [one.get_text() for one in found.plot().get_xticklabels()] == ["blocks.0", "blocks.1", "blocks.2"]
    with byname.skip(model, "blocks.1"):
        assert found.to_xarray().sel(where="blocks.1").item() == model(x).sum().item()


def test_three_arguments_are_a_row_for_each_combination_of_the_first():
    found = run(
        {"block": [0, 1], "head": [0, 1], "position": [0, 4, -1]},
        edit=lambda model, block, head, position: byname.ablate(
            model, f"blocks.{block}.attn.out.input", heads=head, positions=position
        ),
    )
    assert found.to_xarray().shape == found.shape == (2, 2, 3)
    assert [one.get_text() for one in found.plot().get_yticklabels()] == ["0 · 0", "0 · 1", "1 · 0", "1 · 1"]
    assert len(found.rows()) == 12


@pytest.mark.parametrize("by", ["metric", "signal"])
def test_ctrl_c_keeps_what_is_done_and_says_so(by):
    (model, x), seen = plain(), []
    same = untouched(model)

    def metric(output):
        seen.append(output.sum().item())
        if len(seen) == 3:
            if by == "signal":
                signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt
        return seen[-1]

    over = {"block": range(3), "feature": [0, 1]}
    edit = lambda model, block, feature: byname.ablate(model, f"blocks.{block}", features=feature)  # noqa: E731
    with pytest.warns(UserWarning, match="2 of 6 points") as warned:
        found = byname.sweep(model, edit, over=over, metric=metric, example=x)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert found.values.reshape(-1)[:2].tolist() == seen[:2] and np.isnan(found.values.reshape(-1)[2:]).all()
    assert not found.complete and "2 of 6 points ran, and the others are NaN" in repr(found)
    assert math.isnan(found.rows()[-1]["value"])
    assert found.to_xarray().attrs["notes"] == [*found.notes]
    found.plot()
    assert same()


def by_loop(model, edit, over, metric, example):
    """The figures of the loop that a sweep stands for."""
    figures = []
    for values in itertools.product(*over.values()):
        with edit(model, **dict(zip(over, values))):
            figures.append(metric(model(example)).item())
    return figures


def outcome(run):
    """What a function returns and what was warned of; or its error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = run()
        except byname.BynameError as error:
            return type(error), str(error)
    return found, [str(one.message) for one in warned]


class Wider(nn.Module):
    """Skips its second layer for inputs that are negative at their beginning."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        return x if x[0, 0] < 0 else x + self.second(x)


def with_other_layers(model, layer, feature):
    """An edit that changes the model itself: features are then others."""
    model.second = nn.Linear(6, 6).requires_grad_(False)
    nn.init.constant_(model.second.weight, feature + 0.5)
    nn.init.constant_(model.second.bias, 0.0)
    return byname.ablate(model, layer, features=feature)


def resampled(model, layer, feature):
    reference = {"first": torch.arange(24.0).view(4, 6), "second": torch.arange(24.0, 48.0).view(4, 6)}
    return byname.ablate(model, layer, "resample", reference=reference, features=feature, seed=feature)


def measured_first(model, layer, feature):
    """An edit that runs the model."""
    value = model(torch.ones(3, 4)).mean().detach()
    return byname.patch(model, layer, value.expand(3, 6), features=[feature])


@pytest.mark.sees_nothing
@pytest.mark.parametrize(
    "edit",
    [
        lambda model, layer, feature: byname.steer(model, layer, torch.ones(()), channels=feature),
        lambda model, layer, feature: byname.ablate(model, layer, features=feature, call=feature % 2),
        lambda model, layer, feature: byname.patch(model, layer, torch.ones(6), steps=feature % 2),
        lambda model, layer, feature: byname.skip(model, "second", torch.ones(3, 6) * feature),
        lambda model, layer, feature: byname.interject(model, layer, lambda name, module, value: value * feature),
        lambda model, layer, feature: byname.ablate(model, [layer, "first"], features=feature),
        lambda model, layer, feature: byname.ablate(model, f"{layer}.weight", features=feature),
        lambda model, layer, feature: byname.ablate(model, f"{layer}.linear", features=feature),
        with_other_layers,
        resampled,
        measured_first,
    ],
)
@pytest.mark.parametrize("twice", [False, True])
@torch.no_grad()
def test_a_sweep_is_the_loop_that_attaches_at_each_point(edit, twice):
    def metric(output):
        return output.sum() + (model(x * 2).sum() if twice else 0)

    over = {"layer": ["second", "first", "second"], "feature": [0, 1, 0, 3]}
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        torch.manual_seed(0)
        model = Wider()
        nn.init.constant_(model.first.weight, 0.5)
        same = untouched(model)
        expected = outcome(lambda: by_loop(model, edit, over, metric, x))
        options = {"over": over, "metric": metric, "example": x}
        assert outcome(lambda: byname.sweep(model, edit, **options).values.reshape(-1).tolist()) == expected
        assert edit is with_other_layers or same()


@torch.no_grad()
def test_an_edit_that_runs_the_model_runs_it_as_it_is():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, outputs = torch.randn(2, 3, 8), []

    def edit(model, feature):  # PyTorch computes otherwise where a module has hooks
        outputs.append(model(x))
        return byname.ablate(model, "layers.1", features=feature)

    byname.sweep(model, edit, over={"feature": range(4)}, metric=lambda output: output.sum(), example=x)
    assert all(torch.equal(one, model(x)) for one in outputs)


@torch.no_grad()
def test_an_edit_that_attaches_something_before_runs_after_it():
    model, more = nn.Sequential(nn.Linear(3, 3)), []

    def edit(model, scale):
        while more:
            more.pop().remove()
        more.append(byname.interject(model, "0", lambda name, module, value: value + 1))
        return byname.patch(model, "0", lambda value: value * scale)

    over = {"scale": [2.0, 3.0, 4.0]}
    found = byname.sweep(model, edit, over=over, metric=torch.sum, example=torch.zeros(1, 3), progress=False)
    more.pop().remove()
    wanted = [float(((model[0].bias + 1) * scale).sum()) for scale in over["scale"]]
    assert found.values.tolist() == pytest.approx(wanted)


def test_before_the_first_point_ctrl_c_is_ctrl_c():
    def metric(output):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run({"where": ["blocks.0"]}, metric)


def test_an_error_names_the_point_and_leaves_nothing():
    model, x = plain()
    same = untouched(model)
    with pytest.raises(byname.BynameError) as raised:
        byname.sweep(
            model,
            lambda model, block, position: byname.ablate(model, f"blocks.{block}", positions=position),
            over={"block": [0, 1], "position": [0, 7]},
            metric=lambda output: output.sum(),
            example=x,
        )
    assert "there is no 7 in positions=" in str(raised.value)
    assert "byname: at block=0, position=7 of the sweep" in raised.value.__notes__
    with pytest.raises(TypeError, match="unexpected keyword argument 'layer'") as raised:
        run({"layer": [1]})
    assert "byname: at layer=1 of the sweep" in raised.value.__notes__
    assert same()


@pytest.mark.parametrize(
    ("over", "options", "match"),
    [
        ({}, {}, "over= takes a dict"),
        ({"where": []}, {}, "'where'\\] is empty"),
        ({"where": "blocks.0"}, {}, "sequence of values"),
        ({"where": 3}, {}, "sequence of values"),
        ({"value": [1]}, {}, "cannot be the name"),
        ({"where": ["blocks.0"]}, {"metric": lambda output: output}, r"not a tensor of shape \(3, 4\)"),
        ({"where": ["blocks.0"]}, {"metric": lambda output: None}, "not a value of type NoneType"),
        ({"where": ["blocks.0"]}, {"edit": lambda model, where: None}, "returns a handle"),
        ({"where": ["blocks.0"]}, {"batch": 0}, "at least 1"),
    ],
)
def test_what_is_no_sweep_is_refused(over, options, match):
    with pytest.raises(BadArgumentError, match=match):
        run(over, **options)


def test_a_terminal_shows_a_bar_only_where_it_is_wanted(capsys):
    run({"where": ["blocks.0", "blocks.1"]})
    assert capsys.readouterr() == ("", "")


def test_nothing_is_kept_alive():
    model, x, outputs = nn.Sequential(nn.Linear(2, 2)), torch.randn(1, 2), []

    def metric(output):
        outputs.append(weakref.ref(output))
        return output.sum()

    byname.sweep(model, lambda model, at: byname.ablate(model, at), over={"at": ["0"]}, metric=metric, example=x)
    assert outputs[0]() is None
