"""Sites: the places of a rewritten model, its interjections there, and the function mode that finds its operations."""

from __future__ import annotations

import enum
import re
import sys
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from byname.errors import RewriteError
from byname.model.items import tensors_in
from byname.model.module_tree import under
from byname.model.operations import (
    COMPUTED,
    PLAIN_FUNCTIONS,
    is_torchs,
    main_result,
    operation_name,
    operation_path,
    taken,
)
from byname.place import NameSegment
from byname.reading.functions import is_in_place
from byname.reading.quiet import dynamo_skip
from byname.rewriting.narrow import narrowed
from byname.text import note_on
from byname.tracing.callers import OpenCalls
from byname.watch.boundary_edges import Entered
from byname.watch.call_gradients import Followed, Gradients, before, follow
from byname.watch.inplace import called, changed_by, overwrite
from byname.watch.interject import (
    ForwardInterjection,
    Interjection,
    WrappedForwardBackwardInterjection,
    WrappedForwardInterjection,
)
from byname.watch.replacement import same_gradients, same_kind


class _OfThread(threading.local):
    """The state of one thread.

    Attributes:
        running: the interjections that are running; what they call themselves is not reported.
        parted: while the compiler traces, the inputs of the modules in place that are running.
        open: the calls of modules with gradients requested that have begun.
    """

    def __init__(self) -> None:
        self.running: list[object] = []
        self.parted: list[torch.Tensor] = []
        self.open: OpenCalls[Entered | None] = OpenCalls()


_here = _OfThread()


class muted:
    """Run no interjection of a rewritten model in this thread inside the block."""

    def __enter__(self) -> None:
        _here.running.append(self)

    def __exit__(self, *_: object) -> None:
        _here.running.pop()


def under_way() -> bool:
    """Return whether an interjection runs in this thread, or all are muted."""
    return bool(_here.running)


class Site:
    """An interjection in a rewritten model.

    Args:
        path: the place, or several.
        interjection: shared by all its sites, also by those of models that are made from this one.
    """

    def __init__(self, path: str, interjection: Interjection) -> None:
        self.path = path
        self.interjection = interjection
        self.is_function = not isinstance(interjection, ForwardInterjection | WrappedForwardInterjection)
        self.with_inputs = isinstance(interjection, WrappedForwardInterjection)
        self.with_gradients = isinstance(interjection, WrappedForwardBackwardInterjection)
        self.lasting: list[Followed] = []

    @property
    def label(self) -> str:
        """The name of the interjection."""
        return getattr(self.interjection, "__name__", None) or type(self.interjection).__name__

    def __call__(
        self, path: str, module: nn.Module | None, inputs: tuple[Any, ...], value: Any, entered: Entered | None = None
    ) -> Any:
        """Return the interjection's replacement for a value; None if it stays.

        Args:
            path: the place, without wildcards.
            module: the module called; None for an operation.
            inputs: the arguments of the call.
            value: its result.
            entered: what `entered_with` returned when the call began, if the gradients are requested.
        """
        if entered is not None:
            self._await_gradients(path, module, value, entered)
        running, interjection = _here.running, self.interjection
        running.append(self)
        try:
            if self.is_function:
                new = interjection(path, module, value)  # type: ignore[operator]
            elif self.with_inputs:
                new = interjection.process(path, module, inputs, value)  # type: ignore[union-attr, call-arg]
            else:
                new = interjection.process(path, module, value)  # type: ignore[union-attr, call-arg]
        except Exception as error:
            note_on(error, f"byname: at `{path}`")
            raise
        finally:
            running.pop()
        if new is None:
            return None
        if type(value) is tuple and torch.compiler.is_compiling():  # it cannot compare tuples by `is`
            return new
        if new is value:
            return None
        same_kind(path, value, new)
        return new

    @dynamo_skip
    def _await_gradients(self, path: str, module: nn.Module | None, value: Any, entered: Entered) -> None:
        """Call the interjection's ``process_backward`` when the gradients of this call are known."""
        interjection: Any = self.interjection

        def receive(inputs: Gradients, outputs: Gradients) -> Gradients | None:
            try:
                new = interjection.process_backward(path, module, inputs, outputs)
                if new is not None:
                    same_gradients(path, inputs, new)
            except Exception as error:
                note_on(error, f"byname: in the backward of `{path}`")
                raise
            return None if new is None else tuple(new)

        followed = follow(entered, [tensor for _, tensor in tensors_in(value)], receive)
        if followed is not None and followed.lasting:
            for earlier in self.lasting:
                earlier.remove()
            self.lasting = [followed]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lasting": []}


