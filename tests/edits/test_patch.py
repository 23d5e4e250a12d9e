"""Does a patched or steered model compute what a hook written by hand has it compute?"""

import copy
import gc
import weakref

import pytest
import torch
from tiny import by_hook, gpt2, llama, logits, plain, untouched
from torch import nn
from watching import differences, run

import byname
from byname.errors import BadArgumentError, BynameError, InterjectionError, NoMatchError


def written(index, new):
    def change(value):
        value = value.clone()
        value[index] = new(value) if callable(new) else new
        return value

    return change


PLACES = [(plain, "blocks.1"), (gpt2, "transformer.h.1"), (llama, "model.layers.0")]
PARTS = {
    "all": ({}, ...),
    "position": ({"positions": 2}, (slice(None), 2)),
    "last": ({"positions": -1}, (slice(None), -1)),
    "slice": ({"positions": slice(1, 4)}, (slice(None), slice(1, 4))),
    "several": ({"positions": [3, 0]}, (slice(None), [3, 0])),
    "mask": ({"positions": [True, False, False, True, True]}, (slice(None), [0, 3, 4])),
    "feature": ({"features": range(2, 5)}, (..., [2, 3, 4])),
    "both": ({"positions": 1, "features": torch.tensor([0, 5])}, (slice(None), 1, [0, 5])),
    "grid": (
        {"positions": [1, 4], "features": [0, 5, 7]},
        (slice(None), torch.tensor([[1], [4]]), torch.tensor([[0, 5, 7]])),
    ),
}


@pytest.mark.grid(fast=14)
@pytest.mark.parametrize(("make", "path"), PLACES)
@pytest.mark.parametrize("part", PARTS)
def test_parts_are_those_of_a_hook_by_hand(make, path, part):
    model, x = make()
    asked, index = PARTS[part]
    check = untouched(model)
    clean = byname.capture(model, path)(x)
    other = x.flip(0)
    plainly = logits(model(other))
    wanted = by_hook(model, path, written(index, clean[path][index]), other)
    for value in (clean, {path: clean[path]}, clean[path]):
        if part in ("several", "mask") and value is clean[path]:
            continue
        with byname.patch(model, path, value, **asked):
            assert torch.equal(logits(model(other)), wanted)
    doubled = by_hook(model, path, written(index, lambda value: value[index] * 2), other)
    with byname.patch(model, path, lambda part: part * 2, **asked):
        assert torch.equal(logits(model(other)), doubled)
    with byname.patch(model, path, lambda part: part.mul_(2), **asked):
        assert torch.equal(logits(model(other)), doubled)
    assert torch.equal(logits(model(other)), plainly) and not torch.equal(wanted, plainly)
    assert check()


def test_a_mask_of_samples_and_positions():
    model, x = plain()
    mask = torch.rand(3, 5) > 0.5
    with byname.patch(model, "blocks.0", lambda part: part + 1, positions=mask):
        found = model(x)
    assert torch.equal(found, by_hook(model, "blocks.0", written(mask, lambda value: value[mask] + 1), x))
    with (
        byname.patch(model, "blocks.0", lambda part: part, positions=mask[:2]),
        pytest.raises(InterjectionError, match=r"\(3, 5\); this one has \(2, 5\)"),
    ):
        model(x)


