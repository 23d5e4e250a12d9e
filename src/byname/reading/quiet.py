"""Quiet: the contexts and marks under which byname reads and listens without disturbing the program."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from byname.errors import NotInstalledError

OLDEST = (2, 10)
"""The first version of PyTorch in whose graphs a saved tensor can be read without unpacking it."""


def check_version(version: str) -> None:
    """Refuse a version of PyTorch that is too old for byname to read its graphs.

    Raises:
        NotInstalledError: `version` is older than `OLDEST`.

    >>> check_version("2.13.0+cpu")
    """
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise NotInstalledError(
            f"byname needs PyTorch {needed} or newer, but found {version}: pip install --upgrade 'torch>={needed}'"
        )


check_version(torch.__version__)

DisableTorchFunction = torch._C.DisableTorchFunction
"""Context under which reading a tensor calls neither its class's ``__torch_function__`` nor an active mode's."""


torch_function_disabled: Callable[[], bool] = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
"""Whether this thread is inside `DisableTorchFunction`, where byname computes and not the program."""


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
    """Mark a function that PyTorch calls, so that ``torch.compile`` neither traces it nor compiles its callees.

    ``torch.compiler.disable`` would do so too, but imports the compiler. Without the mark, a function mode around a
    compiled function causes several compilations of the mode's own code (PyTorch 2.13).
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    compiler = getattr(torch._C, "_dynamo", None)
    frames = getattr(compiler, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # type: ignore[union-attr]
        strategy = frames._FrameExecStrategy(skip, skip)  # type: ignore[union-attr]
        frames.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
    return function
