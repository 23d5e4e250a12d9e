"""Do promises hold where two of them meet: edits and gradients, calls in place, one place asked for in several ways?"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import byname
from byname import attach, interject, select
from byname.errors import InterjectionError


class InPlace(nn.Module):
    """Calls a function that works in place, and goes on with the tensor, not with what the function returned."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) + 3
        getattr(y, self.name)()
        return (y * y).sum()


def doubled(name, module, value):
    return value * 2


EDITS = {
    "scaled": lambda value: value * 2,
    "squared": lambda value: value.pow(2),
    "mixed": lambda value: value * value + value.sigmoid(),
    "cut": lambda value: value.detach() * 2,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("name", ["relu_", "sigmoid_", "tanh_", "exp_", "sqrt_"])
def test_the_result_of_an_activation_in_place_is_edited_and_gradients_are_those_of_the_edit(name, edit) -> None:
    torch.manual_seed(0)
    model, x = InPlace(name), torch.randn(4, 3)
    wanted = edit(getattr(torch, name[:-1])(model.layer(x) + 3))
    with interject(model, name, lambda path, module, value: edit(value)):
        result = model(x)
    assert torch.allclose(result, (wanted * wanted).sum())
    result.backward()
    if wanted.requires_grad:
        (gradient,) = torch.autograd.grad((wanted * wanted).sum(), model.layer.weight)
        assert torch.allclose(model.layer.weight.grad, gradient)
    else:
        assert not model.layer.weight.grad.any()


def test_an_edit_of_a_function_in_place_reaches_who_reads_the_tensor_and_not_the_result_also_when_rewritten() -> None:
    model, x = InPlace("relu_"), torch.randn(4, 3)
    value = 2 * torch.relu(model.layer(x) + 3)
    rewritten = byname.rewrite(model, "relu_", doubled)
    assert torch.allclose(rewritten(x), (value * value).sum())
    (wanted,) = torch.autograd.grad((value * value).sum(), model.layer.weight)
    rewritten(x).backward()
    assert torch.allclose(model.layer.weight.grad, wanted)


class OnViews(nn.Module):
    """Works in place on a view: what `nn.Linear` returns for three dimensions is one, and so is a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        F.relu_(y)
        z = x.new_ones(2, 4, 3) * y
        z[:, 0].sigmoid_()
        return z.sum()


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_functions_in_place_on_views_are_edited_and_gradients_are_those_of_the_edit(edit) -> None:
    torch.manual_seed(0)
    model, x = OnViews(), torch.randn(2, 4, 3)
    y = edit(model.layer(x).relu())
    wanted = torch.cat([edit(y[:, :1].sigmoid()), y[:, 1:]], 1).sum()
    with interject(model, ["relu_", "sigmoid_"], lambda path, module, value: edit(value)):
        result = model(x)
    assert torch.allclose(result, wanted)
    if wanted.requires_grad:
        result.backward()
        assert torch.allclose(model.layer.weight.grad, torch.autograd.grad(wanted, model.layer.weight)[0])


def test_a_watched_function_in_place_still_has_pytorch_notice_that_something_else_it_saved_was_changed() -> None:
    class Spoils(OnViews):
        def forward(self, x: Tensor) -> Tensor:
            y, factor = self.layer(x), x * 2
            y.mul_(factor)
            factor.add_(1)
            return y.sum()

    model = Spoils()
    with attach(model, "mul_", lambda event: None), pytest.raises(RuntimeError, match="modified by an inplace"):
        model(torch.randn(2, 4, 3)).backward()


class ForEffect(nn.Module):
    """Calls a module that works in place for its effect alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, a_view: bool = False) -> Tensor:
        y = self.layer(x)
        y = y.view(x.shape) if a_view else y
        self.act(y)
        return y.sum()


def test_an_edit_of_a_module_called_for_its_effect_is_seen_or_said_not_to_be() -> None:
    model, x = ForEffect(), torch.randn(4, 3)
    with interject(model, "act", doubled) as handle:
        result = model(x)
        assert handle.notes == ()
        wanted = (2 * model.layer(x).relu()).sum()
        assert torch.allclose(result, wanted)
        result.backward()
        assert torch.allclose(model.layer.weight.grad, torch.autograd.grad(wanted, model.layer.weight)[0])
        model(x, a_view=True)
        assert any("works in place on a view" in note for note in handle.notes)


