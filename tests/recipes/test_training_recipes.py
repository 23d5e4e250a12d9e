"""What the recipes of docs/recipes/training.md compute is what hooks written by hand compute."""

import math
from contextlib import ExitStack

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from causal import LAYERS, WIDTH, causal, every_kind, hooked, kept
from torch import nn

import byname


def batches(number=3):
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(1, 64, (6, 5), generator=generator) for _ in range(number)]


def train(lm, data):
    optimizer = torch.optim.SGD([one for one in lm.model.parameters() if one.requires_grad], lr=0.05)
    for tokens in data:
        loss = F.cross_entropy(lm(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def values_of(lm, places, data):
    """What passes places, by hooks: a list of batches for each."""
    with kept({place: lm.module(place.removesuffix("[0]")) for place in places}) as found, torch.no_grad():
        for tokens in data:
            lm(tokens)
    return found


@every_kind
def test_norms_of_the_residual_stream_over_a_run(kind, tmp_path):
    lm = causal(kind)
    start, places = {name: value.clone() for name, value in lm.model.state_dict().items()}, lm.residuals()
    with kept(dict(zip(places, lm.layers, strict=True))) as expected:
        train(lm, batches())
    trained = {name: value.clone() for name, value in lm.model.state_dict().items()}
    lm.model.load_state_dict(start)
    with byname.record(lm.model, places, reduce="norm", to=tmp_path / "norms.h5"):
        train(lm, batches())
    assert all(torch.equal(value, trained[name]) for name, value in lm.model.state_dict().items())
    with byname.open(tmp_path / "norms.h5") as norms:
        for place in places:
            found = norms[place].to_numpy()
            np.testing.assert_allclose(found, [value.norm().item() for value in expected[place]], rtol=1e-6)


@every_kind
def test_dead_neurons(kind):
    lm, data = causal(kind), batches()
    places = [lm.activation(layer) for layer in range(LAYERS)]
    expected = values_of(lm, places, data)
    units = byname.analyse.DeadUnits()
    with byname.observe(lm.model, places, units), torch.no_grad():
        for tokens in data:
            lm(tokens)
    for place, figures in units.result().items():
        values = torch.cat(expected[place])
        fired = (values > 0).flatten(1, -2).any(1) if values.ndim == 3 else values > 0
        assert figures["dead"] == (~fired.any(0)).sum() and figures["total"] == values.shape[-1]
        assert torch.equal(figures["fired"], fired.sum(0))


@every_kind
def test_the_tokens_that_excite_a_unit_most(kind):
    lm, data = causal(kind), batches()
    place = lm.activation(1)
    seen = torch.cat([value.flatten(0, -2) for value in values_of(lm, [place], data)[place]])
    top = byname.analyse.TopK(3)

    def see(name, module, value):
        top.add(value.flatten(0, -2))

    with byname.interject(lm.model, place, see), torch.no_grad():
        for tokens in data:
            lm(tokens)
    values, numbers = top.result()
    assert torch.equal(values, seen.topk(3, dim=0).values.double())
    assert torch.equal(seen.gather(0, numbers).double(), values)


@every_kind
def test_a_rule_that_stops_the_training(kind, tmp_path):
    class Exploded(Exception):
        pass

    def bounded(path, value, iteration):
        if iteration == 2 and value.norm() > 0:
            raise Exploded(iteration)

    lm, data = causal(kind), batches(5)
    names = [f"{name}.grad" for name, _ in lm.model.named_parameters() if name.endswith("weight")][-1:]
    done = []
    with pytest.raises(Exploded), byname.record(lm.model, names, on_value=bounded, to=tmp_path / "stopped.h5"):
        for tokens in data:
            train(lm, [tokens])
            done.append(tokens)
    with byname.open(tmp_path / "stopped.h5") as stopped:
        assert stopped[names[0]].iterations == [0, 1]
        assert not stopped.complete
        assert "Exploded" in "".join(stopped.missing)
    assert len(done) == 2


def hsic(x, y):
    """The unbiased HSIC, equation 5 of Song et al. 2012."""
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n = len(k)
    middle = k.sum() * m.sum() / ((n - 1) * (n - 2))
    return ((k * m).sum() + middle - 2 / (n - 2) * (k @ m).sum()) / (n * (n - 3))


@every_kind
def test_similarity_of_layers(kind):
    lm, data = causal(kind), batches()
    places = lm.residuals()
    values = {
        place: [one.double().flatten(1).numpy() for one in seen] for place, seen in values_of(lm, places, data).items()
    }
    similarity = byname.analyse.Similarity()
    with byname.observe(lm.model, places, similarity), torch.no_grad():
        for tokens in data:
            lm(tokens)

    def of(one, other):
        return sum(hsic(x, y) for x, y in zip(values[one], values[other], strict=True))

    for other, cka in similarity.result()[places[0]]["cka"].items():
        expected = of(places[0], other) / math.sqrt(of(places[0], places[0]) * of(other, other))
        assert cka == pytest.approx(expected, rel=1e-4, abs=1e-5)


@every_kind
def test_a_linear_probe_of_every_position(kind):
    """One step of gradient descent from zero, whose weights have a formula."""
    lm, (tokens,) = causal(kind), batches(1)
    places = lm.residuals()
    expected = values_of(lm, places, [tokens])
    probe = byname.analyse.LinearProbe(
        64, features="positions", optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), standardise=False
    )
    with byname.observe(lm.model, places, probe), torch.no_grad():
        probe.targets = tokens
        lm(tokens)
        probe.eval().targets = tokens
        lm(tokens)
    targets = tokens.flatten().numpy()
    for place in places:
        values = expected[place][0].double().flatten(0, 1).numpy()
        residual = np.full((len(values), 64), 1 / 64) - np.eye(64)[targets]
        weight, bias = probe.weights(place)
        np.testing.assert_allclose(weight, -0.5 * residual.T @ values / len(values), atol=1e-6)
        right = (values @ np.asarray(weight).T + np.asarray(bias)).argmax(1) == targets
        assert probe.result()[place]["accuracy"] == pytest.approx(right.mean())


@every_kind
def test_a_dataset_of_the_positions_of_a_recording(kind, tmp_path):
    lm, data = causal(kind), batches()
    place = lm.residual(1)
    expected = torch.cat(values_of(lm, [place], data)[place]).flatten(0, 1)
    with byname.record(lm.model, place, to=tmp_path / "activations.h5"), torch.no_grad():
        for tokens in data:
            lm(tokens)
    with byname.open(tmp_path / "activations.h5") as recording:
        loader = torch.utils.data.DataLoader(recording[place].dataset(shuffle=0), batch_size=7)
        found = torch.cat([*loader])
    assert not torch.equal(found, expected), "they are shuffled"
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))


