"""Eager: compiled functions run eagerly while something is attached, so that hooks and modes see their values.

If others stayed compiled, values would be missed silently. The compiler does not check whether hooks were added since
it compiled (pytorch#117758), and modules of one class share compiled code: of three blocks with a hook in the second,
the second runs the code compiled for the first (PyTorch 2.13). Compiling around the hooks would only pay in long runs:
each attachment, and each removal, would compile everything anew. So the compiler is disabled in the whole process, and
its compiled code is used again once nothing is attached.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.model.module_tree import notes_on_scripts
from byname.reading.modules import modules_in
from byname.reading.quiet import dynamo_skip
from byname.tracing.muted import thread_state
from byname.tracking.depth import RECURSION_LIMIT
from byname.tracking.patches import WARNING_LINES
from byname.undo import Patch, Shared

_CHOICE = "_callback_from_stance"
"""The compiler's function that chooses whether a call runs compiled (PyTorch 2.6 to 2.13)."""

RUN_EAGERLY = (
    "while this is attached, compiled functions and modules run eagerly in the whole process, since nothing can be "
    "seen inside compiled code. Results may differ in the last digits. After remove() they run compiled again"
)


class EagerExecution:
    """Switch that makes compiled functions run eagerly for one attachment, and notes `RUN_EAGERLY` if one is called."""

    def __init__(self, notes: dict[Any, None]) -> None:
        self._note = partial(notes.setdefault, RUN_EAGERLY)
        weakref.finalize(self, EAGERLY.release, self._note).atexit = False  # also for a discarded attachment

    def install(self) -> None:
        """Make compiled functions run eagerly from now on.

        Raises:
            BadArgumentError: called inside a compiled function; that function would go on compiled.
        """
        EAGERLY.hold(self._note)

    def remove(self) -> None:
        """Let compiled functions run compiled again, unless another attachment is installed."""
        EAGERLY.release(self._note)


def notes_on_compiled(model: nn.Module) -> Iterator[str]:
    """Yield the notes about the scripted and compiled parts of a watched model."""
    yield from notes_on_scripts(model)
    if _has_compiled(model):
        yield RUN_EAGERLY


class _EagerSwitch(Shared):
    """Switch of the process that makes compiled functions run eagerly while it has holders, also one imported later.

    Meanwhile the recursion limit is higher, which makes room for the frames of hooks, and warnings have the lines of
    the program. Its tokens are functions without arguments, called whenever a compiled function is called. A stance
    that the program sets meanwhile has no effect until the last holder releases; then it applies.
    """

    def __init__(self) -> None:
        super().__init__(self._begin, self._end)
        self._arrival: _CompilerImportHook | None = None
        self._before: Any = None
        self._stance: Any = None
        self._choice: Patch | None = None

    @property
    def on(self) -> bool:
        """Whether compiled functions run eagerly now."""
        return bool(self.holders)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run compiled functions eagerly inside the block, which shows no notes."""
        block = EagerExecution({})
        try:
            block.install()
            yield
        finally:
            block.remove()

    def _begin(self) -> None:
        RECURSION_LIMIT.hold(self)
        WARNING_LINES.hold(self)
        if "torch._dynamo" in sys.modules:
            self._force_eager()
        else:
            self._arrival = _CompilerImportHook(self._arrived)
            sys.meta_path.insert(0, self._arrival)

    def _end(self) -> None:
        WARNING_LINES.release(self)
        RECURSION_LIMIT.release(self)
        if self._arrival in sys.meta_path:
            sys.meta_path.remove(self._arrival)
        self._arrival = None
        if self._stance is not None:
            frames: Any = sys.modules["torch._dynamo.eval_frame"]
            if frames._stance is self._stance:
                frames._stance = self._before
            # a stance that the program set meanwhile puts ours back when it ends: make ours equal to the original
            vars(self._stance).update(vars(self._before))
        if self._choice is not None:
            self._choice.remove()
        self._before = self._stance = self._choice = None

    def _arrived(self) -> None:
        with self.lock:
            if self.on:
                self._force_eager()

    def _force_eager(self) -> None:
        frames: Any = sys.modules["torch._dynamo.eval_frame"]
        active = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
        if active is not None and active() not in (None, False):
            raise BadArgumentError(
                "attaching inside a compiled function cannot show what that function does; attach before it is "
                "called, or mark the caller of attach with torch.compiler.disable"
            )
        self._before = frames._stance
        self._stance = frames.DynamoStance("force_eager")
        frames._stance = self._stance
        self._choice = Patch(frames, _CHOICE, lambda _: self._choosing(frames))
        self._choice.install()

    def _choosing(self, frames: Any) -> Callable[[Any], Any]:
        stop_counting = vars(frames).get("set_fullgraph_compiled_frame_count")

        @dynamo_skip
        def choose(callback: Any) -> Any:
            """Return None (run eagerly) for a call that begins, or `callback` for PyTorch's own functions."""
            function = sys._getframe(1).f_locals.get("fn")
            if _is_of_pytorch(function) and _can_be_compiled(function):
                return callback
            if stop_counting is not None:
                stop_counting(-1)  # else `fullgraph=True` raises because nothing was compiled
            if callback is not None:
                for note in self.holders:
                    note()
            return None

        return choose


EAGERLY = _EagerSwitch()
"""The switch of this process's compiler, and its holders."""


class _CompilerImportHook:
    """Import hook that calls a function once ``torch._dynamo`` has been imported; byname itself never imports it."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the compiler's usual import spec, with `arrived` called after the module has been loaded."""
        if name != "torch._dynamo":
            return None
        found = (one.find_spec(name, path, target) for one in [*sys.meta_path] if type(one) is not _CompilerImportHook)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_tell(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)
                load(module)
                self._arrived()

            loader.exec_module = load_and_tell
        return spec


_OF_PYTORCH = ("torch._higher_order_ops.", "torch.nn.attention.", "functorch.")


def _is_of_pytorch(function: Any) -> bool:
    """Return whether PyTorch itself compiles this function, as in `torch.cond`, whose gradients need the compiler."""
    module = getattr(function, "__module__", None) if callable(function) else None
    return isinstance(module, str) and not isinstance(function, nn.Module) and f"{module}.".startswith(_OF_PYTORCH)


def _can_be_compiled(function: Any) -> bool:
    """Return whether PyTorch may compile its own function now: not while operations are watched."""
    watched = bool(thread_state.modes) or thread_state.eager > 0
    if watched and torch.is_grad_enabled():
        itself = ", or flex_attention itself, as in `layers.0.flex_attention`" if "flex" in function.__module__ else ""
        raise BadArgumentError(
            f"PyTorch compiles {function.__module__}, and cannot do that with gradients while operations of the "
            f"calling module are watched; watch modules or local variables there instead{itself}; or run it under "
            "torch.no_grad()"
        )
    return not watched


def _has_compiled(model: nn.Module) -> bool:
    """Return whether a module of the model, or a method stored on the instance, is compiled."""
    return any(
        module.__dict__.get("_compiled_call_impl") is not None
        or type(module).__name__ == "OptimizedModule"
        or any("_torchdynamo_orig_callable" in getattr(one, "__dict__", ()) for one in module.__dict__.values())
        for module in modules_in(model)
    )
