"""Is every model that watching is tested on recorded to a file as hooks written by hand see it?"""

import architectures
import numpy as np
import pytest
import torch
from beside import specimens, tensors
from noted import copied, same
from torch import nn

import byname

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of the models

SPECIMENS = {specimen.name: specimen for specimen in specimens()}


def of_specimen(name):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    return specimen.model().train(), args, kwargs


def of_architecture(name):
    torch.manual_seed(0)
    model, inputs = architectures.architecture(name)
    return model.train(), (), inputs


class ByHand:
    """What hooks of PyTorch see: outputs by ``(path, iteration, call)``, gradients and buffers by ``(path, iteration)``."""

    def __init__(self, model):
        self.iteration = -1
        self.seen = {}
        self.calls = {}
        self.depth = 0
        names = {}
        for name, module in model.named_modules():
            names.setdefault(module, name or "forward")
        for module, name in names.items():
            module.register_forward_hook(lambda _, __, value, name=name: self.note(name, value))

    def note(self, path, value):
        if torch._C._current_graph_task_id() != -1:
            return
        call = self.calls[path] = self.calls.get(path, -1) + 1
        self.seen[path, self.iteration, call] = copied(value if is_plain(value) else outputs(value))

    def begin(self):
        self.iteration += 1
        self.calls = {}


def train(model, args, kwargs, by_hand=None):
    """Three steps; buffers are noted at the end of the forward, gradients when they have been accumulated."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        torch.manual_seed(step), np.random.seed(step)
        optimizer.zero_grad()
        if by_hand:
            by_hand.begin()
        output = model(*(copied(one) for one in args), **copied(kwargs))
        if by_hand:
            for name, buffer in model.named_buffers():
                by_hand.note(name, buffer)
        loss = sum(
            one.float().square().mean() for one in outputs(output) if one.requires_grad and one.is_floating_point()
        )
        if isinstance(loss, torch.Tensor):
            loss.backward()
        if by_hand:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    by_hand.note(f"{name}.grad", parameter.grad)
        optimizer.step()


def outputs(value):
    return tensors(value.to_tuple() if hasattr(value, "to_tuple") else value)


def is_plain(value):
    """Whether a recording can hold it; objects of the models' own are turned to their parts elsewhere."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value.values()))
    return type(value) in (torch.Tensor, nn.Parameter, int, float, bool, str, type(None))


def recorded_as_seen(make, tmp_path):
    model, args, kwargs = make()
    by_hand = ByHand(model)
    train(model, args, kwargs, by_hand)
    model, args, kwargs = make()
    gradients = [f"{name}.grad" for name, parameter in model.named_parameters() if parameter.requires_grad]
    places = ["**", *gradients, *(name for name, _ in model.named_buffers())]

    def parts(path, value, iteration):
        return None if is_plain(value) else [one.detach() for one in outputs(value)]

    with byname.record(model, places, to=tmp_path / "run.h5", on_value=parts, on_change=False):
        train(model, args, kwargs)
    with byname.open(tmp_path / "run.h5") as recording:
        unseen = {*gradients} - {path for path, *_ in by_hand.seen}
        assert {one for one in gradients if f"`{one}`" in "".join(recording.missing)} == unseen
        assert recording.complete == (not unseen)
        return differences(by_hand.seen, recording)


def differences(seen, recording):
    got = {}
    for path in recording.paths:
        series = recording[path]
        for iteration, call, value in zip(series.iterations, series.calls, series.values):
            assert (path, iteration, call) not in got
            got[path, iteration, call] = value
    found = [f"{key} is missing" for key in seen if key not in got]
    found += [f"{key} is too many" for key in got if key not in seen]
    return found + [f"{key} differs" for key in seen if key in got and not same(seen[key], got[key])]


@pytest.mark.parametrize("name", SPECIMENS)
def test_a_specimen_is_recorded_as_hooks_see_it(name, tmp_path):
    assert recorded_as_seen(lambda: of_specimen(name), tmp_path)[:5] == []


@pytest.mark.parametrize("name", architectures.NAMES)
def test_an_architecture_is_recorded_as_hooks_see_it(name, tmp_path):
    pytest.importorskip("transformers")
    assert recorded_as_seen(lambda: of_architecture(name), tmp_path)[:5] == []
