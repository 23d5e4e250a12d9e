"""Is a skipped module left out, and all else as before?"""

import copy
import inspect
import io
import pickle

import pytest
import torch
from tiny import gpt2, llama, logits, plain, t5, untouched
from torch import nn
from torch.nn import functional as F
from watching import differences, run

import byname
from byname.errors import BadArgumentError, InterjectionError, NoMatchError


@pytest.mark.parametrize(
    ("make", "path", "others"),
    [
        (plain, "blocks.1", "blocks"),
        (gpt2, "transformer.h.1", "transformer.h"),
        (llama, "model.layers.1", "model.layers"),
    ],
)
def test_a_skipped_layer_is_as_if_it_was_not_there(make, path, others):
    model, x = make()
    check = untouched(model)
    without = copy.deepcopy(model)
    del without.get_submodule(others)[1]
    with byname.skip(model, path) as handle:
        assert torch.equal(logits(model(x)), logits(without(x)))
        assert handle.paths == (path,) and not handle.notes
    assert check()


def test_its_hooks_run_and_others_see_what_took_its_place():
    model, x = plain()
    seen = []
    model.blocks[1].register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with byname.skip(model, "blocks.1"), byname.patch(model, "blocks.1", lambda part: part + 1, features=0):
        cap = byname.capture(model, "blocks.*")(x)
    assert torch.equal(seen[0][0], seen[0][1])
    assert torch.equal(cap["blocks.1"][..., 1:], cap["blocks.0"][..., 1:])
    assert torch.equal(cap["blocks.1"][..., 0], cap["blocks.0"][..., 0] + 1)


def test_nothing_of_it_is_computed():
    model, x = plain()
    with byname.skip(model, "blocks.*"):
        figures = run(model, [x]).gradients
    assert all(value is None for name, value in figures.items() if name.startswith("blocks"))
    assert figures["head.weight"].any() and figures["input 0"].any()


class TestValues:
    def test_a_tensor(self):
        model, x = plain()
        given = -torch.ones(3, 5, 16, requires_grad=True)
        with byname.skip(model, "blocks.0.mlp.0", given):
            model(x).sum().backward()
        assert given.eq(-1).all()

    def test_a_function_of_the_arguments(self):
        model, x = gpt2()
        check = untouched(model)
        with byname.skip(model, "transformer.h.1.attn", lambda hidden_states, **kwargs: (hidden_states * 0, None)):
            found = model(x).logits
        with byname.ablate(model, "transformer.h.1.attn[0]"):
            assert torch.equal(model(x).logits, found)
        assert check()

    def test_the_first_keyword(self):
        class Keywords(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(2, 2)

            def forward(self, x):
                return self.inner(input=x)

        x = torch.ones(1, 2)
        model = Keywords()
        with byname.skip(model, "inner"):
            assert model(x) is x

    def test_without_arguments(self):
        class Constant(nn.Module):
            def forward(self):
                return torch.ones(())

        model = Constant()
        with pytest.raises(InterjectionError, match="without an argument"), byname.skip(model, "forward"):
            model()


class TestWhatItReturns:
    @pytest.mark.parametrize(
        ("make", "path"),
        [(gpt2, "transformer.h.1.attn"), (llama, "model.layers.0.self_attn"), (plain, "blocks.0.attn")],
    )
    def test_a_tuple_is_refused(self, make, path):
        model, _ = make()
        check = untouched(model)
        with pytest.raises(BadArgumentError, match=rf"`{path}`.*returns a tuple.*value="):
            byname.skip(model, path)
        assert check()

    def test_what_is_not_known_is_noted_also_on_an_error(self):
        class Unclear(nn.Module):
            def forward(self, x):
                return made(x)

        made = lambda x: (x, 3)

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Unclear()

            def forward(self, x):
                h, three = self.inner(x)
                return h

        model = Outer()
        with byname.skip(model, "inner") as handle:
            with pytest.raises(ValueError, match="unpack") as raised:
                model(torch.ones(3))
        assert "`inner` is skipped and returns its first argument" in handle.notes[0]
        assert any("`inner` is skipped" in note for note in raised.value.__notes__)

    def test_as_the_source_says(self):
        class Several(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)
                self.lstm = nn.LSTM(2, 2)

            def forward(self, x):
                raise NotImplementedError

        def returned_by(function):
            try:
                with byname.skip(nn.Sequential(type("Made", (Several,), {"forward": function})()), "0") as handle:
                    return "" if handle.notes else "tensor"
            except BadArgumentError as error:
                return "tuple" if "returns a tuple" in str(error) else "dict"

        def named(self, x):
            outputs = (x,)
            outputs = outputs + (3,)
            return outputs

        def inner(self, x):
            def other():
                return 1, 2

            return self.fc(x)

        def either(self, x, both=False):
            h = F.relu(x)
            return (h, x) if both else h

        def through(self, x):
            return self.lstm(x)

        def mapping(self, x):
            if x is None:
                return
            return {"x": x}

        def annotated(self, x) -> torch.Tensor:
            return F.relu(x)

        def unknown(self, x):
            return F.relu(x)

        kinds = {
            named: "tuple",
            inner: "tensor",
            either: "tuple",
            through: "tuple",
            mapping: "dict",
            annotated: "tensor",
            unknown: "",
        }
        assert {function: returned_by(function) for function in kinds} == kinds


def test_copies_are_not_skipped_and_the_state_is_as_before():
    model, x = plain()
    plainly, keys = model(x), list(model.state_dict())
    with byname.skip(model, "blocks.1"), byname.skip(model, "blocks.1", lambda x: x * 2):
        skipped = model(x)
        assert list(model.state_dict()) == keys
        stream = io.BytesIO()
        torch.save(nn.Sequential(model.head), stream)
        twin = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model.head))
    assert not torch.equal(skipped, plainly)
    assert torch.equal(twin(x), plainly) and torch.equal(pickled.weight, model.head.weight)
    assert "forward" not in twin.blocks[1].__dict__


