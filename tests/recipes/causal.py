"""Tiny language models of transformers with random weights, whose code is written in different ways, and hooks by hand.

GPT-2 has `Conv1D`, Llama (and Qwen2 and Mistral, which are written as it is) and Gemma grouped keys and values and RMS
norms, GPT-NeoX, Phi and Falcon a parallel residual stream, OPT no module for its MLP. The layers of Bloom and Falcon
return tuples. The attention and the MLP of Bloom add the residual stream themselves, and Falcon adds to what its MLP
returns in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byname

transformers = pytest.importorskip("transformers")

IDS, OTHER = torch.tensor([[5, 9, 2, 7, 1]]), torch.tensor([[5, 9, 3, 7, 1]])
WIDTH, LAYERS, HEADS = 32, 4, 4
_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
_BLOOM = {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind of model has what the recipes name.

    Attributes:
        layers: the path of the layers.
        attention: the attention, below a layer.
        mixing: the layer that mixes the heads, below the attention.
        down: what the MLP adds to the residual stream, below a layer.
        activation: below a layer.
        norm: the norm before the unembedding.
        embedding: that of the tokens.
        settings: of its configuration.
    """

    layers: str
    attention: str
    mixing: str
    down: str
    activation: str
    norm: str
    embedding: str
    settings: dict[str, Any]


_GROUPED = {**_SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
_LLAMA = ("model.layers", "self_attn", "o_proj", "mlp.down_proj", "mlp.act_fn", "model.norm", "model.embed_tokens")
_FUSED = ("self_attention", "dense", "mlp.dense_4h_to_h")

KINDS = {
    "GPT2": Kind(
        *("transformer.h", "attn", "c_proj", "mlp.c_proj", "mlp.act", "transformer.ln_f", "transformer.wte"),
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32},
    ),
    "Llama": Kind(*_LLAMA, _GROUPED),
    "Gemma": Kind(*_LLAMA, {**_GROUPED, "head_dim": 8}),
    "GPTNeoX": Kind(
        *("gpt_neox.layers", "attention", "dense", "mlp.dense_4h_to_h", "mlp.act", "gpt_neox.final_layer_norm"),
        "gpt_neox.embed_in",
        {**_SIZES, "intermediate_size": 48},
    ),
    "Phi": Kind(
        *("model.layers", "self_attn", "dense", "mlp.fc2", "mlp.activation_fn", "model.final_layernorm"),
        "model.embed_tokens",
        _GROUPED,
    ),
    "OPT": Kind(
        *("model.decoder.layers", "self_attn", "out_proj", "fc2", "activation_fn", "model.decoder.final_layer_norm"),
        "model.decoder.embed_tokens",
        {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 32},
    ),
    "Bloom": Kind("transformer.h", *_FUSED, "mlp.gelu_impl", "transformer.ln_f", "transformer.word_embeddings", _BLOOM),
    "Falcon": Kind("transformer.h", *_FUSED, "mlp.act", "transformer.ln_f", "transformer.word_embeddings", _SIZES),
}


def every_kind(test):
    """Three of the kinds are fast: each is another way to write a block."""
    return pytest.mark.grid(fast=2)(pytest.mark.parametrize("kind", KINDS)(test))


@dataclass(frozen=True, slots=True)
class Causal:
    """A model with the places of its kind."""

    model: nn.Module
    kind: Kind

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        return self.model(ids).logits

    @property
    def layers(self) -> list[nn.Module]:
        """The layers."""
        return [*self.model.get_submodule(self.kind.layers)]

    def module(self, path: str) -> nn.Module:
        """Return the module of a path."""
        return self.model.get_submodule(path.removesuffix(".input"))

    def residual(self, layer: int) -> str:
        """Return the place of the residual stream behind a layer, which some models return in a tuple."""
        path = f"{self.kind.layers}.{layer}"
        seen = byname.capture(self.model, path)(IDS)[path]
        return path if isinstance(seen, Tensor) else f"{path}[0]"

    def residuals(self) -> list[str]:
        """Return the places of the residual stream behind each layer."""
        return [self.residual(layer) for layer in range(LAYERS)]

    def heads(self, layer: int) -> str:
        """Return the place of what the heads of a layer give, before it is mixed."""
        return f"{self.kind.layers}.{layer}.{self.kind.attention}.{self.kind.mixing}.input"

    def attended(self, layer: int) -> str:
        """Return the place of what the attention of a layer adds to the residual stream."""
        return self.heads(layer).removesuffix(".input")

    def down(self, layer: int) -> str:
        """Return the place of what the MLP of a layer adds to the residual stream."""
        return f"{self.kind.layers}.{layer}.{self.kind.down}"

    def activation(self, layer: int) -> str:
        """Return the place of the activation of a layer."""
        return f"{self.kind.layers}.{layer}.{self.kind.activation}"


def causal(name: str, attention: str = "eager", **settings: Any) -> Causal:
    """Return a model of a kind, in eval mode, with wide weights and with biases other than zero."""
    config = getattr(transformers, f"{name}Config")(
        **{**KINDS[name].settings, **settings}, vocab_size=64, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    config.initializer_range, config._attn_implementation = 0.2, attention
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Causal(model, KINDS[name])


def first(output: Any) -> Any:
    """Return what a module returns, or the first item of it."""
    return output[0] if isinstance(output, tuple) else output


def with_first(output: Any, value: Tensor) -> Any:
    """Return what a module returned, with another first item."""
    return (value, *output[1:]) if isinstance(output, tuple) else value


@contextmanager
def hooked(module: nn.Module, change: Any) -> Iterator[None]:
    """Let a function change what a module returns, or the first item of it, by a hook of PyTorch."""
    handle = module.register_forward_hook(lambda _, __, output: with_first(output, change(first(output))))
    with handle:
        yield


@contextmanager
def pre_hooked(module: nn.Module, change: Any) -> Iterator[None]:
    """Let a function change the first argument of a module, by a hook of PyTorch."""
    with module.register_forward_pre_hook(lambda _, given: (change(given[0]), *given[1:])):
        yield


@contextmanager
def kept(modules: dict[Any, nn.Module]) -> Iterator[dict[Any, list[Tensor]]]:
    """Keep copies of what modules return, by hooks of PyTorch."""
    found: dict[Any, list[Tensor]] = {key: [] for key in modules}

    def keep(key: Any) -> Any:
        return lambda _, __, output: found[key].append(first(output).detach().clone())

    with ExitStack() as stack:
        for key, module in modules.items():
            stack.enter_context(module.register_forward_hook(keep(key)))
        yield found
