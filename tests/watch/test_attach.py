"""`attach`: which values are told, under which path, and what becomes of those that are replaced."""

import copy
import dataclasses
import gc
import io
import pickle
import threading
import weakref
from typing import NamedTuple

import pytest
import torch
from small import Attention, Net, events_of, net, nothing_left
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from byname import attach, select
from byname.errors import BadArgumentError, NoMatchError, NotAModuleError, NothingSeenWarning


def paths(events):
    return [event.path for event in events]


class Named(NamedTuple):
    mu: torch.Tensor
    rest: torch.Tensor


@dataclasses.dataclass
class Plain:
    mu: torch.Tensor
    rest: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    mu: torch.Tensor
    rest: torch.Tensor


class Inner(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        z = self.kind(x * 2, x * 10)
        return z


class Outer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = Inner(kind)

    def forward(self, x):
        z = self.inner(x)
        return z.mu + z.rest


class TestWhere:
    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ("embed", ["embed"]),
            ("embed.forward", ["embed.forward"]),
            ("forward", ["forward"]),
            ("blocks.*", ["blocks.0", "blocks.1", "blocks.2"]),
            ("blocks[1]", ["blocks.1"]),
            ("blocks.?.qkv", ["blocks.0.qkv", "blocks.1.qkv", "blocks.2.qkv"]),
            ("**.proj", ["blocks.0.proj", "blocks.1.proj", "blocks.2.proj"]),
            ("blocks.1.softmax", ["blocks.1.softmax"]),
            ("blocks.1.softmax_1", ["blocks.1.softmax_1"]),
            ("blocks.0.softmax*", ["blocks.0.softmax", "blocks.0.softmax_1"]),
            ("blocks.*.chunk[2]", ["blocks.0.chunk[2]", "blocks.1.chunk[2]", "blocks.2.chunk[2]"]),
            ("blocks.0.qkv.linear", ["blocks.0.qkv.linear"]),
            ("relu_", ["relu_"]),
            ("head.weight", ["head.weight"]),
            ("head.*", ["head.weight", "head.bias"]),
            ("seen", ["seen"]),
            ("blocks.2.forward.scores", ["blocks.2.forward.scores"]),
            ("blocks.2.forward.weights", ["blocks.2.forward.weights"] * 2),
            ("forward.x", ["forward.x"]),
            ("**.scores", [f"blocks.{i}.forward.scores" for i in range(3)]),
            ("**.0.**.scores", ["blocks.0.forward.scores"]),
            ("forward.self.seen", ["forward.self.seen"] * 2),
            ("forward.cache['h1'][0]", ["forward.cache['h1'][0]"]),
            ("forward.i", ["forward.i"] * 3),
            (Attention, ["blocks.0", "blocks.1", "blocks.2"]),
            (["head", "embed"], ["embed", "head"]),
        ],
    )
    def test_what_is_told(self, where, expected):
        model, x = net()
        with nothing_left(model):
            assert paths(events_of(model, where, x)) == expected

    def test_a_module_itself(self):
        model, x = net()
        assert paths(events_of(model, model.blocks[1], x)) == ["blocks.1"]

    def test_every_module_that_is_called_is_told_once(self):
        model, x = net()
        told = paths(events_of(model, "**", x))
        assert sorted(told) == sorted(
            ["embed", "head", "forward", *(f"blocks.{i}{inner}" for i in range(3) for inner in ("", ".qkv", ".proj"))]
        )

    def test_what_is_not_reached_is_said(self):
        model, x = net()
        with attach(model, "blocks.0.*", lambda event: None) as handle:
            assert not handle.notes
            model(x)
            assert handle.notes == ("`blocks.0.spare`: the first forward did not reach it",)

    def test_a_path_that_can_be_read_in_two_ways_says_how_it_was_read(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self._modules["twice"] = nn.Identity()

            def forward(self, x):
                return self.twice(x)

        Named.twice = lambda self, x: 2 * x
        model = Named()
        with attach(model, "twice", lambda event: None) as handle:
            assert handle.notes == ("`twice` was read as the module; it could also be the method twice",)

    def test_wildcards_pass_over_methods_that_cannot_be_listened_to(self):
        class Odd(nn.Module):
            @staticmethod
            def fixed(h):
                h = h + 1
                return h

            @classmethod
            def built(cls, h):
                return cls()

            def forward(self, x):
                h = self.fixed(x)
                return h

        model, x = Odd(), torch.ones(1)
        assert paths(events_of(model, "*.h", x)) == ["forward.h"]
        assert paths(events_of(model, "**.h", x)) == ["forward.h"]
        with pytest.raises(BadArgumentError, match="fixed"):
            attach(model, "fixed.h", print)


class TestValues:
    def test_values_are_those_of_the_model(self):
        model, x = net()
        attention = model.blocks[0]
        h = model.embed(x)
        q, k, _ = attention.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        told = {
            event.path: event
            for event in events_of(model, ["blocks.0.forward.scores", "blocks.0.softmax", "blocks.0"], x)
        }
        assert torch.equal(told["blocks.0.forward.scores"].value, scores)
        assert torch.equal(told["blocks.0.softmax"].value, scores.softmax(-1))
        assert torch.equal(told["blocks.0.softmax"].inputs[0], scores)
        assert torch.equal(told["blocks.0"].inputs[0], h)
        assert told["blocks.0.softmax"].module is attention

    def test_gradients_are_those_of_the_values(self):
        model, x = net()
        told = {}
        places = [
            "blocks.1.forward.scores.grad",
            "blocks.1.grad",
            "blocks.1.softmax.grad",
            "head.weight.grad",
            "forward.h.grad",
        ]
        with (
            nothing_left(model),
            attach(model, places, lambda event: told.setdefault((event.path, event.call), event.value)),
        ):
            model(x).square().sum().backward()
        weight_grad = model.head.weight.grad.clone()
        model.zero_grad()
        kept = {}
        with attach(
            model,
            ["blocks.1.forward.scores", "blocks.1", "blocks.1.softmax"],
            lambda event: kept.update({event.path: event.value}),
        ):
            loss = model(x).square().sum()
            grads = torch.autograd.grad(loss, list(kept.values()))
        for path, expected in zip(kept, grads, strict=True):
            assert torch.equal(told[f"{path}.grad", 0], expected), path
        assert torch.equal(told["head.weight.grad", 0], weight_grad)
        assert [key for key in told if key[0] == "forward.h.grad"] == [
            ("forward.h.grad", call) for call in (4, 3, 2, 1, 0)
        ]

    def test_gradients_of_a_nested_value_are_told_item_by_item(self):
        model = nn.LSTM(3, 4)
        told = []
        with attach(model, "forward.grad", lambda event: told.append(event.path)):
            output, (h, c) = model(torch.randn(5, 2, 3))
            (output.sum() + h.sum() + c.sum()).backward()
        assert sorted(told) == ["forward[0].grad", "forward[1][0].grad", "forward[1][1].grad"]

    def test_a_gradient_that_cannot_flow_is_said(self):
        model, x = net()
        said = pytest.warns(NothingSeenWarning, match=r"`forward\.x\.grad`: no gradient flows there")
        with said, attach(model, "forward.x.grad", lambda event: None) as handle:
            model(x)
            assert handle.notes == ("`forward.x.grad`: no gradient flows there, since the value does not require grad",)


class TestReplacing:
    @pytest.mark.parametrize(
        ("where", "by_hand"),
        [
            ("embed", lambda model, x: finished(model, model.embed(x) * 2)),
            ("blocks.0", lambda model, x: finished(model, model.embed(x), first=2)),
            ("forward", lambda model, x: model(x) * 2),
            ("forward.x", lambda model, x: model(x * 2)),
            ("head.weight", lambda model, x: F.linear(hidden(model, x), model.head.weight * 2, model.head.bias)),
            ("head.linear", lambda model, x: model(x) * 2),
            ("embed.forward.input", lambda model, x: model(x * 2)),
            ("relu_", lambda model, x: model.head(hidden(model, x) * 2)),
        ],
    )
    def test_the_output_is_what_comes_out_by_hand(self, where, by_hand):
        model, x = net()
        with torch.no_grad():
            expected = by_hand(model, x)
            with nothing_left(model), attach(model, where, lambda event: event.value * 2):
                assert torch.allclose(model(x), expected, atol=1e-6)
            assert not torch.allclose(model(x), expected, atol=1e-6)

    def test_an_item_of_a_tuple(self):
        model, x = net()
        q = events_of(model, "blocks.0.chunk[0]", x)[0].value
        told = []
        with (
            attach(model, "blocks.0.chunk[0]", lambda event: torch.zeros_like(q)),
            attach(model, "blocks.0.forward.scores", told.append),
        ):
            model(x)
        assert not told[0].value.any()

    @pytest.mark.parametrize("kind", [Named, Plain, Frozen])
    @pytest.mark.parametrize("where", ["inner.forward.z.mu", "forward.z.mu", "inner['mu']", "inner[*]"])
    def test_a_field_of_a_named_tuple_or_dataclass(self, kind, where):
        model = Outer(kind)
        where = {"inner['mu']": "inner[0]"}.get(where, where) if kind is Named else where
        expected = 120 if where == "inner[*]" else 30
        with attach(model, where, lambda event: event.value * 10):
            assert model(torch.ones(1)).item() == expected
        assert model(torch.ones(1)).item() == 12

    def test_a_field_under_two_names_is_changed_once(self):
        model = Outer(Plain)
        with attach(model, ["forward.z.mu", "forward.z['mu']"], lambda event: event.value * 10):
            assert model(torch.ones(1)).item() == 30

    def test_an_item_of_a_dict_in_a_variable(self):
        class Cached(nn.Module):
            def forward(self, x):
                cache = {"k": [x, x + 1]}
                return cache["k"][1]

        model = Cached()
        with attach(model, "forward.cache['k'][1]", lambda event: event.value * 10):
            assert model(torch.ones(1)).item() == 20

    def test_a_gradient(self):
        model, x = net()
        model(x).sum().backward()
        plain = model.embed.weight.grad.clone()
        model.zero_grad()
        with attach(model, "forward.grad", lambda event: event.value * 3):
            model(x).sum().backward()
        assert torch.allclose(model.embed.weight.grad, 3 * plain, atol=1e-5)
        model.zero_grad()
        with attach(model, "embed.weight.grad", lambda event: torch.zeros_like(event.value)):
            model(x).sum().backward()
        assert not model.embed.weight.grad.any()

    def test_a_parameter_for_one_forward_with_the_gradient_going_through_the_change(self):
        model, x = net()
        mask = torch.zeros_like(model.head.weight)
        mask[0] = 1
        with nothing_left(model), attach(model, "head.weight", lambda event: event.value * mask):
            model(x).sum().backward()
        assert model.head.weight.grad[0].any()
        assert not model.head.weight.grad[1].any()

    def test_a_buffer_for_good(self):
        model, x = net()
        seen = model.seen
        with attach(model, "seen", lambda event: event.value + 10):
            model(x)
        assert model.seen is seen
        assert model.seen.item() == 11

    def test_several_at_one_place_run_in_the_order_in_which_they_were_attached(self):
        for where in ("embed", "blocks.0.softmax", "blocks.0.forward.scores", "forward.x", "embed.weight", "relu_"):
            model, x = net()
            seen = []
            doubled = attach(model, where, lambda event: event.value * 2)
            plus = attach(model, where, lambda event: event.value + 1)
            last = attach(model, where, lambda event: seen.append(event.value))
            plain = []
            model(x)
            for handle in (doubled, plus, last):
                handle.enabled = False
            with attach(model, where, lambda event: plain.append(event.value.clone())):
                model(x)
            assert torch.allclose(seen[0], plain[0] * 2 + 1), where
            for handle in (last, plus, doubled):
                handle.enabled = True
            seen.clear()
            model(x)
            assert torch.allclose(seen[0], plain[0] * 2 + 1), where
            for handle in (plus, last, doubled):
                handle.remove()

    def test_operations_of_an_outer_and_an_inner_module_keep_the_order_too(self):
        model, x = net()
        inner = attach(model, "blocks.0.softmax", lambda event: event.value * 0 + 2)
        seen = []
        with attach(model, ["relu_", "blocks.*.softmax"], lambda event: seen.append(event)):
            model(x)
        inner.remove()
        first = next(event for event in seen if event.path == "blocks.0.softmax")
        assert (first.value == 2).all()


def hidden(model, x, first=1):
    h = model.embed(x)
    return rest(model, h, first)


def rest(model, h, first=1):
    for i, block in enumerate(model.blocks):
        h = h + block(h) * (first if i == 0 else 1)
    return h.relu()


def finished(model, h, first=1):
    return model.head(rest(model, h, first))


class TestNumbers:
    def test_iterations_and_calls(self):
        class Loop(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.Linear(2, 2)

            def forward(self, x):
                for _ in range(3):
                    x = self.cell(x).tanh()
                return x

        model, x = Loop(), torch.randn(1, 2)
        events = []
        with attach(model, ["cell", "forward.x", "tanh*"], events.append):
            model(x)
            model(x)
        of_cell = [(event.iteration, event.call) for event in events if event.path == "cell"]
        assert of_cell == [(i, call) for i in (0, 1) for call in (0, 1, 2)]
        of_x = [(event.iteration, event.call) for event in events if event.path == "forward.x"]
        assert of_x == [(i, call) for i in (0, 1) for call in (0, 1, 2, 3)]
        assert paths([event for event in events if event.path.startswith("tanh")]) == ["tanh", "tanh_1", "tanh_2"] * 2

    def test_a_model_that_calls_itself_is_one_iteration(self):
        class Nested(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(2, 2)

            def forward(self, x, depth=2):
                x = self.inner(x)
                return self(x, depth - 1) if depth else x

        model, events = Nested(), []
        with attach(model, ["inner", "forward", "forward.depth"], events.append):
            model(torch.randn(1, 2))
            model(torch.randn(1, 2))
        assert [event.iteration for event in events if event.path == "inner"] == [0] * 3 + [1] * 3
        assert [event.call for event in events if event.path == "forward"] == [0, 1, 2] * 2
        assert [event.value for event in events if event.path == "forward.depth"] == [2, 1, 0] * 2

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_the_second_run_of_a_checkpoint_is_told_apart(self, reentrant):
        class Checkpointed(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Attention()

            def forward(self, x):
                return checkpoint(self.block, x, use_reentrant=reentrant)

        model, x = Checkpointed(), torch.randn(2, 3, 8, requires_grad=True)
        events = []
        with nothing_left(model), attach(model, ["block.softmax", "block.forward.scores", "block.qkv"], events.append):
            model(x).sum().backward()
            model(x).sum().backward()
        told = [(event.path, event.iteration, event.call, event.recomputed) for event in events]
        once = [("block.qkv", False), ("block.forward.scores", False), ("block.softmax", False)]
        assert told == [
            (path, iteration, 0, again) for iteration in (0, 1) for again in (False, True) for path, _ in once
        ]

    def test_threads_count_for_themselves(self):
        model, x = net()
        events, errors = [], []

        def run():
            try:
                for _ in range(5):
                    model(x)
            except Exception as error:
                errors.append(error)

        with (
            nothing_left(model),
            attach(model, ["blocks.*.softmax", "blocks.*.forward.scores", "blocks.*"], events.append),
        ):
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not errors
        keys = [(event.path, event.iteration, event.call) for event in events]
        assert len(keys) == len(set(keys)) == 4 * 5 * 9
        assert {event.iteration for event in events} == set(range(20))


class TestErrors:
    @pytest.mark.parametrize(
        ("where", "close"),
        [
            ("block.0", "`blocks.0`"),
            ("embed.weigth", "`embed.weight`"),
            ("blocks.0.forward.score", "`blocks.0.forward.scores`"),
            ("blocks.*.sofmax", "`blocks.*.softmax`"),
            ("heads", "`head`"),
            ("block.1.softmax", "`blocks.1.softmax`"),
        ],
    )
    def test_an_unmatched_path_names_what_is_close(self, where, close):
        model, _ = net()
        with nothing_left(model), pytest.raises(NoMatchError, match="matches nothing in this Net") as error:
            attach(model, where, print)
        assert close in str(error.value)

    def test_an_operation_that_is_not_called_raises_at_the_end_of_the_first_forward(self):
        model, x = net()
        with nothing_left(model):
            attach(model, "blocks.*.gelu", print)
            with pytest.raises(NoMatchError, match="`blocks.*.gelu` matches no operation that ran"):
                model(x)
        assert model(x).shape == (2, 5, 2)

    def test_with_an_example_it_raises_at_once(self):
        model, x = net()
        with nothing_left(model), pytest.raises(NoMatchError, match="softmax_7"):
            attach(model, "blocks.0.softmax_7", print, example=x)

    @pytest.mark.parametrize(
        ("where", "error"),
        [
            (3, BadArgumentError),
            ([], BadArgumentError),
            ([3], BadArgumentError),
            (nn.Conv2d, NoMatchError),
            (nn.Linear(1, 1), NoMatchError),
        ],
    )
    def test_what_is_no_place_is_refused(self, where, error):
        model, _ = net()
        with nothing_left(model), pytest.raises(error):
            attach(model, where, print)

    def test_what_is_no_model_or_callback_is_refused(self):
        with pytest.raises(NotAModuleError):
            attach(lambda x: x, "a", print)
        with pytest.raises(BadArgumentError, match="callback"):
            attach(net()[0], "embed", 3)

    @pytest.mark.parametrize(
        "where", ["embed", "blocks.1.softmax", "blocks.1.forward.scores", "head.weight", "forward.x", "forward.h.grad"]
    )
    def test_an_error_of_the_callback_names_the_place_and_leaves_the_model_usable(self, where):
        model, x = net()
        plain = model(x)

        def fail(event):
            raise ZeroDivisionError("mine")

        with nothing_left(model):
            with attach(model, where, fail), pytest.raises(ZeroDivisionError, match="mine") as error:
                model(x).sum().backward()
            assert any(f"`{where}`" in note for note in error.value.__notes__)
            assert torch._C._len_torch_function_stack() == 0
            assert torch.equal(model(x), plain)

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
    def test_an_error_of_the_model_leaves_nothing_on_any_stack(self, kind):
        class Failing(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(2, 2)
                self.fails = True

            def forward(self, x):
                x = self.inner(x).relu()
                if self.fails:
                    raise kind("here")
                return x.tanh()

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.failing = Failing()

            def forward(self, x):
                return self.failing(x).sigmoid()

        model, x, events = Outer(), torch.randn(1, 2), []
        with nothing_left(model):
            with attach(model, ["failing.tanh", "sigmoid", "failing.inner", "failing.inner.weight"], events.append):
                with pytest.raises(kind):
                    model(x)
                model.failing.fails = False
                model(x)
            model.failing.fails = True
        assert [(event.path, event.iteration) for event in events if event.iteration == 1] == [
            ("failing.inner.weight", 1),
            ("failing.inner", 1),
            ("failing.tanh", 1),
            ("sigmoid", 1),
        ]


class TestLeavingNothing:
    def test_removal_in_any_order(self):
        model, x = net()
        with nothing_left(model):
            handles = [
                attach(model, where, lambda event: None)
                for where in (
                    "**",
                    "blocks.*.softmax",
                    "**.forward.*",
                    "head.weight.grad",
                    "blocks.1.forward.scores",
                    "head.weight",
                )
            ]
            model(x).sum().backward()
            for index in (2, 0, 4, 1, 5, 3):
                handles[index].remove()
                handles[index].remove()
                model(x)

    def test_a_removed_or_disabled_handle_is_silent_also_for_graphs_made_before(self):
        model, x = net()
        events = []
        handle = attach(model, "blocks.0.grad", events.append)
        loss = model(x).sum()
        with pytest.warns(NothingSeenWarning, match="no backward reached its value"):
            handle.remove()
        loss.backward()
        assert not events
        with pytest.raises(RuntimeError, match="removed"):
            handle.enabled = True

    def test_no_tensor_is_kept_alive(self):
        model, x = net()
        with attach(model, ["**", "**.forward.*", "blocks.*.softmax", "blocks.*.grad"], lambda event: None):
            out = model(x)
            out.sum().backward()
            kept = weakref.ref(out)
            del out
            gc.collect()
            assert kept() is None

    @pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "torch.save"])
    def test_copies_are_not_watched(self, how):
        model, x = net()
        events = []
        with attach(model, ["blocks.*", "blocks.*.softmax", "head.weight", "blocks.*.forward.scores"], events.append):
            if how == "deepcopy":
                other = copy.deepcopy(model)
            elif how == "copy":
                other = copy.copy(model)
                other._modules = dict(other._modules, blocks=nn.Identity())
            elif how == "pickle":
                other = pickle.loads(pickle.dumps(model))
            else:
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                other = torch.load(file, weights_only=False)
            assert not other._forward_hooks
            assert not other._forward_pre_hooks
            if how not in ("copy",):
                assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())
                assert torch.equal(other(x), model(x))
                assert len([event for event in events if event.path == "blocks.0"]) == 1
        import copyreg

        assert Net not in copyreg.dispatch_table

    def test_hooks_of_others_stay_and_run_in_their_order(self):
        model, x = net()
        log = []
        mine = model.embed.register_forward_hook(lambda module, args, output: log.append("first"))
        with attach(model, "embed", lambda event: log.append("byname")):
            other = model.embed.register_forward_hook(lambda module, args, output: log.append("second"))
            model(x)
        model(x)
        assert log == ["first", "byname", "second", "first", "second"]
        mine.remove()
        other.remove()
        assert not model.embed._forward_hooks

    def test_functions_called_in_the_callback_are_no_operations_of_the_model(self):
        model, x = net()
        events = []
        with (
            attach(model, "blocks.0", lambda event: event.value.softmax(-1).relu_()),
            attach(model, "blocks.0.softmax*", events.append),
        ):
            model(x)
        assert paths(events) == ["blocks.0.softmax", "blocks.0.softmax_1"]


def test_the_fast_path_of_attention_is_said_to_be_left():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    told = []
    with torch.no_grad():
        plain = layer(x)
        with attach(layer, "linear1", told.append) as handle:
            assert torch.allclose(layer(x), plain, atol=1e-5)
            assert "fast path" in handle.notes[0]
    assert len(told) == 1


class TestSelectors:
    def test_functions_and_modules_alike(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.act = nn.ReLU()
                self.linear = nn.Linear(2, 2)

            def forward(self, x):
                return F.relu(self.linear(self.act(x))).relu_()

        model, x = Mixed(), torch.randn(1, 2)
        with nothing_left(model):
            assert paths(events_of(model, select.relu, x)) == ["act", "relu", "relu_"]
            assert paths(events_of(model, select.relu, x, example=x)) == ["act", "relu", "relu_"]
            assert paths(events_of(model, select.relu[1:], x)) == ["relu", "relu_"]
            assert paths(events_of(model, select.relu.last, x, example=x)) == ["relu_"]
            assert paths(events_of(model, select.relu.after(select.linear), x, example=x)) == ["relu", "relu_"]
            assert paths(events_of(model, select.module(nn.ReLU), x)) == ["act"]
            assert paths(events_of(model, [select.linear, "act.relu"], x)) == ["act.relu", "linear"]

    def test_later_forwards_are_told_of_the_same_places(self):
        model, x = net()
        events = []
        with nothing_left(model), attach(model, select.softmax, events.append) as handle:
            for _ in range(3):
                model(x)
            assert handle.paths == tuple(f"blocks.{i}.softmax{k}" for i in range(3) for k in ("", "_1"))
        assert paths(events) == list(handle.paths) * 3

    def test_only_what_matched_is_listened_to_after_the_first_forward(self):
        model, x = net()
        with attach(model, select.softmax, lambda event: None):
            model(x)
            assert model.blocks[0]._forward_hooks
            assert not model.head._forward_hooks

    def test_a_selector_that_matches_nothing_raises(self):
        model, x = net()
        with nothing_left(model):
            with pytest.raises(NoMatchError, match="Conv3d"):
                attach(model, select.module(nn.Conv3d), print)
            with pytest.raises(NoMatchError, match="gelu"):
                attach(model, select.gelu, print, example=x)
            attach(model, select.gelu, print)
            with pytest.raises(NoMatchError, match="gelu"):
                model(x)
        model(x)

    def test_what_needs_an_example_says_so(self):
        model, _ = net()
        with nothing_left(model), pytest.raises(BadArgumentError, match="example="):
            attach(model, select.softmax.last, print)


def test_a_model_whose_forward_is_never_called_is_said_to_be_untold():
    class Codec(nn.Module):
        def encode(self, x):
            return x.relu()

        def forward(self, x):
            return self.encode(x)

    model, x = Codec(), torch.ones(1)
    with attach(model, "relu", print) as handle:
        model.encode(x)
    assert handle.notes == (
        "nothing was seen at `relu`: no forward of this Codec ran; if the program calls another method of it "
        "(`encode`) or a part of it, attach to that part; if it runs a copy of the model, attach to the copy",
    )
    with attach(model, "relu", lambda event: None) as handle:
        model(x)
    assert not handle.notes


class TestModulesThatArrive:
    def test_one_in_the_place_of_another_is_told_of(self):
        model, x = net()
        events = []
        with attach(model, ["head", "blocks.0"], events.append) as handle:
            model.head = nn.Linear(8, 2)
            model(x)
            assert not handle.notes
        assert paths(events) == ["blocks.0", "head"]
        assert not torch.nn.modules.module._global_module_registration_hooks

    def test_what_it_calls_is_not_taken_for_what_is_called_around_it(self):
        class Owner(nn.Module):
            def forward(self, x):
                for inner in self.children():
                    x = inner(x)
                return x.relu()

        class Inner(nn.Module):
            def forward(self, x):
                return x.relu()

        model, x, events = Owner(), torch.ones(1), []
        with nothing_left(Owner()), attach(model, "relu*", events.append):
            model(x)
            model.first = Inner()
            model.second = nn.Sequential(Inner(), nn.ReLU())
            model(x)
        assert paths(events) == ["relu", "relu"]
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
