"""Every tensor of a running PyTorch program under the name the program itself gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byname.analyse.observe import observe
    from byname.autograd.graph import Graph, graph, path
    from byname.autograd.leaves import Leaf, Leaves, leaves
    from byname.autograd.saved import Saved, SavedTensor, saved
    from byname.diagnose.check import check
    from byname.diagnose.explain import explain
    from byname.diagnose.explaining import explaining
    from byname.diagnose.finding import Explanation, Finding
    from byname.drawing.draw import Drawing, draw
    from byname.edits.ablate import ablate
    from byname.edits.capture import Capture, capture
    from byname.edits.edited import edited
    from byname.edits.patch import patch, steer
    from byname.edits.skip import skip
    from byname.edits.summary import Summary, summary
    from byname.errors import BynameError
    from byname.memory.census import Census, census
    from byname.memory.growth import Growth, growth
    from byname.memory.holders import Holder, holders
    from byname.model.select import select
    from byname.model.selectors import Selector
    from byname.naming.name import Name
    from byname.naming.names import name, names
    from byname.naming.tags import tag
    from byname.recording.callbacks import stack, stack_padded
    from byname.recording.distributed.assemble import assembled
    from byname.recording.record import record
    from byname.recording.recorder import Recorder
    from byname.recording.recording import Recording, open
    from byname.recording.series import Series
    from byname.recording.stores.repair import repair
    from byname.reporting.page import report
    from byname.rewriting.rewrite import rewrite
    from byname.source.location import Site
    from byname.tracking.tracker import Tracker, track
    from byname.watch.attach import attach
    from byname.watch.interject import (
        ForwardInterjection,
        WrappedForwardBackwardInterjection,
        WrappedForwardInterjection,
        interject,
    )
    from byname.watch.points import Points, points
    from byname.watch.replace import replace

__version__ = "0.2.0"

__all__ = [
    "BynameError",
    "Capture",
    "Census",
    "Drawing",
    "Explanation",
    "Finding",
    "ForwardInterjection",
    "Graph",
    "Growth",
    "Holder",
    "Leaf",
    "Leaves",
    "Name",
    "Points",
    "Recorder",
    "Recording",
    "Saved",
    "SavedTensor",
    "Selector",
    "Series",
    "Site",
    "Summary",
    "Tracker",
    "WrappedForwardBackwardInterjection",
    "WrappedForwardInterjection",
    "ablate",
    "assembled",
    "attach",
    "capture",
    "census",
    "check",
    "draw",
    "edited",
    "explain",
    "explaining",
    "graph",
    "growth",
    "holders",
    "interject",
    "leaves",
    "name",
    "names",
    "observe",
    "open",
    "path",
    "patch",
    "record",
    "repair",
    "replace",
    "report",
    "rewrite",
    "points",
    "saved",
    "select",
    "skip",
    "stack",
    "stack_padded",
    "steer",
    "summary",
    "tag",
    "track",
]

_PLACES = {
    "BynameError": "byname.errors",
    "Capture": "byname.edits.capture",
    "Census": "byname.memory.census",
    "Drawing": "byname.drawing.draw",
    "Explanation": "byname.diagnose.finding",
    "Finding": "byname.diagnose.finding",
    "ForwardInterjection": "byname.watch.interject",
    "Graph": "byname.autograd.graph",
    "Growth": "byname.memory.growth",
    "Holder": "byname.memory.holders",
    "Leaf": "byname.autograd.leaves",
    "Leaves": "byname.autograd.leaves",
    "Name": "byname.naming.name",
    "Points": "byname.watch.points",
    "Recorder": "byname.recording.recorder",
    "Recording": "byname.recording.recording",
    "Saved": "byname.autograd.saved",
    "SavedTensor": "byname.autograd.saved",
    "Selector": "byname.model.selectors",
    "Series": "byname.recording.series",
    "Summary": "byname.edits.summary",
    "Site": "byname.source.location",
    "Tracker": "byname.tracking.tracker",
    "WrappedForwardBackwardInterjection": "byname.watch.interject",
    "WrappedForwardInterjection": "byname.watch.interject",
    "ablate": "byname.edits.ablate",
    "assembled": "byname.recording.distributed.assemble",
    "attach": "byname.watch.attach",
    "capture": "byname.edits.capture",
    "census": "byname.memory.census",
    "check": "byname.diagnose.check",
    "edited": "byname.edits.edited",
    "draw": "byname.drawing.draw",
    "explain": "byname.diagnose.explain",
    "explaining": "byname.diagnose.explaining",
    "graph": "byname.autograd.graph",
    "growth": "byname.memory.growth",
    "holders": "byname.memory.holders",
    "interject": "byname.watch.interject",
    "leaves": "byname.autograd.leaves",
    "load_ipython_extension": "byname.plug.magics",
    "name": "byname.naming.names",
    "names": "byname.naming.names",
    "observe": "byname.analyse.observe",
    "open": "byname.recording.recording",
    "patch": "byname.edits.patch",
    "path": "byname.autograd.graph",
    "record": "byname.recording.record",
    "repair": "byname.recording.stores.repair",
    "replace": "byname.watch.replace",
    "report": "byname.reporting.page",
    "rewrite": "byname.rewriting.rewrite",
    "points": "byname.watch.points",
    "saved": "byname.autograd.saved",
    "skip": "byname.edits.skip",
    "select": "byname.model.select",
    "stack": "byname.recording.callbacks",
    "summary": "byname.edits.summary",
    "steer": "byname.edits.patch",
    "stack_padded": "byname.recording.callbacks",
    "tag": "byname.naming.tags",
    "track": "byname.tracking.tracker",
    # Not for users: what the rewritten code of a watched method calls, wherever that code is.
    "_enter": "byname.watch.variables.subscribe",
    "_shown": "byname.watch.variables.subscribe",
    "_traced": "byname.watch.variables.subscribe",
}

_PARTS = ("analyse", "plug", "watch")
"""Parts of the package that are reached as attributes."""


def __getattr__(name: str) -> Any:
    """Imports what is asked for; the command line and the pytest plugin come without PyTorch until they need it."""
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"byname.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'byname' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted([*__all__, "analyse", "plug"])
