"""Quiet: contexts and marks under which byname reads without disturbing the program."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from byname.errors import NotInstalledError

OLDEST = (2, 10)
"""The first version of PyTorch that can read a saved tensor of a graph without unpacking it."""


def check_version(version: str) -> None:
    """Raise a `NotInstalledError` if this version of PyTorch is too old for byname to read its graphs."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise NotInstalledError(
            f"byname needs PyTorch {needed} or newer, but found {version}: pip install --upgrade 'torch>={needed}'"
        )


check_version(torch.__version__)

DisableTorchFunction = torch._C.DisableTorchFunction
"""Context under which reading a tensor calls neither its class's ``__torch_function__`` nor an active mode's."""


def modes_disabled() -> AbstractContextManager[object]:
    """Return a context without dispatch modes. PyTorch's own loads much, so it is entered only if there are any."""
    before_dispatch = torch._ops._len_torch_dispatch_stack_pre_dispatch()  # type: ignore[no-untyped-call]
    on = before_dispatch or torch._C._len_torch_dispatch_stack()
    return _disable_current_modes() if on else nullcontext()


torch_function_disabled: Callable[[], bool] = torch._C._is_torch_function_all_disabled
"""Returns whether this thread is inside `DisableTorchFunction`, where byname computes and not the program."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the garbage collector from running while byname makes many objects at once.

    On a graph of 100,000 nodes the collector would take ten times as long as byname's own work.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


F = TypeVar("F", bound=Callable[..., Any])


def dynamo_skip(function: F) -> F:
    """Mark a function, so that ``torch.compile`` neither traces it nor compiles the functions that it calls.

    ``torch.compiler.disable`` does the same, but imports the compiler. Without the mark, a function mode around a
    compiled function causes several compilations of the mode's own code (PyTorch 2.13).
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    run_eagerly(function)
    return function


def run_eagerly(function: Any) -> None:
    """Have the compiler run a function, and all that it calls, eagerly where it is no traced part of its caller."""
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
