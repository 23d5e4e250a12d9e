"""Is every wrong request refused before anything is done, with what was asked, what was found and what to try?"""

import re
import shutil

import pytest
import torch
from processes import run_together
from torch import nn

import byname
from byname.errors import (
    BynameError,
    NoMatchError,
    NotARecordingError,
    NotStorableError,
    RecordingError,
)


class Net(nn.Module):
    """Two layers and a local."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.first(x).relu()
        return self.second(hidden)


@pytest.fixture
def model():
    return Net()


def refused(model, where="first", **options):
    """The message with which a request is refused; nothing may have been attached or written."""
    hooks = [len(module._forward_hooks) for module in model.modules()], Net.forward.__code__
    with pytest.raises((BynameError, OSError)) as caught:
        byname.record(model, where, **options)
    assert isinstance(caught.value, BynameError), f"{type(caught.value).__name__} is none of byname's"
    assert ([len(module._forward_hooks) for module in model.modules()], Net.forward.__code__) == hooks
    return caught.value


@pytest.mark.parametrize(
    ("path", "closest"),
    [("frist", "first"), ("forward.hiden", "hidden"), ("first.wieght", "weight"), ("secnd.weight.grad", "second")],
)
def test_a_wrong_path_is_answered_with_the_closest_ones(model, path, closest):
    error = refused(model, path)
    assert isinstance(error, NoMatchError)
    assert path.removesuffix(".grad") in str(error)
    assert closest in str(error)


def test_one_wrong_path_among_right_ones_is_refused_too(model, tmp_path):
    assert "hiden" in str(refused(model, ["first", "forward.hiden"], to=tmp_path / "run.h5"))
    assert "hiden" in str(refused(model, {"first": {}, "forward.hiden": {"every": 2}}, to=tmp_path / "run.h5"))
    assert list(tmp_path.iterdir()) == []


BAD_OPTIONS = {
    "every 0": ({"every": 0}, "every"),
    "every -1": ({"every": -1}, "every"),
    "every 1.5": ({"every": 1.5}, "every"),
    "every True": ({"every": True}, "every"),
    "every text": ({"every": "10"}, "every"),
    "start -1": ({"start": -1}, "start"),
    "start None": ({"start": None}, "start"),
    "stop before start": ({"start": 5, "stop": 3}, "stop"),
    "stop at start": ({"start": 5, "stop": 5}, "stop"),
    "stop 0": ({"stop": 0}, "stop"),
    "stop 2.0": ({"stop": 2.0}, "stop"),
    "mode": ({"mode": "training"}, "train"),
    "mode True": ({"mode": True}, "mode"),
    "count": ({"count": "forwards"}, "forward"),
    "count model": ({"count": nn.Linear(1, 1)}, "count"),
    "reduce": ({"reduce": "meen"}, "mean"),
    "reduce in a sequence": ({"reduce": ("mean", "minn")}, "min"),
    "reduce 3": ({"reduce": 3}, "reduce"),
    "dtype": ({"dtype": "flota16"}, "float16"),
    "dtype 16": ({"dtype": 16}, "dtype"),
    "gather_every 0": ({"gather_every": 0}, "gather_every"),
    "gather_every -3": ({"gather_every": -3}, "gather_every"),
    "on_value": ({"on_value": "mean"}, "on_value"),
    "at_end": ({"at_end": [byname, 3]}, "at_end"),
    "before_gather": ({"before_gather": 3}, "before_gather"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_an_impossible_option_is_refused_and_named(model, name, tmp_path):
    options, said = BAD_OPTIONS[name]
    error = refused(model, **options, to=tmp_path / "run.h5")
    assert isinstance(error, BynameError) and isinstance(error, ValueError | TypeError)
    assert said in str(error)
    assert list(tmp_path.iterdir()) == []


PLACE_OPTIONS = ["every 0", "stop before start", "mode", "reduce", "dtype"]


@pytest.mark.parametrize("name", PLACE_OPTIONS)
def test_an_impossible_option_of_one_place_names_the_place_too(model, name):
    options, said = BAD_OPTIONS[name]
    message = str(refused(model, {"first": options, "second": {}}))
    assert said in message
    assert "first" in message


def test_an_unknown_option_of_a_place_is_answered_with_the_closest(model):
    message = str(refused(model, {"first": {"evry": 3}}))
    assert "evry" in message
    assert "every" in message
    assert "options" in str(refused(model, {"first": 3})) or "dict" in str(refused(model, {"first": 3}))


def test_what_belongs_to_the_whole_recorder_is_no_option_of_a_place(model):
    assert "to" in str(refused(model, {"first": {"to": "run.h5"}}))
    assert "count" in str(refused(model, {"first": {"count": "step"}}))


def test_a_stop_of_one_place_that_conflicts_with_the_start_of_all_is_refused(model):
    message = str(refused(model, {"first": {"stop": 3}, "second": {}}, start=5))
    assert "first" in message
    assert "5" in message
    assert "3" in message


def test_one_place_with_two_schedules_is_refused(model):
    message = str(refused(model, {"first": {"every": 2}, "f*": {"every": 3}}))
    assert "first" in message
    assert "f*" in message
    with byname.record(model, {"first": {"every": 2}, "f*": {"every": 2}}) as recorder:
        model(torch.ones(1, 3))
    assert len(recorder.results["first"]) == 1


def test_compression_is_one_that_hdf5_has(model, tmp_path):
    message = str(refused(model, compression="gzp", to=tmp_path / "run.h5"))
    assert "gzp" in message
    assert "gzip" in message
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_record_is_refused(model):
    for where in ([], {}, (), None, 3):
        refused(model, where)


def test_what_is_no_model_is_refused():
    for model in (lambda x: x, None, "model", torch.ones(1)):
        with pytest.raises(BynameError):
            byname.record(model, "first")


# Files


def test_a_missing_directory_is_named_and_not_made(model, tmp_path):
    message = str(refused(model, to=tmp_path / "rnus" / "run.h5"))
    assert "rnus" in message
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_file(model, tmp_path):
    assert str(tmp_path) in str(refused(model, to=tmp_path))


@pytest.mark.parametrize("to", [3, True, 1.5, ["run.h5"], b""])
def test_what_names_no_file_is_refused(model, to):
    refused(model, to=to)


def test_an_existing_file_is_never_touched_without_overwrite(model, tmp_path):
    file = tmp_path / "run.h5"
    file.write_bytes(b"mine")
    with pytest.raises(FileExistsError) as caught:
        byname.record(model, "first", to=file)
    assert "overwrite=True" in str(caught.value)
    assert str(file) in str(caught.value)
    assert file.read_bytes() == b"mine"
    with byname.record(model, "first", to=str(file), overwrite=True):
        model(torch.ones(1, 3))
    with byname.open(file) as recording:
        assert len(recording["first"]) == 1


def test_a_refused_request_leaves_an_existing_file_also_with_overwrite(model, tmp_path):
    file = tmp_path / "run.h5"
    file.write_bytes(b"mine")
    for options in ({"where": "frist"}, {"every": 0}, {"compression": "gzp"}, {"reduce": "meen"}):
        refused(model, **{"where": "first", **options}, to=file, overwrite=True)
        assert file.read_bytes() == b"mine"


def test_a_file_that_may_not_be_written_is_named(model, tmp_path):
    file = tmp_path / ("n" * 300 + ".h5")
    assert "nnnn" in str(refused(model, to=file))


# Values


class Odd:
    """Of a type that no recording can hold; says when it is looked at."""

    __slots__ = ("looked",)

    def __repr__(self):
        raise AssertionError("user code ran")

    def __len__(self):
        raise AssertionError("user code ran")

    def __getattr__(self, name):
        raise AssertionError(f"user code ran: {name}")


class Shown(nn.Module):
    """Holds one local variable, which a test chooses."""

    def forward(self, value):
        shown = value
        return torch.ones(1)


UNSTORABLE = {
    "an object": (Odd, "", "Odd"),
    "in a dict": (lambda: {"k": [1, Odd()]}, "['k'][1]", "Odd"),
    "a function": (lambda: print, "", "builtin_function_or_method"),
    "a module": (lambda: nn.Linear(1, 1), "", "Linear"),
    "a set": (lambda: [{1, 2}], "[0]", "set"),
    "a key": (lambda: {Odd(): 1}, "", "Odd"),
    "a generator": (lambda: (one for one in ()), "", "generator"),
}


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_value_that_cannot_be_stored_is_named_with_its_type_and_what_to_do(name, to_file, tmp_path):
    make, where, kind = UNSTORABLE[name]
    model, to = Shown(), tmp_path / "run.h5" if to_file else None
    code = Shown.forward.__code__
    with byname.record(model, "forward.shown", to=to):
        with pytest.raises(NotStorableError) as caught:
            model(make())
        assert model(2).shape == (1,)
    message = str(caught.value)
    assert "forward.shown" in message
    assert where in message
    assert kind in message
    assert re.search(r"on_value|reduce", message)
    assert Shown.forward.__code__ is code


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("name", UNSTORABLE)
def test_one_value_that_cannot_be_stored_does_not_end_a_long_training(name, to_file, tmp_path):
    make, where, kind = UNSTORABLE[name]
    model, to = Shown(), tmp_path / "run.h5" if to_file else None
    with byname.record(model, "forward.shown", to=to) as recorder:
        model(1)
        with pytest.warns(UserWarning, match=r"`forward\.shown`") as warned:
            model(make())
        model(2)
    assert kind in str(warned[0].message)
    assert where in str(warned[0].message)
    results = byname.open(to) if to_file else recorder.results
    assert list(results["forward.shown"].values) == [1, 2]
    assert list(results["forward.shown"].iterations) == [0, 2]
    assert not to_file or any("forward.shown" in sentence for sentence in results.missing)
    assert any("forward.shown" in sentence for sentence in recorder.notes)


def test_a_wildcard_passes_over_what_no_recording_can_hold():
    model = Net()
    with byname.record(model, "forward.*") as recorder:
        model(torch.ones(1, 3))
    assert sorted(recorder.results) == ["forward.hidden", "forward.x"]


def test_a_value_that_contains_itself_is_named_and_not_followed_forever():
    model, value = Shown(), [1]
    value.append(value)
    with byname.record(model, "forward.shown"):
        with pytest.raises(BynameError) as caught:
            model(value)
    assert "forward.shown" in str(caught.value)


def test_a_very_deep_value_is_stored_or_named(tmp_path):
    model, value = Shown(), []
    for _ in range(5000):
        value = [value]
    with byname.record(model, "forward.shown", to=tmp_path / "run.h5"):
        said = refused_value(model, value)
    assert said is None or "forward.shown" in said
    with byname.open(tmp_path / "run.h5") as recording:
        assert ("forward.shown" in recording.paths) == (said is None)


def refused_value(model, value):
    """What is said against a value, or None."""
    try:
        model(value)
    except BynameError as error:
        return str(error)


def test_a_callback_makes_a_value_storable():
    model = Shown()
    with byname.record(
        model, "forward.shown", on_value=lambda path, value, iteration: type(value).__name__
    ) as recorder:
        model(Odd())
    assert list(recorder.results["forward.shown"].values) == ["Odd"]


# Opening


@pytest.fixture
def run_file(model, tmp_path):
    """A whole recording."""
    with byname.record(model, ["first", "forward.hidden"], to=tmp_path / "run.h5"):
        for _ in range(20):
            model(torch.randn(50, 3))
    return tmp_path / "run.h5"


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        byname.open(tmp_path / "none.h5")
    assert isinstance(caught.value, BynameError)
    assert "none.h5" in str(caught.value)


NOT_RECORDINGS = {
    "empty": b"",
    "text": b"iteration,loss\n0,1.5\n",
    "zeros": bytes(10_000),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
    "the first bytes of HDF5": b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 8,
}


@pytest.mark.parametrize("name", NOT_RECORDINGS)
def test_a_file_that_is_no_recording_is_said_to_be_none(name, tmp_path):
    file = tmp_path / "other.h5"
    file.write_bytes(NOT_RECORDINGS[name])
    with pytest.raises((NotARecordingError, RecordingError)) as caught:
        byname.open(file)
    assert name not in ("empty", "text", "a picture") or isinstance(caught.value, NotARecordingError)
    assert "other.h5" in str(caught.value)
    assert file.read_bytes() == NOT_RECORDINGS[name]


def test_a_strangers_hdf5_file_is_no_recording(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = [1, 2, 3]
    with pytest.raises(NotARecordingError, match=r"other\.h5"):
        byname.open(tmp_path / "other.h5")


def test_a_directory_is_no_recording(tmp_path):
    with pytest.raises(BynameError, match=tmp_path.name):
        byname.open(tmp_path)


def test_a_truncated_file_is_an_error_or_says_what_is_missing_and_never_gives_wrong_values(run_file, tmp_path):
    whole = run_file.read_bytes()
    with byname.open(run_file) as recording:
        truth = {path: [value.clone() for value in recording[path].values] for path in recording.paths}
    file = tmp_path / "cut.h5"
    answers = []
    for size in [*range(0, len(whole), len(whole) // 40), len(whole) - 1]:
        file.write_bytes(whole[:size])
        answers.append(read(file, truth))
    assert set(answers) <= {"refused", "incomplete"}
    assert answers[0] == "refused"


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_an_error_and_no_crash(run_file, tmp_path, seed):
    """Bytes of a file that is not trusted: reading may fail, but only by an error of byname, or an OSError of HDF5."""
    import random

    whole, file = bytearray(run_file.read_bytes()), tmp_path / "hurt.h5"
    chance = random.Random(seed)
    for _ in range(12):
        hurt = bytearray(whole)
        for _ in range(20):
            hurt[chance.randrange(len(hurt))] = chance.randrange(256)
        file.write_bytes(hurt)
        answer = read(file, None)
        assert answer in ("refused", "incomplete", "whole")


def read(file, truth):
    """Reads everything of a recording; whether it was refused, or is incomplete and right as far as it goes."""
    try:
        with byname.open(file) as recording:
            for path in recording.paths:
                values = list(recording[path].values)
                if truth is not None:
                    assert path in truth
                    assert len(values) <= len(truth[path])
                    assert all(torch.equal(*pair) for pair in zip(values, truth[path]))
            return "whole" if recording.complete else "incomplete"
    except BynameError as error:
        return "refused" if file.name in str(error) else f"refused without its name: {error}"


def test_the_results_of_an_unknown_path_name_the_closest(run_file, model):
    with byname.open(run_file) as recording:
        with pytest.raises(LookupError) as caught:
            recording["forward.hiden"]
        assert isinstance(caught.value, BynameError)
        assert "forward.hidden" in str(caught.value)
        with pytest.raises(LookupError):
            recording["sec*"]
    with byname.record(model, "first") as recorder:
        model(torch.ones(1, 3))
    with pytest.raises(LookupError) as caught:
        recorder.results["frist"]
    assert "first" in str(caught.value)


def test_a_closed_recording_says_so(run_file):
    recording = byname.open(run_file)
    series = recording["first"]
    recording.close()
    recording.close()
    with pytest.raises(BynameError, match="closed"):
        series.values[0]


def test_a_closed_recorder_records_no_more_and_does_not_stop_the_training(model):
    recorder = byname.record(model, "first", count="step")
    model(torch.ones(1, 3))
    recorder.close()
    model(torch.ones(1, 3))
    recorder.step()
    recorder.flush()
    assert len(recorder.results["first"]) == 1


@pytest.mark.filterwarnings("ignore:byname. nothing was recorded")  # no forward runs
@pytest.mark.parametrize("count", ["forward", "optimizer"])
def test_step_is_for_recorders_that_count_steps(model, count):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with byname.record(model, "first", count=count if count == "forward" else optimizer) as recorder:
        with pytest.raises(BynameError, match=r"count=.step."):
            recorder.step()


# Rank files


RANK = """
import sys, torch, byname
import torch.distributed as dist
rank, world, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{directory}/meet{world}", rank=rank, world_size=world)
torch.set_num_threads(1)
torch.manual_seed(rank)
model = torch.nn.Linear(2, 2)
with byname.record(model, "forward", to=f"{directory}/run.h5", overwrite=True):
    for step in range(5):
        model(torch.full((1, 2), rank + 1.0))
        torch.nn.init.constant_(model.weight, step + 10 * rank + 1)
