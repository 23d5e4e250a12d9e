"""Feature dimensions: the dimension and the size of the features in the values of a model, and its numbers of heads.

Outputs of convolutions and batch norms have their channels along dimension 1. Outputs of linear layers, embeddings,
recurrent layers and layer norms have their features along the last. An activation, a block or a variable is judged by
the modules around it: the innermost scope decides in which a module has features of the size that the value has. In
values by heads, (batch, heads, tokens, ...), the heads are the channels, if a module has that number of heads.

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

from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of


class FeatureDim(NamedTuple):
    """The dimension of the features of a value: 1, or -1 for the last.

    `by` are the classes of the modules that show it; `own` is whether one of them gave the value itself.
    """

    dim: int
    by: tuple[str, ...]
    own: bool


@dataclass
class FeatureScope:
    """The features of the modules within one.

    Attributes:
        last: sizes of features along the last dimension, with the classes of the modules that have them.
        second: the same for channels along dimension 1, by the number of dimensions of the value (0 for any).
    """

    last: dict[int, set[str]] = field(default_factory=dict)
    second: dict[tuple[int, int], set[str]] = field(default_factory=dict)

    def add(self, module: nn.Module) -> None:
        """Add the sizes of the inputs and outputs of one module, as far as its class names them."""
        kind = type(module).__name__
        for size in _last_sizes(module):
            self.last.setdefault(size, set()).add(kind)
        for at in _second_sizes(module):
            self.second.setdefault(at, set()).add(kind)

    def dim_of(self, value: Tensor, *, own: bool = False) -> FeatureDim | None:
        """Return the dimension, if the sizes of a value fit exactly one."""
        last = self.last.get(value.shape[-1], set()) if own or value.ndim == 3 else set()
        second = self.second.get((value.ndim, value.shape[1]), set()) | self.second.get((0, value.shape[1]), set())
        if bool(last) == bool(second):
            return None
        return FeatureDim(-1, tuple(sorted(last)), own) if last else FeatureDim(1, tuple(sorted(second)), own)


class FeatureContext:
    """The modules around one place: the module that returns its value, and the scopes from the inside out.

    Args:
        path: the place, without ``.grad``.
        module: the one that is called at the place, or owns it.
        output: whether its output is there.
    """

    def __init__(self, modules: dict[str, nn.Module], path: str, module: nn.Module, output: bool) -> None:
        self._own = module if output else None
        self._explicit = path.endswith(_BY_HEADS)
        around = [one for one in enclosing_paths(path.partition("[")[0]) if one in modules]
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
    def at(cls, modules: dict[str, nn.Module], path: str) -> FeatureContext:
        """Return those of a place by its path alone."""
        plain = path.removesuffix(".grad")
        owner = plain.partition("[")[0].removesuffix(".forward")
        module = modules.get("" if owner == "forward" else owner)
        return cls(modules, plain, module or modules[""], module is not None)

    def channels_unknown(self, value: Tensor) -> bool:
        """Return whether a value is a convolution's, or lies among convolutions, and has no known channels."""
        if isinstance(self._own, nn.modules.conv._ConvNd):
            return self.dim_of(value) is None
        around = self._nearest() if value.ndim > 3 else None
        return bool(around and around.second) and self.dim_of(value) is None

    def channels_first(self, value: Tensor) -> bool:
        """Return whether the features of a value are channels in dimension 1."""
        found = self.dim_of(value) if value.ndim > 2 else None
        return found is not None and found.dim == 1 and found.by != ("heads",)

    def channel_dim(self, value: Tensor) -> int | None:
        """Return the dimension of the channels of a value, 0 in an image without a batch; None where it is not known.

        Of one or two dimensions the channels are the last. In a model without any module of known size they are
        dimension 1 of four and more, as of images.
        """
        if self._without_batch(value):
            return 0
        if value.ndim < 3:
            return None if not value.ndim or self._own_channels or self._may_lack_batch(value) else value.ndim - 1
        if (found := self.dim_of(value)) is not None:
            return None if not found.own and self._may_lack_batch(value) else found.dim % value.ndim
        return None if self.sizes_known or value.ndim == 3 else 1

    def _without_batch(self, value: Tensor) -> bool:
        """Return whether a value is that of a convolution, or of what follows one, for one sample alone."""
        if value.ndim < 2:
            return False
        if self._own_channels:
            return (value.ndim + 1, value.shape[0]) in self._own_channels
        known = value.ndim == 2 or self.dim_of(value) is not None
        return not known and self._may_lack_batch(value, other=value.shape[1])

    def _may_lack_batch(self, value: Tensor, other: int = 0) -> bool:
        """Return whether dimension 0 could be the channels of the convolutions around it, and no other one as well."""
        nearest = self._nearest()
        certain = isinstance(self._scopes[0], nn.modules.batchnorm._BatchNorm)  # it takes no image without a batch
        if nearest is None or certain or not value.ndim or (value.ndim == 2 and value.shape[1] in nearest.last):
            return False
        at = value.ndim + 1
        return (at, value.shape[0]) in nearest.second and (at, other) not in nearest.second

    @cached_property
    def _own_channels(self) -> dict[tuple[int, int], set[str]]:
        """The channels of the innermost module around the place, if that takes images with a batch and without."""
        alone = FeatureScope()
        if isinstance(self._scopes[0], nn.modules.conv._ConvNd | nn.modules.instancenorm._InstanceNorm):
            alone.add(self._scopes[0])
        return alone.second

    def one_for_each_position(self, value: Tensor) -> bool:
        """Return whether a value that goes into embeddings has no features, as ids or a mask of them."""
        numbers = value.ndim == 2 and not value.is_floating_point() and not value.is_complex()
        within = () if self._own is not None or not numbers else modules_in(self._scopes[0])
        return any(isinstance(one, nn.Embedding) for one in within)

    def position_dim(self, value: Tensor) -> int | None:
        """Return the dimension of the positions of a value; None where it is not known, or there is none."""
        if self.channels_first(value):
            return 2 if value.ndim == 3 else None
        if self._without_batch(value):
            return 1 if value.ndim == 2 else None
        if value.ndim == 3 or self.one_for_each_position(value):
            return self._sequence_dim
        if value.ndim == 2 and self._may_be_mask(value):
            return None
        return None if self.channels_unknown(value) or self._heads_before_features(value) else value.ndim - 2

    def _may_be_mask(self, value: Tensor) -> bool:
        """Return whether an input of a model with embeddings has no known number of features, as a mask in floats."""
        known = self._within(self._scopes[-1]).last
        embeds = any(isinstance(one, nn.Embedding) for one in modules_in(self._scopes[0]))
        return embeds and self._inside.lstrip(".").startswith("input") and value.shape[-1] not in known

    def _heads_before_features(self, value: Tensor) -> bool:
        """Return whether dimension 2 of four is, or may be, that of the heads, as it is before they are transposed."""
        if value.ndim != 4 or self._explicit or value.shape[2] not in self._head_counts:
            return False
        found = self.dim_of(value)
        return value.shape[1] not in self._head_counts or (found is not None and found.own and found.dim == -1)

    @cached_property
    def _head_counts(self) -> set[int]:
        return set[int]().union(*map(head_counts, self._scopes))

    def batch_dim(self, value: Tensor) -> int:
        """Return the dimension of the samples of a value; 0 where it is not known."""
        return int(value.ndim == 3 and self.position_dim(value) == 0)

    @cached_property
    def _sequence_dim(self) -> int | None:
        """The dimension of the positions of values of three dimensions, and of those without features."""
        own = self._scopes[0]
        if isinstance(own, nn.MultiheadAttention | nn.RNNBase) and not _OF_SEQUENCES.fullmatch(self._inside):
            return 1 if self._inside == "[1]" and isinstance(own, nn.MultiheadAttention) else None
        nearest = next((scope for scope in self._scopes if head_counts(scope)), self._scopes[-1])
        if not any(isinstance(one, _BATCH_FIRST) for one in modules_in(nearest)):
            return 1
        for scope in self._scopes:
            firsts = {one.batch_first for one in modules_in(scope) if isinstance(one, _BATCH_FIRST)}
            if firsts == {False} and isinstance(scope, _OF_PYTORCH):
                return 0
            if firsts or head_counts(scope):
                return None if False in firsts else 1
        return 1

    @property
    def sizes_known(self) -> bool:
        """Whether the model has modules with features of a known size, whatever the value at this place."""
        whole = self._within(self._scopes[-1])
        return bool(whole.last or whole.second)

    def _look(self, value: Tensor) -> FeatureDim | None:
        if self._own is not None:
            alone = FeatureScope()
            alone.add(self._own)
            found = alone.dim_of(value, own=True)
            if found is not None or alone.last or alone.second:
                return found
        if value.ndim == 4 and (self._explicit or value.shape[1] in self._head_counts):
            return FeatureDim(1, ("heads",), True)
        # the whole model is read only if no scope inside shows it
        known = (scope.dim_of(value) for scope in self._around())
        return next((found for found in known if found is not None), None) or _of_images(self._nearest(), value)

    def _around(self) -> Iterator[FeatureScope]:
        return map(self._within, self._scopes)

    def _nearest(self) -> FeatureScope | None:
        """Return the innermost scope with modules whose features have a known size."""
        return next((scope for scope in self._around() if scope.last or scope.second), None)

    def _within(self, scope: nn.Module) -> FeatureScope:
        read = self._read.get(id(scope))
        if read is None:
            read = self._read[id(scope)] = FeatureScope()
            for module in modules_in(scope):
                read.add(module)
        return read


