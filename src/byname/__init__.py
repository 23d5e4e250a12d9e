"""See inside a running PyTorch program: every tensor under the name that the program gives it.

- Why backward failed, and what never learns: `explaining`, `explain`, `check`.
- What a tensor is called, and where it comes from: `name`, `names`, `tag`, `leaves`, `saved`, `graph`, `path`, `track`.
- What fills the memory, and who holds it: `census`, `growth`, `holders`.
- What values there are: `capture`, `record`, `open`, `observe`, `analyse`, `summary`, `points`, `draw`, `diff`.
- What if they were others: `interject`, `patch`, `ablate`, `steer`, `skip`, `sweep`, `edited`, `replace`, `rewrite`.
- Which places of a model these take: `select`.
- Pages, and other tools: `report`, `plug`.

``byname --help`` lists what needs no line of code in the program.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"

_PLACES = {
    "byname.analyse.observe": "observe",
    "byname.autograd.graph": "Graph graph path",
    "byname.autograd.leaves": "Leaf Leaves leaves",
    "byname.autograd.saved": "Saved SavedTensor saved",
    "byname.comparing.diff": "Diff diff",
    "byname.diagnose.check": "check",
    "byname.diagnose.explain": "explain",
    "byname.diagnose.explaining": "explaining",
    "byname.diagnose.finding": "Explanation Finding",
    "byname.drawing.draw": "Drawing draw",
    "byname.edits.ablate": "ablate",
    "byname.edits.capture": "Capture capture",
    "byname.edits.edited": "edited",
    "byname.edits.patch": "patch steer",
    "byname.edits.skip": "skip",
    "byname.edits.summary": "Summary summary",
    "byname.edits.sweep": "Sweep sweep",
    "byname.errors": "BynameError",
    "byname.memory.census": "Census census",
    "byname.memory.growth": "Growth growth",
    "byname.memory.holders": "Holder holders",
    "byname.model.select": "select",
    "byname.model.selectors": "Selector",
    "byname.naming.name": "Name tag",
    "byname.naming.names": "name names",
    "byname.recording.callbacks": "stack stack_padded",
    "byname.recording.distributed.assemble": "assembled",
    "byname.recording.finish": "finish repair",
    "byname.recording.record": "record",
    "byname.recording.recorder": "Recorder",
    "byname.recording.recording": "Recording open",
    "byname.recording.series": "Series",
    "byname.reporting.page": "report",
    "byname.rewriting.rewrite": "rewrite",
    "byname.source.location": "Site",
    "byname.tracking.tracker": "Tracker track",
    "byname.watch.attach": "attach",
    "byname.watch.interject": "ForwardInterjection WrappedForwardBackwardInterjection "
    "WrappedForwardInterjection interject",
    "byname.watch.points": "Points points",
    "byname.watch.replace": "replace",
}
"""The public names, by the module that has them; `__init__.pyi` says the same to type checkers."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}
__all__ = sorted(_MODULES)
_MODULES["load_ipython_extension"] = "byname.plug.magics"
# What the rewritten code of a watched method calls, wherever that code is.
_MODULES |= dict.fromkeys(("_enter", "_shown", "_traced"), "byname.watch.variables.subscribe")

_PARTS = ("analyse", "plug", "watch")
"""Parts of the package that are reached as attributes."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line loads PyTorch only when it needs it."""
    import gc
    from importlib import import_module

    if name in _PARTS:
        return import_module(f"byname.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'byname' has no attribute {name!r}")
    collects = gc.isenabled()
    try:
        gc.disable()  # else it would look at PyTorch's own objects several times meanwhile
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    finally:
        if collects:
            gc.enable()
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "analyse", "plug"])
