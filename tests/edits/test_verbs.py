"""Does each verb give what hooks by hand give, bit by bit, on ten architectures of transformers with random weights?"""

import pytest
import torch
from test_steps import GENERATED, MODELS, same
from tiny import at, untouched

import byname

PATHS = {name: path for name, (_, path) in MODELS.items()}
PATHS["opt"] = "model.decoder.layers.0.self_attn.out_proj"  # whose values have a dimension of the sequence


def model_of(name):
    (make, _), path = MODELS[name], PATHS[name]
    model, ids = make()
    example = (
        {"input_ids": ids, "decoder_input_ids": ids[:, :3]} if model.config.is_encoder_decoder else {"input_ids": ids}
    )
    return model, path, example


def hooked(model, path, change, run, *, pre=False, count=None):
    """What a function returns while a plain hook changes the first tensor of an output, in the calls that are counted."""
    module, number = model.get_submodule(path), [-1]

    def begins(*_):
        number[0] += 1

    def changed(module, args, output=None):
        value = args if pre else output
        if count is not None and not count(number[0]):
            return None
        if isinstance(value, tuple):
            return (change(value[0]), *value[1:])
        return change(value)

    hooks = [model.register_forward_pre_hook(begins)]
    hooks += [(module.register_forward_pre_hook if pre else module.register_forward_hook)(changed)]
    try:
        return run()
    finally:
        for hook in hooks:
            hook.remove()


VERBS = {
    "zero": (lambda model, path, _: byname.ablate(model, path), lambda value, _: value * 0),
    "position": (
        lambda model, path, _: byname.ablate(model, path, positions=1),
        lambda value, _: at(1, 1, torch.zeros_like)(value),
    ),
    "features": (
        lambda model, path, _: byname.ablate(model, path, features=[0, 3]),
        lambda value, _: at(-1, [0, 3], torch.zeros_like)(value),
    ),
    "channels": (
        lambda model, path, _: byname.ablate(model, path, channels=slice(2, 5)),
        lambda value, _: at(-1, slice(2, 5), torch.zeros_like)(value),
    ),
    "mean": (
        lambda model, path, clean: byname.ablate(model, path, "mean", reference=clean),
        lambda value, clean: clean.mean((0, 1), keepdim=True).expand_as(value).contiguous(),
    ),
    "resample": (
        lambda model, path, clean: byname.ablate(model, path, "resample", reference=clean),
        lambda value, clean: clean.flip(0),  # of two samples each takes the other one
    ),
    "patch": (
        lambda model, path, clean: byname.patch(model, path, clean, positions=-1),
        lambda value, clean: torch.cat([value[:, :-1], clean[:, -1:]], 1),
    ),
    "function": (
        lambda model, path, _: byname.patch(model, path, lambda part: part * 2 + 1, positions=[0, 2], features=1),
        lambda value, _: at(1, [0, 2], at(-1, 1, lambda part: part * 2 + 1))(value),
    ),
    "steer": (
        lambda model, path, clean: byname.steer(model, path, clean[path][0, 0], scale=3.0, positions=slice(1, None)),
        lambda value, clean: at(1, slice(1, None), lambda part: part + 3.0 * clean[0, 0])(value),
    ),
    "steer channels": (
        lambda model, path, _: byname.steer(model, path, torch.tensor(0.5), channels=1),
        lambda value, _: at(-1, 1, lambda part: part + 0.5)(value),
    ),
}


@pytest.mark.grid(fast=12)
@torch.no_grad()
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", PATHS)
def test_a_verb_is_that_by_hooks(name, verb):
    model, path, example = model_of(name)
    clean = byname.capture(model, path)(**{key: ids.flip(1) for key, ids in example.items()})
    edit, change = VERBS[verb]
    plain, unchanged = model(**example).logits, untouched(model)
    expected = hooked(model, path, lambda value: change(value, clean[path]), lambda: model(**example).logits)
    with edit(model, path, clean):
        found = [model(**example).logits for _ in range(2)]
    assert all(torch.equal(one, expected) for one in found) and not torch.equal(expected, plain)
    assert torch.equal(model(**example).logits, plain) and unchanged()


@pytest.mark.grid(fast=4)
@torch.no_grad()
@pytest.mark.parametrize("part", ["input", "tensor", "function", "channels"])
@pytest.mark.parametrize("name", PATHS)
def test_skip_is_a_forward_that_is_not_computed(name, part):
    model, path, example = model_of(name)
    value = torch.full_like(byname.capture(model, path)(**example)[path], 0.25)
    values = {"input": "input", "tensor": value, "function": lambda x, *args, **kwargs: x * 2, "channels": "input"}
    module, inputs = model.get_submodule(path), []

    def noted(_, args, kwargs):
        inputs.append([*args, *kwargs.values()][0])

    def instead(_, args, kwargs, output):
        first, computed = inputs.pop(), output[0] if isinstance(output, tuple) else output
        if part == "channels":
            new = at(-1, 1, lambda channel: first[..., 1])(computed)
        else:
            new = {"input": first, "tensor": value.clone(), "function": first * 2}[part]
        return (new, *output[1:]) if isinstance(output, tuple) else new

    hooks = [module.register_forward_pre_hook(noted, with_kwargs=True)]
    hooks += [module.register_forward_hook(instead, with_kwargs=True)]
    expected = model(**example).logits
    for hook in hooks:
        hook.remove()
    with byname.skip(model, path, values[part], channels=1 if part == "channels" else None):
        found = model(**example).logits
    assert torch.equal(found, expected)


STEPS = {"prompt": lambda step: step == 0, 2: lambda step: step == 2, range(1, 3): lambda step: step in (1, 2)}


@pytest.mark.grid(fast=6)
@pytest.mark.parametrize("verb", ["ablate", "steer", "skip"])
@pytest.mark.parametrize("name", PATHS)
def test_steps_of_each_verb_are_those_by_hooks(name, verb):
    model, path, example = model_of(name)
    # what skip leaves out fills no cache, and a hook by hand lets it be computed
    options = {"input_ids": example["input_ids"], "do_sample": False, "use_cache": verb != "skip", **GENERATED}
    vector = torch.full((16,), 2.0) if name not in ("gpt2", "llama", "t5") else torch.full((8,), 2.0)
    inputs = []
    edits = {
        "ablate": (lambda steps: byname.ablate(model, path, positions=-1, steps=steps), at(1, -1, torch.zeros_like)),
        "steer": (lambda steps: byname.steer(model, path, vector, steps=steps), lambda value: value + vector),
        "skip": (lambda steps: byname.skip(model, path, steps=steps), lambda value: inputs[-1]),
    }
    edit, change = edits[verb]
    module = model.get_submodule(path)
    for steps, count in STEPS.items():
        hook = module.register_forward_pre_hook(
            lambda _, args, kwargs: inputs.append([*args, *kwargs.values()][0]), with_kwargs=True
        )
        expected = hooked(model, path, change, lambda: model.generate(**options), count=count)
        hook.remove()
        with edit(steps):
            found = [model.generate(**options) for _ in range(2)]
        assert all(same(one, expected) for one in found)
