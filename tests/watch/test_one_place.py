"""What a ``where`` means is read in one way by all that take one, and a place of many names is one place."""

import collections

import pytest
import torch
from torch import nn

import byname
from byname import select
from byname.errors import BadArgumentError, NoMatchError, NothingSeenWarning


def keep(name, module, value):
    return None


def double(name, module, value):
    return value * 2


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4), "0": nn.Linear(4, 4)})
        self.body = nn.Sequential(collections.OrderedDict(first=nn.Linear(4, 4), last=nn.Tanh()))
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4) * 2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.body(x) * self.weights[-1]
        return self.heads["a"](x) + self.heads["0"](x)


TAKES = {
    "attach": lambda model, where: byname.watch.attach(model, where, lambda event: None),
    "interject": lambda model, where: byname.interject(model, where, keep),
    "rewrite": lambda model, where: byname.rewrite(model, where, keep),
    "replace": lambda model, where: byname.replace(model, where, lambda old: nn.Identity()),
    "record": lambda model, where: byname.record(model, where),
    "observe": lambda model, where: byname.observe(model, where, byname.analyse.FeatureStatistics()),
    "points": lambda model, where: byname.points(model, where),
}
WRONG = {
    "an empty list": [],
    "an empty tuple": (),
    "an empty set": set(),
    "3": [3],
    "None": ["layers.0", None],
    "['layers.0']": [["layers.0"]],
    "<class 'int'>": int,
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("verb", TAKES)
def test_what_is_no_place_is_refused_by_all_in_the_same_words(verb, what):
    model = Lists()
    with pytest.raises(BadArgumentError) as refused:
        TAKES[verb](model, WRONG[what])
    assert str(refused.value) == (
        "where= takes a path such as 'layers.*.attn', a selector such as byname.select.relu, a class of modules, a "
        f"module, a parameter, or a sequence of these, not {what}"
    )
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


@pytest.mark.parametrize("verb", TAKES)
def test_an_iterator_is_taken_as_a_list(verb):
    TAKES[verb](Lists(), iter(["layers.0", "layers.1"]))
    with pytest.raises(BadArgumentError, match="not an empty tuple"):
        TAKES[verb](Lists(), iter([]))


@pytest.mark.parametrize("verb", [verb for verb in TAKES if verb != "record"])
def test_a_mapping_is_for_recordings(verb):
    with pytest.raises(BadArgumentError, match="not dict; only byname.record takes a mapping"):
        TAKES[verb](Lists(), {"layers.0": {"every": 2}})


@pytest.mark.parametrize("verb", TAKES)
@pytest.mark.parametrize(
    "of", ["layers", lambda model: model.layers, lambda model: nn.ModuleList], ids=["path", "module", "class"]
)
def test_a_container_that_is_never_called_is_refused_by_all(verb, of):
    def layers(x):  # a function of the program that has the same name
        return x

    model = Lists()
    with pytest.raises(NoMatchError) as refused:
        TAKES[verb](model, of if isinstance(of, str) else of(model))
    if verb != "points":
        expected = "`layers` is a ModuleList, which is never called; its children are `layers.*`"
        assert str(refused.value) == expected


@pytest.mark.parametrize("verb", TAKES)
def test_a_selector_of_such_containers_matches_nothing(verb):
    with pytest.raises(NoMatchError):
        TAKES[verb](Lists(), select.module(nn.ModuleDict))


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("layers[-1]", "layers.2"),
        ("layers[-3]", "layers.0"),
        ("layers[1]", "layers.1"),
        ("layers['1']", "layers.1"),
        ("body[0]", "body.first"),
        ("body[-1]", "body.last"),
        ("heads['a']", "heads.a"),
        ("heads['0']", "heads.0"),
        ("weights[-1]", "weights.1"),
        ("weights[0]", "weights.0"),
        ("layers[-1].weight", "layers.2.weight"),
    ],
)
def test_what_lists_hold_is_reached_as_in_python(asked, path):
    model, told = Lists(), []
    with byname.interject(model, asked, lambda name, module, value: told.append((name, module))) as handle:
        model(torch.ones(1, 4))
        assert handle.paths == (path,)
    assert [name for name, _ in told] == [path]
    owner = model.get_submodule(path) if "weight" not in path else None
    assert told[0][1] is owner
    assert byname.points(model, asked).paths == (path,)