class Edited(nn.Module):
    """Changes a value in place, by a module or by a function; what an edit makes of it is another tensor."""

    def __init__(self, by: str, edit: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by, self.edit = by, edit
        self.layer, self.act = nn.Linear(3, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y = self.act(y) if self.by == "act" else y.sigmoid_()
        return y if self.edit is None else self.edit(y)


def saved_elsewhere(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x)


@pytest.mark.parametrize("verb", [byname.interject, byname.rewrite])
@pytest.mark.parametrize("by", ["act", "sigmoid_"])
@pytest.mark.parametrize("run", [partial(checkpoint, use_reentrant=False), saved_elsewhere])
def test_an_edit_of_what_works_in_place_keeps_gradients_where_hooks_pack_what_is_saved(verb, by, run) -> None:
    def edit(value: Tensor) -> Tensor:
        return value * value - 1

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain, model = Edited(by, edit), Edited(by)
    plain(x).square().sum().backward()
    other = verb(model, by, lambda name, module, value: edit(value))
    run(other if verb is byname.rewrite else model, x).square().sum().backward()
    assert torch.allclose(model.layer.weight.grad, plain.layer.weight.grad)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("norm", [nn.Identity, nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
def test_a_checkpoint_runs_with_a_replaced_weight_again_or_refuses_to(reentrant, norm) -> None:
    block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    norm(block[0])
    model, x = nn.Sequential(nn.Linear(3, 3), block), torch.randn(2, 3)
    with interject(model, "1.0.weight", doubled) as handle:
        model(x).sum().backward()
        wanted = [one.grad.clone() for one in model.parameters()]
        model.zero_grad()
        block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
        result = model(x).sum()
        if norm is not nn.utils.parametrizations.weight_norm:
            with pytest.raises(InterjectionError, match="`1.0.weight` was replaced in the forward, but a checkpoint"):
                result.backward()
        else:
            result.backward()
            assert all(map(torch.allclose, [one.grad for one in model.parameters()], wanted))
    assert handle.notes == ()


def test_what_works_in_place_inside_of_a_transform_is_observed_and_refuses_an_edit() -> None:
    model, x = OnViews(), torch.randn(2, 4, 3)
    state = {name: one.detach() for name, one in model.named_parameters()}

    def gradients() -> dict[str, Tensor]:
        return torch.func.grad(lambda state: torch.func.functional_call(model, state, (x,)))(state)

    plain = gradients()
    with attach(model, ["relu_", "sigmoid_"], lambda event: None):
        assert all(torch.equal(one, plain[name]) for name, one in gradients().items())
    with interject(model, "sigmoid_", doubled), pytest.raises(InterjectionError, match="inside torch.func.grad"):
        gradients()


class GivesBack(nn.Module):
    """Calls functions that return what they are given, and uses both."""

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(x, 0.5, self.training) + x.contiguous() + x.float()


@pytest.mark.parametrize("name", ["dropout", "contiguous", "float"])
def test_an_edit_of_what_a_function_gives_back_as_it_was_leaves_the_input_alone(name) -> None:
    x = torch.ones(2)
    model = GivesBack().eval()
    with interject(model, name, lambda path, module, value: value * 0):
        assert model(x).tolist() == [3, 3]
    assert x.tolist() == [1, 1]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).softmax(-1)
        return self.second(h)


@pytest.mark.parametrize("with_example", [False, True])
@pytest.mark.parametrize(
    ("where", "told"),
    [
        ([nn.Linear, "first", "f*", select.linear, select.module(nn.Linear)], ["first", "second"]),
        (["softmax", "soft*", select.softmax, select.op("softmax")], ["softmax"]),
        (["forward.h", "**.forward.h", "forward.h"], ["forward.h"]),
        (["first.weight.grad", "*.weight.grad"], ["first.weight.grad", "second.weight.grad"]),
    ],
    ids=["modules", "operations", "variables", "gradients"],
)
def test_a_place_that_is_asked_for_in_several_ways_is_told_of_once(where, told, with_example) -> None:
    model, x, seen = Two(), torch.ones(1, 3), []
    with attach(model, where, lambda event: seen.append(event.path), example=x if with_example else None):
        model(x).sum().backward()
    assert sorted(seen) == told


def compiler_stands_aside() -> bool:
    """Whether compiled functions run eagerly, or will where the compiler is not imported yet."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    waiting = any(type(one).__module__.startswith("byname") for one in sys.meta_path)
    return waiting or (frames is not None and frames._stance.stance == "force_eager")


@pytest.mark.parametrize(
    "where",
    [
        "first",
        "softmax",
        "forward.h",
        "forward.h.grad",
        "first.weight",
        "first.weight.grad",
        "first.grad",
        select.linear,
    ],
    ids=str,
)
def test_a_model_that_is_let_go_while_watched_is_freed_and_leaves_nothing_on(where) -> None:
    model, code = Two(), Two.forward.__code__
    attach(model, where, lambda event: None)
    model(torch.ones(1, 3)).sum().backward()
    assert compiler_stands_aside()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not compiler_stands_aside()
    assert Two.forward.__code__ is code


class Namesakes(nn.Module):
    """Has children with names of functions: it calls a function of the first name, too, and not of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.Linear(3, 3)
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(F.relu(self.relu(x)))


@pytest.mark.parametrize("where", ["**", "**.grad", "0.linear", "**.forward.*", "**[0]", "**.weight", select.linear])
def test_what_was_attached_and_removed_keeps_no_model_until_the_garbage_collector_runs(where) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    gone = weakref.ref(model)
    handle = attach(model, where, lambda event: None)
    model(torch.ones(1, 2)).sum().backward()
    handle.remove()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_path_that_could_also_mean_a_function_says_how_it_was_read_and_what_the_other_is_called() -> None:
    model, x, seen = Namesakes().eval(), torch.ones(1, 3), []
    with attach(model, "relu", lambda event: seen.append(event.value)) as handle:
        model(x)
        assert handle.notes == ("`relu` was read as the module; for the call of the function relu write `relu_0`",)
    assert torch.equal(seen[0], model.relu(x))
    with attach(model, "relu_0", lambda event: seen.append(event.value)):
        model(x)
    assert torch.equal(seen[1], model.relu(x).relu())
    with attach(model, "dropout", lambda event: None) as handle:
        assert handle.notes == ()


def test_warnings_of_pytorch_have_the_line_of_the_program_where_operations_are_observed() -> None:
    class Vague(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softmax(x)

    model, shown = Vague(), warnings._showwarnmsg
    with attach(model, "softmax", lambda event: None), pytest.warns(UserWarning, match="Implicit dimension") as told:
        model(torch.ones(1, 3))
    assert (told[0].filename, told[0].lineno) == (__file__, Vague.forward.__code__.co_firstlineno + 1)
    assert warnings._showwarnmsg is shown


@pytest.mark.parametrize("where", ["soft*", "softmax", select.softmax], ids=str)
def test_an_example_tells_the_places_of_operations_before_anything_has_run(where) -> None:
    with attach(Two(), where, lambda event: None, example=torch.ones(1, 3)) as handle:
        assert handle.paths == ("softmax",)