@dynamo_skip
def entered_with(inputs: Any) -> Entered | None:
    """Return the noted inputs of a call, from which its gradients are found; None if grad mode is off."""
    return before([tensor for _, tensor in tensors_in(inputs)]) if torch.is_grad_enabled() else None


class ModuleSite(Site):
    """An interjection at a module: a forward hook of it."""

    def put_on(self, module: nn.Module) -> None:
        """Hook the module. The handles are kept, since they keep numbers of hooks apart in a process that loads it."""
        self.handles = [module.register_forward_hook(self.hook, with_kwargs=True)]
        if module.__dict__.get("inplace") is True:
            self.handles.append(module.register_forward_pre_hook(self.part))
        if self.with_gradients:
            self.handles.append(module.register_forward_pre_hook(self.begin, with_kwargs=True))

    @dynamo_skip
    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the inputs of a call that begins."""
        if not _here.running:
            _here.open.append((module, entered_with((*args, *kwargs.values()))))

    def part(self, module: nn.Module, args: Any) -> Any:
        """Let a module that works in place work on a copy while the compiler traces; see `_reported_in_place`."""
        if not torch.compiler.is_compiling() or _here.running or not args:
            return None
        _here.parted.append(args[0])
        return (args[0].clone(), *args[1:])

    def hook(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Report the output of a call."""
        if _here.running:
            return None
        if torch.compiler.is_compiling() and _here.parted and module.__dict__.get("inplace") is True:
            new = self(self.path, module, (*args, *kwargs.values()), output)
            return _here.parted.pop().copy_(output if new is None else new)
        entered = _end(module) if self.with_gradients else None
        around = _turned_off()
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
            _turn_on(around)


def _is_fixed(output: torch.Tensor) -> bool:
    """Return whether a tensor is a view that autograd does not let anyone write to a second time."""
    return torch.is_grad_enabled() and output.requires_grad and output._is_view()


class OperationSite(Site):
    """An interjection at the operations of one module.

    Args:
        owner: the path of the module.
        names: the names of the operations, which may have wildcards.
        interjection: the interjection.
    """

    def __init__(self, owner: str, names: Sequence[str], interjection: Interjection) -> None:
        super().__init__(", ".join(under(owner, name) for name in names), interjection)
        self.names = tuple(names)


@dynamo_skip
def _end(module: nn.Module) -> Entered | None:
    return _here.open.end(module)


class _Unknown(enum.Enum):
    UNKNOWN = "not looked for yet"


_UNKNOWN = _Unknown.UNKNOWN


