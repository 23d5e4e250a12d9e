"""Plugin for pytest: a marker for tests that leave no tensors behind, and a fixture that tells what grows.

pytest imports this for every run of tests, so nothing of PyTorch is imported before a test asks for it.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from byname.memory.growth import Growth

_MARKER = "no_tensor_growth"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(bytes=0): fail when more bytes of tensors than this stay alive after the test and its fixtures",
    )


@pytest.fixture
def tensor_growth() -> Iterator[Growth]:
    """Yield `byname.growth`, already entered for this test; its ``.rows()`` show the growth so far."""
    from byname.memory.growth import growth

    with growth(collect=True) as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker(_MARKER)
    if marker is not None:
        item.stash[_CHECK] = _Check(item, _allowed(marker))
        item.session.stash[_CHECK] = item.stash[_CHECK]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    """Look before the first fixture of the test itself, and again after a wider one that was asked for late."""
    check = request.session.stash.get(_CHECK, None)
    if check is None or check.ended:
        return (yield)
    if fixturedef.scope == "function":
        check.begin()
        return (yield)
    try:
        return (yield)
    finally:
        if check.growth is not None:
            check.look()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    check = item.stash.get(_CHECK, None)
    if check is not None:
        check.begin()
    result = yield
    if check is not None:
        check.passed = True
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Forget the check, which has happened between the fixtures of the test itself and those of its module."""
    try:
        return (yield)
    finally:
        if item.stash.get(_CHECK, None) is not None:
            del item.stash[_CHECK], item.session.stash[_CHECK]
            for name in _OF_INSTANCE:  # for a plugin that runs the test again
                vars(item).pop(name, None)


@dataclass
class _Check:
    item: Any
    allowed: int
    bytes: int = 0
    growth: Growth | None = None
    passed: bool = False
    ended: bool = False

    def begin(self) -> None:
        """Take the first look, unless it has been taken; the last one comes when all that is set up now is gone."""
        if self.growth is None:
            _forget_errors()
            self.item.addfinalizer(self.end)
            self.look()

    def look(self) -> None:
        """Take a look: whatever is new from here on is growth."""
        from byname.memory.census import census
        from byname.memory.growth import growth

        self.growth = growth(collect=True).__enter__()
        self.bytes = census(names=False).bytes

    def end(self) -> None:
        """Take the last look, and fail if more is alive. After a failure a traceback holds the test's variables."""
        self.ended = True
        if self.growth is None or not self.passed:
            return
        from byname.memory.census import census

        _release_test(self.item)
        more = census(collect=True, names=False).bytes - self.bytes
        if more > self.allowed:  # otherwise things have been replaced
            self.growth.__exit__(None, None, None)
            if self.growth.items:
                bound = f"more than {self.allowed} bytes of " if self.allowed else ""
                text = f"{bound}tensors stay alive after the test: {self.growth}"
                pytest.fail(text, pytrace=False)


_CHECK = pytest.StashKey[_Check]()
_OF_INSTANCE = ("_instance", "_obj")


def _allowed(marker: pytest.Mark) -> int:
    known = {"bytes": 0, **marker.kwargs}
    if marker.args or len(known) > 1 or type(known["bytes"]) is not int or known["bytes"] < 0:
        given = ", ".join([*map(repr, marker.args), *(f"{key}={value!r}" for key, value in marker.kwargs.items())])
        raise pytest.UsageError(f"{_MARKER}({given}): it takes bytes=, an integer of at least 0")
    return int(known["bytes"])


def _forget_errors() -> None:
    """Let go of an earlier test's error; pytest does so itself a moment later, when it calls the test."""
    import sys

    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


def _release_test(item: Any) -> None:
    """Drop what pytest keeps of a test until its teardown is over, or longer: values of fixtures, logs, ``self``."""
    from _pytest.logging import caplog_records_key

    item.funcargs.clear()
    item.stash.get(caplog_records_key, {}).clear()
    for name in _OF_INSTANCE:
        setattr(item, name, None)
    gc.collect()