def test_a_forward_of_the_instance_is_put_back_and_others_go_in_any_order():
    model, x = plain()
    own = lambda x: x * 3
    model.blocks[1].forward = own
    plainly = model(x)
    first = byname.skip(model, "blocks.1", lambda x: x * 5)
    second = byname.skip(model, "blocks.1", lambda x: x * 7)
    twin = copy.deepcopy(model)
    first.remove()
    assert not torch.equal(model(x), plainly)
    second.enabled = False
    assert torch.equal(model(x), plainly)
    second.enabled = True
    second.remove()
    assert model.blocks[1].forward is own and torch.equal(twin(x), plainly)


def test_a_forward_that_somebody_has_wrapped_since_passes_on():
    model, x = plain()
    plainly = model(x)
    handle = byname.skip(model, "blocks.1")
    below = model.blocks[1].forward
    model.blocks[1].forward = lambda *args: below(*args)
    handle.remove()
    assert torch.equal(model(x), plainly)


def test_its_forward_has_the_signature_that_it_had():
    model = nn.Sequential(nn.Bilinear(2, 2, 2))
    plain = inspect.signature(model[0].forward)
    with byname.skip(model, "0"):
        assert inspect.signature(model[0].forward) == plain
        with byname.skip(model, "0"):
            assert [*inspect.signature(model[0].forward).parameters] == ["input1", "input2"]
    model[0].forward = lambda x, *, mask=None: x
    with byname.skip(model, "0"):
        assert [*inspect.signature(model[0].forward).parameters] == ["x", "mask"]


def test_what_is_in_it_can_be_watched_and_is_not_come_to():
    model, x = plain()
    seen = []
    with (
        byname.skip(model, "blocks.1"),
        byname.attach(model, ["blocks.*.forward.x"], lambda event: seen.append(event.path)),
    ):
        model(x)
    assert {*seen} == {"blocks.0.forward.x", "blocks.2.forward.x"}


def test_training_with_a_skipped_layer_is_training_without_it():
    model, x = plain()
    other = copy.deepcopy(model)
    other.blocks[1] = nn.Identity()
    model.train(), other.train()
    with byname.skip(model, "blocks.1"):
        found = run(model, [x])
    found.gradients = {name: value for name, value in found.gradients.items() if not name.startswith("blocks.1")}
    assert not differences(found, run(other, [x]))


def test_selectors_classes_and_errors():
    model, x = plain()
    with byname.skip(model, byname.select.relu) as one, byname.skip(model, nn.Dropout):
        model(x)
        assert one.paths == tuple(f"blocks.{k}.mlp.1" for k in range(3))
    for where, value, error, why in [
        ("blocks.7", "input", NoMatchError, "blocks.7"),
        ("blocks.0.attn[0]", "input", BadArgumentError, "is not a module"),
        ("blocks.0.attn.forward.scores", "input", BadArgumentError, "byname.patch"),
        ("blocks.0", "output", BadArgumentError, "'output'"),
        ("blocks.0", 3, BadArgumentError, "of type int"),
    ]:
        with pytest.raises(error, match=why):
            byname.skip(model, where, value)


T5 = "decoder.block.1"


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (llama, "model.layers.1.self_attn"),  # which is called with keywords
        (gpt2, "transformer.h.1.attn"),
        (t5, T5),  # whose tuples have three items
        (t5, f"{T5}.layer.0"),
        (t5, f"{T5}.layer.1.EncDecAttention"),
    ],
)
def test_the_function_that_an_error_names_does_what_it_says(make, path):
    model, x = make()
    with pytest.raises(BadArgumentError, match="such as lambda hidden_states") as raised:
        byname.skip(model, path)
    function = eval(str(raised.value).split("such as ")[1])
    given = []
    module = model.get_submodule(path)
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: given.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        ),
        module.register_forward_hook(lambda module, args, output: (given[-1], *output[1:])),
    ]
    expected = logits(model(x, **({"decoder_input_ids": x} if make is t5 else {})))
    for hook in hooks:
        hook.remove()
    with byname.skip(model, path, function):
        found = logits(model(x, **({"decoder_input_ids": x} if make is t5 else {})))
    assert torch.equal(found, expected)


def test_of_a_tuple_that_is_not_written_out_the_length_is_left_open():
    class Several(nn.Module):
        def forward(self, x):
            return (x,) + (x,) * 2

    with pytest.raises(BadArgumentError, match="with as many items as it returns"):
        byname.skip(nn.Sequential(Several()), "0")


def test_places_may_come_from_a_generator():
    model, x = plain()
    with byname.skip(model, (f"blocks.{number}" for number in range(2))) as handle:
        model(x)
    assert handle.paths == ("blocks.0", "blocks.1")
