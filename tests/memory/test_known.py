"""Memory that existed before is recognized, whatever the program calls it now."""

import torch

import byname


def test_a_new_name_for_what_was_there_is_no_growth():
    layer = torch.nn.Linear(100, 100)

    def inside(given, growth):
        also = [given.weight]
        return growth.rows()

    with byname.growth() as growth:
        rows = inside(layer, growth)
    assert rows == []


def test_new_memory_under_a_new_name_is_growth():
    def inside(growth):
        kept = [torch.ones(100)]
        return growth.rows()

    with byname.growth() as growth:
        rows = inside(growth)
    assert [(row["name"], row["bytes"]) for row in rows] == [("kept[*]", 400)]


def test_marks_of_a_look_keep_no_memory_alive():
    one = torch.ones(1000)
    storage = one.untyped_storage()._weak_ref()
    with byname.growth():
        del one
        assert torch.UntypedStorage._expired(storage)
    torch.UntypedStorage._free_weak_ref(storage)
