"""State: objects with data that can be merged, gathered over ranks, and saved as tensors and plain values.

As bytes a state is in the safetensors format, with one more tensor that holds its structure as JSON. Nothing in it is
ever executed. A class is known by its module and name: a program may have a ``Mean`` of its own, and a notebook cell
that runs twice makes two classes of one module and name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from byname.errors import BadArgumentError
from byname.reading.interrupts import defer_signals
from byname.text import with_article

VERSION = 1
"""Of the layout of states. A state with a higher one was written by a newer byname."""


class Stateful(ABC):
    """An object with data that merges with others of its class and settings, also over ranks, and has a state."""

    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """The attributes that change the figures: they must be equal to merge two objects, or to load a state."""
    KIND: ClassVar[str]
    """The kind of object; also the key of the class in a state."""

    def settings(self) -> dict[str, Any]:
        """Return the attributes in `SETTINGS`, by their names."""
        return {name: plain_setting(getattr(self, name)) for name in self.SETTINGS}

    def merge(self, other: Self) -> Self:
        """Take in the data of another object with the same settings, and return this one.

        Raises:
            BadArgumentError: if the other is of another class, has other settings, or keeps something else.
        """
        if type(other) is not type(self):
            raise _other_class(type(self), type(other))
        if differ := _differing(self.settings(), other.settings()):
            mine, others = differ
            raise BadArgumentError(
                f"{with_article(type(self).__name__)} with {mine} cannot merge one with {others}: their rules differ"
            )
        with defer_signals():
            self._merge_checked(other)
        return self

    def reduce(self, group: Any = None) -> Self:
        """Return a new object with the data of all ranks, equal on each rank; they are merged in the order of ranks.

        A collective: every rank of the group has to call it. Without `torch.distributed` it is a copy.

        Args:
            group: a process group; the default one if None.

        Raises:
            BadArgumentError: on every rank, if one has another class, other settings or keeps something else; if
                this rank does not belong to the group.
        """
        whole = self._fresh()
        for rank, state in enumerate(states_of_all_ranks(self.state_dict(), group)):
            try:
                one = self._fresh()
                one._replace_contents(self._read_contents(state))
                whole.merge(one)
            except BadArgumentError as error:
                raise BadArgumentError(f"rank {rank} cannot be merged with the others: {error}") from None
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Return all data as tensors and plain values, as copies.

        It also holds the module and the name of the class, and the settings.
        """
        settings = writable_copy(plain_setting(self.settings()))
        about = {self.KIND: saved_class_name(type(self)), "version": VERSION, "settings": settings}
        return {**about, **self._state_contents()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the data by that of a `state_dict`.

        Raises:
            BadArgumentError: if it is the state of something else, or of other settings. Then nothing changes.
        """
        self._replace_contents(self._read_contents(state))

    def _check_header(self, state: dict[Any, Any]) -> None:
        """Refuse a state of another class, of a newer layout, or with other settings."""
        kind, name, version = with_article(type(self).__name__), state.get(self.KIND), state.get("version", VERSION)
        if not is_named(type(self), type(self).__name__ if name is None else name):
            mine, other = (
                distinct_names(type(self), name) if isinstance(name, str) else (type(self).__name__, brief(name))
            )
            raise BadArgumentError(f"this is the state of {with_article(other)}, not of {with_article(mine)}")
        if type(version) is not int:
            raise BadArgumentError(f"the version of the state of {kind} is a number, not {version!r:.80}")
        if version > VERSION:
            raise BadArgumentError(
                f"this state of {kind} has version {version}, and this byname reads up to {VERSION}: update byname"
            )
        settings = plain_setting(self.settings())
        if differ := _differing(settings, state.get("settings", settings)):
            one, two = differ
            raise BadArgumentError(
                f"this is the state of {kind} with {two} and cannot be loaded into one with {one}: load it into one "
                "made with the same arguments"
            )

    @abstractmethod
    def _fresh(self) -> Self:
        """Return another object of the same settings, without data."""

    @abstractmethod
    def _merge_checked(self, other: Self) -> None: ...

    @abstractmethod
    def _state_contents(self) -> dict[str, Any]:
        """Return the data of a state, without its header, as copies."""

    @abstractmethod
    def _read_contents(self, state: Any) -> Any:
        """Return checked copies of the data in a state; this object does not change."""

    @abstractmethod
    def _replace_contents(self, contents: Any) -> None: ...


def _differing(mine: dict[str, Any], others: Any) -> tuple[str, str] | None:
    """Return the settings that differ, written as in a call; None if all are equal."""
    if not isinstance(others, dict):
        return str(mine), brief(others)
    names = [name for name in {**mine, **others} if not (name in mine and name in others)]
    names += [name for name in mine if name in others and not equal_numbers(mine[name], others[name])]
    one, two = ([name for name in names if name in settings] for settings in (mine, others))
    return (as_call(mine, one) or "no such setting", as_call(others, two) or "no such setting") if names else None


def as_call(settings: dict[str, Any], names: Iterable[str]) -> str:
    """Return some settings, written as in a call."""
    return ", ".join(f"{name}={_shown(settings[name])}" for name in names)


def _shown(value: Any) -> str:
    large = isinstance(value, Tensor) and value.numel() > 6
    return f"<{tuple(value.shape)} of {value.dtype}>" if large else repr(value)


def brief(value: Any) -> str:
    """Return a short text of an unexpected value, for an error."""
    return f"{sorted(map(str, value))!s:.200}" if isinstance(value, dict) else f"{value!r:.200}"


# Trees of dicts, lists and tuples.


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with each value that is no dict, list or tuple replaced."""
    if isinstance(value, Mapping):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(mapped(one, change) for one in value)
    return change(value)


def on_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return mapped(value, lambda one: change(one) if isinstance(one, Tensor) else one)


def writable_copy(value: Any) -> Any:
    """Return a copy that can be changed in place outside of inference mode, even if it was made inside."""
    with torch.inference_mode(False):
        return on_tensors(value, lambda tensor: tensor.detach().clone())


def leaves_in(value: Any) -> list[Any]:
    """Return the values in a tree, however deep in lists and dicts."""
    found: list[Any] = []
    mapped(value, found.append)
    return found


def plain_setting(value: Any) -> Any:
    """Return a setting as a state holds it: plain values as they are, others by the name of their function or class.

    >>> plain_setting({"fires": torch.relu, "sizes": (1, 2.5), "dtype": torch.float32})
    {'fires': 'relu', 'sizes': (1, 2.5), 'dtype': 'torch.float32'}
    """
    if isinstance(value, dict):
        return {plain_setting(key): plain_setting(one) for key, one in value.items()}
    return mapped(value, _plain)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, Tensor | bool):
        return value
    if isinstance(value, str | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return callable_name(value)


def callable_name(value: Any) -> str:
    """Return the name of a function in a state, or that of the class of another callable."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


def equal_numbers(one: Any, other: Any) -> bool:
    """Return whether all numbers are equal, in dicts, lists, tensors and arrays; NaN is the same as NaN.

    >>> equal_numbers({"dead": torch.tensor([1, 2])}, {"dead": [1.0, 2.0]})
    True
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal_numbers(one[key], other[key]) for key in one)
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return False
    if isinstance(one, Tensor | np.ndarray) or isinstance(other, Tensor | np.ndarray):
        return _same_arrays(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal_numbers, one, other))
    return bool(one == other) or bool(one != one and other != other)  # NaN is not itself


