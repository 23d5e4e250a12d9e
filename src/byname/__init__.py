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

import re
from typing import Any

__version__ = "0.2.0"

with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as _stub:  # noqa: PTH123 - pathlib is slow to import
    _MODULES = {name: module for module, name in re.findall(r"from (byname\.\S+) import (\w+)", _stub.read())}
"""The public names, with the modules that have them: `__init__.pyi` says it to type checkers, and here."""

_PARTS = ("analyse", "plug", "watch")
"""Parts of the package that are reached as attributes."""

__all__ = sorted(_MODULES)
_MODULES["load_ipython_extension"] = "byname.plug.magics"
# What the rewritten code of a watched method calls, wherever that code is.
_MODULES |= dict.fromkeys(("_enter", "_shown", "_traced"), "byname.watch.variables.subscribe")


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
