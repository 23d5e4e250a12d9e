"""Subscribe: replace the code of a method by code that reports its local variables.

The code of a method belongs to its class, and so to the whole process. One table for the process, ``_REWRITTEN``, has
the receivers of each function; the rewritten code looks there each time it begins to run. A run of a method is reported
if its first argument is the observed object. A run of another function is reported if the observed module calls it.
"""

from __future__ import annotations

import difflib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any

from byname.errors import BadArgumentError
from byname.model.methods import gets_no_owner
from byname.model.scopes import watchable_variables
from byname.reading.frames import running_module
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import version_of
from byname.source.code import HIDDEN
from byname.table import listed
from byname.tracing.eager import EAGERLY
from byname.watch.variables.compile import can_be_traced, forwarding_code, recompiled, traced, with_code

RETURN = "return"
"""The name that stands for the return value of a function among its variables."""


class Subscription:
    """A subscription to variables of a function, which reports each run with its owner as the first argument.

    Values are reported in the thread of the function, and an error of the receiver is raised in the function. A run
    that had begun before `begin` is not reported. The moments of a report are:

    - ``"entry"``: the value of an argument;
    - ``"assigned"``;
    - ``"stored"``: an item or attribute of the variable was assigned or deleted;
    - ``"changed"``: the tensor of the variable was changed in place, or the items of another value may have been;
    - ``"exit"``: the last value before the function returns without an error; replacing it has no effect;
    - ``"returned"``: the return value, also if the ``return`` of a ``finally`` overrides it.

    Args:
        function: a Python function, from `method_of`.
        owner: an object, compared by identity; held weakly if possible.
        variables: names from `watchable_variables`; ``return`` or ``inner.return`` for a return value.
        receiver: returns the receiver, such as a `FunctionReceiver`; None if it was freed.
        order: subscriptions with a lower order are called earlier, others in the order of subscribing.
        exits: whether to report the last values.
        items: whether to report the value after each statement that may have changed its items.
        by_caller: report the runs that `owner`, a module, calls, whatever their first argument.
        entered: called with the owner when any run begins, before the receivers are looked up.

    Attributes:
        active: whether it has not been removed.
        ran: whether a run was reported.

    Raises:
        BadArgumentError: the function has no such variable.
    """

    def __init__(
        self,
        function: FunctionType,
        owner: Any,
        variables: Sequence[str],
        receiver: Callable[[], Any],
        *,
        order: int = 0,
        exits: bool = True,
        items: bool = False,
        by_caller: bool = False,
        entered: Callable[[Any], object] | None = None,
    ) -> None:
        _check(function, variables)
        self.function = function
        self.order = order
        self.exits, self.items = exits, items
        self.variables = frozenset(variables)
        self.receiver = receiver
        self.active = True
        self.ran = False
        self.by_caller = by_caller
        self.entered = entered
        self.every_run = not by_caller and gets_no_owner(function, owner)
        self.key = id(owner)
        self._owner = _weakly(owner, self)
        self._rewritten: _RewrittenFunction | None = None
        self._unsubscribed = False
        self._notes: list[str] = []

    def begin(self) -> None:
        """Begin to report; raise a `BadArgumentError` if the variables cannot be read."""
        with _CHANGING:
            every = (one for one in _REWRITTEN.values() if one.function is self.function)
            known = next((one for one in every if one.installed is self.function.__code__), None)
            self._rewritten = known or _RewrittenFunction(self.function)
            self._rewritten.add(self)

    @property
    def replaces(self) -> bool:
        """Whether the result of the receiver replaces the value; False if the function has no source."""
        return self._rewritten is None or self._rewritten.plain is None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the subscription: whether other code has replaced the function's code meanwhile."""
        rewritten = self._rewritten
        if self.active and rewritten is not None and rewritten.function.__code__ is not rewritten.installed:
            return (*self._notes, rewritten.replaced)
        return tuple(self._notes)

    def is_about(self, first: object) -> bool:
        """Return whether a run with this first argument, or called by this module, is reported."""
        return self._owner() is first or self.every_run

    def remove(self) -> None:
        """Stop reporting; the last subscription of a function restores its code. A second call does nothing.

        If other code was put into the function meanwhile, that stays, and `notes` says so.
        """
        if not self._unsubscribed:
            if self._unsubscribe():
                forget_compiled()
            self._unsubscribed = True

    def _unsubscribe(self) -> bool:
        """Unsubscribe; return whether this was the last subscription of the function."""
        with _CHANGING:
            if self.active:
                self._notes = [*self.notes]
            self.active = False
            if self._rewritten is None:
                return False
            self._rewritten.discard(self)
            return not self._rewritten.by_owner


