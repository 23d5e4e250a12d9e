"""Methods: the methods of a module, the Python function behind each, and which of them a forward may call."""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.model.module_tree import modules_by_path
from byname.model.operations import is_leaf_module, is_operation, operation_path, taken
from byname.reading.objects import attributes_of, namespace_of, parents_of


class Namespace(nn.Module):
    """Namespace of a Python module or class, or of the whole program: its functions stand as methods of a module.

    So the path language, and what observes variables, knows the functions of a program as it knows a model.

    Attributes:
        functions: the innermost Python function behind each name, or what is there instead.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.functions: dict[str, Any] = {}

    def child(self, *names: str) -> Namespace:
        """Return the namespace that names lead to; it is made where there is none."""
        node = self
        for name in names:
            found = node._modules.get(name)
            if not isinstance(found, Namespace):
                found = node._modules[name] = Namespace(f"{node.name}.{name}".removeprefix("."))
            node = found
        return node


def method_of(module: nn.Module, name: str) -> FunctionType | None:
    """Return the innermost Python function behind ``module.<name>``; None if the module has no method of that name.

    The module's own ``__dict__`` comes first, then its classes; ``Base.forward`` is that of one class. Bound methods,
    properties, partial methods and decorators are unwrapped: ``__wrapped__``, or else a function of that name in the
    decorator's closure. Never runs the user's code.

    Example:
        >>> method_of(nn.ReLU(), "forward").__qualname__
        'ReLU.forward'
        >>> method_of(nn.ReLU(), "backward") is None
        True
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise _no_python(module, name, "it was compiled by torch.jit")
    raw = _raw(module, name)
    if raw is None:
        return None
    raw = raw if isinstance(module, Namespace) else _layers(raw, name.rpartition(".")[2])[-1]
    if isinstance(raw, FunctionType):
        return raw
    if not callable(raw) and not isinstance(raw, staticmethod | classmethod):
        return None
    raise _no_python(module, name, _why_not(raw))


def innermost(raw: Any, name: str) -> Any:
    """Return the callable behind a function, method, property or partial of a name, without all that wraps it."""
    return _layers(raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw, name)[-1]


def unwrap_function(raw: Any, name: str) -> FunctionType | None:
    """Return the innermost Python function behind a function or a partial of a name; None if there is none."""
    inner = _layers(raw, name)[-1] if type(raw) in FUNCTIONS else None
    return inner if type(inner) is FunctionType else None


FUNCTIONS = (FunctionType, functools.partial, type(functools.cache(len)))
_WITH_FUNC = (functools.partialmethod, functools.cached_property, functools.singledispatchmethod)
NOT_CALLABLE = (property, *_WITH_FUNC)
"""The classes of what stands in a class for a method and cannot be called itself."""


def decorators_of_forward(module: nn.Module) -> list[FunctionType]:
    """Return the Python functions that decorators have put around the forward, the outermost first."""
    return [one for one in _layers(_raw(module, "forward"), "forward")[:-1] if type(one) is FunctionType]


def _layers(raw: Any, name: str) -> list[Any]:
    """Return a callable and what it wraps, the innermost last."""
    layers = [raw]
    while (inner := _one_inside(layers[-1], name)) is not None and not any(inner is one for one in layers):
        layers.append(inner)
    return layers


def gets_no_owner(function: FunctionType, owner: object) -> bool:
    """Return whether a function is stored on the instance, so that it is called without the instance."""
    own = vars(owner).values() if isinstance(owner, nn.Module) else ()
    return isinstance(owner, Namespace) or any(one is function for one in own)


def _raw(module: nn.Module, name: str) -> Any:
    """Return the raw attribute; neither properties nor ``__getattr__`` run."""
    if isinstance(module, Namespace):
        return module.functions.get(name)
    if "." in name:
        return next((vars(cls)[name.partition(".")[2]] for cls in bases_with(module, name)), None)
    ofs = [vars(cls)[name] for cls in type(module).__mro__ if name in vars(cls)]
    if ofs and isinstance(ofs[0], property | functools.cached_property):
        return ofs[0]
    own = vars(module)
    return own[name] if name in own else next(iter(ofs), None)


def bases_with(module: nn.Module, method: str) -> list[type]:
    """Return the base classes of a module that have a method of a name; ``Base.forward`` names the class, too."""
    kind, _, name = method.rpartition(".")
    bases = [cls for cls in type(module).__mro__[1:] if name in vars(cls) and cls is not nn.Module]
    return [cls for cls in bases if not kind or cls.__name__ == kind]


def _one_inside(raw: Any, name: str) -> Any:
    """Return the function that a callable wraps; None if it wraps none."""
    if isinstance(raw, MethodType):
        return raw.__func__
    if isinstance(raw, property):
        return raw.fget
    if isinstance(raw, staticmethod | classmethod):
        return None
    if (wrapped := attributes_of(raw).get("__wrapped__")) is not None:  # which `functools.wraps` has set
        return wrapped
    if isinstance(raw, (functools.partial, *_WITH_FUNC)):
        return raw.func
    if isinstance(raw, FunctionType) and raw.__code__.co_name != name:
        return next(_of_that_name(raw, name), None)
    return None