def _of_images(nearest: FeatureScope | None, value: Tensor) -> FeatureDim | None:
    """Return dimension 1 if the nearest convolutions have as many dimensions but no size fits, as after a `cat`."""
    if nearest is None or value.ndim < 4 or value.shape[-1] in nearest.last:  # channels last, as in ConvNeXt
        return None
    kinds = {kind for (ndim, _), some in nearest.second.items() if ndim == value.ndim for kind in some}
    return FeatureDim(1, tuple(sorted(kinds)), False) if kinds else None


def enclosing_paths(path: str) -> Iterator[str]:
    """Yield a path and those around it, the innermost first: the module itself, its parent, the model."""
    while path:
        yield path
        path = path.rpartition(".")[0]
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
"""The ends of the paths, after a layer's own, at which its sequences are."""
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


class Heads(NamedTuple):
    """The heads of a module, by its own attributes.

    Attributes:
        number: the number of heads.
        keys: the number of heads of keys and values, where there are fewer.
        size: the width of one head; None if unknown.
        others: other widths of one head, as the keys and values of a latent attention (MLA) have them.
    """

    number: int
    keys: int | None
    size: int | None
    others: frozenset[int] = frozenset()


_COUNT = ("num_heads", "n_head", "n_heads", "num_attention_heads", "nhead", "heads", "nheads")
_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
_SIZE = ("head_dim", "head_size", "attention_head_size", "dim_head", "d_kv", "d_head")
_WIDTH = ("hidden_size", "n_embd", "embed_dim", "d_model")
_MLA = ("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim")
_CONFIGS = ("config", "cfg")


