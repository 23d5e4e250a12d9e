"""Census of an ordinary program, which it leaves unchanged."""

import gc
import re
import weakref

import pytest
import torch
from processes import run_forked
from torch import nn
from training import Trainer

import byname


def row_of(census, name):
    (row,) = [row for row in census.rows() if row["name"] == name]
    return row


def test_a_training_program_has_its_own_names_and_every_kind():
    trainer = Trainer()
    x = torch.randn(7, 6)
    trainer.step(x)
    loss = trainer.model(x).exp().sum()
    census = byname.census()
    kinds = {row["name"]: row["kind"] for row in census.rows()}
    assert kinds["trainer.model[0].weight"] == "parameter"
    assert kinds["trainer.model[1].running_mean"] == "buffer"
    assert kinds["trainer.model[0].weight.grad"] == "gradient"
    assert kinds["trainer.optimizer.state[trainer.model[0].weight]['exp_avg']"] == "optimizer"
    assert kinds["trainer.history[0]['loss']"] == "other"
    assert kinds["x"] == "input"
    held = [holder for row in census.rows() if row["kind"] == "saved" for holder in row["held_by"]]
    assert "ExpBackward0.result in the graph of `loss`" in " ".join(held)
    assert row_of(census, "trainer.model[0].weight")["module"] == "trainer.model[0]"
    assert row_of(census, "trainer.model[0].weight.grad")["module"] == "trainer.model[0]"
    assert loss.requires_grad


def test_a_storage_is_one_row_whatever_looks_at_it():
    base = torch.zeros(10, 10)
    first, second, again = base[0], base[:, 3:5], base[0]
    row = row_of(byname.census(), "base")
    assert (row["bytes"], row["used"], row["views"], row["shape"]) == (400, 400, 2, (10, 10))
    assert all(view is not None for view in (first, second, again))


def test_a_slice_whose_base_is_gone_shows_how_little_it_uses():
    part = torch.zeros(1000, 10)[:3]
    row = row_of(byname.census(), "part")
    assert (row["bytes"], row["used"]) == (40_000, 120)


def test_memory_that_numpy_shares_twice_is_counted_once():
    code = """
        import numpy, torch, byname
        array = numpy.zeros(1000)
        first, later = torch.from_numpy(array), torch.from_numpy(array[500:])
        rows = byname.census().rows()
        print([row["bytes"] for row in rows], byname.census().bytes)
    """
    assert run_forked(code) == ["[8000]", "8000"]


def test_what_an_autograd_function_keeps_is_found_in_a_heap_that_is_frozen():
    code = """
        import gc, torch, byname
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.kept = [torch.ones(12_345)]
                return x * 2
        loss = Doubled.apply(torch.ones(3, requires_grad=True)).sum()
        gc.freeze()
        print(*[row["bytes"] for row in byname.census().rows() if row["bytes"] > 1000])
    """
    assert run_forked(code) == ["49380"]


def test_totals_add_up_in_every_column():
    trainer = Trainer()
    trainer.step(torch.randn(7, 6))
    census = byname.census()
    for column in ("kind", "name", "site", "dtype", "device", "module"):
        totals = census.by(column)
        assert sum(size for _, _, size in totals) == census.bytes
        assert sum(count for _, count, _ in totals) == len(census)
    with pytest.raises(byname.BynameError, match="there is no column 'kinds' to group by; choose from kind"):
        census.by("kinds")


def test_under_a_tracker_rows_have_the_line_and_lost_names():
    def scores():
        weight = torch.ones(30, 30, requires_grad=True)
        attention = weight.softmax(0)
        return (attention * 2).sum()

    with byname.track():
        loss = scores()
        rows = byname.census().rows()
    (row,) = [row for row in rows if row["kind"] == "saved" and row["name"] == "attention"]
    assert row["site"].startswith("test_census.py:")
    assert loss.requires_grad


