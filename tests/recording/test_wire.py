"""Wire: windows arrive at another rank bit by bit as they were sent, and what is no parcel is refused."""

import pytest
import torch
from torch import nn

import byname
from byname import Series
from byname.errors import NotStorableError, RecordingError
from byname.recording.distributed.wire import approximate_bytes, body_length, header, packed, unpacked


def series(rank=0, values=()):
    values = values if isinstance(values, torch.Tensor) else list(values)
    count, shapes = len(values), [tuple(getattr(one, "shape", ())) for one in values]
    return Series("x", values, [*range(count)], [rank] * count, [0] * count, ["train"] * count, shapes)


def test_a_parcel_arrives_as_it_was_sent():
    values = [
        torch.tensor([1.5, float("nan")]).bfloat16(),
        torch.tensor(3 + 4j),
        torch.zeros(0, 3, dtype=torch.bool),
        torch.tensor([2**40]),
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        {"k": [1, (2.5, None, "text"), b"bytes"], (1, "a"): torch.ones(2)},
        "text",
        float("inf"),
        1j,
        torch.float32,
    ]
    sent = series(values=values)
    head, body = packed([(4, {"x": sent}), (7, {}), (8, {"x": series(values=torch.eye(3), rank=1)})])
    (number, window), empty, (_, stacked) = unpacked(body_length(head)[0], body)
    arrived = window["x"]
    assert (number, empty) == (4, (7, {}))
    for name in ("path", "iterations", "ranks", "calls", "modes", "shapes"):
        assert getattr(arrived, name) == getattr(sent, name)
    for mine, due in zip(arrived.values[:5], values[:5], strict=True):
        assert (mine.dtype, mine.shape) == (due.dtype, due.shape)
        assert torch.equal(mine.view(-1).view(torch.uint8), due.view(-1).view(torch.uint8))
    assert str(arrived.values[5:]) == str(values[5:])
    assert torch.equal(stacked["x"].values, torch.eye(3)) and stacked["x"].ranks == [1, 1, 1]


def test_what_is_no_parcel_is_refused_before_anything_is_allocated():
    for head in ([0, 1, 2], header(5, 4).tolist(), header(-1, 4).tolist(), header(1, 1 << 50).tolist()):
        with pytest.raises(RecordingError, match="unknown format"):
            body_length(torch.tensor(head))
    with pytest.raises(RecordingError):
        unpacked(2, torch.tensor(list(b"[1,2]"), dtype=torch.uint8))
    with pytest.raises(RecordingError):
        unpacked(7, torch.tensor(list(b"[[1,2]]"), dtype=torch.uint8))
    with pytest.raises(NotStorableError):
        packed([(0, {"x": series(values=[object()])})])


def test_the_weight_of_a_window_is_about_its_bytes_with_the_objects_that_hold_them():
    numbers, objects = 1003 * 4, 2 * 512
    assert (
        numbers + objects
        < approximate_bytes({"x": series(values=[torch.ones(1000), {"k": [torch.ones(3), "text"]}])})
        < numbers + objects + 1000
    )


def test_what_was_asked_of_a_place_travels_with_it():
    model = nn.Linear(2, 2)
    with byname.record(model, {"forward": {"every": 2, "reduce": ["mean", "max"]}, "weight": {"stop": 5}}) as recorder:
        model(torch.ones(1, 2))
    sent = dict(recorder.results)
    head, body = packed([(0, sent)])
    ((_, found),) = unpacked(body_length(head)[0], body)
    assert [found[path].sampling for path in sent] == [one.sampling for one in sent.values()] != [None, None]
