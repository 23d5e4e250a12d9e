"""Attach: call a function with the values at places of a model; everything that observes a model is built on it.

`byname.model` resolves ``where`` to `Spot`s, one for each place. Each kind of place is observed in its own way: outputs
of modules by hooks, operations by a function mode, variables by rewritten source. Each value then passes
`ReportedPlace.report`, which calls the callback.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.module_tree import notes_on_fast_paths
from byname.model.selectors import Selector
from byname.model.spot import Resolution
from byname.model.where import resolve_where, unwrapped
from byname.tracing.eager import EagerExecution, notes_on_compiled
from byname.watch.attachment import Attachment, Before, Callback
from byname.watch.explicit_attention import checked_attention
from byname.watch.following import Following
from byname.watch.handle import Handle, HookSet
from byname.watch.late_binding import Binding
from byname.watch.parameters import States


def attach(
    model: nn.Module,
    where: Any,
    callback: Callback,
    *,
    example: Any = None,
    enabled: bool = True,
    attention: str | None = None,
    before: Before | None = None,
    begun: Callable[[int], object] | None = None,
    stamp: Callable[[int], object] | None = None,
    reads: bool = False,
    unmatched: Callable[[NoMatchError], None] | None = None,
    ended: Callable[[Collection[str], str], None] | None = None,
) -> Handle:
    """Call a function with every value at places of a model; the function may return a replacement.

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> handle = attach(model, "1", lambda event: event.value + 1)
        >>> bool((model(torch.ones(4, 2)) >= 1).all())
        True
        >>> handle.remove()

    Args:
        model: any module. A wrapper such as ``DistributedDataParallel`` is unwrapped.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        callback: a function that is called with an `Event`. Unless it returns None, its result replaces the value.
            Calls that it makes itself are not reported.
        example: arguments to run the model with once, to find its operations. Selectors that ask for the last match,
            or for the flow of data, need it.
        enabled: whether to install the attachment at once.
        attention: ``"explicit"`` runs calls of ``scaled_dot_product_attention`` (in `nn.MultiheadAttention`, of
            ``multi_head_attention_forward``) step by step if their scores or their pattern are requested:
            ``<module>.scaled_dot_product_attention.pattern``, ``select.attention.pattern``. Results are the same up to
            rounding; dropout draws other numbers.
        before: a function ``before(path, module, inputs, kwargs)`` that is called when a matched call begins. Its
            result becomes ``event.before``.
        begun: a function that is called with the number of each forward of the whole model when it begins, before any
            value of this forward is reported.
        stamp: a function that is called with the number of the forward when a value is computed whose gradient is
            requested. Its result becomes ``event.before`` of the gradient.
        reads: whether the callback only reads. Parameters are then reported at the end of a forward, as buffers are;
            otherwise at its beginning, so that they can be replaced.
        unmatched: a function that is called with the error for each operation that matches nothing. Without it the
            first forward raises one of these errors, and everything is removed.
        ended: a function that is called with places that report nothing any more, since the model was changed, and with
            the reason. Without it there is a warning.

    Returns:
        The handle of the attachment, which removes it.

    Raises:
        NoMatchError: nothing matches; for operations without an example this is raised at the end of the first forward.
        BadPathError, NotAModuleError, BadArgumentError: an argument is invalid.
    """
    root = unwrapped(model)
    if not callable(callback):
        raise BadArgumentError(f"a callback is a function of an event; {type(callback).__name__} cannot be called")
    attachment = Attachment(root, callback, before, reads=reads)
    attachment.stamp, attachment.begun, attachment.unmatched, attachment.ended = stamp, begun, unmatched, ended
    resolution, selectors = resolve_where(where, root, reads=reads)
    attachment.add_request(resolution, selectors)
    explicit = checked_attention(attention, resolution, selectors)
    binding = Binding(root, attachment, resolution, selectors, explicit=explicit)
    if example is None:
        binding.prepare_first_forward()
    else:
        binding.bind(example)
    return _handle(root, model, attachment, resolution, selectors, binding).switched(enabled)


def _handle(
    root: nn.Module,
    given: nn.Module,
    attachment: Attachment,
    resolution: Resolution,
    selectors: Sequence[Selector],
    binding: Binding,
) -> Handle:
    """Return the handle of an attachment that is not installed yet."""
    states = States(attachment)
    places = Following(root, attachment, states, resolution, selectors, binding)
    hook_sets: list[HookSet] = [EagerExecution(attachment.notes), attachment, states, places]
    of_places = (spot.module for spot in resolution.spots if spot.kind in ("module", "input"))
    hooked = {id(module) for module in (root, *binding.hooked, *of_places)}
    late_notes = partial(_model_notes, weakref.ref(root), weakref.ref(given), hooked, binding.needs_function_mode)
    kept_when_paused = (attachment, states)
    handle = Handle(
        hook_sets, attachment.paths, attachment.notes, attachment.requested, kept_when_paused, late_notes, places.forget
    )
    binding.missing = handle.remove_silently
    return handle


def _model_notes(
    root: weakref.ref[nn.Module], given: weakref.ref[nn.Module], hooked: set[int], mode: bool
) -> Iterator[str]:
    """Yield the notes on a whole model, and on its wrappers."""
    if (model := root()) is not None:
        yield from notes_on_fast_paths(model, hooked, mode=mode)
    if (model := given()) is not None:
        yield from notes_on_compiled(model)
