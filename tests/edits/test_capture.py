"""Does a capture have what passes at places of a model, and nothing of it stay?"""

import copy
import dataclasses
import gc
import weakref

import pytest
import torch
from tiny import gpt2, llama, plain, seen_by_hook, untouched
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint
from watching import differences, run

import byname
from byname.errors import (
    BadArgumentError,
    BynameError,
    ChangedInPlaceWarning,
    NoMatchError,
    NotCapturedError,
    NothingSeenWarning,
)


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (plain, ["blocks.0", "blocks.1.attn.qkv", "head"]),
        (gpt2, ["transformer.h.0", "transformer.h.1.mlp"]),
        (llama, ["model.layers.0", "model.layers.1.mlp", "lm_head"]),
    ],
)
def test_values_are_those_that_a_hook_sees(make, paths):
    model, x = make()
    check = untouched(model)
    cap = byname.capture(model, paths[::-1])(x)
    assert list(cap) == paths  # as they ran
    for path in paths:
        assert torch.equal(cap[path], seen_by_hook(model, path, x))
        assert not cap[path].requires_grad
    assert check()


def test_all_kinds_of_places():
    model, x = plain()
    cap = byname.capture(
        model,
        [
            "blocks.0.attn[1]",
            "blocks.0.attn.forward.scores",
            "blocks.0.attn.softmax",
            "head.weight",
            byname.select.relu,
            "forward",
        ],
    )(x)
    assert torch.equal(cap["blocks.0.attn.softmax"], cap["blocks.0.attn[1]"])
    assert torch.equal(cap["blocks.0.attn.forward.scores"].softmax(-1), cap["blocks.0.attn[1]"])
    assert torch.equal(cap["head.weight"], model.head.weight)
    assert torch.equal(cap["forward"], cap.output)
    assert "blocks.2.mlp.1" in cap


def test_a_copy_is_kept_of_what_is_changed_in_place_later():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(4, 3)
    cap = byname.capture(model, "0")(x)
    assert torch.equal(cap["0"], model[0](x)) and (cap["0"] < 0).any()


def test_a_place_that_runs_more_than_once_has_a_tuple_and_calls_always_has_one():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    cap = byname.capture(model, "*")(torch.ones(1, 3))
    assert isinstance(cap["0"], tuple) and len(cap["0"]) == len(cap.calls("0")) == 2
    assert cap.calls("1") == (cap["1"],)
    assert [row["calls"] for row in cap.rows()] == [2, 1]


def test_values_in_containers_and_other_objects():
    class Several(nn.Module):
        def forward(self, x):
            return {"h": [x * 2, (x, 3)], "name": "a"}

    x = torch.ones(2, requires_grad=True)
    value = byname.capture(Several(), "forward")(x)["forward"]
    assert torch.equal(value["h"][0], x * 2) and value["h"][1][1] == 3 and value["name"] == "a"
    assert not value["h"][0].requires_grad and value["h"][1][0] is not x


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    hidden: torch.Tensor
    scores: tuple = ()


def test_a_dataclass_is_copied_with_its_tensors():
    class Boxed(nn.Module):
        def forward(self, x):
            return Output(x * 2, (x,))

    x = torch.ones(2, requires_grad=True)
    cap = byname.capture(Boxed(), "forward")(x)
    value = cap["forward"]
    assert type(value) is Output and torch.equal(value.hidden, x * 2) and not value.hidden.requires_grad
    assert value.scores[0] is not x and cap.output.hidden.requires_grad


def test_live_tensors_with_grad():
    model, x = plain()
    cap = byname.capture(model, "blocks.1", grad=True)(x)
    assert cap["blocks.1"].grad_fn is not None
    (by_capture,) = torch.autograd.grad(cap.output.sum(), cap["blocks.1"])
    seen = byname.capture(model, "blocks.1.grad")(x)
    seen.output.sum().backward()
    assert torch.equal(seen["blocks.1.grad"], by_capture)


def test_a_live_tensor_that_was_changed_in_place_is_warned_of_once():
    model, x = plain()
    expected = byname.capture(model, "blocks.1.mlp.0")(x)["blocks.1.mlp.0"]
    cap = byname.capture(model, ["blocks.1.mlp.0", "blocks.1.mlp.1", "blocks.1.attn"], grad=True)(x)
    with pytest.warns(ChangedInPlaceWarning, match=r"^byname: `blocks\.1\.mlp\.0` was changed in place") as warned:
        changed = cap["blocks.1.mlp.0"]
    assert warned[0].filename == __file__
    assert torch.equal(changed, expected.relu()) and not torch.equal(changed, expected)
    assert [*cap.values()][-1] is changed, "which is reported once, and at no other place"
    cap(x)
    with pytest.warns(ChangedInPlaceWarning):
        cap.calls("blocks.1.mlp.0")