@pytest.mark.parametrize("asked", ["layers[3]", "layers[-4]", "heads['b']", "weights[2]", "layers[-4].weight"])
def test_what_a_list_does_not_hold_matches_nothing(asked):
    with pytest.raises(NoMatchError, match="matches nothing in this Lists"):
        byname.interject(Lists(), asked, keep)


class Items(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.count = count

    def forward(self, x):
        outs = [x + number for number in range(self.count)]
        return tuple(outs) if self.count == 2 else outs


@pytest.mark.parametrize("where", ["forward[-1]", "forward.outs[-1]"])
def test_an_index_from_the_end_is_that_of_the_last_item_however_many_there_are(where):
    model, told = Items(), []
    with byname.interject(model, where, lambda name, module, value: told.append((name, value.item()))) as handle:
        for count in (3, 4, 2):
            model.count = count
            model(torch.zeros(1))
        assert handle.notes == ()
    assert told == [(where, 2.0), (where, 3.0), (where, 1.0)]


def test_the_item_from_the_end_is_replaced_in_lists_and_tuples():
    for count in (2, 3):
        model = Items(count)
        with byname.interject(model, "forward[-1]", double):
            assert [one.item() for one in model(torch.ones(1))] == [1.0, 4.0] if count == 2 else [1.0, 2.0, 6.0]


class Filled(nn.Module):
    def forward(self, x):
        outs, named = [], {}
        for number in range(3):
            outs.append(x + number)
        named.update(k=outs[0] + outs[1] + outs[2])
        return named["k"] * 1


@pytest.mark.parametrize(
    ("where", "wanted"),
    [("forward.outs[1]", 8.0), ("forward.outs[*]", 12.0), ("forward.named['k']", 12.0), ("forward.outs[-1]", 12.0)],
)
def test_an_item_that_a_method_of_its_container_puts_there_is_replaced(where, wanted):
    model, whole = Filled(), []
    with (
        byname.interject(model, where, double),
        byname.interject(model, ["forward.outs", "forward.named"], lambda name, module, value: whole.append(name)),
    ):
        assert model(torch.ones(1)).item() == wanted
    assert whole == ["forward.outs", "forward.named"]


def test_an_index_from_the_end_is_recorded_under_its_own_name():
    model = Items()
    with byname.record(model, "forward[-1]", mode="both") as recorder:
        model(torch.zeros(1))
        model.count = 4
        model(torch.zeros(1))
    assert [one.item() for one in recorder.results["forward[-1]"].values] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("forward[7]", "`forward[7]`: `forward` holds a list without 7; it has 0, 1, 2"),
        ("forward[-4]", "`forward[-4]`: `forward` holds a list without -4; it has 0, 1, 2"),
        ("forward['a']", "`forward['a']`: `forward` holds a list without 'a'; it has 0, 1, 2"),
        (
            "forward.outs[0]['a']",
            "`forward.outs[0]['a']`: `forward.outs[0]` holds a Tensor, which has no items in a path",
        ),
    ],
)
def test_an_item_that_is_not_there_is_described(where, note):
    model = Items()
    with pytest.warns(NothingSeenWarning), byname.interject(model, where, keep) as handle:
        model(torch.zeros(1))
        assert handle.notes == (note,)
    assert handle.notes == (f"nothing was seen at {note}",)


class Chunks(nn.Module):
    def forward(self, x):
        return x.chunk(2)[0]


def test_an_item_of_an_operation_that_is_not_there_is_described():
    model, told = Chunks(), []
    with (
        pytest.warns(NothingSeenWarning, match=r"`chunk\[5\]`"),
        byname.interject(model, ["chunk[5]", "chunk[-1]"], lambda name, module, value: told.append(name)) as handle,
    ):
        model(torch.zeros(4))
        assert handle.notes == ("`chunk[5]`: `chunk` holds a tuple without 5; it has 0, 1",)
    assert told == ["chunk[-1]"]


