"""Where was every tensor made and changed? A log of the calls that ran, kept while a `Tracker` watches.

A ``TorchFunctionMode`` sees every call of a PyTorch function. Of each it notes the thread's autograd sequence number
before and after, the caller's code object and instruction, and a weak reference to the result: a graph node is found
again by its sequence number, a leaf by its identity. Nothing is turned into text until somebody asks.

What a function mode cannot see is noted by three wrappers that are in place only while a tracker is: custom
``Function.apply``, ``nn.Parameter(...)`` and ``torch.from_numpy``. The old constructors (``torch.FloatTensor(...)``)
cannot be wrapped; such a tensor is found where ``requires_grad`` is set on it, and its making by reading the source.
"""

from __future__ import annotations

import bisect
import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from byname.card import is_tensor
from byname.errors import BadArgumentError, NotATensorError
from byname.naming.name import Name
from byname.naming.roots import scope_of
from byname.quiet import untouched
from byname.site import Site, Spot, is_torch, locate, statements_binding

__all__ = [
    "Call",
    "Mutation",
    "SiteLookup",
    "Tracker",
    "history_of",
    "name_at",
    "rebound_by",
    "site_of_tensor",
    "track",
]


class Call(NamedTuple):
    """One call that made graph nodes. Unresolved: `spot` turns it into a place in the source.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        code, instruction: the user's frame that called.
        function: what was called.
        result: the tensor that came out, weakly; None when it was none or several.
        module: the innermost running module, weakly.
        inside: whether the call came from inside a PyTorch module that the user's line called.
    """

    before: int
    after: int
    code: CodeType | None
    instruction: int
    function: Any
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None
    inside: bool

    def spot(self) -> Spot | None:
        """Where in the user's source the call stands; None when no line of the user's led to it."""
        return None if self.code is None else locate(self.code, self.instruction)


class _Made(weakref.ref):  # type: ignore[type-arg]
    """The making (or the first sight) of a tensor that no graph node belongs to; gone with the tensor."""

    __slots__ = ("code", "first_sight", "instruction", "key")

    key: int
    code: CodeType
    instruction: int
    first_sight: bool


class _Change(NamedTuple):
    code: CodeType | None
    instruction: int
    function: Any
    storages: tuple[weakref.ref[Any], ...]
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One in-place operation seen on a tensor's storage.

    Attributes:
        operation: the name of the function, such as ``add_`` or ``__setitem__``.
        before, after: the storage's version number around it.
        site: where it stands; None when no line of the user's led to it.
    """

    operation: str
    before: int
    after: int
    site: Site | None


class Tracker:
    """Watches the thread that entered it; see `track`. What it saw can be asked for as long as the tracker is held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._logs: list[_Log] = []
        self._entered: list[_Watch] = []
        _TRACKERS.add(self)

    def __enter__(self) -> Tracker:
        log = _Log(self._limit)
        self._logs.append(log)
        watch = _Watch(log)
        self._entered.append(watch)
        watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here = threading.get_ident()
        watch = next(watch for watch in reversed(self._entered) if watch.log.thread == here)
        self._entered.remove(watch)
        watch.stop()

    def mutations(self, tensor: torch.Tensor) -> tuple[Mutation, ...]:
        """The in-place operations seen on a tensor's storage, through whatever view, in the order they ran.

        >>> import byname, torch
        >>> with byname.track() as tracker:
        ...     h = torch.zeros(3)
        ...     h[0] = 1.0
        ...     h.view(3).add_(2)
        tensor([3., 2., 2.])
        >>> [change.operation for change in tracker.mutations(h)]
        ['__setitem__', 'add_']
        """
        if not is_tensor(tensor):
            raise NotATensorError(f"mutations() wants a tensor, and this is a {type(tensor).__name__}")
        with untouched():
            owner = _storage(tensor)
        found = [mutation for log in self._logs for mutation in log.mutations(owner)]
        return tuple(sorted(found, key=lambda mutation: mutation.after))

    def __repr__(self) -> str:
        calls = sum(len(log.calls) for log in self._logs)
        changes = sum(len(log.changes) for log in self._logs)
        return f"<byname.Tracker: {calls} calls that made nodes, {changes} in-place changes>"


_TRACKERS: weakref.WeakSet[Tracker] = weakref.WeakSet()
"""Every tracker somebody holds, so that `leaves` and the others find sites without being told."""


