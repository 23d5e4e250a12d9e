"""Cache: keys and values that a skipped layer of `transformers` leaves in the cache, so that it has the right length.

A model asks a layer of the cache, mostly the first one, how many positions there are, and makes positions and masks of
the answer. A layer that is skipped would leave its part of the cache empty (transformers 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of, namespace_of, parents_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor


def with_cache_filled(module: nn.Module, given: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """Return what a function returns that takes the place of a module, and put zeros into the cache of the module.

    Args:
        module: the module.
        given: its arguments.
        compute: the function. Where it fills the cache itself, the cache stays so.
    """
    before = [(cache, layer, _length(cache, layer)) for cache in _caches(given) for layer in _layers(module, cache)]
    result = compute()
    states = next((one for one in given if is_tensor(one) and one.ndim == 3), None)
    if states is not None:
        for cache, layer, length in before:
            if _length(cache, layer) == length:
                _fill(cache, layer, states)
    return result


def _caches(given: Sequence[Any]) -> Iterator[Any]:
    """Yield the caches of `transformers` among the arguments."""
    for one in given:
        written_in = (namespace_of(kind).get("__module__") for kind in parents_of(type(one)))
        if "transformers.cache_utils" in written_in:
            held = attributes_of(one)
            cache = held.get("self_attention_cache", one)
            if type(attributes_of(cache).get("layers")) is list:
                yield cache


def _layers(module: nn.Module, cache: Any) -> list[int]:
    """Return the layers of a cache that a module fills: those with keys, or that the cache makes once it gets them."""
    numbers = {attributes_of(one).get("layer_idx") for one in modules_in(module)}
    return sorted(number for number in numbers if type(number) is int and _has_keys(cache, number))


def _has_keys(cache: Any, number: int) -> bool:
    layers = cache.layers
    if number >= len(layers):
        return attributes_of(cache).get("layer_class_to_replicate") is not None
    return "keys" in attributes_of(layers[number])


def _length(cache: Any, layer: int) -> int:
    return int(cache.get_seq_length(layer))


def _fill(cache: Any, layer: int, states: Tensor) -> None:
    """Put zeros into a layer of a cache; of one head with one feature, unless the cache has others already."""
    keys = attributes_of(cache.layers[layer]).get("keys") if layer < len(cache.layers) else None
    values = attributes_of(cache.layers[layer]).get("values") if keys is not None else None
    with DisableTorchFunction(), torch.no_grad():
        cache.update(_zeros(keys, states), _zeros(values, states), layer)


def _zeros(stored: Tensor | None, states: Tensor) -> Tensor:
    batch, positions, _ = states.shape
    heads, size = (1, 1) if stored is None or stored.ndim != 4 else (stored.shape[1], stored.shape[-1])
    return states.new_zeros(batch, heads, positions, size)