def head_counts(module: nn.Module) -> set[int]:
    """Return the numbers of heads that a module, or its config, says it has: of queries, and of keys and values."""
    known = [read_heads(attributes_of(module)), *map(read_heads, configs_of(module))]
    return {count for heads in known if heads for count in (heads.number, heads.keys) if count}


def configs_of(module: nn.Module) -> list[dict[str, Any]]:
    found = [attributes_of(module).get(name) for name in _CONFIGS]
    return [one if type(one) is dict else attributes_of(one) for one in found if one is not None]


def read_heads(held: dict[str, Any], *others: dict[str, Any]) -> Heads | None:
    """Return the heads that some attributes name; other attributes may name the sizes that are missing there."""
    count = _number(_COUNT, held)
    if count is None:
        return None
    keys, size = _number(_KEYS, held, *others), _number(_SIZE, held, *others)
    width = _number(_WIDTH, held, *others)
    value, plain, rope = (_number((name,), held, *others) or 0 for name in _MLA)
    latent = frozenset({value, plain + rope, plain + value}) if value else frozenset()
    return Heads(count, keys, size or (width // count if width else None), latent)


def _number(names: tuple[str, ...], *held: dict[str, Any]) -> int | None:
    found = (one[name] for one in held for name in names if type(one.get(name)) is int)
    return next((number for number in found if number > 0), None)
