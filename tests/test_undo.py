import signal
import threading

import pytest

from byname.undo import Blocks, Patch, Shared, Undo


class Failing:
    """A step that raises for as long as it is told to."""

    def __init__(self, done, name, *errors):
        self.done, self.name, self.errors = done, name, [*errors]

    def __call__(self):
        self.done.append(self.name)
        if self.errors:
            raise self.errors.pop(0)


def test_a_step_that_raises_stops_no_other_and_the_first_error_is_raised():
    done, undo = [], Undo()
    undo.add(Failing(done, "a", ValueError("a")))
    undo.add(Failing(done, "b"))
    undo.add(Failing(done, "c", MemoryError("c")))
    with pytest.raises(MemoryError, match="c"):
        undo()
    assert done == ["c", "b", "a"]
    undo()
    assert done == ["c", "b", "a", "c", "a"]
    undo()
    assert len(done) == 5


def test_a_signal_comes_up_when_all_steps_are_done():
    done, undo = [], Undo()
    undo.add(done.append, "last")
    undo.add(signal.raise_signal, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        undo()
    assert done == ["last"]
    assert len(undo) == 0


def test_a_step_that_asks_for_all_of_them_does_not_run_them_again():
    done, undo = [], Undo()
    undo.add(done.append, 1)
    undo.add(lambda: undo())
    undo.add(done.append, 2)
    undo()
    assert done == [2, 1]


def test_what_is_registered_is_taken_off_by_its_handle():
    class Handle:
        def remove(self):
            gone.append(True)

    gone, undo = [], Undo()
    undo.register(Handle)
    with pytest.raises(ZeroDivisionError):
        undo.register(lambda: 1 / 0)
    undo()
    assert gone == [True]


def test_a_block_that_is_not_entered_is_left():
    done, blocks = [], Blocks()

    def begin(block):
        block.add(done.append, "undone")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        blocks.enter(begin)
    assert done == ["undone"]
    blocks.leave()
    assert done == ["undone"]


def test_a_signal_while_a_block_is_entered_leaves_it():
    done, blocks = [], Blocks()

    def begin(block):
        block.add(done.append, "undone")
        signal.raise_signal(signal.SIGINT)
        done.append("entered")

    with pytest.raises(KeyboardInterrupt):
        blocks.enter(begin)
    assert done == ["entered", "undone"]


def test_the_block_entered_last_in_this_thread_is_left_first():
    done, blocks = [], Blocks()
    blocks.enter(lambda block: block.add(done.append, "outer"))
    blocks.enter(lambda block: block.add(done.append, "inner"))
    thread = threading.Thread(target=blocks.enter, args=(lambda block: block.add(done.append, "elsewhere"),))
    thread.start()
    thread.join()
    blocks.leave()
    blocks.leave()
    assert done == ["inner", "outer"]
    blocks.leave()  # a generator may be closed by another thread than the one that entered
    assert done == ["inner", "outer", "elsewhere"]


def test_a_block_that_could_not_be_left_is_left_the_next_time_and_another_threads_is_not():
    done, blocks = [], Blocks()
    thread = threading.Thread(target=blocks.enter, args=(lambda block: block.add(done.append, "elsewhere"),))
    thread.start()
    thread.join()
    blocks.enter(lambda block: block.add(Failing(done, "mine", ConnectionError())))
    with pytest.raises(ConnectionError):
        blocks.leave()
    blocks.leave()
    assert done == ["mine", "mine"]


class Home:
    """A module or class of which an attribute is wrapped."""

    @staticmethod
    def greet():
        return "hello"


def louder(greet):
    return lambda: greet().upper()


def test_what_is_shared_is_in_place_from_the_first_holder_to_the_last():
    done = []
    shared = Shared(lambda: done.append("on"), lambda: done.append("off"))
    shared.hold("a")
    shared.hold("b")
    shared.hold("a")
    shared.release("a")
    assert (done, shared.holders) == (["on"], ["b"])
    shared.release("b")
    assert (done, shared.holders) == (["on", "off"], [])


def test_what_could_not_be_put_in_place_has_no_holder():
    done = []

    def install():
        raise ConnectionError

    shared = Shared(install, lambda: done.append("off"))
    with pytest.raises(ConnectionError):
        shared.hold("a")
    assert (done, shared.holders) == (["off"], [])


def test_a_removal_that_was_stopped_can_be_done_again():
    done = []
    shared = Shared(lambda: done.append("on"), Failing(done, "off", ConnectionError()))
    shared.hold("a")
    with pytest.raises(ConnectionError):
        shared.release("a")
    shared.release("a")
    assert done == ["on", "off", "off"]


def test_a_holder_that_the_collector_frees_meanwhile_is_released():
    shared = Shared(lambda: shared.release("freed"), lambda: None)
    shared.hold("kept")
    assert shared.holders == ["kept"]


def test_a_patch_is_restored_unless_something_else_has_replaced_it(monkeypatch):
    patch, original = Patch(Home, "greet", louder), Home.greet
    patch.install()
    ours = Home.greet
    patch.install()
    assert (Home.greet, Home.greet()) == (ours, "HELLO")
    patch.hide()
    assert Home.greet is original
    patch.show()
    assert Home.greet is ours
    patch.remove()
    patch.show()
    assert Home.greet is original

    patch.install()
    monkeypatch.setattr(Home, "greet", theirs := staticmethod(lambda: "good evening"))
    patch.remove()
    assert vars(Home)["greet"] is theirs


def test_a_patch_of_what_is_not_there_does_nothing():
    patch = Patch(Home, "leave", louder)
    patch.install()
    patch.hide()
    patch.show()
    patch.remove()
    assert not hasattr(Home, "leave")
