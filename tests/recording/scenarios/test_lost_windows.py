"""Is every record in the file, or said to be missing, whatever a callback does?"""

import contextlib
import warnings

import pytest
import torch
from torch import nn

import byname
from byname.errors import RecordingError, RecordingWarning


def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


def raising(at, error=ValueError, only=None):
    """A callback that raises in its calls of these numbers, for one path or for all."""
    calls = []

    def callback(path, series):
        if only in (None, path):
            calls.append(path)
            if len(calls) in at:
                raise error("once")

    return callback


@pytest.mark.parametrize("moment", ["before_gather", "after_gather"])
def test_a_window_whose_callback_raised_is_missing_and_the_file_says_so(tmp_path, moment):
    net, errors = model(), 0
    recorder = byname.record(net, "0", gather_every=2, to=tmp_path / "run.h5", **{moment: raising({2})})
    for _ in range(8):
        try:
            net(torch.randn(2, 4))
        except ValueError:
            errors += 1
    recorder.close()
    sentence = f"`0`: iterations 2 to 3 are missing, since its {moment} callback raised ValueError"
    assert (errors, recorder.notes) == (1, (sentence,))
    recording = byname.open(tmp_path / "run.h5")
    assert list(recording["0"].iterations) == [0, 1, 4, 5, 6]  # the forward in whose beginning it raised did not run
    assert (recording.complete, recording.missing) == (False, (sentence,))


def test_other_places_of_the_window_are_stored(tmp_path):
    net = model()
    recorder = byname.record(
        net, ["0", "1"], gather_every=2, to=tmp_path / "run.h5", after_gather=raising({1}, only="0")
    )
    for _ in range(6):
        with contextlib.suppress(ValueError):
            net(torch.randn(2, 4))
    recorder.close()
    recording = byname.open(tmp_path / "run.h5")
    assert list(recording["0"].iterations) == [2, 3, 4]
    assert list(recording["1"].iterations) == [0, 1, 2, 3, 4]
    assert recording.missing == (
        "`0`: iterations 0 to 1 are missing, since its after_gather callback raised ValueError",
    )


def test_the_last_window_too_and_the_file_is_closed(tmp_path):
    net = model()
    recorder = byname.record(net, "0", gather_every=3, to=tmp_path / "run.h5", after_gather=raising({2}))
    for _ in range(4):
        net(torch.randn(2, 4))
    with pytest.raises(ValueError, match="once"):
        recorder.close()
    recording = byname.open(tmp_path / "run.h5")
    assert recording.ended and not recording.complete and list(recording["0"].iterations) == [0, 1, 2]
    assert recording.missing == ("`0`: iteration 3 is missing, since its after_gather callback raised ValueError",)


def test_an_exit_out_of_a_callback_comes_out_and_loses_only_its_window(tmp_path):
    net = model()
    recorder = byname.record(net, "0", gather_every=1, to=tmp_path / "run.h5", after_gather=raising({2}, SystemExit))
    net(torch.randn(2, 4))
    net(torch.randn(2, 4))
    with pytest.raises(SystemExit):
        net(torch.randn(2, 4))
    recorder.close()
    assert list(byname.open(tmp_path / "run.h5")["0"].iterations) == [0]


def test_a_callback_that_always_raises_does_not_fill_the_file_with_sentences(tmp_path):
    net = model()
    recorder = byname.record(net, "0", gather_every=1, to=tmp_path / "run.h5", after_gather=raising(range(100)))
    for _ in range(40):
        with contextlib.suppress(ValueError):
            net(torch.randn(2, 4))
    with contextlib.suppress(ValueError):
        recorder.close()
    missing = byname.open(tmp_path / "run.h5").missing
    assert missing[7:9] == (
        "`0`: iteration 7 is missing, since its after_gather callback raised ValueError",
        "`0`: more windows, from iteration 8 on, are missing, since its after_gather callback raised ValueError",
    )


def test_a_value_whose_callback_raised_is_missing_and_the_file_says_so_once(tmp_path):
    def odd(path, value, iteration):
        if iteration % 2:
            raise KeyError(iteration)

    net = model()
    recorder = byname.record(net, "0", to=tmp_path / "run.h5", on_value=odd)
    for _ in range(5):
        with contextlib.suppress(KeyError):
            net(torch.randn(2, 4))
    recorder.close()
    recording = byname.open(tmp_path / "run.h5")
    assert list(recording["0"].iterations) == [0, 2, 4] and not recording.complete
    assert recording.missing == (
        "`0`: values are missing, that of train iteration 1 and perhaps later ones, since processing them raised KeyError",
    )


def test_a_lost_file_is_warned_of_at_the_line_of_the_program(tmp_path):
    net, file = model(), tmp_path / "run.h5"
    with pytest.raises(RecordingError, match="1 record"), byname.record(net, "0", to=file) as recorder:
        net(torch.randn(2, 4))
        recorder.flush()
        (tmp_path / "run.h5.log").unlink()
        net(torch.randn(2, 4))
        warned = pytest.warns(RecordingWarning, match="byname: .*can no longer be written")
        with warned as told, contextlib.suppress(RecordingError):
            recorder.flush()
    assert told[0].filename == __file__


def test_a_whole_run_that_waits_in_memory_for_its_end_is_warned_of(tmp_path):
    net = model()
    with pytest.warns(RecordingWarning, match="without gather_every= the whole run is one") as told:
        recorder = byname.record(net, "0", to=tmp_path / "run.h5", after_gather=byname.stack)
    assert told[0].filename == __file__
    assert len(recorder.notes) == 1
    net(torch.randn(2, 4))
    recorder.close()
    recording = byname.open(tmp_path / "run.h5")
    assert recording.complete and len(recording["0"]) == 1 and len(recorder.notes) == 1


@pytest.mark.parametrize("how", [{"gather_every": 5, "after_gather": byname.stack}, {"at_end": byname.stack}, {}])
def test_windows_that_are_written_need_no_warning(tmp_path, how):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with byname.record(net := model(), "0", to=tmp_path / "run.h5", **how) as recorder:
            net(torch.randn(2, 4))
        with byname.record(net, "0", after_gather=byname.stack):  # in memory, where there is nothing to outlive
            net(torch.randn(2, 4))
    assert recorder.notes == ()
