"""Is an edited view a model of its own that shares what is trained?"""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from tiny import gpt2, llama, logits, plain, untouched
from torch import nn
from watching import differences, run

import byname
from byname.errors import BadArgumentError, NoMatchError, NotAModuleError


@pytest.mark.parametrize(("make", "path"), [(plain, "blocks.1"), (gpt2, "transformer.h.1"), (llama, "model.layers.1")])
def test_the_view_is_edited_and_the_model_is_not(make, path):
    model, x = make()
    check = untouched(model)
    plainly = logits(model(x))
    with byname.skip(model, path), byname.steer(model, path, torch.ones(8)):
        wanted = logits(model(x))
    view = byname.edited(model, lambda one: byname.skip(one, path), lambda one: byname.steer(one, path, torch.ones(8)))
    gc.collect()
    for _ in range(2):
        assert torch.equal(logits(view(x)), wanted) and torch.equal(logits(model(x)), plainly)
    assert type(view) is type(model) and list(view.state_dict()) == list(model.state_dict())
    for (name, mine), (_, theirs) in zip(
        [*view.named_parameters(), *view.named_buffers()], [*model.named_parameters(), *model.named_buffers()]
    ):
        assert mine is theirs, name
    del view
    gc.collect()
    assert check()


def test_to_train_one_is_to_train_the_other():
    model, x = plain()
    view = byname.edited(model, lambda one: byname.ablate(one, "blocks.0.mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(x)
    view(x).sum().backward()
    assert model.head.weight.grad is view.head.weight.grad
    optimizer.step()
    assert not torch.equal(model(x), before)
    assert not differences(run(byname.edited(model), [x]), run(model, [x]))


def test_flags_and_attributes_are_its_own():
    model, x = plain()
    view = byname.edited(model)
    view.train()
    view.note = 3
    assert not model.training and not hasattr(model, "note") and view.blocks[0] is not model.blocks[0]


def test_tensors_in_attributes_are_shared_also_those_of_a_graph():
    model, x = plain()
    model.cache = {"k": [model(x)]}
    model.last = model(x)
    view = byname.edited(model)
    assert view.last is model.last and view.cache["k"][0] is model.cache["k"][0] and view.cache is not model.cache


def test_copies_of_a_view_are_not_edited():
    model, x = plain()
    view = byname.edited(model, lambda one: byname.skip(one, "blocks.1"))
    assert torch.equal(copy.deepcopy(view)(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(view.head)).weight, model.head.weight)


def test_what_is_attached_to_the_model_is_not_attached_to_the_view():
    model, x = plain()
    with byname.skip(model, "blocks.1"):
        view = byname.edited(model)
    assert torch.equal(view(x), model(x))


def test_a_view_goes_and_the_model_stays():
    model, x = plain()
    check = untouched(model)
    view = byname.edited(
        model,
        lambda one: byname.skip(one, "blocks.1"),
        lambda one: byname.patch(one, "blocks.*.attn.softmax", lambda part: part * 2),
    )
    view(x)
    gone = weakref.ref(view)
    del view
    gc.collect()
    assert gone() is None and check()


def test_errors():
    model, x = plain()
    with pytest.raises(NotAModuleError):
        byname.edited(3)
    with pytest.raises(BadArgumentError, match="returns a handle"):
        byname.edited(model, lambda one: one)
    with byname.skip(model, "blocks.1") as handle, pytest.raises(BadArgumentError, match="lambda view: .*, not Handle"):
        byname.edited(model, handle)
    before, check = model(x), untouched(model)
    for edit in (
        lambda one: byname.skip(model, "blocks.1"),
        lambda one: byname.skip(model.blocks[1], "mlp"),
        lambda one: byname.replace(model, "blocks.1", nn.Identity),
    ):
        with pytest.raises(BadArgumentError, match="this one changes the model itself"):
            byname.edited(model, edit)
        assert torch.equal(model(x), before) and check()
    hook = model.register_forward_hook(lambda one, args, output: model.head(args[0]))
    with pytest.raises(
        BadArgumentError, match="whose closure has a Model of the model, and the copy would use the orig"
    ):
        byname.edited(model)
    hook.remove()
    with pytest.raises(NoMatchError):
        byname.edited(model, lambda one: byname.skip(one, "blocks.1"), lambda one: byname.skip(one, "blocks.9"))
    model.lock = threading.Lock()
    with pytest.raises(BadArgumentError, match="cannot be copied"):
        byname.edited(model)