dist.destroy_process_group()
"""


def run_of_ranks(directory, world):
    """A run of so many processes, each with values of its own."""
    for done in run_together([(["-c", RANK, rank, world, directory], {}) for rank in range(world)]):
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    run_of_ranks(directory, 2)
    return directory


@pytest.fixture
def ranks(run_of_two, tmp_path):
    """The files of a run of two ranks."""
    for file in run_of_two.glob("run*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_both_rank_files_are_one_recording(ranks):
    assert sorted(file.name for file in ranks.glob("run*")) == ["run.rank0.h5", "run.rank1.h5"]
    with byname.open(ranks / "run.h5") as recording:
        series = recording["forward"]
        assert (recording.complete, recording.missing) == (True, ())
        assert sorted(zip(series.iterations, series.ranks)) == [(step, rank) for step in range(5) for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_file_is_said_and_never_read_as_zeros(ranks, rank):
    (ranks / f"run.rank{rank}.h5").unlink()
    with byname.open(ranks / "run.h5") as recording:
        series = recording["forward"]
        assert not recording.complete
        assert any(f"rank {rank}" in sentence or f"rank{rank}" in sentence for sentence in recording.missing)
        assert set(series.ranks) == {1 - rank}
        assert len(series) == 5
        assert all(bool(value.all()) for value in series.values)


def test_the_file_of_one_rank_opens_by_itself(ranks):
    with byname.open(ranks / "run.rank1.h5") as recording:
        assert list(recording["forward"].ranks) == [1] * 5


def test_a_rank_file_of_another_run_is_not_mixed_in(ranks, model):
    with byname.record(model, "first", to=ranks / "other.h5"):
        model(torch.ones(1, 3))
    shutil.copy(ranks / "other.h5", ranks / "run.rank1.h5")
    with byname.open(ranks / "run.h5") as recording:
        assert not recording.complete
        assert any("another run" in sentence for sentence in recording.missing)
        assert recording.paths in (("forward",), ("first",))  # the newer one of the two


@pytest.mark.slow
def test_a_rank_file_that_an_older_run_of_more_ranks_left_is_not_mixed_in(tmp_path):
    run_of_ranks(tmp_path, 3)
    run_of_ranks(tmp_path, 2)
    assert len([*tmp_path.glob("run.rank*")]) == 3
    with byname.open(tmp_path / "run.h5") as recording:
        assert sorted(set(recording["forward"].ranks)) == [0, 1]
        assert len(recording["forward"]) == 10


def test_no_rank_file_at_all_is_a_file_that_is_not_there(ranks):
    for rank in range(2):
        (ranks / f"run.rank{rank}.h5").unlink()
    with pytest.raises(FileNotFoundError, match=r"run\.h5"):
        byname.open(ranks / "run.h5")