class TestHeads:
    def test_of_scores_and_patterns_are_dimension_1(self):
        model, x = plain()
        for path in ("blocks.0.attn.forward.scores", "blocks.0.attn.softmax"):
            seen = []
            with byname.patch(model, path, seen.append, heads=1, positions=[0, 2]):
                model(x)
            assert seen[0].shape == (3, 2, 5)
        with byname.patch(model, "blocks.0.attn[1]", 0 * torch.ones(()), heads=1):
            assert byname.capture(model, "blocks.0.attn[1]")(x)["blocks.0.attn[1]"][:, 1].eq(0).all()

    def test_of_merged_ones_are_found_by_the_module_around(self):
        model, x = plain()
        path, seen = "blocks.1.attn.forward.merged", []
        whole = byname.capture(model, path)(x)[path]
        with byname.patch(model, path, seen.append, heads=[1, 0], positions=-1, features=slice(1)):
            model(x)
        assert torch.equal(seen[0], whole.view(3, 5, 2, 4)[:, -1, [1, 0], :1])
        with byname.patch(model, path, torch.zeros(()), heads=1):
            after = byname.capture(model, path)(x)[path]
        assert after[..., 4:].eq(0).all() and torch.equal(after[..., :4], whole[..., :4])

    def test_of_a_config_and_of_fewer_keys(self):
        model, x = llama()
        for path, heads in (("q_proj", 4), ("k_proj", 2)):
            seen = []
            with byname.patch(model, f"model.layers.1.self_attn.{path}", seen.append, heads=range(heads)):
                model(x)
            assert seen[0].shape == (2, 5, heads, 2)

    def test_given_with_their_dimension(self):
        model, x = plain()
        seen = []
        with byname.patch(model, "blocks.0.attn.forward.q", seen.append, heads=(-3, [0])):
            model(x)
        assert [one.shape for one in seen] == [(3, 1, 5, 4)]

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("blocks.0", "those of `blocks.0.attn`"),
            ("blocks.0.mlp.0", "those of `blocks.0.attn`"),
            ("blocks.0.attn.qkv", "24 features are not 2 heads"),
            ("blocks.0.attn[0]", "use `blocks.0.attn.out.input`"),
            ("blocks.0.attn.out", "use `blocks.0.attn.out.input`"),
            ("head", "has_no|cannot tell"),
        ],
    )
    def test_where_they_are_not_known_it_says_so(self, path, why):
        model, x = plain()
        for block in model.blocks:
            block.attn.head_dim = 4
        with byname.patch(model, path, lambda part: part, heads=0), pytest.raises(InterjectionError, match=why):
            model(x)

    def test_where_no_module_has_them(self):
        model = nn.Sequential(nn.Linear(4, 4))
        with (
            byname.patch(model, "0", lambda part: part, heads=0),
            pytest.raises(InterjectionError, match=r"heads=\(dim, \[indices\]\)"),
        ):
            model(torch.ones(1, 2, 4))


def test_calls_are_counted_in_a_forward():
    layer = nn.Linear(3, 3)
    model, x = nn.Sequential(layer, nn.Tanh(), layer), torch.randn(2, 3)
    with byname.patch(model, "0", torch.zeros(3), call=0):
        for _ in range(2):
            assert torch.equal(model(x), layer(torch.zeros(2, 3).tanh()))
    with byname.patch(model, "0", byname.capture(model, "0")(x * 2)):
        assert torch.equal(model(x), byname.capture(model, "0")(x * 2)["0"][1])


def test_gradients_flow_to_an_outside_tensor_and_to_the_rest():
    model, x = plain()
    vector = torch.zeros(8, requires_grad=True)
    with byname.patch(model, "blocks.1", vector, positions=2):
        model(x).sum().backward()
    found = vector.grad, [one.grad for one in model.parameters()]
    other, hand = copy.deepcopy(model), torch.zeros(8, requires_grad=True)
    other.zero_grad()
    by_hook(other, "blocks.1", written((slice(None), 2), hand), x).sum().backward()
    assert torch.equal(found[0], hand.grad) and hand.grad.any()
    assert all(torch.equal(one, two.grad) for one, two in zip(found[1], other.parameters()))


def test_a_tensor_that_was_put_in_is_not_written_to_by_what_comes_after():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    given = -torch.ones(2, 3)
    with byname.patch(model, "0", given):
        model(torch.ones(2, 3))
    assert given.eq(-1).all()


def test_the_value_itself_is_not_written_to():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            self.__dict__["before"] = x * 3
            h = self.before
            return self.fc(h)

    model = Keeps()
    with byname.patch(model, "forward.h", torch.zeros(()), features=0):
        model(torch.ones(1, 2))
    assert model.before.eq(3).all()


def test_a_gradient_is_patched_at_its_place():
    model, x = plain()
    with byname.patch(model, "blocks.1.grad", torch.zeros(())):
        model(x).sum().backward()
    assert not model.blocks[1].mlp[0].weight.grad.any() and model.blocks[2].mlp[0].weight.grad.any()


