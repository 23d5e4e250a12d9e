"""Every forward of torch.nn and of many models of transformers: rewritten with all its variables, it runs as before."""

import importlib
import inspect

import pytest
import torch
from listening import Told
from torch import nn

from byname import attach

NAMES = """llama gpt2 bert roberta t5 mistral qwen2 gemma2 opt bloom gpt_neox falcon phi mixtral deberta_v2 electra vit clip
    whisper wav2vec2 swin mamba bart segformer""".split()


def forwards_of(module):
    """The module classes that a Python module defines, and the functions behind their forwards."""
    for cls in list(vars(module).values()):
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and "forward" in vars(cls):
            if cls.__module__ == module.__name__:
                yield cls, inspect.unwrap(cls.forward)


def check(cls, function):
    """Rewrites a function with all that it has, and puts it back."""
    original = function.__code__
    owner = cls.__new__(cls)
    nn.Module.__init__(owner)
    with attach(owner, ["forward.**", f"forward.{original.co_varnames[0]}"], Told()) as handle:
        code = function.__code__
        assert not any("cannot be read" in note for note in handle.notes)
        assert code is not original
        for fact in "freevars qualname filename firstlineno flags argcount kwonlyargcount".split():
            assert getattr(code, f"co_{fact}") == getattr(original, f"co_{fact}")
    assert function.__code__ is original


def test_every_forward_of_torch_linear_activation_and_normalization_can_be_listened_to():
    modules = [importlib.import_module(f"torch.nn.modules.{name}") for name in ("linear", "activation", "batchnorm")]
    found = [pair for module in modules for pair in forwards_of(module)]
    for cls, function in found:
        check(cls, function)
    assert len(found) > 30


@pytest.mark.slow
def test_every_forward_of_torch_nn_can_be_listened_to():
    import torch.nn.modules as package

    found = 0
    for name in dir(package):
        if inspect.ismodule(module := getattr(package, name)):
            for cls, function in forwards_of(module):
                check(cls, function)
                found += 1
    assert found > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_forward_of_a_model_can_be_listened_to(name):
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    found = list(forwards_of(module))
    for cls, function in found:
        check(cls, function)
    assert len(found) > 3


def shaken(model):
    """Random parameters, also where a model starts with zeros or ones."""
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    return model


def run(model, inputs):
    torch.manual_seed(1)
    model.zero_grad()
    outputs = model(**inputs)
    loss = sum(value.float().sum() for value in outputs.values() if isinstance(value, torch.Tensor))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [value for value in outputs.values() if isinstance(value, torch.Tensor)], gradients


BERT = "vocab_size=40 hidden_size=16 num_hidden_layers=2 num_attention_heads=2 intermediate_size=24"
LLAMA = BERT + " num_key_value_heads=2"
SIZES = {
    "bert": BERT,
    "electra": BERT,
    "gpt2": "vocab_size=40 n_embd=16 n_layer=2 n_head=2",
    "llama": LLAMA,
    "mixtral": LLAMA,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_computes_the_same_with_all_variables_of_all_forwards_listened_to(name, training):
    from transformers import AutoConfig, AutoModel

    sizes = {key: int(value) for key, value in (size.split("=") for size in SIZES[name].split())}
    model = shaken(AutoModel.from_config(AutoConfig.for_model(name, **sizes))).train(training)
    inputs = {"input_ids": torch.randint(0, 40, (2, 5))}
    expected = run(model, inputs)
    codes = {function: function.__code__ for function in {inspect.unwrap(one.forward) for one in model.modules()}}
    told = []
    with attach(model, ["**.forward.**", "**"], lambda event: told.append(event.path)):
        found = run(model, inputs)
    assert len(told) > 150
    for one, other in zip([*expected[0], *expected[1]], [*found[0], *found[1]], strict=True):
        assert torch.equal(one, other)
    assert all(function.__code__ is code for function, code in codes.items())
