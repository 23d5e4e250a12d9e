"""Feature dimensions: along which dimension the modules of a model lay the features of their values, and of which size.

What a convolution or a batch norm gives has its channels along dimension 1; what a linear layer, an embedding, a
recurrent layer or a layer norm gives has its features along the last. An activation, a block or a variable is judged by
the modules around it: the innermost scope with modules whose features have the size that is there decides. Of values
by heads, (batch, heads, tokens, ...), the heads are the channels, where a module says that it has so many.

Positions, as of tokens, lie before the features, or after channels. PyTorch's attention and recurrent layers have them
in dimension 0 unless ``batch_first=True``; so have the layers around these that PyTorch made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor, nn

from byname.model.head_counts import head_counts
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of


class FeatureDim(NamedTuple):
    """The dimension of the features of a value.

    Attributes:
        dim: 1, or -1 for the last.
        by: the kinds of modules that tell it.
        own: whether one of them gave the value itself.
    """

    dim: int
    by: tuple[str, ...]
    own: bool


@dataclass
class FeatureScope:
    """The features of the modules within one.

    Attributes:
        last: sizes of features along the last dimension, with the kinds of modules that have them.
        second: the same for channels along dimension 1, by the number of dimensions of the value (0 for any).
    """

    last: dict[int, set[str]] = field(default_factory=dict)
    second: dict[tuple[int, int], set[str]] = field(default_factory=dict)

    def add(self, module: nn.Module) -> None:
        """Take what one module is known to give and to get."""
        kind = type(module).__name__
        for size in _last_sizes(module):
            self.last.setdefault(size, set()).add(kind)
        for at in _second_sizes(module):
            self.second.setdefault(at, set()).add(kind)

    def dim_of(self, value: Tensor, *, own: bool = False) -> FeatureDim | None:
        """Return the dimension, if the sizes of a value tell it and not two."""
        last = self.last.get(value.shape[-1], set()) if own or value.ndim == 3 else set()
        second = self.second.get((value.ndim, value.shape[1]), set()) | self.second.get((0, value.shape[1]), set())
        if bool(last) == bool(second):
            return None
        return FeatureDim(-1, tuple(sorted(last)), own) if last else FeatureDim(1, tuple(sorted(second)), own)


class Surroundings:
    """The modules around one place: the one that gives the value there, and its scopes from the inside out.

    Args:
        modules: all modules of the model by their paths.
        path: the place, without ``.grad``.
        module: the one that is called at the place, or owns it.
        output: whether its output is there.
    """

    def __init__(self, modules: dict[str, nn.Module], path: str, module: nn.Module, output: bool) -> None:
        self._own = module if output else None
        self._explicit = path.endswith(_BY_HEADS)
        around = [one for one in _outwards(path) if one in modules]
        self._scopes = [modules[one] for one in around]
        self._inside = re.sub(r"^\.?forward(?=\[|$)", "", path[len(around[0]) :])
        self._read: dict[int, FeatureScope] = {}
        self._found: dict[tuple[int, int, int], FeatureDim | None] = {}

    def dim_of(self, value: Tensor) -> FeatureDim | None:
        """Return the dimension of the features of a value of three or more dimensions, if it can be known."""
        key = value.ndim, value.shape[1], value.shape[-1]
        if key not in self._found:
            self._found[key] = self._look(value)
        return self._found[key]

    @classmethod
    def at(cls, modules: dict[str, nn.Module], path: str) -> Surroundings:
        """Return those of a place by its path alone."""
        plain = path.removesuffix(".grad")
        owner = plain.partition("[")[0].removesuffix(".forward")
        module = modules.get("" if owner == "forward" else owner)
        return cls(modules, plain, module or modules[""], module is not None)

    def channels_unknown(self, value: Tensor) -> bool:
        """Return whether a value is a convolution's, or lies among convolutions, and has no known channels."""
        if isinstance(self._own, nn.modules.conv._ConvNd):
            return self.dim_of(value) is None
        around = value.ndim > 3 and _nearest([self._within(scope) for scope in self._scopes])
        return bool(around and around.second) and self.dim_of(value) is None

    def channels_first(self, value: Tensor) -> bool:
        """Return whether the features of a value are channels in dimension 1."""
        found = self.dim_of(value) if value.ndim > 2 else None
        return found is not None and found.dim == 1 and found.by != ("heads",)

    def position_dim(self, value: Tensor) -> int | None:
        """Return the dimension of the positions of a value; None where it is not known, or there is none."""
        if self.channels_first(value):
            return 2 if value.ndim == 3 else None
        if value.ndim == 3:
            return self._sequence_dim
        return None if self.channels_unknown(value) else value.ndim - 2

    def batch_dim(self, value: Tensor) -> int:
        """Return the dimension of the samples of a value; 0 where it is not known."""
        return int(value.ndim == 3 and self.position_dim(value) == 0)

    @cached_property
    def _sequence_dim(self) -> int | None:
        """The dimension of the positions of values of three dimensions."""
        own = self._scopes[0]
        if isinstance(own, nn.MultiheadAttention | nn.RNNBase) and not _OF_SEQUENCES.fullmatch(self._inside):
            return 1 if self._inside == "[1]" and isinstance(own, nn.MultiheadAttention) else None
        for scope in self._scopes:
            firsts = {one.batch_first for one in modules_in(scope) if isinstance(one, _BATCH_FIRST)}
            if firsts == {False} and isinstance(scope, _OF_PYTORCH):
                return 0
            if firsts or head_counts(scope):
                return None if False in firsts else 1
        return 1

    @property
    def told(self) -> bool:
        """Whether the model has modules that could tell, of values such as this place's or of others."""
        whole = self._within(self._scopes[-1])
        return bool(whole.last or whole.second)

    def _look(self, value: Tensor) -> FeatureDim | None:
        if self._own is not None:
            alone = FeatureScope()
            alone.add(self._own)
            found = alone.dim_of(value, own=True)
            if found is not None or alone.last or alone.second:
                return found
        if value.ndim == 4 and (self._explicit or any(value.shape[1] in head_counts(one) for one in self._scopes)):
            return FeatureDim(1, ("heads",), True)
        around = [self._within(scope) for scope in self._scopes]
        known = (scope.dim_of(value) for scope in around)
        return next((found for found in known if found is not None), None) or _of_images(around, value)

    def _within(self, scope: nn.Module) -> FeatureScope:
        read = self._read.get(id(scope))
        if read is None:
            read = self._read[id(scope)] = FeatureScope()
            for module in modules_in(scope):
                read.add(module)
        return read