class Operations:
    """The forward of a module in a rewritten model, with the interjections at the operations that it calls.

    While it runs, a function mode counts its calls by name. If it has no interjections, it turns off the mode of the
    module around it: its calls do not belong to that, and so cost nothing.

    Attributes:
        sites: the interjections.
        names: the names of the functions that are counted.
        seen: the paths of the operations so far, and an empty one once it has run; None if nobody asks for them.
        on: whether the mode is on, also if there are no interjections.
        narrow: the code of the class's forward, and the one that turns the mode on for some statements only, if known.
        known: the paths of operations and the interjections there, by the name and the number of earlier calls.
        properties: whether a property such as ``x.T`` may be meant, which the compiler does not give to modes.
    """

    def __init__(self, module: nn.Module, path: str) -> None:
        self.module = module
        self.path = path
        self.kind = type(module)
        self.own = module.__dict__.get("forward")  # a forward set on the instance
        self.taken = taken(module)
        self.sites: list[OperationSite] = []
        self.names: Container[str | None] = frozenset()
        self.seen: set[str] | None = None
        self.on = self.properties = False
        self.narrow: Any = _UNKNOWN
        self.known: dict[tuple[str, int], tuple[str, list[OperationSite]]] = {}
        self._wrap()

    def _wrap(self) -> None:
        """Name the forward that is inside, for those who ask for its signature or its variables."""
        self.__wrapped__ = self.own or MethodType(self.kind.forward, self.module)

    @classmethod
    def of(cls, module: nn.Module, path: str) -> Operations:
        """Return the one of a module; the first call puts it there."""
        found = operations_of(module)
        if found is None:
            found = module.__dict__["forward"] = cls(module, path)
        return found

    def add(self, names: Sequence[str], interjection: Interjection) -> None:
        """Add an interjection at operations."""
        self.sites.append(OperationSite(self.path, names, interjection))
        self.on = True
        self._count()

    def note(self, on: bool) -> None:
        """Begin or end to note the operations that run."""
        self.seen = set() if on else None
        self._count()

    def _count(self) -> None:
        names = [name for site in self.sites for name in site.names]
        every = self.seen is not None or any(NameSegment(name).wild for name in names)
        self.names = _Every() if every else frozenset(_bases(names))
        self.narrow, self.known = _UNKNOWN, {}
        self.properties = any(NameSegment(name).matches(one) for name in names for one in COMPUTED)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward."""
        if not self.on and not _depth():  # no mode is on, as nearly always
            return self.kind.forward(self.module, *args, **kwargs) if self.own is None else self.own(*args, **kwargs)
        if _here.running:
            return self._forward(*args, **kwargs)
        if not self.on:
            return self._aside(*args, **kwargs)
        if self.properties and torch.compiler.is_compiling():
            return self._eagerly(*args, **kwargs)
        return self._counted(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.forward(self.module, *args, **kwargs) if self.own is None else self.own(*args, **kwargs)

    def _counted(self, *args: Any, **kwargs: Any) -> Any:
        forward = None
        if torch.compiler.is_compiling():
            _complete_the_compiler()
        else:
            forward = self._narrowed()
        around, mode = _turned_off(), _Mode(self)
        try:
            if forward is not None:
                return forward(self.module, *args, _byname_mode=mode, **kwargs)
            with mode:
                return self._forward(*args, **kwargs)
        finally:
            _turn_on(around)

    def _narrowed(self) -> Callable[..., Any] | None:
        """Return the forward that turns the mode on where it is needed; None if it is needed everywhere."""
        if self.narrow is _UNKNOWN:
            exact = self.own is None and isinstance(self.names, frozenset)
            self.narrow = narrowed(self.module, self.names) if exact else None  # type: ignore[arg-type]
        if self.narrow is None or self.kind.forward.__code__ is not self.narrow[0]:  # its variables may be watched
            return None
        return self.narrow[1]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "narrow": _UNKNOWN, "known": {}, "__wrapped__": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wrap()

    @dynamo_skip
    def _eagerly(self, *args: Any, **kwargs: Any) -> Any:
        return self._counted(*args, **kwargs)

    def _aside(self, *args: Any, **kwargs: Any) -> Any:
        around = _turned_off()
        if around is None:
            return self._forward(*args, **kwargs)
        try:
            return self._forward(*args, **kwargs)
        finally:
            _turn_on(around)

    def at(self, name: str, count: int) -> tuple[str, list[OperationSite]]:
        """Return the path of an operation, and the interjections there.

        Args:
            name: the name of the function.
            count: the number of earlier calls of it.
        """
        known = self.known.get((name, count))
        if known is None:
            last = operation_path("", name, count, self.taken)
            known = under(self.path, last), [one for one in self.sites if any(_means(each, last) for each in one.names)]
            if not torch.compiler.is_compiling():
                self.known[name, count] = known
        return known


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


def operations_of(module: nn.Module) -> Operations | None:
    """Return the interjections at the operations of a module; None if it is not prepared for any."""
    found = module.__dict__.get("forward")
    return found if isinstance(found, Operations) else None


def sites_of(module: nn.Module) -> Iterator[Site]:
    """Yield the interjections at a module and at its operations."""
    for hook in module._forward_hooks.values():
        if isinstance(site := getattr(hook, "__self__", None), ModuleSite):
            yield site
    operations = operations_of(module)
    if operations is not None:
        yield from operations.sites


class _Every:
    """Contains the names of all operations."""

    def __contains__(self, name: object) -> bool:
        return name is not None


_NUMBERED = re.compile(r"(.+)_\d+")


def _bases(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the functions that operations may be calls of: ``softmax_1`` is one of ``softmax``."""
    for name in names:
        yield name
        if (numbered := _NUMBERED.fullmatch(name)) is not None:
            yield numbered[1]