class _RewrittenFunction:
    """A function whose code was replaced, and its subscriptions.

    Attributes:
        original, installed: its own code and the rewritten one.
        key: the number by which the rewritten code finds this object.
        reported: the names of the variables that the installed code reports.
        plain: a copy of a function without source, with its own code; None for a function with source.
        by_owner: the subscriptions, by the ``id`` of the owner.
        subscriptions: all subscriptions, if one of them wants every run; otherwise empty.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.original = self.installed = function.__code__
        self.key = _key_of(function)
        self.subscriptions: tuple[Subscription, ...] = ()
        self.reported: frozenset[str] = frozenset()
        self.plain: FunctionType | None = None
        self.by_owner: dict[int, tuple[Subscription, ...]] = {}
        self.every_run = False
        self.by_caller = False

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; rewrite the code again if it does not yet report all of the variables."""
        try:
            _REWRITTEN[self.key] = self
            self._listen(subscription.key, sorted([*self.by_owner.get(subscription.key, ()), subscription], key=_order))
            if not subscription.variables <= self.reported:
                self._install(self.reported | subscription.variables)
        except BaseException:  # otherwise installed code without subscriptions would pass for the function's own
            self.discard(subscription)
            raise

    def _install(self, variables: frozenset[str]) -> None:
        code = recompiled(self.original, variables, self.key)
        if code is None:
            self._check_without_source(variables)
            code = forwarding_code(self.original, self.key)
            self.plain = with_code(self.function, self.original)
            _FUNCTIONS[self.key] = self.function
        self.function.__code__ = self.installed = code
        self.reported = variables
        forget_compiled()

    def _check_without_source(self, variables: frozenset[str]) -> None:
        name = self.function.__qualname__
        if not can_be_traced(self.original):
            raise BadArgumentError(f"{name} is a generator or coroutine without source: its variables cannot be read")
        if nested := [one for one in variables if "." in one]:
            raise BadArgumentError(f"{name} has no source: {nested[0]!r}, of a nested function, cannot be read")

    def _listen(self, key: int, subscriptions: Sequence[Subscription]) -> None:
        """Set the subscriptions of one owner. There may be thousands of owners, and runs in other threads meanwhile."""
        if subscriptions:
            self.by_owner[key] = tuple(subscriptions)
        else:
            self.by_owner.pop(key, None)
        if self.every_run or any(one.every_run for one in subscriptions):
            everyone = [one for of_owner in tuple(self.by_owner.values()) for one in of_owner]
            self.every_run = any(one.every_run for one in everyone)
            self.subscriptions = tuple(sorted(everyone, key=_order)) if self.every_run else ()
        self.by_caller = self.by_caller or any(one.by_caller for one in subscriptions)

    def discard(self, subscription: Subscription) -> None:
        self._listen(
            subscription.key, [one for one in self.by_owner.get(subscription.key, ()) if one is not subscription]
        )
        if self.by_owner:
            return
        if self.function.__code__ is self.installed:
            self.function.__code__ = self.original
        if _REWRITTEN.get(self.key) is self:
            del _REWRITTEN[self.key]

    @property
    def replaced(self) -> str:
        """The note for a function whose code was replaced by other code."""
        return (
            f"other code replaced the code of {self.function.__qualname__}; its variables are no longer reported, and "
            "the new code stays"
        )

    def enter(self, first: object) -> Run | None:
        """Return a `Run` for a run that begins with this first argument, or that a module calls; None if unobserved."""
        for one in self.subscriptions:
            if one.entered is not None:
                one.entered(one._owner())
        caller = running_module() if self.by_caller else first
        candidates = self.subscriptions if self.every_run else self.by_owner.get(id(first), ())
        if caller is not first and not self.every_run:
            candidates = tuple(sorted([*candidates, *self.by_owner.get(id(caller), ())], key=_order))
        concerned = [one for one in candidates if one.is_about(caller if one.by_caller else first)]
        for one in concerned:
            one.ran = True
        return Run(concerned) if concerned else None

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function without source and report its variables; return its result."""
        assert self.plain is not None
        run = self.enter(arguments[0] if arguments else None)
        if run is None:
            return self.plain(*arguments, **keywords)
        code = self.original
        order = [*dict.fromkeys([*code.co_varnames, *code.co_cellvars]), RETURN]
        return traced(self.plain, run, [name for name in order if name in self.reported], arguments, keywords)


class Run:
    """One observed run of a rewritten function (a frame); a hidden local variable of this frame.

    It holds no value of a variable. ``torch.compile`` traces nothing here: it breaks the graph at these calls. The
    methods are short because each value costs several of their calls, which small models notice.

    Attributes:
        exits, items: whether a receiver wants the last values, and the items of values.
        known: the bound variables, with a weak reference and the version of each tensor; None for another value.
        memory: a dict for the receivers; freed with the frame.
    """

    __slots__ = ("_listeners", "exits", "items", "known", "memory")

    def __init__(self, listeners: Sequence[Subscription]) -> None:
        self._listeners = listeners
        self.exits = listeners[0].exits if len(listeners) == 1 else any(one.exits for one in listeners)
        self.items = self.exits and any(one.items for one in listeners)
        self.known: dict[str, tuple[weakref.ref[Any], int] | None] = {}
        self.memory: dict[Any, Any] = {}

    @dynamo_skip
    def nested(self) -> Run:
        """Return the run of a function that is defined in this one."""
        return Run(self._listeners)

    @dynamo_skip
    def report(self, variable: str, value: Any, moment: str) -> Any:
        """Call the receivers of a variable, in order; return the value that the last one returned."""
        version = version_of(value)
        only_items = version is None and moment == "changed"
        for listener in self._listeners:
            if not listener.active or variable not in listener.variables or (receiver := listener.receiver()) is None:
                continue
            report = receiver.reports.get(variable)
            if only_items and (report is not None or not listener.items):
                continue
            new = receiver.receive(self, variable, value, moment) if report is None else report(value)
            now = version_of(new)
            if report is not None and (new is not value or now != version):
                receiver.changed(self, variable, moment)
            value, version = new, now
        self.known[variable] = None if version is None else (weakref.ref(value), version)
        return value

    @dynamo_skip
    def show(self, variable: str, value: Any, moment: str) -> None:
        """Call the receivers of a variable that cannot be replaced any more."""
        for listener in self._listeners:
            if listener.active and variable in listener.variables and (listener.exits or moment != "exit"):
                receiver = listener.receiver()
                if receiver is not None:
                    receiver.receive(self, variable, value, moment)

    @dynamo_skip
    def last(self, variable: str, value: Any, returned: Any) -> tuple[Any, Any]:
        """Report a variable whose tensor changed in place before a return; return its value and the return value.

        If the function returns this very tensor, a replacement is returned instead.
        """
        new = self.report(variable, value, "changed")
        return new, new if returned is value else returned

    @dynamo_skip
    def forget(self, variable: str) -> None:
        self.known.pop(variable, None)

    @dynamo_skip
    def has(self, variable: str) -> bool:
        return variable in self.known

    @dynamo_skip
    def has_moved(self, variable: str) -> bool:
        """Return whether the value of a variable may have been changed in place since it was last reported."""
        if variable not in self.known:
            return False
        known = self.known[variable]
        return self.items if known is None else (tensor := known[0]()) is not None and version_of(tensor) != known[1]

    @dynamo_skip
    def moved(self) -> bool:
        """Return whether the value of any variable may have been changed in place since it was last reported."""
        for known in tuple(self.known.values()):
            if self.items if known is None else (tensor := known[0]()) is not None and version_of(tensor) != known[1]:
                return True
        return False


class FunctionReceiver:
    """A receiver that is one function ``(run, variable, value, moment)``; its result replaces the value.

    Attributes:
        reports: for variables whose values are only reported as they are, the functions that report a value and return
            what replaces it. A receiver that has some has a method ``changed(run, variable, moment)`` too, which is
            called when one of them has replaced a value or changed it in place.
    """

    reports: Mapping[str, Callable[[Any], Any]] = {}

    def __init__(self, receive: Callable[[Run, str, Any, str], Any]) -> None:
        self.receive = receive

    def __call__(self) -> FunctionReceiver:
        """Return this receiver, as a weak reference does."""
        return self


_order = attrgetter("order")
_REWRITTEN: dict[int, _RewrittenFunction] = {}
_FUNCTIONS: weakref.WeakValueDictionary[int, FunctionType] = weakref.WeakValueDictionary()
"""The functions without source, for calls that began just before the last subscription was removed."""

_KEYS: weakref.WeakKeyDictionary[FunctionType, int] = weakref.WeakKeyDictionary()
"""One key for each function, however often it is subscribed to, so that tables by key do not grow."""
_NEXT = itertools.count()
_CHANGING = threading.RLock()


def _key_of(function: FunctionType) -> int:
    """Return the number that stands for a function in its rewritten code."""
    with _CHANGING:
        if function not in _KEYS:
            _KEYS[function] = next(_NEXT)
        return _KEYS[function]


@dynamo_skip
def _enter(key: int, first: object) -> Run | None:
    """Return the `Run` of a function that begins; rewritten code calls this. None if this run is not observed."""
    rewritten = _REWRITTEN.get(key)
    if rewritten is None or not (id(first) in rewritten.by_owner or rewritten.every_run or rewritten.by_caller):
        return None
    return rewritten.enter(first)


_enter._torchdynamo_disable_msg = (  # type: ignore[attr-defined]  # PyTorch shows it in the error under fullgraph=True
    "byname listens to local variables of this function; remove its handle, or compile without fullgraph=True"
)


@dynamo_skip
def _traced(key: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run a function without source; the code that was installed in it calls this."""
    rewritten = _REWRITTEN.get(key)
    return _FUNCTIONS[key](*arguments, **keywords) if rewritten is None else rewritten.call(arguments, keywords)


