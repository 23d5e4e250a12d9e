"""Cells: how people know a file; a cell of a notebook is no file to them, and has a number."""

from __future__ import annotations

import os
import sys
from typing import Any


def running_shell() -> Any:
    """Return the shell of IPython that runs in this process; None outside of notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if shell is None else shell()


def shown_file(file: str) -> str:
    """Return a file without its folders, and a cell of a notebook as ``In[5]``, by the last time that it ran.

    >>> shown_file("/home/you/train.py")
    'train.py'
    """
    compiler = getattr(running_shell(), "compile", None)
    named = getattr(compiler, "format_code_name", None)
    cell = None if named is None else named(file)
    return os.path.basename(file) if cell is None else str(cell[1])  # noqa: PTH119 - not a path for exec