def _of_that_name(function: FunctionType, name: str) -> Iterator[Any]:
    """Yield the functions of a name that a decorator without ``functools.wraps`` has in its closure."""
    for cell in function.__closure__ or ():
        content = content_of(cell)
        inner = content.__func__ if isinstance(content, MethodType) else content
        if isinstance(inner, FunctionType) and inner.__code__.co_name == name:
            yield inner


def content_of(cell: CellType) -> Any:
    """Return the value of a variable of an enclosing function; None before it is assigned."""
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _why_not(raw: Any) -> str:
    if isinstance(raw, staticmethod | classmethod):
        return f"it is a {type(raw).__name__}, which has no self"
    if type(raw).__module__.startswith("torch.jit") or isinstance(raw, torch.ScriptFunction):
        return "it was compiled by torch.jit"
    return f"it is of type {type(raw).__name__}, which has no Python code"


def _no_python(module: nn.Module, name: str, why: str) -> BadArgumentError:
    if isinstance(module, Namespace):
        function = f"{module.name}.{name}".removeprefix(".")
        return BadArgumentError(f"the variables of {function} cannot be observed: {why}")
    return BadArgumentError(
        f"the variables of {type(module).__name__}.{name} cannot be observed: {why}. "
        "Watch the module itself, or the operations in it."
    )


def methods_of(module: nn.Module) -> list[str]:
    """Return the names of the methods and properties of a module's classes, up to `nn.Module`, except ``__names__``."""
    if isinstance(module, Namespace):
        return [*module.functions]
    return methods_in(type(module))


def methods_in(cls: type) -> list[str]:
    """Return the names that `methods_of` returns, for a class of modules."""
    held: dict[str, None] = {}
    for kind in parents_of(cls):
        if kind is nn.Module:
            break
        for name, one in namespace_of(kind).items():
            if not name.startswith("__") and (callable(one) or isinstance(one, NOT_CALLABLE)):
                held.setdefault(name)
    return [*held]


def other_entry_points(module: nn.Module) -> list[str]:
    """Return the names of the module's methods that a program may call instead of the module: none of PyTorch's own."""
    kind: Any = type(module)
    return _callable_instead(kind)


@functools.lru_cache(maxsize=1024)
def _callable_instead(kind: Any) -> list[str]:
    kinds = [namespace_of(one) for one in parents_of(kind)]
    of_torch = [one for one in kinds if str(one.get("__module__")).split(".")[0] == "torch"]
    return [name for name in methods_in(kind) if not any(name in one for one in of_torch)]


def function_of(module: nn.Module, name: str) -> FunctionType | None:
    """Return the Python function of a method; None if it has none."""
    try:
        return method_of(module, name)
    except BadArgumentError:  # it has no Python code
        return None


def names_reached(modules: Iterable[nn.Module]) -> set[str]:
    """Return the names of the methods that forwards call, and of those that these call in turn.

    A class may have hundreds of methods that do not belong to running it, such as those that load files. The methods of
    `nn.Module` itself, such as ``float``, are left out: code mostly calls these names on tensors.
    """
    kinds: dict[type, nn.Module] = {type(module): module for module in modules if not is_leaf_module(module)}
    known = {name for module in kinds.values() for name in methods_of(module)} - set(vars(nn.Module))
    reached: set[str] = set()
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for module in kinds.values():
            function = function_of(module, name)
            if function is not None:
                waiting += [one for one in _names_in(function.__code__) if one in known]
    return reached


def _names_in(code: CodeType) -> set[str]:
    """Return the global and attribute names that code mentions, also in the functions inside it."""
    inside: list[Any] = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names_in, inside))


_LOADS = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})


def note_on_function(path: str, owners: Mapping[str, nn.Module], model: nn.Module) -> str | None:
    """Return a note if a path was read as a child module but could also mean a call of a function; else None.

    `owners` are the modules that the path leads through, by their paths. A second path of the owner gets no note.
    """
    around, _, name = path.rpartition(".")
    plain, number = _NUMBERED.fullmatch(name).groups("0")  # type: ignore[union-attr]
    owner = owners.get(around)
    if owner is None or not is_operation(plain) or not calls_function(owner, plain):
        return None
    if around not in modules_by_path(model):
        return None
    other = operation_path(around, plain, int(number), taken(owner))
    return f"`{path}` was read as the module; for the call of the function {plain} write `{other}`"


_NUMBERED = re.compile(r"(.*?)(?:_([1-9]\d*))?")


def calls_function(owner: nn.Module, name: str, method: str = "forward") -> bool:
    """Return whether a method of a module reads a name from an object other than the module itself."""
    function = function_of(owner, method)
    code = None if function is None else function.__code__
    if code is None or name not in (*code.co_names, *code.co_freevars, *code.co_cellvars):
        return False
    itself, before = code.co_varnames[:1], None
    for one in dis.get_instructions(code):
        if one.argval == name and one.opname in _LOADS and before not in itself:
            return True
        before = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
    return False
