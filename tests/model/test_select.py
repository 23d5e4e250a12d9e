"""Selectors are values: they combine, print, count, and follow the flow of data."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from three_blocks import MODEL, TOKENS, Attention, Block
from torch import nn

import byname
from byname import attach, select
from byname.errors import BadArgumentError, BadPathError, NoMatchError, NotASelectorError

torch.set_num_threads(1)


def paths(selector, model=MODEL, example=TOKENS):
    return [*byname.points(model, selector, example=example).paths]


def calls(selector, model, example):
    """The calls of a run that are selected, each with its number."""
    told = []
    with attach(model, selector, lambda event: told.append((event.path, event.call)), example=example):
        model(*example) if isinstance(example, tuple) else model(example)
    return told


def test_what_is_selected_comes_in_the_order_of_the_run():
    assert paths(select.relu) == [f"layers.{i}.{name}" for i in range(3) for name in ("act", "relu")]
    assert paths(select.softmax) == [f"layers.{i}.attn.softmax" for i in range(3)]
    assert paths(select.module(Attention)) == [f"layers.{i}.attn" for i in range(3)]
    assert paths(select.module(MODEL.head)) == ["head"]
    assert paths(select.parametrized)[:3] == ["embed", "layers.0.norm", "layers.0.attn.qkv"]


def test_operations_are_selected_by_name_or_by_function():
    expected = [f"layers.{i}.attn.softmax" for i in range(3)]
    for which in ("softmax", F.softmax, torch.softmax, torch.Tensor.softmax):
        assert paths(select.op(which)) == expected
    assert paths(select.op(torch.Tensor.__matmul__)) == paths(select.op("__matmul__")) == paths(select.matmul)


def test_an_operation_inside_a_module_of_torch_nn_is_reached_by_its_path_alone():
    assert paths(select.path("layers.0.act.relu")) == ["layers.0.act.relu"]
    assert paths(select.path("layers.*.act.*")) == [f"layers.{i}.act.relu" for i in range(3)]
    assert paths(select.path("layers.0.act.**")) == ["layers.0.act"]
    with pytest.raises(NoMatchError):
        paths(select.op("linear"))


def test_paths_are_patterns_and_the_model_itself_is_forward():
    assert paths(select.path("layers.1.*"))[:2] == ["layers.1.norm", "layers.1.attn"]
    assert paths(select.path("forward")) == ["forward"]
    assert paths(select.path("head.forward")) == ["head"]
    assert "forward" not in paths(select.path("*"))
    assert "forward" in paths(select.path("**"))


def test_the_users_own_function_decides():
    assert paths(select.where(lambda call: call.shapes == ((1, 3, 7),))) == ["forward", "head"]


def test_an_exception_of_the_users_function_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        paths(select.where(lambda call: 1 / 0))


POSITIONS = [0, 1, 2, -1, -2, slice(1, 3), slice(None, 2), slice(-2, None), slice(None, -1), slice(4, None)]


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_positions_count_matches_as_a_list_does(position):
    every = paths(select.relu)
    wanted = every[position] if isinstance(position, slice) else [every[position]]
    assert paths(select.relu[position]) == sorted(wanted, key=every.index)


def test_first_and_last_are_positions():
    assert paths(select.linear.first) == ["layers.0.attn.qkv"]
    assert paths(select.linear.last) == ["head"]
    assert select.linear.first == select.linear[0]


def test_a_position_past_the_end_is_an_error_that_says_how_many_there_are():
    with pytest.raises(NoMatchError, match=r"select.relu\[6\] matches nothing .* select.relu matches 6 calls"):
        paths(select.relu[6])


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.c(self.act(self.b(self.act(self.a(x)))))


def test_a_shared_module_is_one_place_with_all_its_calls():
    model, x = Shared(), torch.ones(1, 4)
    assert calls(select.relu, model, x) == calls(select.relu[0], model, x) == [("act", 0), ("act", 1)]
    with pytest.raises(NoMatchError):
        paths(select.relu[1], model, x)


def test_calls_of_a_shared_module_are_told_apart_by_the_flow_of_data():
    second = select.relu.after(select.module(nn.Linear)[1], within=1)
    assert calls(second, Shared(), torch.ones(1, 4)) == [("act", 1)]


def test_a_selector_that_matches_nothing_names_what_there_is():
    with pytest.raises(NoMatchError, match="select.conv matches nothing.*LayerNorm.*functions.*softmax"):
        paths(select.conv)
    with pytest.raises(NoMatchError, match="functions softmax"):
        paths(select.op("sofmax"))
    assert issubclass(NoMatchError, LookupError)


def test_a_part_that_matches_nothing_is_no_error():
    assert paths(select.conv | select.embedding) == ["embed"]
    assert paths(~select.conv & select.embedding) == ["embed"]
    with pytest.raises(NoMatchError, match=r"select.conv matches 0 calls, select.relu matches 6 calls"):
        paths(select.conv & select.relu)


def test_and_or_not_say_how_it_is_spelled():
    for wrong in (
        lambda: select.relu and select.conv,
        lambda: select.relu or select.conv,
        lambda: not select.relu,
        lambda: bool(select.all),
    ):
        with pytest.raises(NotASelectorError, match="use & instead of and, | instead of or, ~ instead of not"):
            wrong()


BAD = [
    (lambda: select.rulu, AttributeError, "relu"),
    (
        lambda: select.parameter.weight,
        AttributeError,
        r"select.parameter has no 'weight'; it has (?!.*(after|before)).* select.path\('\*\*.weight'",
    ),
    (lambda: select.attention.patern, AttributeError, "select.attention has no 'patern'; it has pattern, "),
    (lambda: select.op(3), BadArgumentError, "name of an operation"),
    (lambda: select.op(torch.Tensor.size), BadArgumentError, "not operations"),
    (lambda: select.op(""), BadArgumentError, "name of an operation"),
    (lambda: select.module("fc1"), BadArgumentError, "select.path"),
    (lambda: select.where(3), BadArgumentError, "a function of a call"),
    (lambda: select.path("a..b"), BadPathError, "name was expected"),
    (lambda: select.path(3), BadPathError, "a path is a string"),
    (lambda: select.relu & "fc1", NotASelectorError, "takes another selector"),
    (lambda: select.relu | nn.Linear, NotASelectorError, "takes another selector"),
    (lambda: select.relu.after("fc1"), NotASelectorError, "takes another selector"),
    (lambda: select.relu.after(select.conv, within=0), BadArgumentError, "1: the next call"),
    (lambda: select.relu.after(select.conv, within=1.5), BadArgumentError, "integer"),
    (lambda: select.relu["a"], BadArgumentError, "integer"),
    (lambda: select.relu[::2], BadArgumentError, "takes no step"),
    (lambda: list(select.relu), TypeError, "not iterable"),
]


@pytest.mark.parametrize(("make", "error", "text"), BAD)
def test_bad_input_is_refused_when_the_selector_is_made(make, error, text):
    with pytest.raises(error, match=text):
        make()


PRINTED = [
    "select.relu & ~select.path('encoder.**')",
    "(select.conv | select.linear)[1:3]",
    "select.softmax.after(select.matmul, within=2)",
    "select.relu | select.conv & select.linear",
    "(select.relu | select.conv) & select.linear",
    "select.relu & select.conv & select.linear",
    "select.relu & (select.conv & select.linear)",
    "select.relu ^ select.conv | select.linear",
    "select.relu ^ (select.conv | select.linear)",
    "~(select.relu | select.conv)",
    "~~select.relu",
    "(~select.relu)[0]",
    "select.relu[0][2:][-1]",
    "(select.relu & select.all).before(select.conv | select.linear)",
    "select.module(nn.Linear) | select.module(Block)",
    "select.op('softmax')[1:]",
    "select.path('a.*[0]')[:2]",
    "select.parametrized ^ select.all",
]


@pytest.mark.parametrize("text", PRINTED)
def test_a_selector_prints_as_the_expression_that_makes_it(text):
    selector = eval(text)
    assert repr(selector) == text
    assert eval(repr(selector)) == selector
    assert hash(eval(repr(selector))) == hash(selector)
    assert len({selector, eval(text)}) == 1


def test_selectors_are_immutable_and_can_be_pickled():
    selector = (select.relu | select.path("a.**")).after(select.op("add"), within=3)[1:]
    with pytest.raises(AttributeError):
        selector.start = 2
    assert pickle.loads(pickle.dumps(selector)) == selector


def test_every_family_is_listed_by_dir_and_has_a_selector():
    names = dir(select)
    assert {"relu", "conv", "attention", "arithmetic", "path", "op", "where", "all", "parametrized"} <= set(names)
    assert all(hasattr(select, name) for name in names)


def test_a_long_expression_of_many_selectors_is_answered():
    selector = select.relu
    for _ in range(200):
        selector = selector | select.path("head")
    assert paths(selector)[-1] == "head"


# the flow of data


def test_after_follows_edges_and_not_the_order_of_the_listing():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            left = self.left(x)
            right = self.right(x)
            return torch.tanh(right) + torch.sigmoid(left)

    run = Branches(), torch.ones(1, 4)
    left, right = select.path("left"), select.path("right")
    assert paths(select.activation.after(left, within=1), *run) == ["sigmoid"]
    assert paths(select.activation.after(right), *run) == ["tanh"]
    assert paths(select.linear.before(select.tanh, within=1), *run) == ["right"]
    assert paths(select.linear.before(select.op("add"), within=2), *run) == ["left", "right"]
    with pytest.raises(NoMatchError):
        paths(right.after(left), *run)


def test_next_after_is_the_nearest_one_for_each_place():
    attention = select.path("layers.*.attn")
    assert paths(select.linear.next_after(attention)) == [f"layers.{i}.fc" for i in range(3)]
    assert paths(select.norm.next_after(attention)) == ["layers.1.norm", "layers.2.norm"]
    assert paths(select.linear.first_before(select.softmax)) == [f"layers.{i}.attn.qkv" for i in range(3)]
    assert paths(select.norm.first_before(select.path("head"))) == ["layers.2.norm"]
    with pytest.raises(NoMatchError):
        paths(select.embedding.next_after(attention))


def test_moves_are_no_steps_of_next_after():
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far, self.start = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.start(x)
            late = self.far(torch.neg(x))
            moved = x.view(2, 4).transpose(0, 1).contiguous().mT.to(torch.float32)
            return self.near(moved) + late

    run = Moved(), torch.ones(2, 4)
    start = select.path("start")
    assert paths(select.linear.next_after(start), *run) == ["near"]
    assert paths(select.linear.after(start, within=2), *run) == ["far"]


def test_the_last_of_equally_near_ones_is_first_before():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x) + self.b(x)

    run = Both(), torch.ones(2, 4)
    assert paths(select.linear.first_before(select.op("add")), *run) == ["b"]


def test_containers_stand_by_what_goes_in_and_comes_out():
    block = select.module(Block)
    assert paths(block.after(select.embedding, within=1)) == ["layers.0"]
    assert paths(block.after(block, within=1)) == ["layers.1", "layers.2"]
    assert paths(select.linear.after(block[-1], within=1)) == ["head"]
    assert paths(select.norm.after(block[0], within=1)) == ["layers.1.norm"]
    assert paths(block.before(select.path("head"), within=1)) == ["layers.2"]
    attention = select.module(Attention)
    assert paths(select.op("add").after(attention, within=1)) == [f"layers.{i}.add" for i in range(3)]
    with pytest.raises(NoMatchError):
        paths(select.path("layers.0.attn.softmax").after(select.path("layers.0.attn")))


def test_dropout_is_a_step_in_train_and_in_eval():
    for mode in (True, False):
        run = MODEL.train(mode), TOKENS
        assert paths(select.dropout.after(select.softmax, within=1), *run) == [
            f"layers.{i}.attn.drop" for i in range(3)
        ]
        with pytest.raises(NoMatchError):
            paths(select.matmul.after(select.softmax, within=1), *run)
        assert paths(select.matmul.after(select.softmax, within=2)[:1], *run) == ["layers.0.attn.matmul_1"]


def test_a_shortcut_that_gives_its_input_back_does_not_join_the_branches():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.shortcut, self.conv = nn.ReLU(), nn.Identity(), nn.Linear(4, 4)

        def forward(self, x):
            x = self.stem(x)
            kept = self.shortcut(x)
            return kept + self.conv(x)

    run = Residual(), torch.ones(1, 4)
    assert paths(select.linear.after(select.relu, within=1), *run) == ["conv"]
    with pytest.raises(NoMatchError):
        paths(select.linear.after(select.path("shortcut")), *run)
    assert paths(select.op("add").after(select.path("shortcut"), within=1), *run) == ["add"]


def test_a_shared_cell_in_a_loop_comes_after_itself():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 4)

        def forward(self, x, steps):
            h = torch.zeros_like(x)
            for _ in range(steps):
                h = self.cell(x, h)
            return h

    run = Loop(), (torch.ones(1, 4), 3)
    assert calls(select.recurrent.after(select.recurrent, within=1), *run) == [("cell", 1), ("cell", 2)]
    assert calls(select.recurrent.before(select.recurrent), *run) == [("cell", 0), ("cell", 1)]


def test_changes_in_place_are_steps_also_through_a_view():
    class InPlace(nn.Module):
        def forward(self, x):
            x = x * 2
            part = x[:, 0]
            part.add_(1)
            torch.relu_(x)
            return x.sum()

    run = InPlace(), torch.ones(2, 3)
    assert paths(select.relu.after(select.op("add_"), within=1), *run) == ["relu_"]
    assert paths(select.op("sum").after(select.relu, within=1), *run) == ["sum"]
    with pytest.raises(NoMatchError):
        paths(select.op("sum").after(select.op("mul"), within=1), *run)


def test_select_is_a_public_name():
    assert byname.select is select
    assert isinstance(select.relu, byname.Selector)


# where they are used


@pytest.mark.parametrize("example", [None, torch.ones(1, 4)])
def test_a_selected_module_that_is_called_twice_is_told_of_twice_and_not_more(example):
    heard = []
    model = Shared()
    with attach(model, select.relu, lambda event: heard.append((event.path, event.call)), example=example):
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    assert heard == [("act", 0), ("act", 1)] * 2


def test_of_the_calls_of_a_shared_module_those_that_were_selected_are_told():
    heard = []
    model, x = Shared(), torch.ones(1, 4)
    second = select.relu.after(select.path("b"), within=1)
    with attach(model, second, lambda event: heard.append((event.path, event.call)), example=x):
        model(x)
        model(x)
    assert heard == [("act", 1)] * 2
    heard.clear()
    with attach(model, second | select.relu, lambda event: heard.append(event.call), example=x):
        model(x)
    assert heard == [0, 1]


def test_an_operation_inside_a_module_of_torch_nn_is_watched_by_path_with_and_without_an_example():
    for example in (None, torch.tensor([[1, 2]])):
        heard = []
        with attach(MODEL, select.path("layers.*.act.relu"), lambda event: heard.append(event.path), example=example):
            MODEL(torch.tensor([[1, 2]]))
        assert heard == [f"layers.{i}.act.relu" for i in range(3)]