@every_kind
def test_an_autoencoder_in_the_place_of_a_value(kind):
    lm, (tokens,) = causal(kind), batches(1)
    sparse = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))
    with hooked(lm.layers[1], sparse):
        expected = lm(tokens)
        expected.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in sparse.parameters()]
    sparse.zero_grad()
    with byname.patch(lm.model, lm.residual(1), sparse):
        found = lm(tokens)
        found.square().mean().backward()
    assert torch.equal(found, expected)
    assert all(torch.equal(parameter.grad, one) for parameter, one in zip(sparse.parameters(), gradients, strict=True))


class Lora(nn.Module):
    def __init__(self, old, rank=2):
        super().__init__()
        self.old = old.requires_grad_(False)
        generator = torch.Generator().manual_seed(6)
        width = getattr(old, "in_features", getattr(old, "nx", None))
        wide = getattr(old, "out_features", getattr(old, "nf", None))
        self.down = nn.Parameter(torch.randn(rank, width, generator=generator))
        self.up = nn.Parameter(0.1 * torch.randn(wide, rank, generator=generator))

    def forward(self, x):
        delta = x @ self.down.T @ self.up.T
        return self.old(x) + delta


@every_kind
def test_low_rank_updates(kind):
    """By hooks that add what the low-rank layers give, over three steps of training."""
    lm = causal(kind)
    torch.manual_seed(0)
    twin = causal(kind)
    paths = [twin.down(layer) for layer in range(LAYERS)]
    layers = {path: Lora(twin.module(path)) for path in paths}
    with ExitStack() as stack:
        for path in paths:
            add = lambda _, args, output, own=layers[path]: output + args[0] @ own.down.T @ own.up.T  # noqa: E731
            stack.enter_context(twin.module(path).register_forward_hook(add))
        parameters = [*(one for layer in layers.values() for one in (layer.down, layer.up))]
        twin.model.requires_grad_(False)
        optimizer = torch.optim.SGD(parameters, lr=0.05)
        for tokens in batches():
            loss = F.cross_entropy(twin(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        expected = twin(batches(1)[0])
    lm.model.requires_grad_(False)
    byname.replace(lm.model, byname.select.path(f"{lm.kind.layers}.*.{lm.kind.down}"), Lora)
    with byname.record(lm.model, f"{lm.kind.layers}.*.{lm.kind.down}.forward.delta") as rec:
        train(lm, batches())
    assert len(rec.results) == LAYERS and all(len(rec.results[path].values) == 3 for path in rec.results)
    torch.testing.assert_close(lm(batches(1)[0]), expected, atol=1e-5, rtol=1e-4)


@every_kind
def test_the_direction_that_a_unit_likes_most(kind):
    lm, value = causal(kind), torch.randn(1, 5, WIDTH, requires_grad=True)
    path = lm.activation(1)
    found = []
    with lm.module(path).register_forward_hook(lambda _, __, output: found.append(output)):
        lm.model(inputs_embeds=value)
    last = found[0].reshape(-1, found[0].shape[-1])[-1]
    unit = last.argmax().item()
    (expected,) = torch.autograd.grad(last[unit], value)
    seen = byname.capture(lm.model, path, grad=True, stop=True)(inputs_embeds=value)[path]
    (gradient,) = torch.autograd.grad(seen.reshape(-1, seen.shape[-1])[-1, unit], value)
    assert torch.equal(gradient, expected) and gradient.any()
