"""Is it told of a program that runs, and trains otherwise than it says: clips too soon, stays in evaluation mode?"""

import pytest
import torch
from torch import nn

from byname.diagnose.explaining import Explaining


def findings_of(program, *args):
    found = []
    with Explaining(checked=found.append):
        alive = program(*args)
    assert alive is not None
    return found


def scaled_steps(clip, zeroed=False, scale=2.0**16, enabled=True):
    """Steps with a scaler, in which `clip` may clip and unscale, in its order."""
    model, other = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    other(torch.randn(8, 4)).sum().backward()
    for step in range(5):
        optimizer.zero_grad(set_to_none=not zeroed)
        loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss * (torch.inf if step == 0 and zeroed else 1)).backward()
        clip(scaler, optimizer, model, other)
        scaler.step(optimizer)
        scaler.update()
    return model, other, optimizer


def clip_scaled(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_values_and_unscale(scaler, optimizer, model, other):
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)


@pytest.mark.parametrize("clip", [clip_scaled, clip_values_and_unscale])
@pytest.mark.parametrize("zeroed", [False, True])
def test_gradients_that_are_clipped_before_they_are_unscaled_are_told(clip, zeroed):
    (found,) = findings_of(scaled_steps, clip, zeroed)
    assert found.cause == "scaler-order"
    assert (
        "clips gradients that are still multiplied by the scale, " + ("32768" if zeroed else "65536") in found.message
    )
    assert found.sites[0].line == clip.__code__.co_firstlineno + 1
    assert "`scaler.unscale_(optimizer)` on the line before" in found.remedy


def clip_unscaled(scaler, optimizer, model, other):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_another_model(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)


def clip_to_the_scale(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())


def average(scaler, optimizer, model, other):
    for one in model.parameters():
        one.grad.div_(2)


@pytest.mark.parametrize("clip", [clip_unscaled, clip_another_model, clip_to_the_scale, average])
@pytest.mark.parametrize("zeroed", [False, True])
def test_gradients_that_are_unscaled_or_of_another_model_or_only_averaged_are_not_clipped_too_soon(clip, zeroed):
    assert findings_of(scaled_steps, clip, zeroed) == []


@pytest.mark.parametrize("options", [{"scale": 1.0}, {"enabled": False}])
def test_a_scale_of_one_needs_no_unscaling(options):
    assert findings_of(lambda: scaled_steps(clip_scaled, **options)) == []