def tied():
    shared = nn.Linear(4, 4)
    return nn.Sequential(shared, nn.Tanh(), shared)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (["0", "0.forward"], ["0", "0"]),
        (["0.forward", "0"], ["0.forward", "0.forward"]),
        (["0", "2"], ["0", "0"]),
        (["2", "0"], ["2", "2"]),
        (["2.forward", nn.Linear], ["2.forward", "2.forward"]),
        (["0.forward", select.linear], ["0.forward", "0.forward"]),
        ([select.linear, "2"], ["2", "2"]),
        (["*", "0.forward"], ["0", "1", "0"]),
        (["0.linear", "2.linear"], ["0.linear", "0.linear"]),
        (["0[0]", "2[*]", "0[-1]"], ["0[0]", "0[0]"]),
    ],
)
def test_a_module_of_several_names_is_told_once_for_each_call(where, names):
    model, told = tied(), []
    model[0].register_forward_hook(lambda module, args, output: (output,) if "[" in str(where) else None)
    model[1].register_forward_pre_hook(lambda module, args: args[0] if type(args[0]) is tuple else args)
    with byname.interject(model, where, lambda name, module, value: told.append(name)):
        model(torch.ones(1, 4))
    assert [name.replace("2[", "0[") for name in told] == names


def test_the_notes_say_which_name_a_place_goes_by():
    with byname.interject(tied(), ["0", "2", "0"], keep) as handle:
        assert handle.notes == ("`2` is the same place as `0`, and is reported once, as `0`",)
        assert handle.paths == ("0",)


def test_a_change_is_made_once_whatever_the_number_of_names():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(8, 4)
    plain = model(x)
    for where in (["0", "0.forward"], ["0", nn.Linear], ["0.forward", model[0]], [select.linear, "0.forward"]):
        with byname.interject(model, where, double):
            assert torch.equal(model(x), 2 * plain)
        assert torch.equal(byname.rewrite(model, where, double)(x), 2 * plain)


class Returns(nn.Module):
    def forward(self, x):
        pair = [x, x + 1]
        return pair


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["forward[0]", "forward[*]"], [2.0, 4.0]),
        (["forward[*]", "forward[1]", "forward[-1]"], [2.0, 4.0]),
        (["forward[-1]", "forward[1]"], [1.0, 4.0]),
        (["forward.pair[0]", "forward.pair[*]"], [2.0, 4.0]),
        (["forward.pair[-1]", "forward.pair[1]", "forward.pair[1]"], [1.0, 4.0]),
    ],
)
def test_an_item_of_several_names_is_changed_once(where, expected):
    model = Returns()
    with byname.interject(model, where, double) as handle:
        assert [one.item() for one in model(torch.ones(1))] == expected
        assert not any("without" in note for note in handle.notes)


class Alias(nn.Module):
    def forward(self, x):
        return self.second(x)

    def first(self, x):
        h = x + 1
        return h

    second = first


@pytest.mark.parametrize("where", [["first.h", "second.h"], ["first", "second"], ["second.x", "first.x"]])
def test_a_method_of_two_names_is_one(where):
    model, told = Alias(), []
    with byname.interject(model, where, lambda name, module, value: told.append(name)):
        model(torch.ones(1))
    assert told == where[:1]


class TiedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(2, 2, bias=False)
        self.other = nn.Linear(2, 2, bias=False)
        self.other.weight = self.one.weight
        self.register_buffer("count", torch.ones(1))
        self.one.register_buffer("count", self.count)

    def forward(self, x):
        return self.other(self.one(x))


def test_the_gradient_of_a_tied_parameter_and_a_shared_buffer_are_changed_once():
    model, x = TiedWeights(), torch.ones(1, 2)
    model(x).sum().backward()
    plain = model.one.weight.grad.clone()
    model.zero_grad()
    with byname.interject(model, ["**.weight.grad", "count", "one.count"], double) as handle:
        model(x).sum().backward()
        assert handle.notes == ("`one.count` is the same place as `count`, and is reported once, as `count`",)
    assert torch.equal(model.one.weight.grad, 2 * plain)
    assert model.count.item() == 2
    with byname.record(model, ["one.weight.grad", "other.weight.grad"], mode="both") as recorder:
        model(x).sum().backward()
    assert len(recorder.results["one.weight.grad"]) == len(recorder.results["other.weight.grad"]) == 1