def test_without_names_the_bytes_are_the_same():
    trainer = Trainer()
    trainer.step(torch.randn(7, 6))
    quick, whole = byname.census(names=False), byname.census()
    assert [row.bytes for row in quick] == [row.bytes for row in whole]
    assert {row["name"] for row in quick.rows()} == {"unnamed"}


def test_collect_frees_what_only_a_cycle_holds(no_collection):
    class Node:
        pass

    node = Node()
    node.own, node.weight = node, torch.zeros(12_345)
    del node
    (row,) = [row for row in byname.census().rows() if row["bytes"] == 49_380]
    assert row["held_by"] == ("only a reference cycle, which the garbage collector would free",)
    assert not [row for row in byname.census(collect=True).rows() if row["bytes"] == 49_380]


def test_what_a_recorder_or_a_capture_keeps_is_no_garbage():
    model, x = nn.Linear(2, 1_234), torch.randn(5, 2)
    recorder, captured = byname.record(model, "forward"), byname.capture(model, "forward")(x)
    model(x)
    found = [row["held_by"] for row in byname.census().rows() if row["bytes"] == 5 * 1_234 * 4]
    assert len(found) == 4 and all("no variable" in by for (by,) in found), "not that a cycle alone holds it"
    assert recorder.results and captured
    recorder.close()


def test_the_result_keeps_nothing_alive(no_collection):
    trainer = Trainer()
    trainer.step(torch.randn(7, 6))
    census = byname.census()
    alive = [weakref.ref(one) for one in (trainer.model[0].weight, trainer.history[0]["loss"], trainer)]
    del trainer
    gc.collect()
    assert [reference() for reference in alive] == [None, None, None]
    assert row_of(census, "trainer.model[0].weight")["bytes"] == 120
    assert all(one.card.tensor is None for one in census if "trainer" in str(one.name))


def test_a_look_leaves_no_garbage_that_keeps_tensors(no_collection):
    trainer = Trainer()
    trainer.trainer = trainer
    weight = weakref.ref(trainer.model[0].weight)
    byname.census(), byname.holders(trainer.model[0].weight), byname.growth().__enter__()
    trainer.trainer = None
    del trainer
    assert weight() is None


def test_it_prints_as_a_table_that_fits_a_narrow_terminal():
    trainer = Trainer()
    trainer.step(torch.randn(7, 6))
    text = str(byname.census())
    assert text.splitlines()[0].endswith("parameter 160 B") or "storages, " in text.splitlines()[0]
    assert max(map(len, text.splitlines()[2:4])) <= 160
    assert "<table>" in byname.census()._repr_html_()


@pytest.mark.parametrize("argument", ["collect", "names"])
def test_an_argument_that_is_no_truth_value_is_refused(argument):
    with pytest.raises(byname.BynameError, match=rf"census\({argument}=...\) must be True or False, but got str"):
        byname.census(**{argument: "yes"})


def test_many_entries_of_a_container_are_shown_as_one_row():
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(6))
    history = [torch.ones(3, 5) for _ in range(5)]
    few = [torch.ones(3, 7) for _ in range(3)]
    found = byname.census()
    shown = str(found)
    assert "history[*] (5 alike)" in shown
    assert "history[0]" not in shown
    assert re.search(r"history\[\*\] \(5 alike\) .* 300 B", shown)
    assert all(f"few[{number}]" in shown and f"model[{number}].weight" in shown for number in range(3))
    assert {f"history[{number}]" for number in range(5)} <= {row["name"] for row in found.rows()}
    assert "history[*] (5 alike)" in found._repr_html_()
    del model, history, few


def test_what_the_graphs_of_many_results_have_saved_is_shown_as_one_row():
    weight = torch.ones(2, 2, requires_grad=True)
    history = [(torch.ones(11, 2) @ weight).sum() for _ in range(5)]
    shown = byname.census()._repr_html_()  # which has every column
    assert re.search(r"unnamed \(5 alike\)<.*>MmBackward0.self in the graph of `history\[\*\]`<", shown), shown
    del history