def track(*, limit: int = 1_000_000) -> Tracker:
    """Remembers where every operation of this thread stands in the source, while the ``with`` block runs.

    Graph nodes, leaves and in-place changes then have a `Site`: file, line, function, statement and variable, and an
    overwritten leaf has the name it had. Other functions use the log on their own. It costs about a microsecond a call
    of a PyTorch function and holds no tensor. A compiled function that has been compiled before stays compiled.

    Args:
        limit: how many calls, and how many in-place changes, to remember; older ones are forgotten first.

    Raises:
        BadArgumentError: `limit` is not a positive whole number.

    >>> import byname, torch
    >>> with byname.track():
    ...     weight = torch.ones(2, requires_grad=True)
    ...     loss = (weight * 3).sum()
    ...     site = byname.leaves(loss)[0].site
    >>> site.target
    'weight'
    """
    if type(limit) is not int or limit < 1:
        raise BadArgumentError(f"limit is how many calls to remember, a whole number from 1, and this is {limit!r}")
    return Tracker(limit)


class SiteLookup:
    """Finds the calls behind the nodes of one graph.

    Sequence numbers are counted by each thread for itself, and a node does not tell its thread. A log is used for a
    graph only when the graph's root, where it is alive, is known to be, or may be, a result of that log's thread.

    Args:
        roots: the living tensors at the root of the graph.
    """

    def __init__(self, roots: Iterable[torch.Tensor] = ()) -> None:
        logs = [log for tracker in _trackers() for log in tracker._logs if log.calls]
        verdicts = [_verdict(log, list(roots)) for log in logs]
        wanted = _CONFIRMED if _CONFIRMED in verdicts else _POSSIBLE
        self._logs = [log for log, verdict in zip(logs, verdicts, strict=True) if verdict == wanted]
        self._certain = wanted == _CONFIRMED or len({log.thread for log in self._logs}) == 1

    def __bool__(self) -> bool:
        return bool(self._logs)

    def call(self, node: Any) -> Call | None:
        """The call that made a node, or None when that is not known for certain."""
        number = node._sequence_nr()
        found = [call for log in self._logs if (call := log.call_at(number)) is not None]
        places = {(id(call.code), call.instruction) for call in found}
        if not found or (len(places) > 1 and not self._certain):
            return None
        return found[0]

    def spot(self, node: Any) -> Spot | None:
        """Where the call stands that made a node."""
        call = self.call(node)
        return None if call is None else call.spot()


_CONFIRMED, _POSSIBLE, _IMPOSSIBLE = range(3)


def _verdict(log: _Log, roots: Sequence[torch.Tensor]) -> int:
    verdict = _POSSIBLE
    known = False
    for root in roots:
        node = root.grad_fn
        call = None if node is None else log.call_at(node._sequence_nr())
        if call is None:
            continue
        known = True
        if call.result is not None and call.result() is root:
            return _CONFIRMED
        if call.result is not None:
            verdict = _IMPOSSIBLE
    if not known and threading.get_ident() != log.thread:
        return _IMPOSSIBLE
    return verdict


