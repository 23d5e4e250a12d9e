"""Selectors obey the laws of sets, tell call by call what they tell of a whole run, and follow every way of the data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from three_blocks import MODEL, TOKENS, Block
from torch import nn

from byname import select
from byname.errors import BadArgumentError, NoMatchError
from byname.model.call_graph import Flow, ModelCall
from byname.model.operations import MOVES
from byname.model.selectors import SelectionCache
from byname.tracing.tracer import trace

FLOW = trace(MODEL, TOKENS)
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
PLACES = SelectionCache(FLOW).places


def found(selector):
    return SelectionCache(FLOW).found(selector)


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
        online(ModelCall(one.path, one.operation, one.kind, one.module, function=one.function)) for one in FLOW.calls
    ]
    assert {index for index, meant in enumerate(told) if meant} == found(selector)
    assert [online(one) for one in FLOW.calls] == told


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


def test_only_paths_that_name_an_operation_reach_into_a_leaf_module():
    assert select.path("layers.*.act.relu").reaches_into("layers.2.act")
    assert not select.path("layers.*.act").reaches_into("layers.2.act")
    assert not (select.relu | select.path("**")).reaches_into("layers.2.act")


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


@settings(max_examples=60)
@given(st.sampled_from(STEPS))
def test_next_after_is_at_the_least_distance(first):
    """No place of a family that data from a call reaches is nearer than the one that is selected."""
    one = FLOW.calls[first]
    a = select.where(lambda call: call is one)
    reached = {i: d for i in found(select.linear) if (d := reference(FLOW, first, i, moves=0)) is not None}
    expected = {min(reached, key=lambda i: (reached[i], i))} if reached else set()
    assert found(select.linear.next_after(a)) == expected


def test_data_is_followed_through_what_is_made_unseen():
    def made(number, *origins):
        return {number: origins}

    a, b, c = (
        ModelCall(name, name, "operation", MODEL, inputs=i, outputs=o)
        for name, i, o in [("a", (0,), (1,)), ("b", (3,), (4,)), ("c", (4,), (5,))]
    )
    flow = Flow((a, b, c), {0: "input x"}, made(2, 1) | made(3, 2))
    for within, expected in ((1, []), (2, []), (3, [1]), (4, [1, 2])):
        assert sorted(SelectionCache(flow).found(select.all.after(select.op("a"), within=within))) == expected
    for within, expected in ((1, [1]), (3, [1]), (4, [0, 1])):
        assert sorted(SelectionCache(flow).found(select.all.before(select.op("c"), within=within))) == expected


def test_an_empty_flow_matches_nothing():
    with pytest.raises(NoMatchError):
        select.all.matches(Flow((), {}, {}))