def _shown(names: Any) -> Any:
    """Return the result of ``locals()`` or ``dir()`` without the hidden variables of rewritten code."""
    if isinstance(names, list):
        return [name for name in names if not name.startswith(HIDDEN)]
    for name in [name for name in names if name.startswith(HIDDEN)]:
        del names[name]
    return names


def forget_compiled() -> None:
    """Discard the compiled code of functions, since the compiler does not notice that inlined code was replaced.

    Its guards check the code of the compiled function, not the code of the methods that it calls (PyTorch 2.13).
    """
    compiler: Any = sys.modules.get("torch._dynamo")
    if compiler is not None and not EAGERLY.on:  # under EAGERLY nothing is compiled before the code is restored
        getattr(compiler, "reset_code_caches", compiler.reset)()


def _check(function: FunctionType, variables: Sequence[str]) -> None:
    known = watchable_variables(function)
    for variable in variables:
        if variable not in known and variable.rpartition(".")[2] != RETURN:
            close = difflib.get_close_matches(variable, known, 3, 0.5) or known
            raise BadArgumentError(
                f"{function.__qualname__} has no local variable {variable!r}; it has {listed(close, 8) or 'none'}"
            )


def _weakly(owner: Any, subscription: Subscription) -> Any:
    """Return a weak reference that unsubscribes; compiled code stays: the compiler may run when the owner is freed."""
    itself = weakref.ref(subscription)

    def gone(_: Any) -> None:
        if (one := itself()) is not None and not one._unsubscribed:
            one._unsubscribe()
            one._unsubscribed = True

    try:
        return weakref.ref(owner, gone)
    except TypeError:  # no weak references, such as to an object with slots
        return lambda: owner
