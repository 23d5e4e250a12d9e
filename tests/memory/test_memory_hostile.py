"""Programs in which a look at memory once failed, ran code of the program, or said what is not so."""

import collections
import gc
from concurrent.futures import Future

import numpy
import pytest
import torch
from processes import run_forked
from torch.utils.checkpoint import checkpoint

import byname


def nested():
    return torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def causes(growth):
    return {row["name"]: row["cause"] for row in growth.rows()}


def test_a_lazy_module_is_no_obstacle_to_growth():
    model, kept = torch.nn.LazyLinear(3), []
    with byname.growth() as growth:
        kept.extend({"weight": torch.ones(4)} for _ in range(3))
    assert causes(growth) == {"kept[*]['weight']": "growing-cache"}
    assert type(model.weight) is torch.nn.UninitializedParameter


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_that_grow_are_told_and_pin_nothing():
    model, kept = torch.nn.Linear(2, 2), []
    with byname.growth() as growth:
        kept.extend({"weight": nested()} for _ in range(3))
    assert causes(growth) == {"kept[*]['weight']": "growing-cache"}
    assert [row["used"] for row in byname.census().rows() if row["name"] == "kept[0]['weight']"] == [32]
    assert model.weight.shape == (2, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_without_a_name_is_no_obstacle_to_growth(no_collection):
    class Knot:
        def __init__(self):
            self.itself, self.content = self, nested()

    with byname.growth() as growth:
        Knot()
    assert [row["name"] for row in growth.rows()] == ["unnamed (float32 ?)"]


def test_growth_asks_no_property_of_a_users_class():
    asked = []

    class Loud(torch.Tensor):
        @property
        def shape(self):
            asked.append("shape")
            return torch.Size([1])

    kept = []
    with byname.growth() as growth:
        kept.extend({"weight": torch.ones(4).as_subclass(Loud)} for _ in range(3))
    assert growth.rows()[0]["count"] == 3
    assert asked == []


def test_a_list_of_old_gradients_is_no_gradient_of_the_first_step():
    model, kept = torch.nn.Linear(10, 10), []

    def step():
        model.zero_grad()
        model(torch.ones(3, 10)).sum().backward()
        kept.append(model.weight.grad)

    step()
    with byname.growth() as growth:
        for _ in range(5):
            step()
    assert causes(growth) == {"kept[*]": "growing-cache"}


def test_what_an_unpack_hook_holds_is_told_of_a_slot_that_its_node_has():
    model, x = torch.nn.Linear(5, 5), torch.randn(2, 5, requires_grad=True)
    loss = checkpoint(lambda x: model(x).exp(), x, use_reentrant=False).sum()
    held = {holder for row in byname.census().rows() for holder in row["held_by"] if "(packed)" in holder}
    assert held
    assert not any("AddmmBackward0.result" in words for words in held)
    assert loss.requires_grad


def test_a_running_total_that_begins_in_the_block_is_a_retained_graph():
    total = 0.0
    weight = torch.ones(100, requires_grad=True)
    with byname.growth() as growth:
        for _ in range(5):
            total = total + weight.exp().sum()
            growth.mark()
    (row,) = [row for row in growth.rows() if row["name"] == "total"]
    assert row["cause"] == "retained-graph"
    assert (row["count"], row["a_mark"]) == (6, "+1.2")  # the total itself, and what the graph of each term has saved


def test_a_tensor_that_is_made_larger_in_place_has_grown():
    buffer = torch.zeros(1000)
    with byname.growth() as growth:
        buffer.resize_(5000)
        growth.mark()
    (row,) = growth.rows()
    assert (row["name"], row["bytes"], row["cause"]) == ("buffer", 16_000, "growing-cache")
    assert (row["count"], row["a_mark"]) == (0, "")
    assert "the tensor of this name is larger than before" in row["remedy"]
    assert "if each is made anew, the input" in row["remedy"]  # no look can tell these two apart


@pytest.mark.slow
def test_the_pace_of_a_total_that_had_another_name_before_is_that_of_its_count():
    weight, box = torch.ones(100, requires_grad=True), {}
    first = weight.exp().sum()
    with byname.growth() as growth:
        box["total"] = first
        del first
        for _ in range(5):
            box["total"] = box["total"] + weight.exp().sum()
            growth.mark()
    (row,) = [row for row in growth.rows() if row["name"] == "box['total']"]
    assert (row["count"], row["a_mark"]) == (6, "+1.2")


def test_a_text_key_with_an_open_position_in_it_is_no_position_that_is_left_open():
    stats = {"a[*]b": []}
    with byname.growth() as growth:
        stats["a[*]b"].extend(torch.ones(10) for _ in range(3))
    (row,) = growth.rows()
    assert (row["name"], row["count"], row["cause"]) == (r"stats['a[\x2a]b'][*]", 3, "growing-cache")
    assert row["holder"].startswith(r"`stats['a[\x2a]b']`, from `stats`")
    assert eval(row["name"].removesuffix("[*]")) is stats["a[*]b"]


def test_two_new_entries_under_such_keys_are_no_list_that_grows():
    cache = {}
    with byname.growth() as growth:
        cache.update({f"[*] {number}": torch.ones(10) for number in range(2)})
    assert causes(growth) == {f"cache['[\\x2a] {number}']": "unknown" for number in range(2)}


def test_an_array_of_objects_is_no_slice_of_the_tensors_in_it():
    kept = []
    with byname.growth() as growth:
        for _ in range(3):
            kept.append(numpy.array([torch.ones(100), None], dtype=object)[:1])
    assert causes(growth) == {"kept[*][*]": "growing-cache"}


def test_futures_in_a_list_are_not_read_ahead():
    kept = []
    with byname.growth() as growth:
        for _ in range(3):
            kept.append(Future())
            kept[-1].set_result(torch.ones(100))
    assert causes(growth) == {"kept[*]._result": "growing-cache"}


def test_a_deque_with_a_bound_is_not_told_to_be_bounded():
    recent = collections.deque(maxlen=50)
    with byname.growth() as growth:
        recent.extend(torch.zeros(10) for _ in range(5))
    (row,) = growth.rows()
    assert (row["name"], row["cause"], row["remedy"]) == ("recent[*]", "unknown", "")


def test_what_a_search_of_a_large_program_did_not_reach_is_found_all_the_same():
    code = """
        import torch, byname
        rows = [[number, number + 1, [number]] for number in range(400_000)]
        class Box: pass
        box = Box(); box.inner = Box()
        model = torch.nn.Linear(50, 50)
        box.inner.losses = [model(torch.randn(20, 50)).exp().sum()]
        held = {"; ".join(row["held_by"]) for row in byname.census().rows() if row["kind"] == "saved"}
        print(*(words.partition(" in ")[2].replace(" ", "_") for words in sorted(held)))
    """
    assert run_forked(code) == ["the_graph_of_`box.inner.losses[0]`"] * 2


def test_what_kept_schedulers_hold_is_told_with_the_optimizers_and_their_state_dict_holds_nothing():
    def fold(keep):
        model = torch.nn.Linear(40, 30)
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 40)).sum().backward()
            optimizer.step()
            scheduler.step()
        return keep(scheduler)

    results = {"first": fold(lambda scheduler: {"scheduler": scheduler})}
    with byname.growth() as growth:
        for number in range(3):
            results[number] = fold(lambda scheduler: {"scheduler": scheduler})
    assert growth.rows() and set(causes(growth).values()) == {"stored-optimizer"}
    assert "scheduler.state_dict()" in growth.rows()[0]["remedy"]
    with byname.growth() as growth:
        for number in range(3, 6):
            results[number] = fold(lambda scheduler: {"scheduler": scheduler.state_dict()})
    assert growth.rows() == []
