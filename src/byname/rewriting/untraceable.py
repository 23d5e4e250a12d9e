"""Why can a model not be traced? The statement of the user where tracing stopped, and what is wrong with it."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any

from torch import nn

from byname.errors import RewriteError
from byname.rewriting.proxies import Untraceable
from byname.source.location import is_torch

__all__ = ["untraceable"]

_MODULES = os.path.join(os.path.dirname(nn.__file__), "modules", "")  # noqa: PTH118, PTH120 - as code objects have it
_INSTEAD = "byname.interject(model, where, interjection) works on the model as it is"


def untraceable(model: nn.Module, error: BaseException) -> RewriteError:
    """The error that tells why a forward could not be traced.

    Args:
        model: the one that was to be rewritten.
        error: what came out of tracing it.
    """
    where = _statement(error)
    if isinstance(error, Untraceable):
        reason = str(error)
    elif isinstance(error, AttributeError | TypeError) and "Proxy" in str(error):
        reason = f"needs more of a value than a graph can tell before the model runs ({error})"
    else:
        reason = f"raises {type(error).__name__} where its values are not known yet: {error}"
    return RewriteError(f"{type(model).__name__} cannot be rewritten: {where} {reason}. {_INSTEAD}")


def _of_python(frame: FrameType) -> bool:
    """Whether the code is Python's own, or NumPy's: it is not what can be changed."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names or package == "numpy"


def _statement(error: BaseException) -> str:
    """The last statement of the user's: ``` `if x.sum() > 0:` in Model.forward (model.py:14)```; or of ``torch.nn``."""
    found: tuple[CodeType, int] | None = None
    inside: tuple[CodeType, int] | None = None
    trace: Any = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_torch(code.co_filename) and not _of_python(trace.tb_frame):
            found = code, trace.tb_lineno
        elif code.co_filename.startswith(_MODULES):
            inside = code, trace.tb_lineno
        trace = trace.tb_next
    found = found or inside
    if found is None:
        return "its forward"
    code, line = found
    text = linecache.getline(code.co_filename, line).strip()
    place = f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"  # noqa: PTH119 - may be no path
    return f"`{text}` in {place}" if text else place