def site_of_tensor(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Site | None:
    """Where a tensor was made, as far as the trackers that are held know. To be called inside `untouched`."""
    spot, _ = _making(tensor, lookup)
    return None if spot is None else spot.site


def history_of(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Name | None:
    """The name that a tensor was given where it was made, though no variable holds it now.

    The name is not `exact`: it was that of a variable which has gone or holds something else. Whoever knows a statement
    that read this tensor and rebound the variable can say more.
    """
    spot, code = _making(tensor, lookup)
    return None if spot is None or code is None else name_at(spot, code)


def name_at(spot: Spot, code: CodeType) -> Name | None:
    """The name that the value of an expression was given by its statement."""
    target = spot.site.target
    if not spot.whole or target is None:
        return None
    at_module_level = code.co_name == "<module>"
    how = "global" if at_module_level else "local"
    if not target.isidentifier():
        how = "item" if target.endswith("]") else "attribute"
    return Name(target, how, "__main__" if at_module_level else scope_of(code), exact=False, site=spot.site)


def rebound_by(former: Name | None, call: Call, operand: int | None = None) -> Name | None:
    """The exact name that a tensor had, if this call took it from a variable and its statement rebound that variable.

    Args:
        former: the name that the tensor was given where it was made, if that is known.
        call: a call that used the tensor.
        operand: as which of the operands, where that is known.
    """
    spot = call.spot()
    if spot is None or call.code is None or spot.site.target is None:
        return None
    taken = spot.operands[operand] if operand is not None and operand < len(spot.operands) else None
    variable = former.path if former is not None else taken
    if variable is None or variable != spot.site.target or variable not in spot.reads:
        return None
    at_module_level = call.code.co_name == "<module>"
    how, scope = ("global", "__main__") if at_module_level else ("local", scope_of(call.code))
    return Name(variable, how, scope, True, rebound_at=spot.site, site=None if former is None else former.site)


def _making(tensor: torch.Tensor, lookup: SiteLookup | None) -> tuple[Spot | None, CodeType | None]:
    """Where a tensor came from: the call that made its node, or the note of its making."""
    if not _TRACKERS:
        return None, None
    node = tensor.grad_fn
    if node is not None:
        call = (lookup or SiteLookup([tensor])).call(node)
        if call is None or (call.result is not None and call.result() is not tensor):
            return None, None
        spot = call.spot()
        direct = spot is not None and not call.inside and call.result is not None
        return (spot if direct or spot is None else replace(spot, whole=False)), call.code
    made = _made(tensor)
    if made is None:
        return None, None
    spot = locate(made.code, made.instruction)
    return (_making_before(made.code, spot) if made.first_sight else spot), made.code


def _made(tensor: torch.Tensor) -> _Made | None:
    for tracker in _trackers():
        for log in tracker._logs:
            made = log.made.get(id(tensor))
            if made is not None and made() is tensor:
                return made
    return None


def _making_before(code: CodeType, sight: Spot) -> Spot | None:
    """The assignment that made the variable which a statement such as ``delta.requires_grad = True`` speaks of.

    It is known for certain when it is the only statement of the function that binds the variable, apart from those that
    compute the new value from the old.
    """
    if sight.whole:
        return sight
    variable = sight.operands[0] if sight.operands else None
    if variable is None or not variable.isidentifier():
        return None
    makers = [spot for spot in statements_binding(code, variable) if variable not in spot.reads]
    if len(makers) != 1 or makers[0].site.line > sight.site.line:
        return Spot(Site(code.co_filename, sight.site.line, code.co_qualname, sight.site.statement, variable), "", True)
    return Spot(makers[0].site, "", True, (), makers[0].reads)


def _trackers() -> list[Tracker]:
    return list(_TRACKERS)


_READ, _PLAIN, _IN_PLACE, _SETTER, _COMPOSITE = range(5)
"""Kinds of function: only reads; makes; changes its first argument; sets a property; may do anything."""

_BUILTINS = (type(torch.add), type(torch.Tensor.add), type(torch.Tensor.__getitem__))


def _kind_of(function: Any) -> int:
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return _READ
    if name in ("__set__", "requires_grad_"):
        return _SETTER
    if type(function) is FunctionType or type(function) not in _BUILTINS or name.startswith("_fused"):
        return _COMPOSITE
    return _IN_PLACE if name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__")) else _PLAIN


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_IN_PLACE_NAMES = frozenset({"__setitem__", *(f"__i{operator}__" for operator in _OPERATORS)})


class _Log:
    """What one thread did while it was watched."""

    def __init__(self, limit: int) -> None:
        self.thread = threading.get_ident()
        self.calls: deque[Call] = deque(maxlen=limit)
        self.changes: deque[_Change] = deque(maxlen=limit)
        self.made: dict[int, _Made] = {}
        self.modules: list[weakref.ref[nn.Module]] = []

    def call_at(self, number: int) -> Call | None:
        """The innermost call that made the node of this number."""
        position = bisect.bisect_right(self.calls, number, key=lambda call: call.after)
        for later in range(position, min(position + _NESTING, len(self.calls))):
            if self.calls[later].before <= number:
                return self.calls[later]
        return None

    def mutations(self, owner: object) -> list[Mutation]:
        """The changes noted for a storage."""
        found = []
        for change in list(self.changes):
            for reference, (before, after) in zip(change.storages, change.versions, strict=True):
                if reference() is owner:
                    site = None if change.code is None else locate(change.code, change.instruction).site
                    found.append(Mutation(getattr(change.function, "__name__", "?"), before, after, site))
        return found

    def note_making(self, tensor: torch.Tensor, frame: FrameType | None, first_sight: bool) -> None:
        """Notes where a tensor without a node comes from, unless an earlier note of it stands."""
        if frame is None or tensor.grad_fn is not None:
            return
        earlier = self.made.get(id(tensor))
        if earlier is not None and earlier() is tensor:
            return
        made = _Made(tensor, self._forget)
        made.key, made.code, made.instruction, made.first_sight = id(tensor), frame.f_code, frame.f_lasti, first_sight
        self.made[id(tensor)] = made

    def _forget(self, made: _Made) -> None:
        if self.made.get(made.key) is made:
            del self.made[made.key]


_NESTING = 256
"""How many calls inside a custom function's forward are looked past to find the custom function itself."""


class _Watch(TorchFunctionMode):
    """The mode that fills a log, with the module hooks that know which module runs."""

    def __init__(self, log: _Log) -> None:
        super().__init__()
        self.log = log
        self._kinds: dict[Any, int] = {}
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Begins to watch this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]
        _UNSEEN.watch(self)
        self._hooks = [
            torch_module.register_module_forward_pre_hook(self._entering),
            torch_module.register_module_forward_hook(self._leaving, always_call=True),
        ]

    def stop(self) -> None:
        """Leaves everything as it was."""
        for hook in self._hooks:
            hook.remove()
        _UNSEEN.unwatch(self)
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if kind == _READ:
            return func(*args, **kwargs) if kwargs else func(*args)
        targets = None if kind == _PLAIN and not kwargs else _targets(kind, args, kwargs)
        versions = _versions(targets) if targets else ()
        before = _sequence_number()
        result = func(*args, **kwargs) if kwargs else func(*args)
        self.note(func, args, result, before, targets, versions, sys._getframe(1))
        return result

    def note(
        self,
        function: Any,
        args: Sequence[Any],
        result: Any,
        before: int,
        targets: Sequence[torch.Tensor] | None,
        versions: tuple[int | None, ...],
        frame: FrameType | None,
    ) -> None:
        """Writes down what a call that has just ended made and changed."""
        after = _sequence_number()
        made_tensor = issubclass(type(result), torch.Tensor)
        if after == before and not made_tensor and not targets:
            return
        inside = False
        while frame is not None and _is_torch(filename := frame.f_code.co_filename):
            inside = inside or filename == _MODULE_FILE
            frame = frame.f_back
        log = self.log
        if after != before:
            log.calls.append(
                Call(
                    before,
                    after,
                    None if frame is None else frame.f_code,
                    -1 if frame is None else frame.f_lasti,
                    function,
                    weakref.ref(result) if made_tensor else None,
                    log.modules[-1] if log.modules else None,
                    inside,
                )
            )
        elif made_tensor:
            log.note_making(result, frame, bool(args) and result is args[0])
        if targets:
            self._note_changes(function, targets, versions, frame, made_tensor)

    def _note_changes(
        self,
        function: Any,
        targets: Sequence[torch.Tensor],
        versions: tuple[int | None, ...],
        frame: FrameType | None,
        made_tensor: bool,
    ) -> None:
        now = _versions(targets)
        changed = [
            (tensor, (old, new))
            for tensor, old, new in zip(targets, versions, now, strict=True)
            if old is not None and new is not None and old != new
        ]
        if changed:
            with untouched():
                storages = tuple(weakref.ref(_storage(tensor)) for tensor, _ in changed)
            code, instruction = (None, -1) if frame is None else (frame.f_code, frame.f_lasti)
            pairs = tuple(pair for _, pair in changed)
            self.log.changes.append(_Change(code, instruction, function, storages, pairs))
        elif not made_tensor and self._kinds.get(function) == _SETTER and targets[0].requires_grad:
            self.log.note_making(targets[0], frame, True)

    def _entering(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() == self.log.thread:
            self.log.modules.append(weakref.ref(module))

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        modules = self.log.modules
        if threading.get_ident() == self.log.thread:
            while modules and modules.pop()() is not module:
                continue


_sequence_number = torch._C._autograd._get_sequence_nr
_is_torch = functools.lru_cache(maxsize=None)(is_torch)
_MODULE_FILE = torch_module.__file__


def _targets(kind: int, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[torch.Tensor] | None:
    """The tensors that a call may change."""
    if kind == _PLAIN:
        out = kwargs.get("out") if kwargs else None
        return None if out is None else _flat([out])
    return _flat(args[:1]) if kind != _COMPOSITE else _flat([*args, *(kwargs or {}).values()])


def _flat(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if issubclass(type(value), torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [one for one in value if issubclass(type(one), torch.Tensor)]
    return found


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    with untouched():
        try:
            return tuple(tensor._version for tensor in tensors)
        except RuntimeError:  # an inference tensor counts no versions
            return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def _storage(tensor: torch.Tensor) -> Any:
    """What stands for a tensor's memory: its storage, or itself where it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return tensor


class _Unseen:
    """The three calls that a function mode does not see, wrapped while any thread is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[_Watch] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def watch(self, watch: _Watch) -> None:
        """Wraps the calls for the first watch."""
        with self._lock:
            self._watches.append(watch)
            if not self._originals:
                self._wrap(torch.autograd.Function, "apply", classmethod)
                self._wrap(nn.Parameter, "__new__", staticmethod)
                self._wrap(torch, "from_numpy", lambda wrapped: wrapped)

    def unwatch(self, watch: _Watch) -> None:
        """Puts the originals back after the last watch."""
        with self._lock:
            self._watches.remove(watch)
            if not self._watches:
                while self._originals:
                    owner, name, original = self._originals.pop()
                    setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, bind: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        function = getattr(original, "__func__", original)

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            here = threading.get_ident()
            watches = [watch for watch in self._watches if watch.log.thread == here]
            if not watches:
                return function(*args, **kwargs)
            before = _sequence_number()
            result = function(*args, **kwargs)
            for watch in watches:
                watch.note(function, (), result, before, None, (), sys._getframe(1))
            return result

        self._originals.append((owner, name, original))
        setattr(owner, name, bind(noted))


_UNSEEN = _Unseen()
"""One for the process, because what it wraps are attributes of the process; it is empty while nobody tracks."""