def _constant(function: Any) -> Any:
    """Mark a function for the compiler, which then calls it while it traces: else each operation is a graph break.

    ``torch.compiler.assume_constant_result`` does so too, but imports the compiler.
    """
    function._dynamo_marked_constant = True
    return function


@_constant
def _means(pattern: str, name: str) -> bool:
    return pattern == name or NameSegment(pattern).matches(name)


@_constant
def _name_of(function: Any) -> str | None:
    if type(function) not in PLAIN_FUNCTIONS:  # another callable may define a hash of its own
        return operation_name(function)
    try:
        return _names[function]
    except KeyError:
        name = operation_name(function)
        if is_torchs(function):  # a user's function may reference anything, so it is not kept
            _names[function] = name
        return name


_names: dict[Any, str | None] = {}


@_constant
def _gives_more(function: Any) -> bool:
    return main_result(function, (None,)) is None


@_constant
def _in_place(function: Any) -> bool:
    return is_in_place(str(getattr(function, "__name__", "")))


@_constant
def _complete_the_compiler() -> None:
    """Have the compiler give modes the functions that it leaves out (PyTorch 2.13): ``relu_``, ``rand`` and others.

    The compiler asks ``torch.overrides``, which lists the functions whose tensors may be of another class.
    """
    from torch._dynamo.variables.torch import get_overridable_functions

    known = get_overridable_functions()
    builtin: Any = torch._C
    for of in (builtin._VariableFunctions, builtin._nn, builtin._special, builtin._linalg, builtin._fft):
        for name in dir(of):
            if not name.startswith("_") and operation_name(function := getattr(of, name)) is not None:
                known.add(function)


_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack
_depth = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at


