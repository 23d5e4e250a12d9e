"""Plants: tensors that a test has put into the program, their sizes, and the row that a census must have for each."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

# What a census may call a tensor that the program just holds: whether it is an input nobody can tell for certain.
HELD = ("other", "input")
STEP = 64 * 17  # so that every size can be made of elements of 1, 2, 4, 8 and 16 bytes, in rows of 4
FIRST = 65_536 + 64


@dataclass(frozen=True)
class Expected:
    """One storage: its size, that nothing else has, and what must be said of it.

    `words` is a pattern for the name or the holder. `where` is a file and its lines, empty where the place of birth is
    inside PyTorch. A storage that does not count (`counts`) may be missing: it is no memory, or has no storage.
    """

    place: str
    bytes: int
    kinds: tuple[str, ...]
    words: str
    where: tuple[str, int, int] | tuple[()]
    counts: bool
    memory: str | None


@dataclass(frozen=True)
class Plant:
    run: Callable[[], None]
    place: str


PLANTS: list[Plant] = []
RUNNING: list[Plant] = []
CLEANERS: list[Callable[[], None]] = []
EXPECTED: list[Expected] = []
_GROWN: list[tuple[str, str]] = []
_now: list[Plant] = []
_sizes = iter(range(FIRST, 1 << 30, STEP))


def plant(place):
    """Registers a function that leaves tensors in one kind of place."""

    def register(function):
        PLANTS.append(Plant(function, place))
        return function

    return register


def running(place):
    """The same for a function that must still be running: it is given what to call meanwhile, and returns its result."""

    def register(function):
        RUNNING.append(Plant(function, place))
        return function

    return register


def cleaner(function):
    """Registers what has to be done before the variables are deleted."""
    CLEANERS.append(function)
    return function


def room(words, kinds=HELD, *, itemsize=4, times=1, sited=True, counts=True, memory=None):
    """A number of elements that no other plant has; notes what must be said of storages (`times`) of that many."""
    size = next(_sizes)
    for _ in range(times):
        expect(size, words, kinds, sited=sited, counts=counts, memory=memory)
    return size // itemsize


def expect(size, words, kinds, *, sited=True, counts=True, memory=None):
    """Notes one more storage of a size that `room` gave."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    EXPECTED.append(Expected(_now[-1].place, size, kinds, words, _lines() if sited else (), counts, memory))


def _lines():
    code = _now[-1].run.__code__
    last = max(line for inner in _codes(code) for _, _, line in inner.co_lines() if line)
    return (code.co_filename, code.co_firstlineno, last)


def _codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _codes(constant)


def plant_all():
    """Plants everything that need not be running; the variables that this makes are remembered."""
    for one in PLANTS:
        own = sys.modules[one.run.__module__].__dict__
        before = set(own)
        _now.append(one)
        one.run()
        _now.pop()
        _GROWN.extend((one.run.__module__, name) for name in set(own) - before)


def while_running(action, rest=None):
    """Calls `action` inside all functions that must be running, one inside the other; what it returned."""
    rest = RUNNING if rest is None else rest
    if not rest:
        return action()
    _now.append(rest[0])
    try:
        return rest[0].run(lambda: while_running(action, rest[1:]))
    finally:
        _now.pop()


def uproot():
    """Gives back all that was planted: the variables, and what outlives variables."""
    for clean in CLEANERS:
        clean()
    for module, name in _GROWN:
        del sys.modules[module].__dict__[name]
    _GROWN.clear()


def facts():
    """What was expected, as plain data."""
    return [asdict(one) for one in EXPECTED]
