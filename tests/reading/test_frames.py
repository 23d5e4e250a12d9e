"""Which variables a running function has, read while it runs and while other threads read them, too."""

import os
import sys
import threading

import pytest

from byname.reading.frames import locals_of


@pytest.fixture
def threads_take_turns():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_function_that_assigns_and_deletes_is_read_from_another_thread(threads_take_turns):
    frames, failures = [], []

    def read(frame):
        try:
            return dict(locals_of(frame))
        except RuntimeError as error:
            failures.append(error)

    def runs(frames, rounds):
        frames.append(sys._getframe())
        one = two = three = four = 1
        for _ in range(rounds):
            x = one + two + three + four
            read(frames[0])
            del x
            read(frames[0])

    running = threading.Thread(target=runs, args=(frames, 10_000))
    running.start()
    while running.is_alive():
        if frames and (found := read(frames[0])):
            assert {"frames", "rounds"} <= found.keys() or not running.is_alive()
    running.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_a_process_that_was_forked_while_another_thread_looked_can_look():
    held, free = threading.Event(), threading.Event()

    def stop(frame, event, called):
        if event == "c_call" and called.__name__ == "items":  # it reads the variables just now
            held.set()
            free.wait(10)

    def holds():
        sys.setprofile(stop)
        locals_of(sys._getframe())
        sys.setprofile(None)

    thread = threading.Thread(target=holds)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if not child:
        os._exit(7 if dict(locals_of(sys._getframe()))["child"] == 0 else 1)
    free.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_namespace_that_is_no_dict_is_not_asked():
    class Namespace:
        def __init__(self):
            self.asked = []

        def __getitem__(self, name):
            if name == "look":
                return lambda: self.asked.clear() or locals_of(sys._getframe(1))
            raise KeyError(name)

        def __setitem__(self, name, value):
            self.found = value

        def items(self):
            self.asked.append("items")
            return []

    namespace = Namespace()
    exec("found = look()", {}, namespace)
    assert (namespace.found, namespace.asked) == ([], [])
