"""What a look through the program costs and keeps: bounds on ways, objects that nobody has made ready, frozen heaps."""

import gc
import sys
import weakref

import pytest
import torch

import byname
from byname.errors import NoMatchError


def test_one_object_many_times_has_few_names_and_every_holder_its_own():
    one = torch.ones(1)
    many, few = [one] * 10_000, [one]
    names = [*map(str, byname.names(one, roots=[[many, few]]))]
    assert len(names) == 64
    assert names[:2] == ["list[1][0]", "list[0][0]"]  # the long one is read last


@pytest.mark.parametrize("times", [100, 3_000])
def test_a_list_that_holds_a_parameter_many_times_hides_no_other_name_of_it(times):
    shared, model = [], torch.nn.Linear(2, 2)
    shared += [model.weight] * times
    names = [*map(str, byname.names(model.weight))]
    assert len(names) == 64
    assert names[:2] == ["model.weight", "shared[0]"]


def test_the_names_that_are_kept_are_the_shortest():
    one = torch.ones(1)
    often, once = [one], [one]
    held = [often, once, *([often] for _ in range(100))]
    names = [*map(str, byname.names(one, roots=[held]))]
    assert len(names) == 64
    assert names[:2] == ["held[0][0]", "held[1][0]"]


def calls_to_name_what_is_in(held, one):
    """The number of calls of Python functions that it takes to find the 64 names of a tensor in lists of lists."""
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code) if event == "call" else None)
    try:
        names = byname.names(one, roots=[held])
    finally:
        sys.setprofile(None)
    assert len(names) == 64
    assert str(names[0]) == "held[0][0]"
    return len(called)


def test_few_ways_to_an_object_in_very_many_lists_or_very_often_in_one_are_followed():
    one = torch.ones(1)
    in_lists = [calls_to_name_what_is_in([[one] for _ in range(count)], one) for count in (2_500, 5_000)]
    assert in_lists[1] - in_lists[0] < 6 * 2_500
    in_one = [calls_to_name_what_is_in([[one] * count], one) for count in (100, 3_000)]
    assert in_one[1] - in_one[0] < 2_900


BOUND = "byname looked for names only among the 300,000 objects nearest to the variables"


class Trainer:
    def __init__(self, samples):
        self.samples = samples
        self.parts = {"model": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))}
        self.optimizer = torch.optim.AdamW(self.parts["model"].parameters())


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize(
    "samples",
    [
        lambda: [("a.png", number) for number in range(400_000)],
        lambda: {label: [("a.png", number) for number in range(1_000)] for label in range(400)},
    ],
    ids=["a long list", "many lists"],
)
def test_a_model_beside_more_objects_than_a_search_visits_keeps_its_names(samples):
    trainer = Trainer(samples())
    model = "trainer.parts['model']"
    assert str(byname.name(trainer.parts["model"][1].weight)) == f"{model}[1].weight"
    found = byname.leaves(trainer.parts["model"](torch.ones(1, 2)).sum())
    parameters = {f"{model}[{layer}].{name}" for layer in (0, 1) for name in ("weight", "bias")}
    assert {str(leaf.name) for leaf in found} == parameters
    assert BOUND in str(found)
    saved = byname.saved(trainer.parts["model"](torch.ones(1, 2)).exp().sum())
    assert BOUND in saved.opaque and BOUND in str(saved)
    census = byname.census()
    assert BOUND in census.notes
    assert parameters <= {str(row.name) for row in census}
    cut = trainer.parts["model"][1](trainer.parts["model"][0](torch.ones(1, 2)).detach()).sum()
    (one,) = byname.check(cut, model=trainer.parts["model"])
    assert [str(name) for name in one.culprits] == [f"{model}[0].weight", f"{model}[0].bias"]


@pytest.mark.slow
def test_where_a_search_came_to_its_bound_the_text_for_a_tensor_without_a_name_says_so():
    many = [[None] for _ in range(400_000)]
    among = "among the 300,000 objects nearest to the variables"
    assert str(byname.name((lambda: torch.ones(1))())) == f"unnamed {among}"
    with pytest.raises(NoMatchError, match=f"^a tensor without a name {among} is not a parameter"):
        byname.record(torch.nn.Linear(2, 2), [torch.ones(1)])
    del many


def test_a_type_that_is_not_ready_holds_nothing():
    testcapi = pytest.importorskip("_testcapi")
    unready = [one for one in vars(testcapi).values() if issubclass(type(one), type) and one.__mro__ is None]
    if not unready:
        pytest.skip("this Python's _testcapi has no such type")
    byname.census()
    byname.name((lambda: torch.ones(7))())
    assert byname.holders(torch.ones(5)) == []


class Large:
    """Something that only a variable of the caller holds."""


@pytest.mark.slow
def test_a_look_at_a_frozen_heap_keeps_no_variable_of_its_caller():
    def asks():
        large = Large()
        assert gc.get_freeze_count()
        byname.name([torch.ones(3)][0])
        return weakref.ref(large)

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        reference = asks()
        assert reference() is None
    finally:
        gc.enable()
        gc.unfreeze()
