"""Subscribe: replace the code of a method by code that reports its local variables.

The code of a method belongs to its class, and so to the whole process. One table for the process, ``_TAPS``, has the
receivers of each function; the rewritten code looks there each time it begins to run. A run of a method is reported if
its first argument is the observed object. A run of another function is reported if the observed module calls it.
"""

from __future__ import annotations

import difflib
import itertools
import sys
import threading
import weakref
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from byname.errors import BadArgumentError
from byname.model.methods import gets_no_owner
from byname.model.scopes import variables_of
from byname.reading.frames import running_module
from byname.reading.quiet import dynamo_skip
from byname.source.code import HIDDEN
from byname.table import listed
from byname.tracing.eager import EAGERLY
from byname.watch.variables.activation import Activation, Receive, Run
from byname.watch.variables.compile import recompiled
from byname.watch.variables.without_source import bare, can_be_traced, handing_over, traced

RETURN = "return"
"""The name that stands for the return value of a function among its variables."""


def listen(
    function: FunctionType,
    owner: Any,
    variables: Sequence[str],
    receive: Receive,
    *,
    order: int = 0,
    exits: bool = True,
    by_caller: bool = False,
) -> Listening:
    """Report the variables of a function each time it runs with `owner` as its first argument.

    ``receive(activation, variable, value, moment)`` is called in the thread of the function, and its result replaces
    the value. The moments are:

    - ``"entry"``: the value of an argument;
    - ``"assigned"``;
    - ``"stored"``: an item or attribute of the variable was assigned or deleted;
    - ``"changed"``: the tensor of the variable was changed in place;
    - ``"exit"``: the last value before the function returns; replacing it has no effect;
    - ``"returned"``: the return value.

    An exception of the receiver is raised in the function. A run that ends by an exception has no ``"exit"``. A return
    value is reported even if the ``return`` of a ``finally`` overrides it.

    One function may have several receivers; they are called by `order`, then in the order of subscribing. A run that
    had begun before a receiver subscribed is not reported to it.

    Args:
        function: a Python function, from `method_of`.
        owner: the object whose runs are reported, compared by identity; held weakly if possible.
        variables: names from `variables_of`; ``return`` or ``inner.return`` for a return value.
        receive: the receiver.
        order: receivers with a lower order are called earlier.
        exits: whether to report the last values.
        by_caller: whether to report the runs that `owner`, a module, calls, whatever their first argument.

    Returns:
        The subscription, which can be removed.

    Raises:
        BadArgumentError: the function has no such variable, or its variables cannot be read.

    Example:
        >>> class Twice:
        ...     def of(self, x):
        ...         y = 2 * x
        ...         return y
        >>> two = Twice()
        >>> with listen(Twice.of, two, ["y"], lambda activation, name, value, moment: value + 1):
        ...     two.of(10)
        21
    """
    listening = Listening(function, owner, variables, receive, order=order, exits=exits, by_caller=by_caller)
    try:
        listening.begin()
        return listening
    except BaseException:
        listening.remove()
        raise


