"""Are models of transformers rewritten, and do they compute the same?"""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
import torch
from architectures import NAMES, architecture, cache_word
from torch import nn
from torch.utils import _pytree as pytree

from byname import interject, rewrite, select

FIVE = ("gpt2", "llama", "bert", "vit", "t5")


def nothing(name, module, value):
    return None


def set_seed(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)


def tensors(output):
    return [one for one in pytree.tree_leaves(tuple(output.values())) if isinstance(one, torch.Tensor)]


def same(one, other):
    assert type(one) is type(other)
    found, wanted = tensors(one), tensors(other)
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize(
    ("name", "training"),
    [
        *itertools.product(FIVE, [False, True]),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in NAMES if name not in FIVE),  # eval: see below
    ],
)
def test_a_model_of_transformers_computes_the_same(name, training):
    torch.manual_seed(0)
    model, example = architecture(name)
    model.train(training)
    state, seen = copy.deepcopy(model.state_dict()), []
    layers = select.conv if name == "resnet" else select.linear
    set_seed(2)  # layers that the example drops at random are not meant
    before = torch.get_rng_state()
    new = rewrite(model, layers, lambda path, module, value: seen.append(path), example=example)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    outputs = []
    for one in (new, model):
        set_seed(1)
        outputs.append(one(**copy.deepcopy(example)))
        model.load_state_dict(state)  # some change their buffers
    same(*outputs)
    told, heard = list(seen), []
    set_seed(2)
    with interject(model, layers, lambda path, module, value: heard.append(path), example=example):
        set_seed(1)
        model(**copy.deepcopy(example))
    assert heard == told


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_transformers_with_an_edit_computes_what_hooks_compute(name):
    torch.manual_seed(0)
    model, example = architecture(name)
    model.eval()
    plain = copy.deepcopy(model)
    kinds = (nn.LayerNorm, nn.Linear, nn.Conv2d)
    paths = [path for path, one in model.named_modules() if isinstance(one, kinds)]
    new = rewrite(model, kinds[:1] if not paths else paths, lambda path, module, value: value * 1.5)
    for path in paths:
        plain.get_submodule(path).register_forward_hook(lambda module, args, value: value * 1.5)
    for _ in range(2):
        same(new(**copy.deepcopy(example)), plain(**copy.deepcopy(example)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_place_of_a_model_of_transformers(name):
    torch.manual_seed(0)
    model, example = architecture(name)
    model.eval()
    seen, heard = [], []
    new = rewrite(model, select.all, lambda path, module, value: seen.append(path), example=example)
    same(new(**copy.deepcopy(example)), copy.deepcopy(model)(**copy.deepcopy(example)))
    with interject(model, select.all, lambda path, module, value: heard.append(path), example=example):
        model(**copy.deepcopy(example))
    assert seen == heard


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_functions_of_a_model_of_transformers(name):
    """They are looked for in a part of each forward only, see `byname.rewriting.narrow`."""
    torch.manual_seed(0)
    model, example = architecture(name)
    model.eval()
    of_layers = select.where(lambda call: call.kind == "operation" and hasattr(nn.functional, call.operation))
    of_layers |= select.op("relu") | select.module(nn.ReLU)
    seen, heard = [], []
    new = rewrite(model, of_layers, lambda path, *_: seen.append(path), example=example)
    same(new(**copy.deepcopy(example)), copy.deepcopy(model)(**copy.deepcopy(example)))
    with interject(model, of_layers, lambda path, *_: heard.append(path), example=example):
        model(**copy.deepcopy(example))
    assert seen == heard and seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_other_lengths_and_batches(name):
    model, example = architecture(name)
    new = rewrite(model.eval(), select.linear, lambda path, module, value: 2 * value, example=example)
    for module in model.modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            module.register_forward_hook(lambda module, args, value: 2 * value)
    for shape in [(1, 5), (1, 6), (3, 4), (2, 9)]:
        call = {key: torch.randint(30, shape) for key in example}
        same(new(**call), model(**call))


@pytest.mark.slow
def test_generation_with_a_cache():
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlamaConfig(
        **settings, vocab_size=32, num_key_value_heads=1, pad_token_id=0, eos_token_id=None
    )
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).eval()
    where, seen = ["model.layers.*.self_attn.softmax", "model.layers.1.mlp"], []
    new = rewrite(model, where, lambda path, module, value: seen.append(path) or value * 0.5)
    ids, options = torch.tensor([[1, 2, 3]]), {"max_new_tokens": 6, "do_sample": False}
    with interject(model, where, lambda path, module, value: value * 0.5):
        wanted = model.generate(ids, **options)
    assert torch.equal(new.generate(ids, **options), wanted)
    assert len(seen) == 3 * 6


def test_the_gradients_of_a_training_step_are_those_of_the_model():
    model, example = architecture("llama")
    new = rewrite(model.train(), "layers.*.mlp", lambda name, module, value: value * 1, example=example)
    new(**example).last_hidden_state.square().sum().backward()
    found = {key: one.grad.clone() for key, one in model.named_parameters()}
    model.zero_grad()
    model(**example).last_hidden_state.square().sum().backward()
    assert all(torch.equal(found[key], one.grad) for key, one in model.named_parameters())


@pytest.mark.slow
def test_the_parameters_may_be_moved_to_another_dtype():
    model, example = architecture("t5")
    new = rewrite(model.eval(), "decoder.final_layer_norm", nothing, example=example)
    same(new(**example), model(**example))
    model.to(torch.bfloat16)
    wanted = model(**example)
    assert wanted.last_hidden_state.dtype is torch.bfloat16
    same(new(**example), wanted)


def test_each_call_makes_its_own_cache():
    CACHE = cache_word()
    model, example = architecture("llama")
    new = rewrite(model.eval(), "layers.0", nothing, example=example)
    one, other = new(**example), new(**example)
    assert one[CACHE] is not other[CACHE]
    assert one[CACHE].get_seq_length() == 4
    further = model(input_ids=torch.tensor([[5]]), **{CACHE: one[CACHE]})
    wanted = model(input_ids=torch.tensor([[5]]), **{CACHE: model(**example)[CACHE]})
    assert torch.equal(further.last_hidden_state, wanted.last_hidden_state)
    assert other[CACHE].get_seq_length() == 4


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("way", [lambda new: pickle.loads(pickle.dumps(new)), copy.deepcopy, copy.copy])
def test_a_copy_holds_for_the_same_and_for_other_calls(way):
    model, example = architecture("bert")
    new = way(rewrite(model.eval(), "encoder.layer.0", nothing, example=example))
    same(new(**example), model(**example))
    call = {"input_ids": torch.randint(30, (2, 7))}
    same(new(**call), model(**call))


class Asks(nn.Module):
    """Its forward asks a number of questions that metadata answers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if x.shape[0] > 2:
            x = x.flip(0)
        total = sum(x[row].relu() for row in range(x.shape[0]))
        for row in x:
            total = total + row
        scale = float(len(x)) if x.dtype in (torch.float32, torch.float64) else 0.5
        return total * scale + torch.zeros(x.size(1), device=x.device)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_questions_are_answered_by_the_call(rows):
    model, x = Asks(), torch.randn(rows, 4)
    new = rewrite(model, "fc", nothing, example=torch.randn(2, 4))
    assert torch.equal(new(x), model(x))
    assert torch.equal(new(x), model(x))


class AsksForStrides(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        return x.view(-1) if x.is_contiguous() else x.t().contiguous().view(-1)


def test_an_interjection_may_change_what_the_forward_asks_for():
    model, x = AsksForStrides(), torch.randn(4, 4)
    new = rewrite(model, "fc", lambda name, module, value: value.t(), example=x)
    assert torch.equal(new(x), model(x))


def test_no_tensor_of_a_call_is_kept_alive():
    model, example, other = Asks(), torch.randn(2, 4), torch.randn(3, 4)
    new = rewrite(model, "fc", nothing, example=example)
    new(other)
    gone = weakref.ref(example), weakref.ref(other)
    del example, other
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert new is not None


class Norms(nn.Module):
    """Batch normalization, whose buffers change with each call, before a question."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.norm(x)
        return x.tanh() if x.shape[0] > 1 else x


def test_tracing_changes_no_buffer():
    model, x = Norms(), torch.randn(3, 4)
    before = copy.deepcopy(model.state_dict())
    new = rewrite(model, "norm", nothing, example=x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    new(x)
    assert model.norm.num_batches_tracked == 1
    assert torch.equal(new.eval()(x), model.eval()(x))
