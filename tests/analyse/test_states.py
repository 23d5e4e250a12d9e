"""Does a file that holds something else than a statistic do any harm?"""

import json
import pickle
import random
from contextlib import suppress

import pytest
import torch
from every_statistic import loaded
from safetensors.torch import save

from byname.analyse import Extremes, History, IoU, Statistic
from byname.errors import BadArgumentError


@pytest.fixture
def saved(tmp_path):
    Extremes().add(torch.rand(4, 3)).save(tmp_path / "saved")
    return tmp_path / "saved"


def outlined(outline, **tensors):
    """A file of the right format with any outline."""
    text = outline if isinstance(outline, bytes) else json.dumps(outline).encode()
    return save({"byname": torch.frombuffer(bytearray(text), dtype=torch.uint8), **tensors})


class Planted:
    def __reduce__(self):
        return (open, ("executed", "w"))


def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    whole = saved.read_bytes()
    for end in (*range(0, len(whole), 9), len(whole) - 1):
        saved.write_bytes(whole[:end])
        with pytest.raises(BadArgumentError, match="not a saved statistic"):
            Extremes.load(saved)


def test_random_bytes_are_refused_and_changed_ones_do_no_harm(saved):
    whole = saved.read_bytes()
    rng = random.Random(0)
    for _ in range(100):
        saved.write_bytes(rng.randbytes(rng.randrange(200)))
        with pytest.raises(BadArgumentError, match="not a saved statistic"):
            Extremes.load(saved)
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(whole))] = rng.randrange(256)
        saved.write_bytes(changed)
        with suppress(BadArgumentError):
            assert type(Extremes.load(saved)) is Extremes


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Planted()),
        save({"weight": torch.ones(2)}),
        save({"byname": torch.ones(2, dtype=torch.bfloat16)}),
        save({"byname": torch.ones((), dtype=torch.uint8)}),
        save({}),
        *map(
            outlined,
            [
                {"dict": [["a", {"tensor": "0"}]]},
                {"dict": [[{"list": []}, 1]]},
                {"dict": 3},
                {"list": None},
                {"object": "os.system"},
                {"tensor": ["0"]},
                {"a": 1, "b": 2},
                {},
                b"[" * 100_000,
                b"\xff\xfe",
                b"1" * 5000,
            ],
        ),
    ],
)
def test_foreign_files_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(BadArgumentError, match="foreign is not a saved statistic"):
        Extremes.load(tmp_path / "foreign")
    assert not (tmp_path / "executed").exists()


SETTINGS = {"nan": "omit"}
STATE = {"settings": SETTINGS, "count": 0, "nans": 0, "_low": None, "_high": None}


@pytest.mark.parametrize(
    ("described", "match"),
    [
        (3, "this is not a saved Extremes but 3"),
        ([], "not a saved Extremes"),
        (None, "not a saved Extremes"),
        ({}, "not a saved Extremes"),
        ({"statistic": "Mean"}, "this is not a saved Extremes but a Mean"),
        ({"statistic": "Extremes"}, "has settings"),
        ({"statistic": "Extremes", "state": 3}, "has settings"),
        ({"statistic": "Extremes", "state": {}}, "has settings"),
        ({"statistic": "Extremes", "state": {**STATE, "settings": {"nan": "omit", "more": 1}}}, "has settings"),
        ({"statistic": "Extremes", "state": {**STATE, "settings": {"nan": "sometimes"}}}, "are not settings of"),
        ({"statistic": "Extremes", "state": {**STATE, "settings": {"nan": []}}}, "are not settings of"),
        ({"statistic": "Extremes", "state": {"settings": SETTINGS}}, "is a dict of"),
        ({"statistic": "Extremes", "state": {**STATE, "__class__": 1}}, "is a dict of"),
        ({"statistic": "Extremes", "state": {**STATE, "count": "many"}}, "are numbers"),
        ({"statistic": "Extremes", "state": {**STATE, "nans": -1}}, "are numbers"),
        ({"statistic": "Extremes", "state": {**STATE, "count": torch.ones(2)}}, "are numbers"),
    ],
)
def test_what_describes_no_statistic_of_this_kind_says_so(described, match):
    assert Extremes.made({"statistic": "Extremes", "state": STATE}).count == 0
    with pytest.raises(BadArgumentError, match=match):
        Extremes.made(described)


def test_a_state_that_is_refused_changes_nothing():
    kept = Extremes().add([1.0, 2.0])
    before = kept.state_dict()
    for state in (3, None, {}, History().state_dict(), {**kept.state_dict(), "count": -1}):
        with pytest.raises(BadArgumentError):
            kept.load_state_dict(state)
    assert str(kept.state_dict()) == str(before)


def test_a_directory_that_is_not_there_is_told(tmp_path):
    with pytest.raises(BadArgumentError, match="there is no directory .*nowhere to save to"):
        Extremes().save(tmp_path / "nowhere" / "saved")
    with pytest.raises(FileNotFoundError, match="nothing"):
        Extremes.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        Extremes().save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_saving_that_fails_leaves_the_file_there_was(saved, monkeypatch):
    kept = Extremes().add([1.0])
    kept._low = object()
    before = saved.read_bytes()
    with pytest.raises(TypeError, match="not object"):
        kept.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


def test_a_relative_name_without_a_directory_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Extremes().add([2.0]).save("plain")
    assert Extremes.load("plain").result().max == 2.0


class Held(Statistic):
    """A statistic that has seen whatever it is given."""

    STATE = ("held",)
    held = None

    def _add(self, samples, weights):
        raise NotImplementedError

    _merge = result = _add


def test_everything_a_state_may_hold_comes_back_as_it_was():
    shared = torch.arange(6.0)
    state = {
        "tensors": [shared, shared[::2], shared.reshape(2, 3).T, torch.tensor(3), torch.ones(0, 4), shared.bool()],
        "types": [torch.ones(2).to(kind) for kind in (torch.bfloat16, torch.float16, torch.uint16, torch.float8_e5m2)],
        "plain": (None, True, 2**80, -1.5, float("inf"), "text\ud7ff", ""),
        (1, "key"): {},
        5: torch.Size([2, 3]),
    }
    kept = Held()
    kept.held = {**state, "nan": float("nan")}
    found = loaded(kept).held
    assert found.pop("nan") != 0
    assert str(found) == str({**state, 5: (2, 3)})
    assert [one.dtype for one in found["types"]] == [one.dtype for one in state["types"]]


def test_thresholds_are_settings_and_come_back(tmp_path):
    made = IoU(threshold=torch.tensor([0.5, 0.25])).add(torch.rand(5, 2))
    made.save(tmp_path / "saved")
    assert torch.equal(IoU.load(tmp_path / "saved").threshold, made.threshold)
    assert IoU.load(tmp_path / "saved").merge(made).count == 10


class Total(Statistic):
    """A statistic whose class says what it begins with."""

    STATE = ("total",)
    total = 0.0

    def _add(self, samples, weights):
        self.total += float(samples.sum())

    def _merge(self, other):
        self.total += other.total

    def result(self):
        return self.total


def test_a_statistic_begins_with_what_its_class_says():
    seen = Total().add(torch.ones(3))
    assert seen.merge(Total()).result() == 3.0
    seen.reset()
    assert seen.result() == 0.0
