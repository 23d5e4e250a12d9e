"""What the tests of watching have to give: their models with known truth, and all that must be left as it was."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "watch"))

from models import specimens  # noqa: E402
from watching import run, same, state, tensors  # noqa: E402

__all__ = ["run", "same", "specimens", "state", "tensors"]
