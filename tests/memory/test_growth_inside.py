"""Inside of its block a growth is, as a sequence and as a table, the growth so far."""

import pytest
import torch

import byname

history = []


@pytest.mark.slow
def test_the_sequence_is_up_to_date_inside_of_the_block():
    with byname.growth() as growth:
        assert len(growth) == len(growth.rows()) == 0
        for count in (1, 3):
            while len(history) < count:
                history.append(torch.ones(1000))
            assert [row["count"] for row in growth.rows()] == [count]
            assert [len(growth), len(list(growth)), len(list(reversed(growth)))] == [1, 1, 1]
            assert (growth[0].name, growth[0].count) == ("history[*]", count)
            assert growth.index(growth[0]) == 0
            assert growth[0] in growth
            assert "1 place" in str(growth)
        growth.mark()
    assert [(row.name, row.count, row.marks) for row in growth] == [("history[*]", 3, (0, 3))]
    assert (growth[0].each, growth[0].a_mark) == (4000, "+3")
    history.clear()


def test_without_marks_there_are_none():
    with byname.growth() as growth:
        history.extend(torch.ones(1000) for _ in range(3))
        assert growth[0].marks == ()
    assert growth[0].marks == ()
    assert growth.rows()[0]["a_mark"] == ""
    history.clear()


@pytest.mark.parametrize("ask", [lambda one: one.rows(), len, list, lambda one: one[0], lambda one: one.to_pandas()])
def test_a_growth_that_was_not_entered_has_no_rows_to_ask_for(ask):
    with pytest.raises(byname.errors.BadArgumentError, match="enter it first, as in `with byname.growth"):
        ask(byname.growth())
    assert "not entered" in str(byname.growth())


def test_an_argument_of_a_running_call_is_no_growth():
    growth = byname.growth()
    torch.ones(3), growth.__enter__()
    _, rows = torch.ones(3), growth.rows()
    growth.__exit__(None, None, None)
    assert rows == []


def test_a_generator_that_a_loop_holds_is_named_by_its_variables():
    def batches():
        seen = []
        while True:
            seen.append(torch.ones(3, requires_grad=True).exp())
            yield seen[-1].shape

    with byname.growth() as growth:
        for step, _ in enumerate(batches()):
            if step == 2:
                (row,) = growth.rows()
                break
    assert (row["name"], row["count"], row["cause"]) == ("seen[*]", 3, "stored-graph")


def test_a_row_without_a_name_tells_of_new_tensors_and_not_of_old_ones():
    class Deep:
        def __init__(self, tensor):
            self.inside = tensor

    old, new = Deep(torch.ones(3)), torch.ones(5)
    for _ in range(30):
        old = Deep(old)
    with byname.growth() as growth:
        for _ in range(30):
            new = [new]
    assert growth.rows() == []
    with byname.growth() as growth:
        new = [torch.ones(7)]
        for _ in range(30):
            new = [new]
    (row,) = growth.rows()
    assert "7" in row["name"]
    assert row["holder"] == "a list, to which byname found no variable"
    assert old is not new


class Link:
    def __init__(self, value, before):
        self.value, self.before = value, before


def test_the_links_of_a_chain_are_one_place():
    last = Link(torch.ones(3), Link(torch.ones(3), Link(torch.ones(3), Link(torch.ones(3), None))))
    with byname.growth() as growth:
        for _ in range(6):
            last = Link(torch.ones(3), last)
            growth.mark()
    assert [(row.name, row.count) for row in growth] == [("last.before*.value", 6)]
