"""Explicit attention: PyTorch's attention as matmul, softmax and matmul, with places in between.

The kernels that PyTorch chooses compute everything in one step, and have no scores that could be observed. The result
here is the same up to rounding. Dropout draws other random numbers than a kernel that draws its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from byname.errors import BadArgumentError
from byname.model.operations import is_part_of_attention
from byname.model.predicates import means_parts
from byname.model.selectors import Selector
from byname.model.spot import Resolution
from byname.reading.objects import attributes_of

ReplacePart = Callable[[str, Tensor], Tensor]
"""A function ``(part, value)`` that returns the replacement of the scores or of the pattern."""


def checked_attention(attention: str | None, resolution: Resolution, selectors: Sequence[Selector]) -> bool:
    """Return whether attention may run step by step; raise an error if steps are asked for and it may not."""
    if attention not in (None, "explicit"):
        raise BadArgumentError(f'attention= takes "explicit" or None, not {attention!r:.40}')
    asked = chain.from_iterable(resolution.operations.values())
    steps = [f"`{spot.full}`" for spot in asked if is_part_of_attention(spot.method, spot.name)]
    selected = [str(one) for one in selectors if means_parts(one)]
    if attention is None and (steps or selected):
        own = "" if steps else ". Attention that the model computes in Python runs as before"
        raise BadArgumentError(
            f"{[*steps, *selected][0]} is a step of attention, which PyTorch computes in one kernel: pass "
            f'attention="explicit" to run matmul, softmax and matmul, with the same result up to rounding{own}'
        )
    return attention is not None


def explicit_attention(
    replace_part: ReplacePart,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the result of `torch.nn.functional.scaled_dot_product_attention`, up to rounding.

    >>> query = torch.randn(1, 2, 3, 4)
    >>> shapes = []
    >>> out = explicit_attention(lambda part, seen: shapes.append((part, seen.shape)) or seen, query, query, query)
    >>> torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(query, query, query), atol=1e-6), shapes
    (True, [('scores', torch.Size([1, 2, 3, 3])), ('pattern', torch.Size([1, 2, 3, 3]))])

    `replace_part` is called with ``"scores"`` and the scaled and masked products before the softmax, of shape
    ``(..., heads, queries, keys)``, and with ``"pattern"`` and the probabilities before dropout. The results replace
    these tensors.
    """
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = replace_part("scores", _masked((query * scale) @ key.mT, attn_mask, is_causal))
    pattern = replace_part("pattern", _probabilities(scores))
    if dropout_p:
        pattern = torch.dropout(pattern, dropout_p, True)
    return pattern @ value


def explicit_multi_head(replace_part: ReplacePart, function: FunctionType, *args: Any, **kwargs: Any) -> Any:
    """Return the result of `torch.nn.functional.multi_head_attention_forward`, up to rounding.

    PyTorch's own code runs, with an attention and a softmax that take steps: whether it calls the one or the other
    depends on ``need_weights``. The shapes that `replace_part` gets are ``(batch, heads, queries, keys)``.
    """
    heads = kwargs["num_heads"] if "num_heads" in kwargs else args[4]
    places = {
        "scaled_dot_product_attention": partial(explicit_attention, replace_part),
        "softmax": partial(_softmax, replace_part, heads),
        "has_torch_function": lambda tensors: False,  # function modes have seen the call already
    }
    copied = FunctionType(
        function.__code__, {**function.__globals__, **places}, None, function.__defaults__, function.__closure__
    )
    return copied(*args, **kwargs)


def with_all_heads(module: nn.Module, value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function makes of scores or of a pattern, with a dimension 1 of all heads.

    In a step with a mask `transformers` (5.23) hands the queries that share keys over as positions of one head, where a
    module has ``num_key_value_groups``: ``(batch, heads of keys, groups, keys)``.
    """
    held = attributes_of(module)
    groups = held.get("num_key_value_groups")
    heads = attributes_of(held.get("config")).get("num_attention_heads")
    if value.ndim != 4 or type(groups) is not int or groups < 2 or value.shape[2] != groups:
        return change(value)
    if value.shape[1] * groups != heads:
        return change(value)
    batch, _, _, keys = value.shape
    unpacked = value.reshape(batch, heads, 1, keys)
    return change(unpacked).expand_as(unpacked).reshape(value.shape)


def _softmax(replace_part: ReplacePart, heads: int, scores: Tensor, dim: int) -> Tensor:
    """Return the softmax of scores of shape ``(batch * heads, queries, keys)``."""
    scores = replace_part("scores", torch.unflatten(scores, 0, (-1, heads)))
    return replace_part("pattern", torch.softmax(scores, dim)).flatten(0, 1)


def _masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    if is_causal:
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask


def _probabilities(scores: Tensor) -> Tensor:
    """Return the softmax over the keys, computed in at least float32; zeros for a query whose keys are all masked."""
    half = scores.dtype in (torch.float16, torch.bfloat16)
    found = torch.softmax(scores, -1, dtype=torch.float32 if half else None).to(scores.dtype)
    return found.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
