"""`check(example=)`: two runs of the model show whether samples mix and whether the input matters; healthy models are silent."""

import pytest
import torch
from torch import nn

import byname
from byname.errors import BadArgumentError, BadExampleError


def found(model, *inputs, **options):
    output = model(*inputs)
    loss = (output[0] if isinstance(output, tuple) else output).float().square().mean()
    return [one for one in byname.check(loss, model=model, example=inputs, **options) if one.cause in CAUSES]


CAUSES = ("samples-mix", "input-without-effect")


class Model(nn.Module):
    def __init__(self, forward, **layers):
        super().__init__()
        self.compute = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.compute(self, x)


def by_view(self, x):
    swapped = x.view(x.size(1), x.size(0), x.size(2))
    return self.fc(swapped.transpose(0, 1))


def over_batch(self, x):
    return torch.softmax(self.fc(x), 0)


def centred(self, x):
    return self.fc(x - x.mean(0))


def attending_to_the_batch(self, x):
    return self.attention(x, x, x, need_weights=False)[0]


MIXING = {
    "view": (by_view, {"fc": nn.Linear(6, 2)}, (4, 5, 6), "view"),
    "softmax": (over_batch, {"fc": nn.Linear(6, 3)}, (8, 6), "softmax"),
    "mean": (centred, {"fc": nn.Linear(6, 3)}, (8, 6), "sub"),
    "tokens of an image": (
        lambda self, x: self.fc(x.flatten(1) @ x.flatten(1).T),
        {"fc": nn.Linear(8, 2)},
        (8, 3, 2),
        "",
    ),
}
HEALTHY = {
    "linear": (lambda self, x: self.fc(x), {"fc": nn.Linear(6, 3)}, (8, 6)),
    "square": (lambda self, x: self.fc(x), {"fc": nn.Linear(6, 8)}, (8, 6)),
    "norm and dropout": (lambda self, x: self.d(self.n(x)), {"n": nn.BatchNorm1d(6), "d": nn.Dropout()}, (8, 6)),
    "image": (lambda self, x: self.c(x).mean((2, 3)), {"c": nn.Conv2d(3, 4, 3)}, (4, 3, 8, 8)),
    "time first": (lambda self, x: self.r(x)[0], {"r": nn.LSTM(6, 7)}, (5, 4, 6)),
    "attention": (attending_to_the_batch, {"attention": nn.MultiheadAttention(6, 2, batch_first=True)}, (4, 5, 6)),
    "attention, time first": (attending_to_the_batch, {"attention": nn.MultiheadAttention(6, 2)}, (5, 4, 6)),
    "one sample": (over_batch, {"fc": nn.Linear(6, 3)}, (1, 6)),
    "one number": (lambda self, x: self.fc(x).mean(), {"fc": nn.Linear(6, 3)}, (8, 6)),
    "flattened": (lambda self, x: self.fc(x.reshape(-1, 6)).view(4, 5, 2), {"fc": nn.Linear(6, 2)}, (4, 5, 6)),
}


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_mix_are_found_with_the_operation(name):
    forward, layers, shape, operation = MIXING[name]
    (one,) = found(Model(forward, **layers), torch.randn(shape))
    assert one.cause == "samples-mix" and not one.certain and one.message.startswith("suspicious:")
    assert f"of the {shape[0]} samples depends on others" in one.message
    if operation:
        assert f"they mix first in {operation} at test_samples_mixed.py:" in one.message


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_model_that_keeps_samples_apart_nothing_is_said(name):
    forward, layers, shape = HEALTHY[name]
    assert found(Model(forward, **layers), torch.randn(shape)) == []


def test_an_input_without_effect_is_a_fact():
    (one,) = found(Model(lambda self, x: self.fc(torch.relu(x - 100)), fc=nn.Linear(6, 3)), torch.randn(8, 6))
    assert one.cause == "input-without-effect" and one.certain


def test_the_model_the_random_state_and_the_example_stay_as_they_were():
    model, x = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.ReLU(inplace=True)), torch.randn(8, 6)
    loss, before, given = model(x).sum(), {k: v.clone() for k, v in model.state_dict().items()}, x.clone()
    state, training = torch.get_rng_state(), [one.training for one in model.modules()]
    with byname.interject(model, "0", lambda *_: pytest.fail("an example run is muted")):
        byname.check(loss, model=model, example=x)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(x, given)
    assert [one.training for one in model.modules()] == training
    loss.backward()  # what it saved is as it was


def test_a_finding_can_be_ignored_and_other_forms_are_refused():
    model, x = Model(over_batch, fc=nn.Linear(6, 3)), torch.randn(8, 6)
    assert found(model, x, ignore="samples-mix") == []
    with pytest.raises(BadArgumentError, match="one model="):
        byname.check(model(x).sum(), example=x)
    with pytest.raises(BadExampleError):
        byname.check(model(x).sum(), model=model, example="batch")
