"""Arrivals: notes on modules that are assigned to, or added to, a model while something is attached to it."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from byname.model.module_tree import inside_of, modules_by_path
from byname.watch.attachment import Running
from byname.watch.late_binding import Binding

__all__ = ["Arrivals"]


class Arrivals:
    """Notes modules that are assigned to a submodule of an observed model, or added to one.

    PyTorch's registration hook is called for the whole process; modules of other models are ignored.

    Args:
        model: the observed model.
        running: the attachment.
        binding: the operations that the attachment observes.
    """

    def __init__(self, model: nn.Module, running: Running, binding: Binding) -> None:
        self._model = model
        self._running = running
        self._binding = binding
        self._handle: Any = None
        self._let_go: Any = None

    @cached_property
    def _paths(self) -> dict[int, str]:
        """The paths of the modules, by ``id``. Made when the first new module arrives, before it is registered."""
        return {id(module): path for path, module in modules_by_path(self._model).items()}

    def install(self) -> None:
        """Register PyTorch's hook on the registration of modules."""
        held = weakref.WeakMethod(self._arrives)  # weak, so that the model can be freed

        def arrives(module: nn.Module, name: str, arriving: nn.Module | None) -> None:
            told = held()
            if told is not None:
                told(module, name, arriving)

        self._handle = register_module_module_registration_hook(arrives)
        self._let_go = weakref.finalize(self, self._handle.remove)
        self._let_go.atexit = False

    def remove(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._let_go is not None:
            self._let_go.detach()  # otherwise each pause of an attachment would leave a finalizer while the model lives
            self._let_go = None

    def _arrives(self, module: nn.Module, name: str, arriving: nn.Module | None) -> None:
        around = self._paths.get(id(module))
        if around is None or arriving is None:
            return
        path = f"{around}.{name}" if around else name
        known = self._paths.get(id(inside_of(arriving)[0]))
        if known is None:
            self._running.notes.setdefault(
                f"`{path}`: a module was put there while this is attached, and is not told of; attach again"
            )
        elif known != path:
            self._running.notes.setdefault(
                f"`{path}`: `{known or 'forward'}` was put there while this is attached, and goes by the path it had"
            )
        self._binding.leave_out(arriving)
