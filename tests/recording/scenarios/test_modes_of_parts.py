"""Is each record of the mode that the model was in when its value passed, also where no forward of it runs?"""

import pytest
import torch
from torch import nn

import byname


class Net(nn.Module):
    """Batches of 2 are those of the training, batches of 7 those of the evaluation."""

    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)

    def encode(self, x):
        h = self.enc(x)
        return h

    def training_step(self, x):
        return self.encode(x).sum()

    def forward(self, x):
        return self.encode(x)


def rows(series):
    return [(mode, number, call, shape[0]) for mode, number, call, shape in zip(
        series.modes, series.iterations, series.calls, series.shapes)]  # fmt: skip


PLACES = ["enc", "encode.h", "encode", "enc.forward.input"]


@pytest.mark.parametrize("mode", ["both", "train", "eval"])
def test_where_steps_are_counted_and_another_method_runs(mode):
    model = Net()
    with byname.record(model, PLACES, count="step", mode=mode) as recorder:
        for _ in range(3):
            model.train().training_step(torch.randn(2, 4))
            model.eval().encode(torch.randn(7, 4))
            model.encode(torch.randn(7, 4))
            recorder.step()
    expected = [
        row
        for step in range(3)
        for row in (("train", step, 0, 2), ("eval", step, 0, 7), ("eval", step, 1, 7))
        if mode in ("both", row[0])
    ]
    for path in PLACES:
        assert rows(recorder.results[path]) == expected, path


def test_where_an_optimizers_steps_are_counted_and_a_part_of_the_model_runs():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with byname.record(model, "enc", count=optimizer) as recorder:
        for _ in range(2):
            model.train()
            model.enc(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            model.eval()
            model.enc(torch.randn(7, 4))
    assert rows(recorder.results["enc"]) == [
        ("train", 0, 0, 2), ("eval", 1, 0, 7), ("train", 1, 0, 2), ("eval", 2, 0, 7)]  # fmt: skip


def test_forwards_and_other_methods_take_turns():
    model = Net()
    with byname.record(model, "enc", count="step") as recorder:
        for _ in range(2):
            model.train()(torch.randn(2, 4))
            model.eval().encode(torch.randn(7, 4))
            model(torch.randn(7, 4))
            model.train().encode(torch.randn(2, 4))
            recorder.step()
    of_a_step = [("train", 0, 2), ("eval", 0, 7), ("eval", 1, 7), ("train", 1, 2)]
    assert rows(recorder.results["enc"]) == [(mode, step, *rest) for step in range(2) for mode, *rest in of_a_step]


def test_gradients_are_of_the_mode_of_their_values():
    model = Net()
    with byname.record(model, ["enc.grad", "encode.h.grad", "enc.weight.grad"], count="step") as recorder:
        for _ in range(2):
            model.train().encode(torch.randn(2, 4)).sum().backward()
            model.eval().encode(torch.randn(7, 4)).sum().backward()  # a saliency map
            recorder.step()
    for path in ("enc.grad", "encode.h.grad"):
        assert rows(recorder.results[path]) == [
            ("train", 0, 0, 2), ("eval", 0, 0, 7), ("train", 1, 0, 2), ("eval", 1, 0, 7)], path  # fmt: skip
    weight = recorder.results["enc.weight.grad"]
    assert [*zip(weight.modes, weight.iterations)] == [("train", 0), ("eval", 0), ("train", 1), ("eval", 1)]


def test_an_evaluation_without_gradients_does_not_take_a_gradient_away_from_its_forward():
    model = Net()
    with byname.record(model, "enc.weight.grad", count="step") as recorder:
        for _ in range(2):
            loss = model.train()(torch.randn(2, 4)).sum()
            with torch.no_grad():
                model.eval()(torch.randn(7, 4))
            loss.backward()
            recorder.step()
    assert recorder.results["enc.weight.grad"].modes == ["train", "train"]


def test_where_forwards_are_counted_no_value_of_an_evaluation_is_called_one_of_the_training():
    model = Net()
    left_out = pytest.warns(byname.errors.RecordingWarning, match="in no iteration")
    with left_out, byname.record(model, ["enc", "enc.grad"]) as recorder:
        for _ in range(2):
            model.train()(torch.randn(2, 4)).sum().backward()
            model.encode(torch.randn(2, 4)).sum().backward()  # belongs to the forward before it
            model.eval().encode(torch.randn(7, 4)).sum().backward()
    for path in ("enc", "enc.grad"):
        assert rows(recorder.results[path]) == [
            ("train", 0, 0, 2), ("train", 0, 1, 2), ("train", 1, 0, 2), ("train", 1, 1, 2)], path  # fmt: skip


def test_a_model_that_changes_its_mode_inside_of_a_forward_is_in_that_in_which_it_began():
    class Fickle(Net):
        def forward(self, x):
            self.eval()
            x = self.encode(x)
            self.train()
            return x

    model = Fickle()
    for count in ("forward", "step"):
        with byname.record(model, "enc", count=count) as recorder:
            model(torch.randn(2, 4))
        assert recorder.results["enc"].modes == ["train"]