class Listening:
    """A subscription to variables of a function, active from `begin` on; also a context manager that removes it.

    The arguments are those of `listen`.

    Attributes:
        function: the observed function.
        variables: the names of the reported variables.
        order: subscriptions with a lower order are called earlier.
        exits: whether the last values are reported.
        by_caller: whether the runs that the owner calls are reported.
        every_run: whether all runs are reported, since the function does not get the owner as its first argument.
        active: whether it has not been removed.
        key: the ``id`` of the owner.
    """

    def __init__(
        self,
        function: FunctionType,
        owner: Any,
        variables: Sequence[str],
        receive: Receive,
        *,
        order: int = 0,
        exits: bool = True,
        by_caller: bool = False,
    ) -> None:
        if not isinstance(function, FunctionType):
            raise BadArgumentError(f"only a Python function has local variables, not a {type(function).__name__}")
        _check(function, variables)
        self.function = function
        self.order = order
        self.exits = exits
        self.variables = frozenset(variables)
        self.receive = receive
        self.active = True
        self.by_caller = by_caller
        self.every_run = not by_caller and gets_no_owner(function, owner)
        self.key = id(owner)
        self._owner = _weakly(owner, self)
        self._tap: _Tap | None = None
        self._left = False
        self._notes: list[str] = []

    def begin(self) -> None:
        """Begin to report; raise a `BadArgumentError` if the variables cannot be read."""
        with _CHANGING:
            self._tap = _tap_of(self.function)
            self._tap.add(self)

    @property
    def replaces(self) -> bool:
        """Whether the result of the receiver replaces the value; False if the function has no source."""
        return self._tap is None or self._tap.plain is None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the subscription: whether other code has replaced the function's code meanwhile."""
        tap = self._tap
        if self.active and tap is not None and tap.function.__code__ is not tap.installed:
            return (*self._notes, tap.replaced)
        return tuple(self._notes)

    def is_about(self, first: object) -> bool:
        """Return whether a run with this first argument, or called by this module, is reported."""
        return self._owner() is first or self.every_run

    def remove(self) -> None:
        """Stop reporting; the last subscription of a function restores its code. A second call does nothing.

        If other code was put into the function meanwhile, that stays, and `notes` says so.
        """
        if not self._left:
            if self._leave():
                forget_compiled()
            self._left = True

    def _leave(self) -> bool:
        """Unsubscribe; return whether this was the last subscription of the function."""
        with _CHANGING:
            if self.active:
                self._notes = [*self.notes]
            self.active = False
            if self._tap is None:
                return False
            self._tap.discard(self)
            return not self._tap.by_owner

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class _Tap:
    """A function whose code was replaced, and its subscriptions.

    Attributes:
        function: the function.
        original, installed: its own code and the rewritten one.
        key: the number by which the rewritten code finds this object.
        listenings: all subscriptions, if one of them wants every run; otherwise empty.
        told: the names of the variables that the installed code reports.
        plain: a copy of a function without source, with its own code; None for a function with source.
        by_owner: the subscriptions, by the ``id`` of the owner.
        every_run: whether one of the subscriptions wants every run.
        by_caller: whether one of the subscriptions reports the runs that a module calls.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.original = self.installed = function.__code__
        self.key = _key_of(function)
        self.listenings: tuple[Listening, ...] = ()
        self.told: frozenset[str] = frozenset()
        self.plain: FunctionType | None = None
        self.by_owner: dict[int, tuple[Listening, ...]] = {}
        self.every_run = False
        self.by_caller = False

    def add(self, listening: Listening) -> None:
        """Add a subscription; rewrite the code again if it does not yet report all of the variables."""
        try:
            _TAPS[self.key] = self
            self._listen(listening.key, sorted([*self.by_owner.get(listening.key, ()), listening], key=_order))
            if not listening.variables <= self.told:
                self._install(self.told | listening.variables)
        except BaseException:  # otherwise installed code without subscriptions would pass for the function's own
            self.discard(listening)
            raise

    def _install(self, variables: frozenset[str]) -> None:
        code = recompiled(self.original, variables, self.key)
        if code is None:
            self._check_without_source(variables)
            code = handing_over(self.original, self.key)
            self.plain = bare(self.function, self.original)
            _FUNCTIONS[self.key] = self.function
        self.function.__code__ = self.installed = code
        self.told = variables
        forget_compiled()

    def _check_without_source(self, variables: frozenset[str]) -> None:
        name = self.function.__qualname__
        if not can_be_traced(self.original):
            raise BadArgumentError(f"{name} runs after its call and has no source: its variables cannot be read")
        if nested := [one for one in variables if "." in one]:
            raise BadArgumentError(f"{name} has no source: {nested[0]!r}, of a nested function, cannot be read")

    def _listen(self, key: int, listenings: Sequence[Listening]) -> None:
        """Set the subscriptions of one owner. There may be thousands of owners, and runs in other threads meanwhile."""
        if listenings:
            self.by_owner[key] = tuple(listenings)
        else:
            self.by_owner.pop(key, None)
        if self.every_run or any(one.every_run for one in listenings):
            everyone = [one for of_owner in tuple(self.by_owner.values()) for one in of_owner]
            self.every_run = any(one.every_run for one in everyone)
            self.listenings = tuple(sorted(everyone, key=_order)) if self.every_run else ()
        self.by_caller = self.by_caller or any(one.by_caller for one in listenings)

    def discard(self, listening: Listening) -> None:
        self._listen(listening.key, [one for one in self.by_owner.get(listening.key, ()) if one is not listening])
        if self.by_owner:
            return
        if self.function.__code__ is self.installed:
            self.function.__code__ = self.original
        if _TAPS.get(self.key) is self:
            del _TAPS[self.key]

    @property
    def replaced(self) -> str:
        """The note for a function whose code somebody else has replaced."""
        return (
            f"the code of {self.function.__qualname__} was replaced by somebody else meanwhile, and tells of no "
            "variables; it is left as it is"
        )

    def enter(self, first: object) -> Run | None:
        """Return a `Run` for a run that begins with this first argument; None if it is not observed."""
        if self.by_caller:
            return self._enter_called(first)
        candidates = self.listenings if self.every_run else self.by_owner.get(id(first), ())
        if len(candidates) == 1:  # the usual case, written out since small models notice the time that this takes
            one = candidates[0]
            return Run(((one, Activation()),)) if one.is_about(first) else None
        concerned = [(one, Activation()) for one in candidates if one.is_about(first)]
        return Run(concerned) if concerned else None

    def _enter_called(self, first: object) -> Run | None:
        """Return a `Run` for a run that is observed because of its calling module or its first argument; else None."""
        caller = running_module()
        if self.every_run:
            candidates = self.listenings
        else:
            candidates = tuple(one for key in {id(first), id(caller)} for one in self.by_owner.get(key, ()))
        concerned = [one for one in candidates if one.is_about(caller if one.by_caller else first)]
        return Run([(one, Activation()) for one in sorted(concerned, key=_order)]) if concerned else None

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function without source and report its variables; return its result."""
        assert self.plain is not None
        run = self.enter(arguments[0] if arguments else None)
        if run is None:
            return self.plain(*arguments, **keywords)
        code = self.original
        order = [*dict.fromkeys([*code.co_varnames, *code.co_cellvars]), RETURN]
        return traced(self.plain, run, [name for name in order if name in self.told], arguments, keywords)


