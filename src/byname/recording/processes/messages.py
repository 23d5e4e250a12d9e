"""How does a thread send a tensor to another rank, or wait for one, and how is that wait ended from outside?"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

__all__ = ["ACKNOWLEDGED", "break_off", "first_line", "receive", "send"]

_FOREVER = timedelta(days=3650)
"""No timeout: one would end the connections to all ranks, and a step may take as long as it likes."""
_TAG, _NEVER_SENT = 1, 2

ACKNOWLEDGED = torch.Size((1,))
"""The shape of the tensor by which rank 0 says that a parcel is stored."""


def send(group: Any, tensor: Tensor, to: int) -> None:
    """Returns when the tensor is on its way; RuntimeError when that rank is gone."""
    group.send([tensor], to, _TAG).wait(_FOREVER)


def receive(group: Any, tensor: Tensor, source: int) -> Tensor:
    """Fills the tensor with what comes; RuntimeError when that rank is gone. It must have exactly the size of it."""
    group.recv([tensor], source, _TAG).wait(_FOREVER)
    return tensor


def break_off(group: Any, other: int) -> None:
    """Breaks all connections of this rank in the group, so that whatever thread waits for one of them waits no more.

    To wait in vain for anything is the only way to do so that gloo leaves to Python (2.13 gives `Work` no ``abort``).
    """
    with suppress(RuntimeError):  # which is what is wanted
        group.recv([torch.empty(1, dtype=torch.uint8)], other, _NEVER_SENT).wait(timedelta(milliseconds=1))


def first_line(error: BaseException) -> str:
    """What gloo has to say, without the line of its source and its advice."""
    line = str(error).partition("\n")[0].partition(". This is")[0]
    return re.sub(r"^\[[^]]*\] ", "", line)[:200]