class TestErrors:
    def test_a_tuple_wants_an_item(self):
        model, x = plain()
        with (
            byname.patch(model, "blocks.0.attn", torch.zeros(1)),
            pytest.raises(BynameError, match=r"a tuple of 2.*`blocks.0.attn\[0\]`, `blocks.0.attn\[1\]`"),
        ):
            model(x)

    def test_shapes_are_given_with_place_expected_and_got(self):
        model, x = plain()
        with (
            byname.patch(model, "blocks.0", torch.zeros(7), positions=1),
            pytest.raises(
                InterjectionError,
                match=r"`blocks.0`: expected a tensor of shape \(3, 8\).*positions=1 of a value of shape \(3, 5, 8\).*got one of shape \(7,\)",
            ),
        ):
            model(x)

    @pytest.mark.parametrize(
        "asked",
        [
            {"positions": 5},
            {"features": [0, 8]},
            {"features": [True]},
            {"heads": (7, [0])},
            {"heads": (2, [0]), "features": 1},
        ],
    )
    def test_parts_that_are_not_there(self, asked):
        model, x = plain()
        with (
            byname.patch(model, "blocks.0", lambda part: part, **asked),
            pytest.raises(InterjectionError, match="`blocks.0`"),
        ):
            model(x)

    def test_before_anything_is_attached(self):
        model, x = plain()
        check = untouched(model)
        clean = byname.capture(model, "blocks.0")(x)
        with pytest.raises(NoMatchError, match=r"`blocks.1` is not in the given mapping.*blocks.0"):
            byname.patch(model, "blocks.*", clean)
        for arguments in (
            {"value": 3},
            {"value": torch.zeros(1), "positions": 1.5},
            {"value": torch.zeros(1), "heads": "all"},
            {"value": torch.zeros(1), "call": -1},
            {"value": torch.zeros(1), "positions": torch.ones(2, 2, dtype=torch.bool), "features": 1},
        ):
            with pytest.raises(BadArgumentError):
                byname.patch(model, "blocks.0", **arguments)
        assert check()

    def test_an_operation_that_the_mapping_lacks(self):
        model, x = plain()
        with (
            byname.patch(model, "blocks.0.attn.softmax", {"other": x}),
            pytest.raises(NoMatchError, match="it has `other`"),
        ):
            model(x)

    def test_what_a_function_gives_must_be_a_tensor_that_fits(self):
        model, x = plain()
        with byname.patch(model, "head", lambda part: [part]), pytest.raises(InterjectionError, match="a list of 1"):
            model(x)
        with (
            byname.patch(model, "head", lambda part: part[:, :3]),
            pytest.raises(InterjectionError, match=r"got one of shape \(3, 3\)"),
        ):
            model(x)

    def test_a_dtype_that_cannot_be_cast_is_refused_and_another_is_noted(self):
        model, x = plain()
        with (
            byname.patch(model, "head", torch.ones(4, dtype=torch.complex64)),
            pytest.raises(InterjectionError, match=r"\.to\(torch.float32\)"),
        ):
            model(x)
        with byname.patch(model, "head", torch.ones(4, dtype=torch.float64)) as handle:
            assert model(x).dtype == torch.float32
            assert "torch.float64 on cpu was converted to torch.float32 on cpu" in str(handle.notes)


