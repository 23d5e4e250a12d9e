"""Module sites: an interjection at a module, a hook of it, and the text by which a module shows its interjections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from byname.reading.quiet import dynamo_skip
from byname.rewriting.operation_sites import operations_of, turn_on, turned_off
from byname.rewriting.sites import InterjectionSite, entered_with, here
from byname.watch.boundary_edges import Entered
from byname.watch.inplace import overwrite


class ModuleSite(InterjectionSite):
    """An interjection at a module: a forward hook of it."""

    def put_on(self, module: nn.Module) -> None:
        """Hook the module. The handles are kept, since they keep numbers of hooks apart in a process that loads it."""
        self.handles = [module.register_forward_hook(self.hook, with_kwargs=True)]
        if module.__dict__.get("inplace") is True:
            self.handles.append(module.register_forward_pre_hook(self.part))
        if self.with_gradients:
            self.handles.append(module.register_forward_pre_hook(self.begin, with_kwargs=True))
            self.handles.append(module.register_forward_hook(self.end, always_call=True))

    @dynamo_skip
    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the inputs of a call that begins."""
        if not here.running:
            here.open.append((module, entered_with((*args, *kwargs.values()))))

    @dynamo_skip
    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forget the inputs of a call that has ended, also by an error."""
        if not here.running:
            here.open.end(module)

    def part(self, module: nn.Module, args: Any) -> Any:
        """Let a module that works in place work on a copy while the compiler traces; see `_reported_in_place`."""
        if not torch.compiler.is_compiling() or here.running or not args:
            return None
        here.parted.append(args[0])
        return (args[0].clone(), *args[1:])

    def hook(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Report the output of a call."""
        if here.running:
            return None
        if torch.compiler.is_compiling() and here.parted and module.__dict__.get("inplace") is True:
            new = self(self.path, module, (*args, *kwargs.values()), output)
            return here.parted.pop().copy_(output if new is None else new)
        entered = _entered(module) if self.with_gradients else None
        around = turned_off()
        try:
            new = self(self.path, module, (*args, *kwargs.values()) if kwargs else args, output, entered)
            if new is None:
                return None
            if module.__dict__.get("inplace") is not True or not args or args[0] is not output:
                return new
            if not _is_fixed(output):
                overwrite(output, new)
                return output
            return new
        finally:
            turn_on(around)


def _is_fixed(output: torch.Tensor) -> bool:
    """Return whether a tensor is a view that autograd does not let anyone write to a second time."""
    return torch.is_grad_enabled() and output.requires_grad and output._is_view()


@dynamo_skip
def _entered(module: nn.Module) -> Entered | None:
    """Return what was noted when the innermost call of a module began."""
    return next((entered for one, entered in reversed(here.open) if one is module), None)


class Shown:
    """The ``extra_repr`` of a module with interjections: its own, and the interjections."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = module.__dict__.get("extra_repr")

    @classmethod
    def of(cls, module: nn.Module) -> None:
        """Give it to a module, if it has none yet."""
        if not isinstance(module.__dict__.get("extra_repr"), cls):
            module.__dict__["extra_repr"] = cls(module)

    def __call__(self) -> str:
        """Return the text that ``print(model)`` shows of the module besides its children."""
        own = self.own() if self.own is not None else type(self.module).extra_repr(self.module)
        sites = ", ".join(f"{one.path}: {one.label}" for one in sites_of(self.module))
        return f"{own}, interjected={{{sites}}}".removeprefix(", ")


def sites_of(module: nn.Module) -> Iterator[InterjectionSite]:
    """Yield the interjections at a module and at its operations."""
    for hook in module._forward_hooks.values():
        if isinstance(site := getattr(hook, "__self__", None), ModuleSite):
            yield site
    operations = operations_of(module)
    if operations is not None:
        yield from operations.sites