def _same_arrays(one: Any, other: Any) -> bool:
    try:
        mine, others = (
            value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
            for value in (one, other)
        )
    except (TypeError, ValueError, RuntimeError):  # PyTorch's errors for values that are no numbers
        return False
    alike = mine.shape == others.shape
    return alike and bool(((mine == others) | ((mine != mine) & (others != others))).all())


# Bytes.

_OUTLINE = "byname"


def packed_state(state: dict[str, Any]) -> bytes:
    """Return a state of tensors, numbers, texts, None, and lists, tuples and dicts of these, as bytes.

    >>> unpacked_state(packed_state({"count": 2, "mean": torch.zeros(2)}))
    {'count': 2, 'mean': tensor([0., 0.])}
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    outline = json.dumps(_outlined(state, tensors)).encode()
    tensors[_OUTLINE] = torch.frombuffer(bytearray(outline), dtype=torch.uint8)
    return save(tensors)


def unpacked_state(content: bytes, *, source: str = "this") -> Any:
    """Return the packed state, with its tensors on the CPU; an error names the source of the bytes."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        outline = json.loads(bytes(tensors.pop(_OUTLINE).numpy()))
        return _filled(outline, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadArgumentError(f"{source} is not a saved statistic: {error!r:.200}") from None


def _outlined(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_outlined(key, tensors), _outlined(one, tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_outlined(one, tensors) for one in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a state holds tensors and plain values, not {type(value).__name__}")


def _filled(outline: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(outline, dict):
        return outline
    ((kind, content),) = outline.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_filled(key, tensors): _filled(one, tensors) for key, one in content}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_filled(one, tensors) for one in content)
    raise ValueError(f"unknown part {kind!r:.40}")


def states_of_all_ranks(state: dict[str, Any], group: Any = None) -> list[Any]:
    """Return the states of all ranks of a group in the order of ranks; without a group only this one."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [state]
    if distributed.get_rank(group) < 0:
        raise BadArgumentError(f"rank {distributed.get_rank()} is not in this group: call it only on ranks that are")
    on_gpu = distributed.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.frombuffer(bytearray(packed_state(state)), dtype=torch.uint8)
    size = torch.tensor([len(mine)], device=device)
    sizes = [torch.empty_like(size) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, size, group=group)
    sent = torch.zeros(int(max(sizes)), dtype=torch.uint8, device=device)
    sent[: len(mine)] = mine.to(device)
    got = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(got, sent, group=group)
    return [unpacked_state(bytes(one[: int(length)].cpu().numpy())) for one, length in zip(got, sizes, strict=True)]


# Names of classes.

_OURS = "byname.analyse"


def saved_class_name(kind: type) -> str:
    """Return the name of a class in saved states: its module and its qualified name.

    >>> from byname.analyse import Mean
    >>> saved_class_name(Mean)
    'byname.analyse:Mean'
    """
    module = kind.__module__
    ours = module == _OURS or module.startswith(f"{_OURS}.")  # a state outlives the file that a class of ours is in
    return f"{_OURS if ours else module}:{kind.__qualname__}"


def is_named(kind: type, name: object) -> bool:
    """Return whether a name in a state means this class.

    The program itself is ``__main__`` while it runs and has another name where it is imported, so that ``__main__``
    stands for any module but byname's. A name without a module, as byname once wrote them, means all classes of it.
    """
    if not isinstance(name, str):
        return False
    module, _, qualified = name.rpartition(":")
    own, _, mine = saved_class_name(kind).rpartition(":")
    if not module:
        return kind.__name__ == name
    return mine == qualified and (own == module or ("__main__" in (module, own) and _OURS not in (module, own)))


def distinct_names(one: type | str, other: type | str) -> tuple[str, str]:
    """Return the names of two classes for an error: without their modules, unless they are then the same."""
    names = [each if isinstance(each, str) else saved_class_name(each) for each in (one, other)]
    bare = [name.replace(":", ".").rpartition(".")[2] for name in names]
    mine, others = map(dotted, names if bare[0] == bare[1] else bare)
    return mine, others


def dotted(name: str) -> str:
    """Return a name as a person writes it; one that is no valid name, such as an escape sequence, as its `repr`."""
    name = name.replace(":", ".")
    return name if len(name) <= 200 and name.isprintable() else f"{name!r:.200}"


def _other_class(mine: type, other: type) -> BadArgumentError:
    one, two = distinct_names(mine, other)
    if one != two:
        return BadArgumentError(f"{with_article(one)} merges only its own class, not {with_article(two)}")
    return BadArgumentError(
        f"there are two classes named {one}, as when a notebook cell runs twice, and each merges only its own. "
        "load_state_dict(other.state_dict()) loads the data of the other class"
    )


def class_named(name: object, base: type, declared: Iterable[type] = ()) -> type:
    """Return the child of a class that a name in a state means; those that an analyser declares or keeps come first."""
    if isinstance(name, str) and (ours := name.removeprefix(f"{_OURS}:")) in import_module(_OURS).__all__:
        getattr(import_module(_OURS), ours)  # is imported when it is asked for
    named = [kind for kind in dict.fromkeys(_children(base)) if is_named(kind, name)]
    found = [kind for kind in declared if is_named(kind, name)][:1]
    found = found or [kind for kind in named if saved_class_name(kind) == name] or named
    if len(found) == 1:
        return found[0]
    words = dotted(name) if isinstance(name, str) else f"{name!r:.80}"
    if not found:
        raise BadArgumentError(f"there is no {base.__name__.lower()} '{words}' here: import its module first")
    raise BadArgumentError(
        f"there are {len(found)} classes named {words} here, and the state may be of any of them: "
        "give each another name, or name the class in the analyser's KEEPS"
    )


def _children(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _children(child)
