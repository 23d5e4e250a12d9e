"""Interrupts: what `defer_signals` promises: signals wait for what is done under it, and then each is raised once."""

import signal
import threading

import pytest

from byname.reading.interrupts import defer_signals


def test_each_signal_that_came_is_raised_once():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append("alarm"))
    with pytest.raises(KeyboardInterrupt):
        with defer_signals(also_repeated=True):
            with defer_signals(also_repeated=True):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGALRM)
                assert seen == []
            assert seen == []
    assert seen == ["alarm"]
    signal.signal(signal.SIGALRM, before)
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
