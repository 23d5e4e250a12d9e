"""Requested: the places an attachment was asked for; it warns at its end of those that have reported nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from torch import nn

from byname.model.methods import other_entry_points
from byname.model.spot import Spot
from byname.table import counted, listed
from byname.text import printable

WARNED = 8
"""The number of places that a warning names for one reason; notes name all."""

_METHODS = 4
"""The number of methods that a sentence names."""


class PlaceNote(NamedTuple):
    """A fact about a place that a handle notes; it becomes a sentence when the notes are read.

    >>> str(PlaceNote("fc1", "it was None"))
    '`fc1`: it was None'
    """

    place: str
    reason: str

    def __str__(self) -> str:
        return f"`{self.place}`: {self.reason}"


Notes: TypeAlias = "dict[str | PlaceNote, None]"
"""The notes of an attachment, in order: facts about places, and other sentences."""

NO_GRADIENT = "no gradient flows there, since the value does not require grad"
NO_GRADIENT_OF_PARAMETER = "no gradient flows there, since the parameter does not require grad"
NO_BACKWARD = "no backward reached the parameter"
MISSED = "it is a view of a tensor that was changed in place later; its gradient lacks what flowed through that change"
NOT_REACHED = "the first forward did not reach it"
"""A later forward may reach it."""


class Entry(NamedTuple):
    """One part of ``where``: in words, its places that have reported something, and why none has."""

    asked: str
    paths: tuple[str, ...]
    reason: str


class Requested:
    """The places that one attachment was asked to observe, and those that have reported something.

    Attributes:
        reached: the paths of the places that have reported something.
        missing_gradients: for each requested gradient whose value was reached, why it may not have come.
        missing_items: for each place that is an item, a sentence about what the value holds instead; an empty string
            once a value had the item.
        forwards: the number of outermost forwards that have begun.
        seen: a function that says why the user got nothing from a place that has reported, for example because a filter
            dropped it; it returns an empty string if the user got something.
        says: whether `end` notes and warns of places that have reported nothing.
        if_never_run: whether to warn even if no part of the model ran.
    """

    def __init__(self, model: nn.Module | None, notes: Notes) -> None:
        self.reached: set[str] = set()
        self.missing_gradients: dict[str, str] = {}
        self.missing_items: dict[str, str] = {}
        self.forwards = 0
        self.seen: Callable[[Entry], str] | None = None
        self.says = True
        self.if_never_run = False
        self._model = model
        self._notes = notes
        self._asked: list[tuple[str, Sequence[Spot], object]] = []
        self._matches: dict[str, set[object]] = {}

    def add_request(self, asked: str, spots: Sequence[Spot], selector: object = None) -> None:
        """Note one part of ``where``, in words, with its places or its selector."""
        self._asked.append((asked, spots, selector))

    @cached_property
    def _paths_of(self) -> dict[int, set[str]]:
        """The requested paths of each module, by its ``id``; made only for selectors."""
        found: dict[int, set[str]] = {}
        for spot in (spot for _, spots, _ in self._asked for spot in spots):
            if spot.kind == "module" and not spot.items:
                found.setdefault(id(spot.module), set()).add(spot.full)
        return found

    def add_match(self, path: str, key: object) -> None:
        """Note that `key`, a requested path or a selector, matches a place."""
        if path != key:
            self._matches.setdefault(path, set()).add(key)

    def renew(self, meant: Iterable[Sequence[Spot]]) -> None:
        """Note the places that the parts of ``where`` mean since modules of the model were replaced, in their order."""
        for at, (spots, (asked, before, selector)) in enumerate(zip(meant, self._asked, strict=False)):
            known = {one.full: one._replace(module=nn.Identity()) for one in before}  # frees replaced modules
            self._asked[at] = asked, [*(known | {one.full: one for one in spots}).values()], selector
            self.missing_items = {
                full: reason for full, reason in self.missing_items.items() if reason or full not in known
            }

    def matches_any(self, path: str, keys: Iterable[object]) -> bool:
        """Return whether one of these requested paths or selectors matches a place."""
        return not self._matches.get(path, set()).isdisjoint(keys)

    def select(self, path: str, module: nn.Module | None, selector: object) -> None:
        """Note that a selector matches a call; a module that is given may be reported under other paths as well."""
        for one in {path, *self._paths_of.get(id(module), ())}:
            self.add_match(one, selector)

    def entries(self) -> list[Entry]:
        return [self._entry(*one) for one in self._asked]

    def sentences(self) -> list[str]:
        """Return sentences about the parts that have reported nothing so far; none once the attachment has ended."""
        return sentences_by_reason("seen", self._silent())

    def end(self, *, enabled: bool, failed: bool) -> str:
        """Note the parts that reported nothing; return the text of a warning of them, to give after the removal.

        Nothing is noted of an attachment that was disabled; the text is empty if an error of the program ended it.
        """
        silent: list[tuple[str, str]] = []
        if self._model is not None and enabled:
            missed = {spot.full: spot for _, spots, _ in self._asked for spot in spots if spot.full not in self.reached}
            for note in [one for one in self._notes if type(one) is PlaceNote and one.place in missed]:
                if note.reason in (self.missing_items.get(note.place), NOT_REACHED):
                    del self._notes[note]  # the sentence below says the same
            for path, spot in missed.items() if self.reached else ():
                if spot.gradient and not spot.exact and self._of_gradient(spot) == NO_BACKWARD:
                    self._notes.setdefault(PlaceNote(path, NO_BACKWARD))
            silent = self._silent() if self.says else []
            self._notes.update(dict.fromkeys(sentences_by_reason("seen", silent)))
        warned = bool(silent) and not failed and (self.if_never_run or self.forwards > 0 or bool(self.reached))
        self._model, self.seen, self._asked = None, None, []
        return "; ".join(sentences_by_reason("seen", silent, WARNED)) if warned else ""

    def _silent(self) -> list[tuple[str, str]]:
        seen = self.seen
        judged = [(one.asked, one.reason or ("" if seen is None else seen(one))) for one in self.entries()]
        return [(asked, reason) for asked, reason in judged if reason]

    def _entry(self, asked: str, spots: Sequence[Spot], selector: object) -> Entry:
        keys = {selector} if selector is not None else {spot.full for spot in spots}
        reached = sorted(self.reached)
        paths = tuple(path for path in reached if path in keys or not keys.isdisjoint(self._matches.get(path, ())))
        # An item that two paths match is reported under one of them only.
        paths = paths or tuple(one.full for one in spots if self.missing_items.get(one.full) == "" and not one.gradient)
        return Entry(asked, paths, "" if paths else self._reason(spots))

    def _reason(self, spots: Sequence[Spot]) -> str:
        for spot in spots:
            if self.missing_items.get(spot.full):
                return self.missing_items[spot.full]
        for spot in spots:
            if spot.gradient and (reason := self._of_gradient(spot)):
                return reason
        if not self.forwards:
            return self.never_ran()
        ran = f"in {counted(self.forwards, 'forward')} of {type(self._model).__name__}"
        kinds = {spot.kind for spot in spots}
        if kinds == {"variable"}:
            method, name = spots[0].method, spots[0].name
            such = "such " * (spots[0].nth is not None)  # others may have been
            way = "it did not return" if name == "return" else f"no {such}assignment of `{name}` was reached"
            return f"{way} {ran}" if method == "forward" else f"{way} {ran}; {_not_called(spots[0])}"
        if kinds <= {"parameter", "buffer"}:
            return f"it was None {ran}" if kinds else f"nothing that was selected ran {ran}"
        if isinstance(spots[0].module, nn.modules.linear.NonDynamicallyQuantizableLinear):
            return "MultiheadAttention reads its weight and bias and never calls it"
        return f"it was not called {ran}"

    def never_ran(self) -> str:
        """Return why nothing was reported if no forward of the whole model ran, and what to do."""
        name = type(self._model).__name__
        if self.reached:
            return f"the forward of {name} never ran, though parts of it did; attach to the part that runs"
        found = other_entry_points(self._model) if self._model is not None else ()
        others = [f"`{one}`" for one in found if not one.startswith("_")][:_METHODS]
        hint = f"another method of it ({', '.join(others)}) or " if others else ""
        return (
            f"no forward of this {name} ran; if the program calls {hint}a part of it, attach to that part; if it "
            "runs a copy of the model, attach to the copy"
        )

    def _of_gradient(self, spot: Spot) -> str:
        if PlaceNote(spot.full, NO_GRADIENT_OF_PARAMETER) in self._notes:
            return NO_GRADIENT_OF_PARAMETER
        others = {"parameter": NO_BACKWARD, "buffer": "gradients of buffers are not observed"}
        return self.missing_gradients.get(spot.full, others.get(spot.kind, ""))


def sentences_by_reason(verb: str, found: Iterable[tuple[str, str]], most: int | None = None) -> list[str]:
    """Return one sentence for each reason, which names up to `most` places.

    >>> sentences_by_reason("seen", [("`a`", "it was None"), ("`b`", "it was None")])
    ['nothing was seen at `a`, `b`: it was None']
    """
    by_reason: dict[str, list[str]] = {}
    for asked, reason in found:
        by_reason.setdefault(reason, []).append(asked)
    return [
        f"nothing was {verb} at {listed(asked, most or len(asked))}: {reason}" for reason, asked in by_reason.items()
    ]


def _not_called(spot: Spot) -> str:
    """Return why a function may not have been called: a model of transformers computes attention by another one."""
    config = getattr(spot.module.__dict__.get("config"), "__dict__", {})
    backend = config.get("_attn_implementation_internal") or config.get("_attn_implementation")
    kind = str(backend).partition("_")[0]
    if not backend or not spot.method.endswith("_attention_forward") or spot.method.startswith(kind):
        return f"was `{spot.method}` called?"
    called = f", so that it calls `{kind}_attention_forward`" if kind in ("eager", "sdpa", "flash", "flex") else ""
    return f'the model has attn_implementation="{printable(str(backend))}"{called} and not `{spot.method}`'


def describe_request(asked: object) -> str:
    if isinstance(asked, type):
        return f"modules of class {printable(asked.__name__)}"
    if isinstance(asked, nn.Module):
        return f"this {printable(type(asked).__name__)}"
    return f"`{printable(str(asked)[:80])}`"
