"""What an exact path costs does not grow with the model, and what is noted of the whole model is noted all the same."""

import copy
import gc
import pickle
import sys
import weakref

import pytest
import torch
from torch import nn

import byname


class Block(nn.Sequential):
    def forward(self, x):
        hidden = super().forward(x)
        return hidden


def a_model(count):
    model = nn.Sequential()
    model.layers = nn.ModuleList(Block(nn.Linear(2, 2), nn.ReLU()) for _ in range(count))
    return model


def functions_called(work):
    """How many Python functions run, which is the same each time."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize(
    "where",
    ["layers.2", "layers[2]", "layers.2.0", "layers.2.0.weight", "layers.2.0.weight.grad", "layers.2.forward.hidden"],
)
def test_one_exact_path_takes_no_more_steps_in_a_larger_model(where):
    counts = []
    for size in (10, 200):
        model = a_model(size)

        def once(model=model):
            byname.interject(model, where, lambda name, module, value: value).remove()

        once()
        counts.append(functions_called(once))
    assert counts[1] <= counts[0] + 5


def test_a_fast_path_is_noted_also_when_the_notes_are_read_after_the_removal():
    layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    with byname.interject(layer, "linear1", lambda name, module, value: None) as handle:
        pass
    note, *others = handle.notes
    assert "fast path" in note
    assert others == [one for one in handle.notes if one.startswith("nothing was seen")]
    assert handle.notes == (note, *others)


@pytest.mark.sees_nothing
def test_what_is_noted_of_the_model_comes_before_what_the_run_adds():
    layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    layer.unused = nn.Linear(2, 2)
    with byname.interject(layer, ["linear1", "unused"], lambda name, module, value: None) as handle:
        layer(torch.ones(1, 2, 4))
        fast, unreached = handle.notes
        assert "fast path" in fast
        assert unreached == "`unused`: the first forward did not reach it"
    fast_still, unseen = handle.notes
    assert fast_still == fast
    assert unseen == "nothing was seen at `unused`: it was not called in 1 forward of TransformerEncoderLayer"


def test_the_notes_keep_no_model_alive():
    model = a_model(2)
    handle = byname.interject(model, "layers.1", lambda name, module, value: None)
    handle.remove()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert [note for note in handle.notes if not note.startswith("nothing was seen")] == []


def test_a_module_that_arrives_beside_an_exact_path_changes_nothing():
    model, hooks = nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU()), []
    with byname.interject(model, "1", lambda name, module, value: None) as handle:
        for _ in range(2):
            model[0].late = nn.ReLU()
            model[0].late.later = nn.ReLU()
            model(torch.ones(1, 2))
            hooks.append([*model[1]._forward_hooks])
        assert (handle.notes, hooks[0]) == ((), hooks[1])


def test_copies_are_without_hooks_whatever_is_hooked():
    model = a_model(3)
    with byname.interject(model, "layers.1.0", lambda name, module, value: value + 1):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model.layers[1])):
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())


def test_modules_are_listed_in_the_order_of_registration_and_each_once():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.ReLU()), nn.ModuleDict({"x*y": nn.ReLU(), "again": shared}))
    model.itself = model
    found = [one.path for one in byname.points(model) if one.kind == "module"]  # a ModuleDict is not called
    assert found == ["forward", "0", "1", "1.1", r"2.x\*y"]


def add(model):
    model.layers.append(Block(nn.Linear(2, 2), nn.ReLU()))
    return ["layers.0.0", "layers.1.0", "layers.2.0"]


def replace(model):
    model.layers[0] = nn.Linear(2, 2)
    return ["layers.0", "layers.1.0"]


def delete(model):
    del model.layers[0]
    return ["layers.0.0"]


def register_again(model):
    moved = model.layers
    del model.layers
    model.register_module("blocks", moved)
    return ["blocks.0.0", "blocks.1.0"]


def change_the_registry_itself(model):
    model.layers._modules["extra"] = nn.Linear(2, 2)
    return ["layers.0.0", "layers.1.0", "layers.extra"]


def parametrize(model):
    nn.utils.parametrizations.weight_norm(model.layers[0][0])
    return ["layers.0.0", "layers.1.0"]


def move(model):
    model.to(torch.float64)
    return ["layers.0.0", "layers.1.0"]


def wrap(model):
    model.layers[0] = nn.DataParallel(model.layers[0]).cpu()
    return ["layers.0.0", "layers.1.0"]


CHANGES = (add, replace, delete, register_again, change_the_registry_itself, parametrize, move, wrap)
ALL_LINEAR = {"class": nn.Linear, "selector": byname.select.linear}


def paths_of(model, where):
    with byname.interject(model, where, lambda name, module, value: None) as handle:
        torch.manual_seed(0)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module(torch.ones(1, 2, dtype=module.bias.dtype))
        return sorted(handle.paths)


@pytest.mark.sees_nothing
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("where", ALL_LINEAR.values(), ids=ALL_LINEAR)
def test_each_attachment_sees_the_modules_that_there_are_now(change, where):
    model = a_model(2)
    assert paths_of(model, where) == ["layers.0.0", "layers.1.0"]
    expected = change(model)
    assert paths_of(model, where) == expected
    for path in expected:
        assert paths_of(model, path) == [path]


@pytest.mark.parametrize("where", [nn.Linear, byname.select.linear, "layers.0.0"], ids=str)
def test_an_attachment_that_was_removed_keeps_no_model(where):
    model = a_model(2)
    byname.interject(model, where, lambda name, module, value: None).remove()
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None