class TestSteering:
    @pytest.mark.parametrize(("make", "path"), PLACES)
    def test_adds_a_scaled_vector(self, make, path):
        model, x = make()
        check, vector = untouched(model), torch.randn(8)
        with byname.steer(model, path, vector, scale=3):
            everywhere = logits(model(x))
        with byname.steer(model, path, vector, scale=-0.5, positions=[1, -1]):
            somewhere = logits(model(x))
        index = (slice(None), [1, 4])
        assert torch.equal(everywhere, by_hook(model, path, lambda value: value + 3 * vector, x))
        assert torch.equal(
            somewhere, by_hook(model, path, written(index, lambda value: value[index] - 0.5 * vector), x)
        )
        assert check()

    def test_a_vector_can_be_trained(self):
        model, x = plain()
        vector = torch.zeros(8, requires_grad=True)
        with byname.steer(model, "blocks.0", vector):
            (grad,) = torch.autograd.grad(model(x).sum(), vector)
        assert grad.any()

    def test_a_vector_a_place_and_another_dtype(self):
        model, x = plain()
        vectors = {f"blocks.{k}": torch.full((8,), float(k), dtype=torch.float64) for k in range(3)}
        with byname.steer(model, "blocks.*", vectors) as handle:
            found = model(x)
        assert len(handle.notes) == 3
        with byname.steer(model, "blocks.1", vectors["blocks.1"]), byname.steer(model, "blocks.2", vectors["blocks.2"]):
            assert torch.equal(model(x), found)

    def test_errors(self):
        model, x = plain()
        with pytest.raises(BadArgumentError, match="vector= takes a tensor"):
            byname.steer(model, "blocks.0", 3)
        with pytest.raises(BadArgumentError, match=r"\(name, module, value\) cannot be called as f\(value\): missing"):
            byname.patch(model, "blocks.0", lambda name, module, value: value)
        with pytest.raises(BadArgumentError, match="scale= takes a number or a tensor, not a list of 2"):
            byname.steer(model, "blocks.0", torch.ones(8), scale=[1, 2])
        with (
            byname.steer(model, "blocks.0", torch.ones(7)),
            pytest.raises(InterjectionError, match=r"expected a tensor of shape \(3, 5, 8\)"),
        ):
            model(x)

    def test_in_generate(self):
        model, ids = gpt2()
        vector = torch.randn(8) * 5
        with byname.steer(model, "transformer.h.1", vector, positions=-1):
            found = model.generate(ids, max_new_tokens=3, do_sample=False)
        handle = model.transformer.h[1].register_forward_hook(
            lambda module, args, value: written((slice(None), -1), lambda v: v[:, -1] + vector)(value)
        )
        wanted = model.generate(ids, max_new_tokens=3, do_sample=False)
        handle.remove()
        assert torch.equal(found, wanted)


def test_several_edits_run_in_order_and_leave_in_any():
    model, x = plain()
    check = untouched(model)
    first = byname.patch(model, "blocks.0", torch.ones(()))
    second = byname.steer(model, "blocks.0", torch.ones(8))
    assert byname.capture(model, "blocks.0")(x)["blocks.0"].eq(2).all()
    first.remove()
    second.remove()
    assert check()


def test_checkpointed_parts_are_patched_in_both_runs():
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.checkpoints = True

        def forward(self, x):
            inner = lambda x: self.b(self.a(x).tanh())
            return checkpoint(inner, x, use_reentrant=False) if self.checkpoints else inner(x)

    model = Twice()
    with byname.patch(model, "a", lambda part: part * 2, features=0, call=0):
        found = run(model, [torch.ones(2, 3)])
        model.checkpoints = False
        assert not differences(found, run(model, [torch.ones(2, 3)]))


def test_no_tensor_lives_on():
    model, x = plain()
    given = torch.zeros(8)
    held, tensor = byname.patch(model, "blocks.0", given), weakref.ref(given)
    model(x)
    held.remove()
    del given
    gc.collect()
    assert tensor() is None and held.paths


@pytest.mark.parametrize(
    ("make", "path", "heads"), [(gpt2, "transformer.h.1.attn.c_proj", 2), (llama, "model.layers.0.self_attn.o_proj", 4)]
)
def test_merged_heads_where_the_projection_gets_them(make, path, heads):
    model, x = make()

    def change(value):
        value = value.clone().view(*value.shape[:2], heads, -1)
        value[:, -1, 1] = 0
        return value.flatten(-2)

    wanted = by_hook(model, path, change, x, pre=True)
    with byname.ablate(model, f"{path}.input", heads=1, positions=-1):
        assert torch.equal(logits(model(x)), wanted)


def test_merged_heads_as_the_variable_of_the_projection():
    model, x = gpt2()
    path = "transformer.h.1.attn.c_proj"

    def change(value):
        return torch.cat([value[..., :4], 0 * value[..., 4:]], -1)

    with byname.ablate(model, f"{path}.forward.x", heads=[1], call=0):
        assert torch.equal(logits(model(x)), by_hook(model, path, change, x, pre=True))


def test_a_tensor_without_values_is_refused_by_the_name_of_the_place():
    model, x = plain()
    with byname.patch(model, "head", torch.ones(3, 4, device="meta")), pytest.raises(InterjectionError) as raised:
        model(x)
    assert str(raised.value) == "at `head`: a tensor on the meta device has no values"
