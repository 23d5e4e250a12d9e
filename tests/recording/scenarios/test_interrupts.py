import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from stored_runs import series

import byname
from byname.reading.interrupts import defer_signals
from byname.recording.log_file import LogStore


class Alarm(Exception):
    pass


@pytest.fixture
def alarms():
    """Raises `Alarm` wherever the program is, again and again."""

    def handler(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_in_the_middle_of_writing_come_up_after_it(tmp_path, alarms):
    store = LogStore(tmp_path / "run.h5", run={})
    interrupted, values = 0, [torch.full((3000,), float(number)) for number in range(120)]
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number, value in enumerate(values):
        try:
            try:
                with defer_signals(also_repeated=True):
                    alarms(0.00001 * (number + 1))
                    store.append({"a": series("a", [value] * 9, start=9 * number)})
                    store.flush()
            finally:
                alarms(0)
        except Alarm:
            interrupted += 1
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    store.close()
    assert interrupted > 10
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete and recording["a"].iterations == [*range(9 * 120)]
        assert all(torch.equal(value, values[number // 9]) for number, value in enumerate(recording["a"]))


class Lines:
    """Presses Ctrl-C twice when a function comes to a line of what writes recordings, counted from 0."""

    NAMES = ("log_file", "recording_file", "finish", "hdf5", "frame", "stored", "value_type")
    FILES = tuple(f"recording{os.sep}{name}.py" for name in NAMES)

    def __init__(self, at=None):
        self.at, self.count = at, 0

    def __call__(self, function):
        sys.settrace(self._follow)
        try:
            function()
        finally:
            sys.settrace(None)

    def _follow(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line":
            self.count += 1
            if self.count - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
        return self._follow


assert all(Path(byname.__file__).parent.joinpath(name).is_file() for name in Lines.FILES)


def ready_to_close(path):
    store = LogStore(path, run={})
    for start in (0, 2):
        values = {"a": [torch.ones(3)] * 2, "r": [torch.ones(2 + start)] * 2, "t": ["x", {"k": torch.ones(2)}]}
        store.append({name: series(name, several, start=start) for name, several in values.items()})
    return store


@pytest.mark.parametrize("step", [101, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_ctrl_c_at_a_line_of_close_leaves_a_whole_recording(step, tmp_path):
    for name in ("first.h5", "run.h5"):  # the first close fills caches, and takes more lines
        whole = Lines()
        whole(ready_to_close(tmp_path / name).close)
    states, last = set(), range(whole.count - 30, whole.count)  # in which the file takes its name
    for at in sorted({*range(0, whole.count, step), *last}):
        directory = tmp_path / str(at)
        directory.mkdir()
        store, lines, pressed = ready_to_close(directory / "run.h5"), Lines(at), False
        try:
            lines(store.close)
        except KeyboardInterrupt:
            pressed = True
        store.close()
        left = {one.name for one in directory.iterdir()}
        assert pressed or lines.count <= at  # what is cached by now takes fewer lines
        assert left in ({"run.h5"}, {"run.h5.log"}), (at, left)
        states |= left
        with byname.open(directory / "run.h5") as recording:
            assert recording.complete and recording.ended, (at, recording.missing)
            assert [len(recording[name]) for name in "art"] == [4, 4, 4]
        assert byname.repair(directory / "run.h5") == (left == {"run.h5.log"})
    assert states == {"run.h5", "run.h5.log"}


def test_each_signal_that_came_is_raised_once(alarms):
    seen = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append("alarm"))
    with pytest.raises(KeyboardInterrupt):
        with defer_signals(also_repeated=True):
            with defer_signals(also_repeated=True):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGALRM)
                assert seen == []
            assert seen == []
    assert seen == ["alarm"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_death_of_a_worker_comes_up_after_the_work():
    def died(number, frame):
        raise RuntimeError("DataLoader worker exited")

    before = signal.signal(signal.SIGCHLD, died)
    done = []
    try:
        with pytest.raises(RuntimeError, match="worker"):
            with defer_signals(also_repeated=True):
                signal.raise_signal(signal.SIGCHLD)
                done.append(True)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert done == [True]


def test_an_error_of_the_work_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        with defer_signals(also_repeated=True):
            1 / 0


def test_another_thread_leaves_the_handlers_as_they_are():
    found = []

    def work():
        with defer_signals(also_repeated=True):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_who_presses_ctrl_c_again_is_heard_at_once_unless_that_must_wait_too():
    done = []
    for also_repeated in (False, True):
        with pytest.raises(KeyboardInterrupt):
            with defer_signals(also_repeated=also_repeated):
                signal.raise_signal(signal.SIGINT)
                done.append("once")
                signal.raise_signal(signal.SIGINT)
                done.append("twice")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert done == ["once", "once", "twice"]


@pytest.mark.parametrize("inner", [False, True])
def test_who_presses_it_again_is_heard_at_once_however_many_wait(inner):
    done = []
    with pytest.raises(KeyboardInterrupt):
        with defer_signals(), defer_signals(), defer_signals():
            with defer_signals(also_repeated=inner):
                signal.raise_signal(signal.SIGINT)
                done.append("once")
                signal.raise_signal(signal.SIGINT)
                done.append("twice")
            done.append("after what waits for both")
    assert done == (["once", "twice"] if inner else ["once"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_was_set_in_between_waits_as_well():
    seen = []
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append("before"))
    with defer_signals():
        signal.signal(signal.SIGALRM, lambda number, frame: seen.append("between"))
        with defer_signals():
            signal.raise_signal(signal.SIGALRM)
            assert seen == []
        assert seen == ["between"]
    signal.signal(signal.SIGALRM, before)


def test_a_handler_that_was_set_meanwhile_stays():
    def mine(number, frame):
        pass

    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    with defer_signals():
        signal.signal(signal.SIGALRM, mine)
    assert signal.getsignal(signal.SIGALRM) is mine
    signal.signal(signal.SIGALRM, before)
