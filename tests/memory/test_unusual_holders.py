"""Holders of tensors in pandas tables, torch futures and arrays of records."""

from pathlib import Path

import numpy
import pytest
import torch

import byname

pandas = pytest.importorskip("pandas")


class Experiment:
    def __init__(self):
        self.results = pandas.DataFrame({"epoch": pandas.Series(dtype=object), "loss": pandas.Series(dtype=object)})


def loss(size=1000):
    return torch.ones(size, requires_grad=True).exp()


def test_the_cells_of_a_pandas_table_and_of_a_column_have_names():
    experiment = Experiment()
    for number in range(3):
        experiment.results.loc[number] = [number, loss()]
    tensor = experiment.results.iat[1, 1]
    assert [one.path for one in byname.holders(tensor)][:2] == ["tensor", "experiment.results.iat[1, 1]"]
    assert eval(byname.names(tensor)[1].path) is tensor
    column = pandas.Series([torch.ones(2), "words"])
    assert byname.name(column.iat[0]).path == "column.iat[0]"
    assert eval(byname.name(column.iat[0]).path) is column.iat[0]


def test_a_pandas_table_that_keeps_losses_is_a_stored_graph():
    experiment = Experiment()
    with byname.growth() as growth:
        for number in range(4):
            experiment.results.loc[number] = [number, loss()]
    (row,) = growth
    assert (row.name, row.count, row.cause) == ("experiment.results.iloc[:, 1][*]", 4, "stored-graph")


def test_what_a_torch_future_holds_has_its_name():
    pending, failed = torch.futures.Future(), torch.futures.Future()
    pending.set_result(torch.ones(1000))
    failed.set_exception(ValueError("no result"))
    waiting = torch.futures.Future()
    (row,) = [row for row in byname.census() if row.bytes == 4000]
    assert str(row.name) == "pending.value()"
    tensor = pending.wait()
    assert [(one.path, one.kind) for one in byname.holders(tensor)] == [
        ("tensor", "local"),
        ("pending.value()", "task"),
    ]
    assert not waiting.done() and failed.done()


def test_the_error_of_a_failed_torch_future_stays_as_it_was():
    def failed(error):
        future = torch.futures.Future()
        future.set_exception(error)
        return future

    try:
        raise ValueError("no result")
    except ValueError as error:
        before, context = error.__traceback__, error.__context__
        pending = failed(error)
    byname.census()
    try:
        raise KeyError("another")
    except KeyError:
        byname.census()
    with pytest.raises(ValueError, match="no result") as raised:
        pending.value()
    entries = [raised.value.__traceback__]
    while entries[-1] is not None:
        entries.append(entries[-1].tb_next)
    of_byname = str(Path(byname.__file__).parent)
    assert not [one for one in entries[:-1] if one.tb_frame.f_code.co_filename.startswith(of_byname)]
    assert before in entries and raised.value.__context__ is context


def test_what_cannot_be_followed_is_said_to_be_held_by_it():
    records = numpy.zeros(8, dtype=[("loss", object)])
    with byname.growth() as growth:
        for number in range(8):
            records[number]["loss"] = torch.ones(1000)
    (row,) = growth
    assert row.holder.startswith("something that cannot be followed")
    (one, *_) = [row for row in byname.census() if row.bytes == 4000]
    assert one.holders == (
        "something that cannot be followed: C or C++ code, or an expression that is being evaluated",
    )
    del records
