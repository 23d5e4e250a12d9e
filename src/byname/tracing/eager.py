"""How are the values inside of compiled functions got at? While something is attached, these run eagerly.

Leaving the rest compiled would miss values without a word. The compiler does not look whether hooks have come since it
compiled (pytorch#117758), and it shares the code of one block with the other blocks of its class: of three blocks with
a hook in the second, the second runs the code that was made for the first (PyTorch 2.13). Nor would anything be gained
but in long runs: everything would be compiled anew for each attachment, and once more after its removal. So the
compiler steps aside in the whole process, and what it has compiled is used again once nothing is attached any more.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.model.module_tree import notes_on_scripts
from byname.reading.modules import modules_in
from byname.reading.quiet import dynamo_skip
from byname.tracing.muted import active_modes

__all__ = ["EAGERLY", "RUN_EAGERLY", "Uncompiled", "notes_on_compiled"]

_CHOICE = "_callback_from_stance"
"""What PyTorch's compiler calls to find out whether a compiled function is to run compiled (2.6 to 2.13)."""

RUN_EAGERLY = (
    "compiled functions and modules run eagerly while this is attached, in the whole process: nothing could be seen "
    "inside of them. Results may differ in the last digits. After remove() they run as compiled before"
)


class Uncompiled:
    """Has compiled functions run eagerly while one attachment is in place, and says so if there are any.

    Args:
        model: the model as it was given, with the wrappers around it.
        notes: what the handle shows; that something runs eagerly is added when it is called.
    """

    def __init__(self, model: nn.Module, notes: dict[str, None]) -> None:
        self._model = model
        self._notes = notes
        self._note: Callable[[], None] | None = None
        self._let_go: weakref.finalize[Any, Any] | None = None

    def install(self) -> None:
        """From now on compiled functions run eagerly.

        Raises:
            BadArgumentError: inside of a compiled function, of which the rest would run compiled.
        """
        notes = self._notes

        def note() -> None:
            notes.setdefault(RUN_EAGERLY)

        self._note = note
        # a model that goes away while watched is not kept by this process, and takes the attachment with it
        self._let_go = weakref.finalize(self, EAGERLY.release, note)
        self._let_go.atexit = False
        EAGERLY.hold(note)

    def remove(self) -> None:
        """They run compiled again, if no other attachment is in place."""
        if self._note is not None:
            EAGERLY.release(self._note)
        if self._let_go is not None:
            self._let_go.detach()
        self._note = self._let_go = None


def notes_on_compiled(model: nn.Module) -> Iterator[str]:
    """What to tell about what is compiled or scripted in a model that is watched."""
    yield from notes_on_scripts(model)
    if _has_compiled(model):
        yield RUN_EAGERLY


