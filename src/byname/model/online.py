"""Online: whether calls that arrive one by one in the first run of a model are selected, decided once a place."""

from __future__ import annotations

from collections.abc import Callable

from byname.model.call_graph import ModelCall

Test = Callable[[ModelCall], bool]
"""Returns whether a place is selected; called once per place, in the order of the run. It may count its calls."""


class Online:
    """Decides for each call of a first run whether a selector selects it, once per place."""

    def __init__(self, test: Test) -> None:
        self._test = test
        self._answers: dict[str, bool] = {}

    def see(self, call: ModelCall) -> bool:
        """Return whether the selector selects this call, whose inputs and outputs may be missing."""
        answer = self._answers.get(call.path)
        if answer is None:
            answer = self._answers[call.path] = self._test(call)
        return answer
