"""How does a selector answer while a model runs for the first time? Call by call, and every place once."""

from __future__ import annotations

from collections.abc import Callable

from byname.model.call_graph import Call

__all__ = ["Online", "Test"]


Test = Callable[[Call], bool]
"""Says of each place, once and in the order of the run, whether it is meant. It may count."""


class Online:
    """Answers for each call of a first run whether a selector means it. A place that was told of keeps its answer."""

    def __init__(self, test: Test) -> None:
        self._test = test
        self._answers: dict[str, bool] = {}

    def see(self, call: Call) -> bool:
        """Whether the selector means this call.

        Args:
            call: a call; what goes in and comes out need not be known.
        """
        answer = self._answers.get(call.path)
        if answer is None:
            answer = self._answers[call.path] = self._test(call)
        return answer
