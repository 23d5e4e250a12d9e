"""A handle puts its parts in place as a whole or not at all, and takes every part off that it can."""

import pytest

from byname.watch.handle import Handle


class Part:
    """A part of an attachment."""

    def __init__(self, *errors):
        self.errors, self.on = [*errors], False

    def install(self):
        self.on = True
        if self.errors and self.errors[0] == "install":
            self.errors.pop(0)
            raise ConnectionError

    def remove(self):
        if self.errors:
            raise self.errors.pop(0)
        self.on = False


def test_a_handle_takes_every_part_off_that_it_can_and_the_others_the_next_time():
    parts = [Part(), Part(MemoryError()), Part(ConnectionError()), Part()]
    handle = Handle([*parts], {}, {})
    handle.enabled = True
    with pytest.raises(ConnectionError):
        handle.remove()
    assert [part.on for part in parts] == [False, True, True, False]
    assert handle.removed
    handle.remove()
    assert not any(part.on for part in parts)


def test_a_handle_is_put_in_place_as_a_whole_or_not_at_all():
    parts = [Part(), Part("install"), Part()]
    handle = Handle([*parts], {}, {})
    with pytest.raises(ConnectionError):
        handle.enabled = True
    assert not any(part.on for part in parts)
    assert not handle.enabled
    handle.enabled = True
    assert all(part.on for part in parts)
    handle.remove()
    assert not any(part.on for part in parts)


def test_a_pause_that_was_stopped_can_be_made_and_ended():
    passing, kept_when_paused = Part(ConnectionError()), Part()
    handle = Handle([passing, kept_when_paused], {}, {}, kept_when_paused=(kept_when_paused,))
    handle.enabled = True
    with pytest.raises(ConnectionError):
        handle.paused = True
    assert handle.paused
    handle.paused = False
    assert passing.on and kept_when_paused.on
    handle.paused = True
    assert not passing.on and kept_when_paused.on
    handle.remove()
    assert not kept_when_paused.on
