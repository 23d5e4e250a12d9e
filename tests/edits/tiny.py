"""What the tests of edits share: tiny models with random weights, values taken by PyTorch's own hooks, what is left."""

from __future__ import annotations

import copy
import gc

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GPT2Config, LlamaConfig, T5Config
from watching import state


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (one.view(batch, time, self.num_heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / 2
        pattern = scores.softmax(-1)
        merged = (pattern @ v).transpose(1, 2).reshape(batch, time, width)
        return self.out(merged), pattern


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x):
        x = x + self.attn(x)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def plain():
    torch.manual_seed(0)
    return Model().eval(), torch.randn(3, 5, 8)


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(n_embd=8, n_layer=3, n_head=2, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)
    config._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(config).eval(), torch.randint(0, 32, (2, 5))


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    config.update({"intermediate_size": 16, "vocab_size": 32, "max_position_embeddings": 16, "pad_token_id": 0})
    config._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(config).eval(), torch.randint(0, 32, (2, 5))


def t5():
    torch.manual_seed(0)
    config = T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=32, decoder_start_token_id=0)
    return AutoModelForSeq2SeqLM.from_config(config).eval(), torch.randint(0, 32, (2, 5))


def logits(output):
    return getattr(output, "logits", output)


def by_hook(model, path, change, *args, pre=False):
    """What a model computes where a plain hook has changed what a module returns, or is given first."""
    module = model.get_submodule(path)
    if pre:
        handle = module.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))
    else:
        handle = module.register_forward_hook(lambda module, args, output: change(output))
    try:
        return logits(model(*args))
    finally:
        handle.remove()


def at(dim, index, change):
    """A function that changes a part of a tensor along one dimension."""

    def part(value):
        made = value.clone()
        made.movedim(dim, 0)[index] = change(made.movedim(dim, 0)[index])
        return made

    return part


def seen_by_hook(model, path, *args):
    found = []
    by_hook(model, path, found.append, *args)
    return found[0]


def untouched(model):
    """A function that says whether the model is as it is now, with copies that are as well."""
    gc.collect()  # views of other tests, which may still be attached to
    before, weights = state(model), copy.deepcopy(model.state_dict())

    def check():
        same = all(torch.equal(one, weights[name]) for name, one in model.state_dict().items())
        return same and state(model) == before

    return check
