"""Own files: whether a file is part of byname, which is no place in the user's program."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = str(Path(__file__).parent.parent) + os.sep


def is_byname(filename: str) -> bool:
    """Return whether a file is part of byname."""
    return filename.startswith(_HERE)
