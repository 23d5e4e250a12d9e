import signal
import threading

import journal_runs as runs
import pytest

from byname.recording.stores.journal.undisturbed import undisturbed


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
    with undisturbed():
        journaled, file = runs.write(tmp_path / "run.h5", 1)
    interrupted = 0
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number in range(2, 120):
        try:
            try:
                with undisturbed():
                    alarms(0.00002 * number)
                    runs.advance(file, number)
                    file.flush()
                    journaled.commit()
            finally:
                alarms(0)
        except Alarm:
            interrupted += 1
        assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    runs.end(journaled, file)
    assert interrupted > 10
    assert runs.read(tmp_path / "run.h5", natively=True) == 119


def test_each_signal_that_came_is_raised_once(alarms):
    seen = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append("alarm"))
    with pytest.raises(KeyboardInterrupt):
        with undisturbed():
            with undisturbed():
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
            with undisturbed():
                signal.raise_signal(signal.SIGCHLD)
                done.append(True)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert done == [True]


def test_an_error_of_the_work_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        with undisturbed():
            1 / 0


def test_another_thread_leaves_the_handlers_as_they_are():
    found = []

    def work():
        with undisturbed():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
