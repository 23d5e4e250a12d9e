"""Does an attachment say at its end which places told it nothing, and why? And nothing where it was told?"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname import attach
from byname.errors import NoMatchError, NothingSeenWarning


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def encode(self, x):
        return self.first(x)

    def forward(self, x):
        h = {"a": self.encode(x), "b": [x, x]}
        return h["a"]


X = torch.ones(2, 4)
REASONS = {
    "spare": "it was not called in 1 forward of Net",
    "first.grad": "no backward reached its value",
    "forward.h['c']": "`forward.h` holds a dict without 'c'; it has 'a', 'b'",
    "forward.h['b'][7]": "`forward.h['b']` holds a list without 7; it has 0, 1",
    "forward.h['a']['x']": "`forward.h['a']` holds a Tensor, which has no items in a path",
    "spare.relu": None,
}


def nothing(*_):
    """Keeps the value."""


@pytest.mark.parametrize("where", [one for one, reason in REASONS.items() if reason])
@pytest.mark.parametrize("how", [attach, byname.interject])
def test_a_place_that_told_nothing_is_in_one_warning_and_in_the_notes(where, how):
    model = Net()
    with pytest.warns(NothingSeenWarning) as told, how(model, where, nothing) as handle:
        model(X)
    said = f"nothing was seen at `{where}`: {REASONS[where]}"
    assert [str(one.message) for one in told] == [f"byname: {said}"]
    assert told[0].filename == __file__ and said in handle.notes
    assert not model._forward_hooks and not model._forward_pre_hooks
    handle.remove()  # once more says nothing


@pytest.mark.parametrize("where", ["first", "*", "**", nn.Linear, "forward.h[*]", "forward.h['b'][*]", "encode",
                                   byname.select.linear, ["first", "forward.x"], "first.weight", "linear"])  # fmt: skip
def test_a_place_that_told_something_is_not_spoken_of(where):
    model = Net()
    if where == "linear":
        where = "first.linear"
    with byname.interject(model, where, nothing) as handle:
        model(X)
    assert not [note for note in handle.notes if note.startswith("nothing was")]


class WithoutGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            h = self.fc(x) * 2
        nothing = None
        return x, h, nothing


@pytest.mark.parametrize("where", ["fc.grad", "mul.grad", "forward.h.grad", "forward[1].grad", "forward.grad"])
def test_a_value_that_passed_without_a_gradient_is_not_said_to_be_unreached(where):
    reasons = {where: "the value does not require grad", "forward[2].grad": "no tensor passed there"}
    for path, reason in (reasons | {"kept.grad": "gradients of buffers are not observed"}).items():
        model = WithoutGradients()
        with pytest.warns(NothingSeenWarning, match=f"{reason}$"), byname.interject(model, path, nothing):
            model(X)


def test_who_switched_it_off_or_left_by_an_error_is_not_warned():
    model = Net()
    handle = byname.interject(model, "spare", nothing)
    model(X)
    handle.enabled = False
    handle.remove()
    with pytest.raises(KeyError), byname.interject(model, "spare", nothing) as handle:
        model(X)
        raise KeyError
    assert "nothing was seen at `spare`: it was not called in 1 forward of Net" in handle.notes


def test_a_model_that_never_ran_is_in_the_notes_of_what_takes_part():
    model = Net()
    with byname.interject(model, "first", nothing) as handle:
        pass
    assert handle.notes == (
        "nothing was seen at `first`: no forward of this Net ran; if the program calls another method of it (`encode`) "
        "or a part of it, attach to that part; if it runs a copy of the model, attach to the copy",
    )


def test_an_analyser_that_was_given_nothing_says_so_also_in_its_results():
    model, features = Net(), byname.analyse.FeatureStatistics()
    handle = byname.observe(model, "spare", features)
    model(X)
    said = "nothing was seen at `spare`: it was not called in 1 forward of Net"
    assert features.result().notes == (said,) and said in repr(features.result())
    with pytest.warns(NothingSeenWarning, match="spare"):
        handle.remove()


def test_an_analyser_of_gradients_without_a_backward():
    model, gradients = Net(), byname.analyse.GradientStatistics()
    with pytest.warns(NothingSeenWarning, match="`first`: its gradients are observed, but no backward reached it"):
        with byname.observe(model, "first", gradients):
            model(X)
    with byname.observe(model, "first", byname.analyse.GradientStatistics()):
        model(X).sum().backward()


def test_an_analyser_whose_model_never_ran():
    with pytest.warns(NothingSeenWarning, match="no forward of this Net ran"):
        with byname.observe(Net(), "first", byname.analyse.FeatureStatistics()):
            pass


class Text(nn.Module):
    def forward(self, x):
        word = "a word"
        return x, word


def test_an_analyser_of_what_is_no_tensor():
    model = Text()
    with pytest.warns(NothingSeenWarning, match=r"`forward\.word`: no tensors passed there"):
        with byname.observe(model, ["forward.word", "forward"], byname.analyse.FeatureStatistics()):
            model(X)


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("where", ["softmax", byname.select.softmax])
@pytest.mark.parametrize("how", [lambda *a: byname.interject(*a, nothing), byname.record])
def test_the_softmax_inside_of_an_attention_is_said_to_be_there(where, how):
    model = Attention()
    said = r"inside `scaled_dot_product_attention`.*select\.attention.*eager"
    with pytest.raises(NoMatchError, match=said), how(model, where):
        model(torch.ones(1, 2, 4))


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        ({1: 2}, "[3]", "` holds a dict without 3; it has 1"),
        ((), "[0]", "` holds a tuple without 0; it has none"),
        ([[1], [2]], "[*][5]", "[0]` holds a list without 5; it has 0"),
        (None, "['k']", "` holds None"),
        ({str(n): n for n in range(20)}, "['k']",
         "` holds a dict without 'k'; it has '0', '1', '2', '3', '4', '5', '6', '7', ..."),
        ({"a": {"b": 1}}, ".*.b",
         "` holds a dict without attributes `*`; it has 'a'; its items are `forward.x[*].b`"),
        ({object: 1}, "['k']", "` holds a dict without 'k'; it has a type"),
    ],
)  # fmt: skip
def test_what_a_value_holds_instead_of_an_item(value, path, said):
    model = Text()
    with pytest.warns(NothingSeenWarning), attach(model, f"forward.x{path}", nothing) as handle:
        model(value)
    assert handle.notes == (f"nothing was seen at `forward.x{path}`: `forward.x{said}",)


def test_where_warnings_are_errors_all_is_off_before():
    model = Net()
    handle = byname.interject(model, "spare", nothing)
    model(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NothingSeenWarning):
            handle.remove()
    assert handle.removed and not model._forward_hooks


def test_a_warning_names_a_few_of_many_places_and_the_notes_all():
    model = nn.ModuleDict({f"m{one}": nn.Linear(2, 2) for one in range(20)})
    model.forward = lambda x: x
    with pytest.warns(NothingSeenWarning) as told, byname.interject(model, [*model], nothing) as handle:
        model(X)
    (warned,) = (str(one.message) for one in told)
    assert "`m7`, and 12 more: it was not called in 1 forward of ModuleDict" in warned and "`m8`" not in warned
    assert all(any(f"`m{one}`" in note for note in handle.notes) for one in range(20))


def eager_attention_forward(module, x):
    weights = x.softmax(-1)
    return weights


def sdpa_attention_forward(module, x):
    out = x * 2
    return out


class Config:
    def __init__(self, backend):
        self._attn_implementation = backend


class OfTransformers(nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.config = Config(backend)

    def forward(self, x):
        function = eager_attention_forward
        if self.config._attn_implementation != "eager":
            function = sdpa_attention_forward
        return function(self, x)


def test_the_attention_backend_is_the_reason_where_another_function_was_asked_for():
    for backend, path in (("sdpa", "eager_attention_forward.weights"), ("eager", "sdpa_attention_forward.out")):
        model = OfTransformers(backend)
        with pytest.warns(NothingSeenWarning, match=f'attn_implementation="{backend}", so that it calls `{backend}_'):
            with attach(model, path, lambda event: None):
                model(torch.ones(2))
