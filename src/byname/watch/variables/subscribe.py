"""Subscribe: a method's code is replaced by code that reports its local variables.

The code of a method belongs to its class, and to the whole process: who listens to which function is known once for the
process, in ``_TAPS``, from where the rewritten code asks for it each time it begins to run. Only runs whose first
argument is the very object listened to are told; of a function that is no method, those that this module calls.
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

__all__ = ["Listening", "listen"]

RETURN = "return"
"""The pseudo variable that holds what a function returns."""


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

    ``receive(activation, variable, value, moment)`` is called in the thread of the function, and what it returns takes
    the place of the value. The moment is ``"entry"`` (an argument as it came), ``"assigned"``, ``"stored"`` (an item or
    attribute of the variable was assigned or deleted), ``"changed"`` (the variable's tensor was changed in place),
    ``"exit"`` (the last value before the function returns; replacing has no effect any more) or ``"returned"``. An
    exception that it raises reaches the function. A run that ends by an exception has no exit; a return that a
    ``finally`` overrides by another one is told of too.

    Several may listen to one function; they are told in their `order`, or in that in which they came. A run that has
    begun is not told of to those who come later.

    Args:
        function: a Python function, from `method_of`.
        owner: the object whose runs count, by identity; held weakly where it can be.
        variables: names from `variables_of`; ``return`` or ``inner.return`` for what is returned.
        receive: the receiver.
        order: who has a lower one is told earlier.
        exits: whether the last values are to be told.
        by_caller: the runs that count are those that `owner`, a module, calls; whatever their first argument.

    Raises:
        BadArgumentError: a variable that the function does not have.

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
    """Somebody who listens from `begin` on; also a context manager that stops on leaving. See `listen`.

    Attributes:
        function: the function listened to.
        variables: what is told.
        order: who has a lower one is told earlier.
        exits: whether the last values are told.
        by_caller: whether the runs that count are those that the owner calls.
        active: whether it has not been removed.
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
        """Begin to listen."""
        with _CHANGING:
            self._tap = _tap_of(self.function)
            self._tap.add(self)

    @property
    def replaces(self) -> bool:
        """Whether what the receiver returns takes the place of the value: not where the function has no source."""
        return self._tap is None or self._tap.plain is None

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of it, in words."""
        tap = self._tap
        if self.active and tap is not None and tap.function.__code__ is not tap.installed:
            return (*self._notes, tap.replaced)
        return tuple(self._notes)

    def is_about(self, first: object) -> bool:
        """Whether a run with this first argument, or called by this module, is told of."""
        return self._owner() is first or self.every_run

    def remove(self) -> None:
        """Stops telling; the last to leave puts the function's own code back. Does nothing the second time.

        Where somebody else has put other code into the function meanwhile, theirs stays, and `notes` says so.
        """
        if not self._left:
            if self._leave():
                forget_compiled()
            self._left = True

    def _leave(self) -> bool:
        """Whether this was the last to leave."""
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
    """A function whose code was replaced, and who listens to it."""

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
        """Lets one more listen; the code is made anew when it does not yet tell of all that is wanted."""
        try:
            _TAPS[self.key] = self
            self._listen(listening.key, sorted([*self.by_owner.get(listening.key, ()), listening], key=_order))
            if not listening.variables <= self.told:
                self._install(self.told | listening.variables)
        except BaseException:  # code of ours that nobody knows of would be taken for the function's own
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
        """Notes who listens to one owner. There may be thousands, and runs in other threads meanwhile."""
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
        """What to say where somebody else has put other code into the function."""
        return (
            f"the code of {self.function.__qualname__} was replaced by somebody else meanwhile, and tells of no "
            "variables; it is left as it is"
        )

    def enter(self, first: object) -> Run | None:
        """A run begins, with this first argument."""
        if self.by_caller:
            return self._enter_called(first)
        candidates = self.listenings if self.every_run else self.by_owner.get(id(first), ())
        if len(candidates) == 1:  # nearly always, and each value of a small model pays for what is done here
            one = candidates[0]
            return Run(((one, Activation()),)) if one.is_about(first) else None
        concerned = [(one, Activation()) for one in candidates if one.is_about(first)]
        return Run(concerned) if concerned else None

    def _enter_called(self, first: object) -> Run | None:
        """A run begins that counts for the module that calls the function."""
        caller = running_module()
        if self.every_run:
            candidates = self.listenings
        else:
            candidates = tuple(one for key in {id(first), id(caller)} for one in self.by_owner.get(key, ()))
        concerned = [one for one in candidates if one.is_about(caller if one.by_caller else first)]
        return Run([(one, Activation()) for one in sorted(concerned, key=_order)]) if concerned else None

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A function without source is called."""
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
"""The functions without source, for calls that began just before the last listener left."""

_KEYS: weakref.WeakKeyDictionary[FunctionType, int] = weakref.WeakKeyDictionary()
"""One for each function, however often it is listened to: what is kept by key does not grow with that."""
_NEXT = itertools.count()
_CHANGING = threading.RLock()


def _key_of(function: FunctionType) -> int:
    """The number by which rewritten code knows its function."""
    with _CHANGING:
        if function not in _KEYS:
            _KEYS[function] = next(_NEXT)
        return _KEYS[function]


@dynamo_skip
def _enter(key: int, first: object) -> Run | None:
    """What rewritten code calls when it begins to run: None when nobody listens to this run."""
    tap = _TAPS.get(key)
    if tap is None or not (id(first) in tap.by_owner or tap.every_run or tap.by_caller):
        return None
    return tap.enter(first)


_enter._torchdynamo_disable_msg = (  # type: ignore[attr-defined]  # PyTorch shows it where a graph must be whole
    "byname listens to local variables of this function; remove its handle, or compile without fullgraph=True"
)


@dynamo_skip
def _traced(key: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of a function without source calls in its place."""
    tap = _TAPS.get(key)
    return _FUNCTIONS[key](*arguments, **keywords) if tap is None else tap.call(arguments, keywords)


def _shown(names: Any) -> Any:
    """What ``locals()`` or ``dir()`` gives, without the hidden variables of rewritten code."""
    if isinstance(names, list):
        return [name for name in names if not name.startswith(HIDDEN)]
    for name in [name for name in names if name.startswith(HIDDEN)]:
        del names[name]
    return names


def forget_compiled() -> None:
    """Has compiled functions compiled again: the compiler does not notice that code which it inlined was replaced.

    Its guards look at the code of the function that was compiled, not at that of the methods it calls (PyTorch 2.13).
    """
    compiler: Any = sys.modules.get("torch._dynamo")
    if compiler is not None and not EAGERLY.on:  # nothing is compiled then before the code is back in its place
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
    """A reference to the owner; when it dies nobody can be told of any more.

    Compiled code is left as it is then: the collector may run at any moment, also while the compiler does.
    """
    itself = weakref.ref(listening)

    def gone(_: Any) -> None:
        if (one := itself()) is not None and not one._left:
            one._leave()
            one._left = True

    try:
        return weakref.ref(owner, gone)
    except TypeError:  # such as an object with slots
        return lambda: owner
