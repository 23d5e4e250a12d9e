"""What a look through the program costs and keeps: bounds on ways, objects that nobody has made ready, frozen heaps."""

import gc
import weakref

import pytest
import torch

import byname
from byname.naming.name import quote
from byname.naming.names import find
from byname.naming.referrers import everything
from byname.naming.roots import given_root
from byname.naming.search import MOST_WAYS, TOLD, Targets, search
from byname.reading.objects import namespace_of, parents_of


def test_one_object_many_times_has_few_ways_and_every_holder_its_own():
    one = torch.ones(1)
    many, few = [one] * 10_000, [one]
    reached = search([given_root([many, few])])
    assert len(reached._into(reached.numbers[id(one)])) == TOLD + 1
    assert [way.source for way in reached.ways_to(one)][:2] == ["list[1][0]", "list[0][0]"]  # the long one is read last
    assert len(reached.ways_to(one)) == TOLD


def test_an_object_in_very_many_lists_has_a_bounded_number_of_ways():
    one = torch.ones(1)
    reached = search([given_root([[one] for _ in range(5 * MOST_WAYS)])])
    assert len(reached._into(reached.numbers[id(one)])) == MOST_WAYS
    assert [way.source for way in reached.ways_to(one)][:2] == ["list[0][0]", "list[1][0]"]
    assert len(reached.ways_to(one)) == TOLD


def test_a_search_says_that_it_came_to_its_bound():
    held = [[torch.ones(1)] for _ in range(100)]
    assert search([given_root(held)]).budget == 0
    assert search([given_root(held)], budget=50).budget == 50


BOUND = "names were looked for among the 300,000 objects nearest to the variables, and there are more"


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
    assert find(Targets(), deep=False).bound() == (BOUND,)
    census = byname.census()
    assert BOUND in census.notes
    assert parameters <= {str(row.name) for row in census}
    cut = trainer.parts["model"][1](trainer.parts["model"][0](torch.ones(1, 2)).detach()).sum()
    (one,) = byname.check(cut, model=trainer.parts["model"])
    assert [str(name) for name in one.culprits] == [f"{model}[0].weight", f"{model}[0].bias"]


@pytest.mark.slow
def test_where_a_search_came_to_its_bound_the_text_for_a_tensor_without_a_name_says_so():
    many = [[None] for _ in range(400_000)]
    nameless = byname.name((lambda: torch.ones(1))())
    del many
    assert str(nameless) == "unnamed among the 300,000 objects nearest to the variables"
    assert quote(nameless) == "a tensor without a name among the 300,000 objects nearest to the variables"


def test_a_type_that_is_not_ready_holds_nothing():
    testcapi = pytest.importorskip("_testcapi")
    unready = [one for one in vars(testcapi).values() if issubclass(type(one), type) and not parents_of(one)]
    if not unready:
        pytest.skip("this Python's _testcapi has no such type")
    assert dict(namespace_of(unready[0])) == {}
    byname.census()
    byname.name((lambda: torch.ones(7))())
    assert byname.holders(torch.ones(5)) == []


class Large:
    """Something that only a variable of the caller holds."""


@pytest.mark.slow
def test_a_look_at_a_frozen_heap_keeps_no_variable_of_its_caller():
    def asks():
        large = Large()
        assert everything()[1]
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