def test_gradients_come_with_a_later_backward_and_are_copies():
    model, x = plain()
    check = untouched(model)
    with byname.capture(model, ["blocks.0", "blocks.0.grad", "head.weight.grad"]) as cap:
        loss = model(x).sum()
    assert list(cap) == ["blocks.0"]
    for seen in (cap, byname.capture(model, "blocks.0.grad")(x)):
        with pytest.raises(
            NotCapturedError, match="there are (blocks.0|none); a gradient .* once a backward has reached it"
        ):
            seen["blocks.0.grad"]
    del seen
    loss.backward()
    assert {*cap} == {"blocks.0", "blocks.0.grad", "head.weight.grad"}
    assert torch.equal(cap["head.weight.grad"], model.head.weight.grad)
    model.zero_grad()
    del cap
    assert check()


def test_each_call_begins_anew():
    model, x = plain()
    cap = byname.capture(model, "head")
    with pytest.raises(NotCapturedError, match="nothing was captured yet"):
        cap["head"]
    assert cap(x) is cap and cap(x[:1])["head"].shape == (1, 4)


class TestStopping:
    @pytest.mark.parametrize("make", [plain, gpt2, llama])
    def test_nothing_runs_after_the_last_place(self, make):
        model, x = make()
        check = untouched(model)
        path = {"Model": "blocks.1", "GPT2LMHeadModel": "transformer.h.1", "LlamaForCausalLM": "model.layers.0"}[
            type(model).__name__
        ]
        whole = byname.capture(model, path)(x)
        later = []
        handle = model.get_submodule("head" if make is plain else "lm_head").register_forward_hook(
            lambda *_: later.append(1)
        )
        cap = byname.capture(model, path, stop=True)(x)
        handle.remove()
        assert torch.equal(cap[path], whole[path]) and not later
        with pytest.raises(NotCapturedError, match="stop=True"):
            cap.output
        assert check()

    def test_other_attachments_go_on_as_before(self):
        model, x = plain()
        seen = []
        with byname.attach(model, ["**.softmax", "head.weight", "blocks.*"], lambda event: seen.append(event.path)):
            model(x)
            first = seen[:]
            byname.capture(model, "blocks.1.attn.softmax", stop=True)(x)
            assert not _get_current_function_mode_stack()
            seen.clear()
            model(x)
            assert seen == first

    def test_hooks_that_always_run_run(self):
        model, x = plain()
        ran = []
        model.register_forward_hook(lambda *_: ran.append("model"), always_call=True)
        model.blocks[0].register_forward_hook(lambda *_: ran.append("block"), always_call=True)
        byname.capture(model, "blocks.0", stop=True)(x)
        assert ran == ["block", "model"]

    def test_a_program_that_handles_its_errors_does_not_catch_it(self):
        class Careful(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

            def forward(self, x):
                try:
                    x = self.fc(x)
                except Exception:
                    pass
                return self.last(x)

        cap = byname.capture(Careful(), "fc", stop=True)(torch.ones(1, 2))
        assert list(cap) == ["fc"]

    def test_all_assignments_of_a_variable_come(self):
        class Loop(nn.Module):
            def forward(self, x):
                for _ in range(3):
                    x = x + 1
                return x

        model = nn.Sequential(Loop(), nn.Linear(1, 1))
        cap = byname.capture(model, "0.forward.x", stop=True)(torch.zeros(1))
        assert len(cap["0.forward.x"]) == 4

    def test_in_a_with_block_it_ends_the_block(self):
        model, x = plain()
        with byname.capture(model, "blocks.0", stop=True) as cap:
            model(x)
            raise AssertionError("not come to")
        assert "blocks.0" in cap

    def test_of_two_each_ends_its_own(self):
        model, x = plain()
        inner = byname.capture(model, "blocks.2", stop=True)
        with byname.capture(model, "blocks.0", stop=True) as outer:
            inner(x)
        assert list(outer) == ["blocks.0"] and not len(inner)

    def test_what_may_come_until_the_end_is_waited_for(self):
        model, x = plain()
        cap = byname.capture(model, [byname.select.relu, "head.weight"], stop=True)(x)
        assert len(cap) == 4 and cap.output.shape == (3, 4)


def test_errors():
    model, x = plain()
    with pytest.raises(NoMatchError, match=r"blocks.0.attn.qkv"):
        byname.capture(model, "blocks.0.attn.qk")
    cap = byname.capture(model, "blocks.*")(x)
    with pytest.raises(KeyError, match=r"`blocks.7`; there are blocks.2"):
        cap["blocks.7"]
    assert str(pytest.raises(BynameError, cap.calls, "zz").value).startswith("nothing was captured at `zz`")
    assert cap.get("zz", 3) == 3 and "zz" not in cap
    with byname.capture(model, "head") as one, pytest.raises(BadArgumentError, match="make another one"):
        one(x)
    with pytest.raises(NotCapturedError, match="with block"):
        one.output


def test_an_error_of_the_model_comes_out_and_nothing_stays():
    model, x = plain()
    check = untouched(model)
    with pytest.raises(RuntimeError):
        byname.capture(model, ["blocks.0", "head", "head.grad"], stop=True)(torch.ones(2, 5, 7))
    assert check()


def test_a_place_that_was_not_come_to_is_warned_of():
    model, x = plain()
    model.extra = nn.Linear(2, 2)
    with pytest.warns(NothingSeenWarning, match="it was not called in 1 forward of Model"):
        byname.capture(model, ["head", "extra"])(x)


@pytest.mark.parametrize("grad", [False, True])
def test_values_live_as_long_as_the_capture(grad, no_collection):
    model, x = plain()
    cap = byname.capture(model, ["blocks.*", "blocks.1.grad"], grad=grad)(x)
    cap.output.sum().backward()
    values = [weakref.ref(one) for path in cap for one in cap.calls(path)]
    assert all(one() is not None for one in values) and len(values) == 4
    del cap
    assert all(one() is None for one in values)


def test_a_living_graph_keeps_no_values():
    model, x = plain()
    cap = byname.capture(model, ["blocks.1", "blocks.1.grad"])(x)
    loss, value = cap.output.sum(), weakref.ref(cap["blocks.1"])
    del cap
    gc.collect()
    assert value() is None
    loss.backward()


def test_training_is_as_without():
    model, x = plain()
    other = copy.deepcopy(model)
    model.train(), other.train()
    with byname.capture(model, ["blocks.*", "blocks.*.grad", "**.softmax"]):
        with_it = run(model, [x])
    assert not differences(with_it, run(other, [x]))


def test_it_prints_as_a_table():
    model, x = plain()
    cap = byname.capture(model, ["blocks.*", "blocks.0.attn"])(x)
    assert repr(cap).splitlines()[0] == "Model: 4 places captured"
    assert cap.rows()[0] == {
        "path": "blocks.0.attn",
        "type": "tuple of 2",
        "shape": None,
        "dtype": None,
        "device": None,
        "bytes": None,
        "calls": 1,
    }
    assert cap.rows()[1]["shape"] == (3, 5, 8) and cap.rows()[1]["bytes"] == 480
    assert "<table>" in cap._repr_html_() and list(cap.to_pandas()["path"]) == list(cap)


def test_the_public_names_and_no_others_are_listed():
    assert {*dir(byname)} == {*byname.__all__, "analyse", "plug"}


class Looped(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.cell, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x):
        for _ in range(3):
            x = self.step(x) if self.reentrant is None else checkpoint(self.step, x, use_reentrant=self.reentrant)
        return x

    def step(self, x):
        return self.cell(x).tanh()


def siamese(model, x):
    (model(x) * model(2 * x)).sum().backward()


def twice(model, x):
    model(x).sum().backward()
    model(2 * x).sum().backward()


def not_the_last(model, x):
    cells = []
    model.cell.register_forward_hook(lambda module, args, output: cells.append(output))
    model(x)
    cells[1].sum().backward()


def first_without_gradients(model, x):
    with torch.no_grad():
        model(x)
    model(x).sum().backward()


def keep(kept, output):
    kept.append(output)
    if output.requires_grad:
        output.retain_grad()


@pytest.mark.parametrize("run", [siamese, twice, not_the_last, first_without_gradients])
def test_the_gradients_of_several_calls_are_paired_with_their_values(run):
    torch.manual_seed(0)
    model, x, kept = Looped(), torch.randn(2, 4, requires_grad=True), []
    with byname.capture(model, ["cell", "cell.grad"]) as cap:
        run(model, x)
    model.cell.register_forward_hook(lambda module, args, output: keep(kept, output))
    run(model, x)
    expected, found = [one.grad for one in kept], cap.calls("cell.grad")
    assert len(cap.calls("cell")) == len(found) == len(expected)
    assert [one is None for one in found] == [one is None for one in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True) if a is not None)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_of_checkpoints_and_of_a_further_backward_have_the_order_of_the_values(reentrant):
    torch.manual_seed(0)
    model, x = Looped(), torch.randn(2, 4, requires_grad=True)
    with byname.capture(model, ["cell", "cell.grad"]) as once:
        model(x).sum().backward()
    model.reentrant = reentrant
    with byname.capture(model, ["cell", "cell.grad"]) as cap:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for number, gradient in enumerate(cap.calls("cell.grad")):
        assert torch.equal(gradient, once.calls("cell.grad")[number % 3])
    assert len(cap.calls("cell.grad")) == 6


def test_a_capture_that_has_not_run_says_so():
    model, x = plain()
    cap = byname.capture(model, "head")
    assert repr(cap).startswith("Model: the model has not run yet: call the capture with the model's inputs")
    assert repr(cap(x)).startswith("Model: 1 place captured")