class _Eagerly:
    """Keeps the compiler from running compiled functions; process-wide as the compiler is, owned by who holds it.

    A stance that the program sets meanwhile changes nothing, and is the program's own afterwards.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders: list[Callable[[], None]] = []
        self._arrival: _Arrival | None = None
        self._before: Any = None
        self._stance: Any = None
        self._chosen: Any = None
        self._choose: Any = None

    @property
    def on(self) -> bool:
        """Whether nothing runs compiled."""
        return bool(self._holders)

    def hold(self, note: Callable[[], None]) -> None:
        """Compiled functions run eagerly from now on, also those whose compiler is imported later.

        Args:
            note: the holder's own function, which is called when a compiled function is called.
        """
        with self._lock:
            try:
                self._holders.append(note)
                if self._arrival is None and self._stance is None:
                    self._begin()
            except BaseException:
                self.release(note)
                raise

    def release(self, note: Callable[[], None]) -> None:
        """They run compiled again when the last holder has released them; does nothing the second time."""
        with self._lock:
            if note in self._holders:
                self._holders.remove(note)
            if not self._holders:
                self._end()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The same for what runs inside."""

        def note() -> None:
            """Nobody wants to know."""

        try:
            self.hold(note)
            yield
        finally:
            self.release(note)

    def _begin(self) -> None:
        if "torch._dynamo" in sys.modules:
            self._step_aside()
        else:
            self._arrival = _Arrival(self._arrived)
            sys.meta_path.insert(0, self._arrival)

    def _end(self) -> None:
        if self._arrival is not None and self._arrival in sys.meta_path:
            sys.meta_path.remove(self._arrival)
        self._arrival = None
        frames: Any = sys.modules.get("torch._dynamo.eval_frame")
        if self._stance is None or frames is None:
            return
        if frames._stance is self._stance:
            frames._stance = self._before
        # the program may have begun a stance meanwhile, at whose end it will put ours back: it must be harmless then
        vars(self._stance).update(vars(self._before))
        if self._choose is not None and vars(frames).get(_CHOICE) is self._choose:
            setattr(frames, _CHOICE, self._chosen)
        self._before = self._stance = self._chosen = self._choose = None

    def _arrived(self) -> None:
        with self._lock:
            if self._holders:
                self._step_aside()

    def _step_aside(self) -> None:
        frames: Any = sys.modules["torch._dynamo.eval_frame"]
        active = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
        if active is not None and active() not in (None, False):
            raise BadArgumentError(
                "attaching inside of a compiled function cannot show what that function does; attach before it is "
                "called, or mark the caller of attach with torch.compiler.disable"
            )
        self._before = frames._stance
        self._stance = frames.DynamoStance("force_eager")
        frames._stance = self._stance
        self._chosen = vars(frames).get(_CHOICE)
        if self._chosen is not None:
            self._choose = self._choosing(frames)
            setattr(frames, _CHOICE, self._choose)

    def _choosing(self, frames: Any) -> Callable[[Any], Any]:
        stop_counting = vars(frames).get("set_fullgraph_compiled_frame_count")

        @dynamo_skip
        def choose(callback: Any) -> Any:
            """What the compiler is to do in a call that begins: nothing, but for PyTorch's own need."""
            function = sys._getframe(1).f_locals.get("fn")
            if _is_of_pytorch(function) and _can_be_compiled(function):
                return callback
            if stop_counting is not None:
                stop_counting(-1)  # `fullgraph=True` raises where nothing was compiled, unless the stance says why
            if callback is not None:
                for note in tuple(self._holders):
                    note()
            return None

        return choose


EAGERLY = _Eagerly()
"""The one compiler of the process, and who keeps it from compiling."""


class _Arrival:
    """Notices that the compiler is imported, which happens with the first ``torch.compile``: by no means by us."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the compiler where it always is, and has `arrived` called when it has been loaded."""
        if name != "torch._dynamo":
            return None
        found = (one.find_spec(name, path, target) for one in [*sys.meta_path] if type(one) is not _Arrival)
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
    """Whether PyTorch compiles this for itself, as in `torch.cond`, whose gradients do not work otherwise."""
    module = getattr(function, "__module__", None) if callable(function) else None
    return isinstance(module, str) and not isinstance(function, nn.Module) and f"{module}.".startswith(_OF_PYTORCH)


def _can_be_compiled(function: Any) -> bool:
    """Whether PyTorch may compile something for itself: where it cannot, it runs eagerly if no gradients are wanted."""
    if active_modes() and torch.is_grad_enabled():
        raise BadArgumentError(
            f"PyTorch compiles {function.__module__}, and cannot do so with gradients while the operations of the "
            "module that calls it are watched; watch modules or local variables there instead"
        )
    return not active_modes()


def _has_compiled(model: nn.Module) -> bool:
    """Whether a module of the model, or a method that it has of its own, is compiled."""
    return any(
        module.__dict__.get("_compiled_call_impl") is not None
        or type(module).__name__ == "OptimizedModule"
        or any("_torchdynamo_orig_callable" in getattr(one, "__dict__", ()) for one in module.__dict__.values())
        for module in modules_in(model)
    )
