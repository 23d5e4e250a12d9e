"""Selectors are values: they combine, print, count, and follow the flow of data."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import byname
from byname import attach, select
from byname.errors import BadArgumentError, BadPathError, NoMatchError, NotASelectorError
from byname.model.call_graph import Flow, ModelCall
from byname.model.operations import MOVES
from byname.model.selectors import Look
from byname.tracing.tracer import trace

torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(q @ k.mT, -1)
        return self.out(self.drop(scores) @ v)


class Block(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.attn = Attention(size)
        self.fc = nn.Linear(size, size)
        self.act = nn.ReLU()

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + F.relu(self.fc(self.act(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 7)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


MODEL = Model().eval()
FLOW = trace(MODEL, torch.tensor([[1, 2, 3]]))


def paths(selector, flow=FLOW):
    return [flow.calls[index].path for index in selector.matches(flow)]


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
    assert select.path("layers.*.act.relu").reaches_into("layers.2.act")
    assert not select.path("layers.*.act").reaches_into("layers.2.act")
    assert not (select.relu | select.path("**")).reaches_into("layers.2.act")


def test_paths_are_patterns_and_the_model_itself_is_forward():
    assert paths(select.path("layers.1.*"))[:2] == ["layers.1.norm", "layers.1.attn"]
    assert paths(select.path("forward")) == [""]
    assert paths(select.path("head.forward")) == ["head"]
    assert "" not in paths(select.path("*"))
    assert "" in paths(select.path("**"))


def test_the_users_own_function_decides():
    assert paths(select.where(lambda call: call.shapes == ((1, 3, 7),))) == ["", "head"]


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
    flow = trace(Shared(), torch.ones(1, 4))
    assert paths(select.relu, flow) == ["act", "act"]
    assert paths(select.relu[0], flow) == ["act", "act"]
    with pytest.raises(NoMatchError):
        paths(select.relu[1], flow)


def test_calls_of_a_shared_module_are_told_apart_by_the_flow_of_data():
    flow = trace(Shared(), torch.ones(1, 4))
    found = select.relu.after(select.module(nn.Linear)[1], within=1).matches(flow)
    assert [(flow.calls[index].path, flow.calls[index].call) for index in found] == [("act", 1)]


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
    (lambda: select.op(3), BadArgumentError, "name of an operation"),
    (lambda: select.op(torch.Tensor.size), BadArgumentError, "no operations"),
    (lambda: select.op(""), BadArgumentError, "name of an operation"),
    (lambda: select.module("fc1"), BadArgumentError, "select.path"),
    (lambda: select.where(3), BadArgumentError, "a function of a call"),
    (lambda: select.path("a..b"), BadPathError, "name was expected"),
    (lambda: select.path(3), BadPathError, "a path is text"),
    (lambda: select.relu & "fc1", NotASelectorError, "takes another selector"),
    (lambda: select.relu | nn.Linear, NotASelectorError, "takes another selector"),
    (lambda: select.relu.after("fc1"), NotASelectorError, "takes another selector"),
    (lambda: select.relu.after(select.conv, within=0), BadArgumentError, "1 for the next one"),
    (lambda: select.relu.after(select.conv, within=1.5), BadArgumentError, "whole number"),
    (lambda: select.relu["a"], BadArgumentError, "whole number"),
    (lambda: select.relu[::2], BadArgumentError, "has no step"),
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


LEAVES = [
    select.all, select.relu, select.linear, select.matmul, select.softmax, select.parametrized, select.conv,
    select.path("layers.1.**"), select.path("layers.*.act.relu"), select.op("add"), select.module(Block),
    select.module(MODEL.head),
]  # fmt: skip
SELECTORS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a, b: a ^ b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a, k: a[k], inner, st.integers(0, 3)),
        st.builds(lambda a, i, j: a[i:j], inner, st.integers(0, 3), st.none() | st.integers(0, 6)),
    ),
    max_leaves=6,
)
PLACES = Look(FLOW).places


def found(selector):
    return Look(FLOW).found(selector)


@settings(max_examples=60)
@given(SELECTORS, SELECTORS, SELECTORS)
def test_selectors_obey_the_laws_of_sets(a, b, c):
    assert found(a & b) == found(a) & found(b) == found(b & a)
    assert found(a | b) == found(a) | found(b) == found(b | a)
    assert found(a ^ b) == found(a) ^ found(b)
    assert found(~a) == PLACES - found(a)
    assert found(~(a | b)) == found(~a & ~b)
    assert found(~(a & b)) == found(~a | ~b)
    assert found(a & (b | c)) == found(a & b | a & c)
    assert found(a & ~a) == frozenset()
    assert found(a | ~a) >= PLACES
    assert found(~~a) == found(a) & PLACES


@settings(max_examples=100)
@given(SELECTORS)
def test_a_selector_tells_call_by_call_what_it_tells_of_the_whole_run(selector):
    online = selector.online()
    told = [
        online.see(ModelCall(one.path, one.operation, one.kind, one.module, function=one.function))
        for one in FLOW.calls
    ]
    assert {index for index, meant in enumerate(told) if meant} == found(selector)
    assert [online.see(one) for one in FLOW.calls] == told


@settings(max_examples=60)
@given(SELECTORS)
def test_every_selector_prints_as_what_makes_it(selector):
    names = {"select": select, "Block": Block, "nn": nn}
    if "<" not in repr(selector):
        assert eval(repr(selector), names) == selector


@pytest.mark.parametrize(
    "selector",
    [
        select.relu.last,
        select.relu[-2],
        select.relu[-2:],
        select.all[:-1],
        select.relu.after(select.conv),
        ~select.relu.before(select.conv) & select.all,
    ],
    ids=str,
)
def test_what_needs_the_whole_run_says_that_an_example_is_needed(selector):
    assert selector.needs_example
    with pytest.raises(BadArgumentError, match="example="):
        selector.online()


def test_only_modules_can_be_meant_by_classes():
    assert (select.module(nn.ReLU) | select.parametrized)[0].only_modules
    assert (select.module(nn.ReLU) & select.relu).only_modules
    assert not select.relu.only_modules
    assert not (~select.module(nn.ReLU)).only_modules


def test_a_long_expression_of_many_selectors_is_answered():
    selector = select.relu
    for _ in range(200):
        selector = selector | select.path("head")
    assert paths(selector)[-1] == "head"


# the flow of data, against a count of every way by hand


def reference(flow, first, second, moves=1):
    """The least number of steps by which data of one call reaches another, by looking at every edge again and again."""
    known = dict.fromkeys(flow.calls[first].outputs, 0)
    for _ in flow.calls:
        for index, call in enumerate(flow.calls):
            if call.elementary and index > first:
                least = min((known[number] for number in call.inputs if number in known), default=None)
                if least is not None:
                    for number in call.outputs:
                        step = moves if call.operation in MOVES else 1
                        known[number] = min(known.get(number, 10**9), least + step)
    return min((known[number] + 1 for number in flow.calls[second].inputs if number in known), default=None)


STEPS = [index for index, call in enumerate(FLOW.calls) if call.elementary]


@settings(max_examples=80)
@given(st.sampled_from(STEPS), st.sampled_from(STEPS))
def test_after_and_before_agree_with_a_search_of_every_edge(first, second):
    distance = reference(FLOW, first, second)
    one, other = FLOW.calls[first], FLOW.calls[second]
    a, b = select.where(lambda call: call is one), select.where(lambda call: call is other)
    for within in (1, 2, 3, 7, None):
        expected = distance is not None and (within is None or distance <= within)
        assert (found(b.after(a, within=within)) == {second}) == expected
        assert (found(a.before(b, within=within)) == {first}) == expected


def test_after_follows_edges_and_not_the_order_of_the_listing():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            left = self.left(x)
            right = self.right(x)
            return torch.tanh(right) + torch.sigmoid(left)

    flow = trace(Branches(), torch.ones(1, 4))
    left, right = select.path("left"), select.path("right")
    assert paths(select.activation.after(left, within=1), flow) == ["sigmoid"]
    assert paths(select.activation.after(right), flow) == ["tanh"]
    assert paths(select.linear.before(select.tanh, within=1), flow) == ["right"]
    assert paths(select.linear.before(select.op("add"), within=2), flow) == ["left", "right"]
    with pytest.raises(NoMatchError):
        paths(right.after(left), flow)


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

    flow = trace(Moved(), torch.ones(2, 4))
    start = select.path("start")
    assert paths(select.linear.next_after(start), flow) == ["near"]
    assert paths(select.linear.after(start, within=2), flow) == ["far"]


def test_the_last_of_equally_near_ones_is_first_before():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x) + self.b(x)

    flow = trace(Both(), torch.ones(2, 4))
    assert paths(select.linear.first_before(select.op("add")), flow) == ["b"]


@settings(max_examples=60)
@given(st.sampled_from(STEPS))
def test_next_after_is_at_the_least_distance(first):
    """No place of a family that data from a call reaches is nearer than the one that is selected."""
    one = FLOW.calls[first]
    a = select.where(lambda call: call is one)
    reached = {i: d for i in found(select.linear) if (d := reference(FLOW, first, i, moves=0)) is not None}
    expected = {min(reached, key=lambda i: (reached[i], i))} if reached else set()
    assert found(select.linear.next_after(a)) == expected


def test_containers_stand_by_what_goes_in_and_comes_out():
    block = select.module(Block)
    assert paths(block.after(select.embedding, within=1)) == ["layers.0"]
    assert paths(block.after(block, within=1)) == ["layers.1", "layers.2"]
    assert paths(select.linear.after(block[-1], within=1)) == ["head"]
    assert paths(select.norm.after(block[0], within=1)) == ["layers.1.norm"]
    assert paths(block.before(select.path("head"), within=1)) == ["layers.2"]
    attention = select.module(Attention)
    assert paths(select.op("add").after(attention, within=1)) == [f"layers.{i}.add" for i in range(3)]
    assert not found(select.path("layers.0.attn.softmax").after(select.path("layers.0.attn")))


def test_dropout_is_a_step_in_train_and_in_eval():
    flows = [trace(MODEL.train(mode), torch.tensor([[1, 2]])) for mode in (True, False)]
    for flow in flows:
        assert paths(select.dropout.after(select.softmax, within=1), flow) == [
            f"layers.{i}.attn.drop" for i in range(3)
        ]
        assert not Look(flow).found(select.matmul.after(select.softmax, within=1))
        assert paths(select.matmul.after(select.softmax, within=2)[:1], flow) == ["layers.0.attn.matmul_1"]


def test_a_shortcut_that_gives_its_input_back_does_not_join_the_branches():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.shortcut, self.conv = nn.ReLU(), nn.Identity(), nn.Linear(4, 4)

        def forward(self, x):
            x = self.stem(x)
            kept = self.shortcut(x)
            return kept + self.conv(x)

    flow = trace(Residual(), torch.ones(1, 4))
    assert paths(select.linear.after(select.relu, within=1), flow) == ["conv"]
    assert not Look(flow).found(select.linear.after(select.path("shortcut")))
    assert paths(select.op("add").after(select.path("shortcut"), within=1), flow) == ["add"]


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

    flow = trace(Loop(), (torch.ones(1, 4), 3))
    cells = [index for index, call in enumerate(flow.calls) if call.path == "cell"]
    assert select.recurrent.after(select.recurrent, within=1).matches(flow) == tuple(cells[1:])
    assert select.recurrent.before(select.recurrent).matches(flow) == tuple(cells[:-1])


def test_changes_in_place_are_steps_also_through_a_view():
    class InPlace(nn.Module):
        def forward(self, x):
            x = x * 2
            part = x[:, 0]
            part.add_(1)
            torch.relu_(x)
            return x.sum()

    flow = trace(InPlace(), torch.ones(2, 3))
    assert paths(select.relu.after(select.op("add_"), within=1), flow) == ["relu_"]
    assert paths(select.op("sum").after(select.relu, within=1), flow) == ["sum"]
    assert not Look(flow).found(select.op("sum").after(select.op("mul"), within=1))


def test_data_is_followed_through_what_is_made_unseen():
    def made(number, *origins):
        return {number: origins}

    a, b, c = (
        ModelCall(name, name, "operation", MODEL, inputs=i, outputs=o)
        for name, i, o in [("a", (0,), (1,)), ("b", (3,), (4,)), ("c", (4,), (5,))]
    )
    flow = Flow((a, b, c), {0: "input x"}, made(2, 1) | made(3, 2))
    for within, expected in ((1, []), (2, []), (3, [1]), (4, [1, 2])):
        assert sorted(Look(flow).found(select.all.after(select.op("a"), within=within))) == expected
    for within, expected in ((1, [1]), (3, [1]), (4, [0, 1])):
        assert sorted(Look(flow).found(select.all.before(select.op("c"), within=within))) == expected


def test_an_empty_flow_matches_nothing():
    with pytest.raises(NoMatchError):
        select.all.matches(Flow((), {}, {}))


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