def _order(listening: Listening) -> int:
    return listening.order


_TAPS: dict[int, _Tap] = {}
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
    tap = _TAPS.get(key)
    if tap is None or not (id(first) in tap.by_owner or tap.every_run or tap.by_caller):
        return None
    return tap.enter(first)


_enter._torchdynamo_disable_msg = (  # type: ignore[attr-defined]  # PyTorch shows it in the error under fullgraph=True
    "byname listens to local variables of this function; remove its handle, or compile without fullgraph=True"
)


@dynamo_skip
def _traced(key: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run a function without source; the code that was installed in it calls this."""
    tap = _TAPS.get(key)
    return _FUNCTIONS[key](*arguments, **keywords) if tap is None else tap.call(arguments, keywords)


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


def _tap_of(function: FunctionType) -> _Tap:
    found = (tap for tap in _TAPS.values() if tap.function is function and tap.installed is function.__code__)
    return next(found, None) or _Tap(function)


def _check(function: FunctionType, variables: Sequence[str]) -> None:
    known = variables_of(function)
    for variable in variables:
        if variable not in known and variable.rpartition(".")[2] != RETURN:
            close = difflib.get_close_matches(variable, known, 3, 0.5) or known
            raise BadArgumentError(
                f"{function.__qualname__} has no local variable {variable!r}; it has {listed(close, 8) or 'none'}"
            )


def _weakly(owner: Any, listening: Listening) -> Any:
    """Return a weak reference to the owner, which unsubscribes when the owner is freed.

    Compiled code is not discarded then, since the garbage collector may run at any time, also while the compiler runs.
    """
    itself = weakref.ref(listening)

    def gone(_: Any) -> None:
        if (one := itself()) is not None and not one._left:
            one._leave()
            one._left = True

    try:
        return weakref.ref(owner, gone)
    except TypeError:  # no weak references, such as to an object with slots
        return lambda: owner
