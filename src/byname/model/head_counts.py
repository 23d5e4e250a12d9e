"""Head counts: how many attention heads a module, or its config, says that it has, and of which size."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from byname.reading.objects import attributes_of


class Heads(NamedTuple):
    """What a module says of its heads.

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
    told = [read_heads(attributes_of(module)), *map(read_heads, configs_of(module))]
    return {count for heads in told if heads for count in (heads.number, heads.keys) if count}


def configs_of(module: nn.Module) -> list[dict[str, Any]]:
    """Return the attributes of the configs that a module has."""
    found = [attributes_of(module).get(name) for name in _CONFIGS]
    return [one if type(one) is dict else attributes_of(one) for one in found if one is not None]


def read_heads(held: dict[str, Any], *others: dict[str, Any]) -> Heads | None:
    """Return the heads that attributes tell of; the others may tell of what is missing beside their number."""
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