class _Mode(TorchFunctionMode):
    """The function mode of one call of a module.

    Attributes:
        counts: how often each function was called.
        off: whether a module inside runs, below a mode of the user's, so that this one cannot be taken off the stack.
    """

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.counts: dict[str, int] = {}
        self.off = False
        if operations.seen is not None:
            operations.seen.add("")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name_of(func)
        operations = self.operations
        if name not in operations.names or self.off:
            return func(*args, **kwargs) if kwargs else func(*args)
        assert name is not None
        count = self.counts.get(name, 0)
        self.counts[name] = count + 1
        path, sites = operations.at(name, count)
        if operations.seen is not None:
            operations.seen.add(path)
        if not sites:
            return func(*args, **kwargs) if kwargs else func(*args)
        return _reported(path, sites, func, args, kwargs or {})

    def run(self, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function while the mode is off; a narrowed forward does so."""
        return self.__torch_function__(func, (), args, kwargs)


def _turned_off() -> _Mode | None:
    """Turn off the mode of the module that is running, and return it; None if there is none."""
    depth = _depth()
    if not depth:
        return None
    top = _at(depth - 1)
    if type(top) is _Mode:
        return _pop()  # type: ignore[no-any-return]
    for level in range(depth - 2, -1, -1):
        mode = _at(level)
        if type(mode) is _Mode and not mode.off:
            mode.off = True
            return mode
    return None


def _turn_on(mode: _Mode | None) -> None:
    if mode is not None:
        if mode.off:
            mode.off = False
        else:
            _push(mode)


def _whole_or_eager(function: Any) -> None:
    """Have the compiler trace a function together with its caller, or else run it eagerly with all that it calls.

    Otherwise, after a graph break around it, the compiler would trace the functions inside it with the mode and then
    run the result under the mode: each interjection would act twice. The mark of `dynamo_skip` is left out, since it
    is a graph break by itself.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


_whole_or_eager(Operations._counted)


def _reported(path: str, sites: Sequence[Site], func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation and report its result; return the result, or what replaces it."""
    compiling = torch.compiler.is_compiling()
    if not compiling and _acts_already(path):
        return func(*args, **kwargs)
    inputs = (*args, *kwargs.values())
    entered = [entered_with(inputs) if one.with_gradients else None for one in sites]
    changed: Any = None
    node = None
    if not compiling:
        changed = changed_by(func, args, kwargs) if kwargs or _in_place(func) else None
        result, node = (func(*args, **kwargs), None) if changed is None else called(func, changed, args, kwargs)
    elif _in_place(func):
        return _reported_in_place(path, sites, entered, func, args, kwargs)
    else:
        result = func(*args, **kwargs)
    old = changed if result is None else result[0] if type(result) is tuple and _gives_more(func) else result
    value = _after_all(path, sites, entered, inputs, old)
    if value is None:
        return result
    if type(result) is tuple and type(old) is not tuple:
        return (value, *result[1:])
    if changed is None or changed is not old:
        return value
    overwrite(changed, value, node)  # the caller of an in-place function may ignore the result
    return result


def _after_all(path: str, sites: Sequence[Site], entered: Sequence[Any], inputs: Any, value: Any) -> Any:
    """Return what the interjections make of a value, one after the other; None if it stays."""
    replaced = None
    for site, one in zip(sites, entered, strict=True):
        new = site(path, None, inputs, value, one)
        if new is not None:
            value = replaced = new
    return replaced


def _reported_in_place(
    path: str, sites: Sequence[Site], entered: Sequence[Any], func: Any, args: Any, kwargs: Any
) -> Any:
    """Do the same for an operation in place while the compiler traces: it works on a copy, which is then written back.

    What the operation saves for the backward is then not written to a second time.
    """
    changed, copied = args[0], args[0].clone()
    func(copied, *args[1:], **kwargs)
    value = _after_all(path, sites, entered, (*args, *kwargs.values()), copied)
    changed.copy_(copied if value is None else value)
    return changed


def _acts_already(path: str) -> bool:
    """Return whether a graph of the compiler makes this call: it was traced with the mode, and has the interjection.

    Raises:
        RewriteError: the module makes the call in a checkpoint of a function. For the backward that function runs a
            second time, and the forward of the module, which turns the mode on, does not.
    """
    frame: Any = sys._getframe(2)
    in_graph = False
    while frame is not None and frame.f_code is not _COUNTED:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_filename.startswith("<eval_with_key>"):
            in_graph = True
        elif in_graph and module == "torch._dynamo.eval_frame":
            return True
        elif module == "torch.utils.checkpoint":
            context = frame.f_locals.get("ctx")  # of a reentrant one, whose first run is without gradients
            if torch.is_grad_enabled() or any(getattr(context, "needs_input_grad", ())):
                raise RewriteError(
                    f"`{path}` runs inside of torch.utils.checkpoint, which would run it again for the backward "
                    "without the interjection. Checkpoint a module instead of a function, with the operation in it"
                )
        frame = frame.f_back
    return False


_COUNTED = Operations._counted.__code__
