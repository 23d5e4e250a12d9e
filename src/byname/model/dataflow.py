"""Data flow: the calls that the data of another call reaches; distances are counted in elementary calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from byname.model.call_graph import Flow, ModelCall
from byname.model.operations import MOVES


def after(flow: Flow, these: Collection[int], others: Collection[int], within: int | None) -> frozenset[int]:
    """Return the indices of those of `these` that data from one of `others` reaches.

    A call is at distance 1 from another if an output of the other is one of its inputs; each elementary call in between
    adds 1.

    Args:
        flow: the call graph of one run.
        these: indices of calls.
        others: indices of calls.
        within: the largest distance; None for any.
    """
    reached = _reached_after(flow, others, lambda call: 1)
    return frozenset(index for index in these if reached.get(index, _UNREACHED) <= _most(within))


def before(flow: Flow, these: Collection[int], others: Collection[int], within: int | None) -> frozenset[int]:
    """Return the indices of those of `these` whose data reaches one of `others`; see `after` for the arguments."""
    reached = _reached_before(flow, others, lambda call: 1)
    return frozenset(index for index in these if reached.get(index, _UNREACHED) <= _most(within))


def next_after(flow: Flow, these: Collection[int], others: Collection[int]) -> frozenset[int]:
    """Return for each of `others` the one of `these` that its data reaches first.

    It is the nearest in steps, where functions that only give the same elements in another shape, order, precision or
    place are no steps; of several equally near, the first in the order of the run.
    """
    nearest = (_nearest(these, _reached_after(flow, (other,), _step), sign=1) for other in others)
    return frozenset(index for index in nearest if index is not None)


def first_before(flow: Flow, these: Collection[int], others: Collection[int]) -> frozenset[int]:
    """Return for each of `others` the nearest of `these` whose data reaches it; of several, the last in the run."""
    nearest = (_nearest(these, _reached_before(flow, (other,), _step), sign=-1) for other in others)
    return frozenset(index for index in nearest if index is not None)


def _nearest(these: Collection[int], reached: dict[int, int], *, sign: int) -> int | None:
    found = [(reached[index], sign * index) for index in these if reached.get(index, _UNREACHED) < _UNREACHED]
    return sign * min(found)[1] if found else None


def _step(call: ModelCall) -> int:
    return 0 if call.kind == "operation" and call.operation in MOVES else 1


def _reached_after(flow: Flow, others: Collection[int], step: Callable[[ModelCall], int]) -> dict[int, int]:
    """Return the distance of each call from the nearest of `others`, where each call is so many steps."""
    distances = _Distances(flow)
    reached = {}
    for index, begins in _moments(flow.calls):
        call = flow.calls[index]
        if begins:
            before = distances.least(call.inputs)
            reached[index] = before + 1
            if call.elementary:
                distances.lower(call.outputs, before + step(call))
        elif index in others:
            distances.lower(_own(call), 0)
    return reached


def _reached_before(flow: Flow, others: Collection[int], step: Callable[[ModelCall], int]) -> dict[int, int]:
    """Return the distance of each call to the nearest of `others` that its data reaches."""
    distances = _Distances(flow)
    reached = {}
    for index, begins in reversed(list(_moments(flow.calls))):
        call = flow.calls[index]
        if begins:
            if call.elementary:
                distances.lower_back(call.inputs, distances.least_back(call.outputs) + step(call))
            if index in others:
                distances.lower_back(call.inputs, 1)
        else:
            reached[index] = distances.least_back(_own(call))
    return reached


def _most(within: int | None) -> float:
    return _UNREACHED - 1 if within is None else within


_UNREACHED = 1 << 60


class _Distances:
    """The distance of each tensor from the start; a tensor made unseen is one step from those it was made from."""

    def __init__(self, flow: Flow) -> None:
        self._unseen = flow.unseen
        self._of: dict[int, int] = {}

    def least(self, numbers: Collection[int]) -> int:
        """Return the least distance of some tensors, going forward."""
        return min((self._at(number) for number in numbers), default=_UNREACHED)

    def _at(self, number: int) -> int:
        known: dict[int, int] = {}
        for one in sorted(self._unseen_behind(number)):  # the tensors that a tensor was made from have smaller ids
            origins = [known.get(origin, self._of.get(origin, _UNREACHED)) + 1 for origin in self._unseen[one]]
            known[one] = min(self._of.get(one, _UNREACHED), *origins)
        return known.get(number, self._of.get(number, _UNREACHED))

    def _unseen_behind(self, number: int) -> set[int]:
        found: set[int] = set()
        waiting = [number]
        while waiting:
            one = waiting.pop()
            if one in self._unseen and one not in found:
                found.add(one)
                waiting += self._unseen[one]
        return found

    def lower(self, numbers: Collection[int], distance: int) -> None:
        """Lower the distance of tensors to at most `distance`."""
        for number in numbers:
            self._of[number] = min(self._of.get(number, _UNREACHED), distance)

    def least_back(self, numbers: Collection[int]) -> int:
        """Return the least distance of some tensors, going backward."""
        return min((self._of.get(number, _UNREACHED) for number in numbers), default=_UNREACHED)

    def lower_back(self, numbers: Collection[int], distance: int) -> None:
        """Lower the distance of tensors, and of the tensors that they were made from, going backward."""
        waiting = [(number, distance) for number in numbers]
        while waiting:
            number, far = waiting.pop()
            if far < self._of.get(number, _UNREACHED):
                self._of[number] = far
                waiting += [(origin, far + 1) for origin in self._unseen.get(number, ())]


def _own(call: ModelCall) -> Collection[int]:
    """Return the outputs of a call without the inputs that it passes on; all outputs if it only passes inputs on."""
    return [number for number in call.outputs if number not in call.inputs] or call.outputs


def _moments(calls: tuple[ModelCall, ...]) -> Iterator[tuple[int, bool]]:
    """Yield (index, True) when a call begins and (index, False) when it ends, in the order of the run."""
    running: list[int] = []
    for index, call in enumerate(calls):
        while running and running[-1] != call.parent:
            yield running.pop(), False
        yield index, True
        running.append(index)
    while running:
        yield running.pop(), False