def _of_images(around: list[FeatureScope], value: Tensor) -> FeatureDim | None:
    """Return dimension 1 where convolutions of so many dimensions are nearest, and no size fits: after a `cat`, say."""
    nearest = _nearest(around)
    if nearest is None or value.ndim < 4 or value.shape[-1] in nearest.last:  # channels last, as in ConvNeXt
        return None
    kinds = {kind for (ndim, _), some in nearest.second.items() if ndim == value.ndim for kind in some}
    return FeatureDim(1, tuple(sorted(kinds)), False) if kinds else None


def _nearest(around: list[FeatureScope]) -> FeatureScope | None:
    return next((scope for scope in around if scope.last or scope.second), None)


def _outwards(path: str) -> Iterator[str]:
    """Yield the paths of the scopes of a place, the innermost first: the module itself, its parent, the model."""
    plain = path.partition("[")[0]
    while plain:
        yield plain
        plain = plain.rpartition(".")[0]
    yield ""


def _last_sizes(module: nn.Module) -> Iterator[int]:
    name = type(module).__name__
    for kind, names in _LAST.items():
        if isinstance(module, kind):
            yield from _sizes(module, names)
    if isinstance(module, nn.RNNBase):
        yield (module.proj_size or module.hidden_size) * (1 + module.bidirectional)
    if name == "Conv1D":  # of transformers, a linear layer
        yield from _sizes(module, ("nx", "nf"))
    if name.endswith("RMSNorm"):  # most models have one of their own
        weight = attributes_of(module).get("_parameters", {}).get("weight")
        if weight is not None and weight.ndim == 1:
            yield len(weight)


def _second_sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    for kind, names in _SECOND.items():
        if isinstance(module, kind):
            dimensions = next((int(digit) + 2 for digit in type(module).__name__ if digit in "123"), 0)
            yield from ((dimensions, size) for size in _sizes(module, names))


def _sizes(module: nn.Module, names: tuple[str, ...]) -> Iterator[int]:
    for name in names:
        size = attributes_of(module).get(name)
        size = size[-1] if isinstance(size, tuple) and size else size
        if type(size) is int:
            yield size


_OF_SEQUENCES = re.compile(r"(\[0\])?|\.?input(\[(0|'(input|query|key|value)')\])?")
"""What stands behind a layer's path in the places of its sequences."""
_BATCH_FIRST: tuple[Any, ...] = (nn.MultiheadAttention, nn.RNNBase, nn.Transformer)
_OF_PYTORCH = (
    *_BATCH_FIRST,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_BY_HEADS = (".scores", ".pattern")
"""The ends of the places of ``attention="explicit"``, whose values are (batch, heads, queries, keys)."""
_LAST: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Bilinear: ("out_features",),
    nn.Embedding: ("embedding_dim",),
    nn.EmbeddingBag: ("embedding_dim",),
    nn.LayerNorm: ("normalized_shape",),
    nn.RMSNorm: ("normalized_shape",),
    nn.MultiheadAttention: ("embed_dim",),
    nn.RNNBase: ("input_size",),
}
_SECOND: dict[type[nn.Module], tuple[str, ...]] = {
    nn.modules.conv._ConvNd: ("in_channels", "out_channels"),
    nn.modules.batchnorm._NormBase: ("num_features",),
    nn.GroupNorm: ("num_channels",),
}
