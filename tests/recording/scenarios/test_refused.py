"""Values that cannot be stored: an error once that names the place, which is then refused; the others go on."""

import pytest
import torch
from torch import nn

import byname
from byname.errors import BadArgumentError, NotStorableError, RecordingWarning


class Model(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        odd = self.value() if callable(self.value) else self.value
        return self.fc(x)


def run(model, recorder, count=4):
    """The errors that come out of forwards."""
    errors = []
    for _ in range(count):
        try:
            model(torch.randn(1, 2))
        except Exception as error:
            errors.append(error)
    recorder.close()
    return errors


CASES = {
    "a set": ({1, 2}, {}, "is of type set"),
    "an object in a dict": ({"k": object()}, {}, r"in it, `\['k'\]` is of type object"),
    "a meta tensor": (torch.zeros(2, device="meta"), {}, "has no values"),
    "a dtype without numbers": (torch.empty(2, dtype=torch.uint4), {}, "whose elements PyTorch cannot read"),
    "a figure that there is not": (
        torch.zeros(2, dtype=torch.complex64),
        {"reduce": "max"},
        "reduce='max' of `forward.odd`",
    ),
    "a figure of a sparse one": (torch.eye(2).to_sparse(), {"reduce": "mean"}, "is not dense"),
    "what a reduction returns": (torch.zeros(2), {"reduce": lambda tensor: {1}}, "is of type set"),
    "what a callback returns": (torch.zeros(2), {"on_value": lambda path, value, iteration: {1}}, "is of type set"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("to", [None, "run.h5"])
def test_it_is_an_error_once_and_the_other_places_go_on(case, to, tmp_path):
    value, how, says = CASES[case]
    model = Model(value)
    recorder = byname.record(model, {"forward.odd": how, "fc": {}}, to=to and tmp_path / to)
    (error,) = run(model, recorder)
    assert isinstance(error, NotStorableError)
    with pytest.raises(NotStorableError, match=says):
        raise error
    assert recorder.results["fc"].iterations == [1, 2, 3]  # the first forward ended with the error
    (note,) = [note for note in recorder.notes if "forward.odd" in note]
    assert note.endswith("it is not recorded")
    if to:
        with byname.open(tmp_path / to) as recording:
            assert recording.paths == ("fc",) and not recording.complete
            assert recording.missing == (note,)


@pytest.mark.parametrize("case", CASES)
def test_where_a_wildcard_met_it_a_warning_says_so_once(case, tmp_path):
    value, how, says = CASES[case]
    model = Model(value)
    with pytest.warns(RecordingWarning, match=says) as warned:
        recorder = byname.record(model, {"forward.o*": how, "fc": {}}, to=tmp_path / "run.h5")
        assert run(model, recorder) == []
    assert len([one for one in warned if one.category is RecordingWarning]) == 1
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording["fc"].iterations == [0, 1, 2, 3] and len(recording.missing) == 1 and not recording.complete


def test_a_place_that_had_values_goes_on_with_those_that_can_be_stored(tmp_path):
    values = iter([1, {1}, 2, {1}, 3])
    model = Model(lambda: next(values))
    with pytest.warns(RecordingWarning, match="this value is missing"):
        recorder = byname.record(model, ["forward.odd", "fc"], to=tmp_path / "run.h5")
        assert run(model, recorder, 5) == []
    with byname.open(tmp_path / "run.h5") as recording:
        assert list(recording["forward.odd"]) == [1, 2, 3] and recording["forward.odd"].iterations == [0, 2, 4]
        assert len(recording.missing) == 1


def test_a_figure_that_there_is_not_is_an_argument_that_is_wrong():
    model = Model(torch.zeros(2, dtype=torch.complex64))
    (error,) = run(model, byname.record(model, "forward.odd", reduce="max"))
    assert isinstance(error, BadArgumentError)


@pytest.mark.parametrize("dims", [31, 32, 40, 63, 64])
def test_tensors_of_more_dimensions_than_hdf5_has_are_stored(dims, tmp_path):
    values = [torch.arange(4.0).reshape([2, *[1] * (dims - 2), 2]) + number for number in range(3)]
    each = iter(values)
    model = Model(lambda: next(each))
    with byname.record(model, ["forward.odd", "fc"], to=tmp_path / "run.h5"):
        for _ in range(3):
            model(torch.randn(1, 2))
    with byname.open(tmp_path / "run.h5") as recording:
        found = recording["forward.odd"]
        assert all(one.equal(value) for one, value in zip(found, values, strict=True))
        assert found.shapes == [tuple(values[0].shape)] * 3 and len(recording["fc"]) == 3 and recording.complete
