"""Tensors that modules and optimizers own, and gradients."""

import copy

import torch
from torch import nn

from plants.ground import HELD, expect, plant, room


@plant("parameter")
def parameter():
    global model
    model = nn.Sequential(nn.Linear(4, room(r"model\[0\]\.weight|model\.0\.weight", "parameter") // 4, bias=False))


@plant("buffer")
def buffer():
    global tokenizer
    tokenizer = nn.Module()
    tokenizer.register_buffer("table", torch.ones(room(r"tokenizer\.table", "buffer")))
    tokenizer.register_buffer("scratch", torch.ones(room(r"tokenizer\.scratch", "buffer")), persistent=False)


@plant("parameter of a list of modules")
def parameter_of_a_list():
    global stages
    stages = [nn.ParameterList([nn.Parameter(torch.ones(room(r"stages\[0\]", "parameter")))])]


@plant("parameter of a dict of parameters")
def parameter_of_a_dict():
    global heads
    heads = nn.ParameterDict({"left": nn.Parameter(torch.ones(room(r"heads.*left", "parameter")))})


@plant("attribute of a module that is neither parameter nor buffer")
def attribute_of_a_module():
    global positions
    positions = nn.Module()
    positions.angles = torch.ones(room(r"positions\.angles"))


@plant("parameter shared by two modules")
def tied_parameter():
    global encoder, decoder
    encoder = nn.Embedding(room(r"(en|de)coder\.weight", "parameter") // 4, 4)
    decoder = nn.Linear(4, 4, bias=False)
    decoder.weight = encoder.weight


@plant("gradient never read")
def gradient_never_read():
    global untouched
    untouched = nn.Parameter(torch.ones(room(r"\buntouched\b", "parameter")))
    expect(untouched.numel() * 4, r"\buntouched\b.*grad|grad.*\buntouched\b", "gradient")
    untouched.sin().sum().backward()


@plant("gradient that was read")
def gradient_read():
    global touched
    touched = nn.Parameter(torch.ones(room(r"\btouched\b", "parameter")))
    expect(touched.numel() * 4, r"\btouched\b.*grad|grad.*\btouched\b", "gradient")
    touched.sin().sum().backward()
    touched.grad.norm()


@plant("gradient of a tensor that is no leaf, never read")
def retained_gradient():
    global hidden
    count = room(r"\bhidden\b", ("other", "input", "saved"))
    expect(count * 4, r"\bhidden\b.*grad|grad.*\bhidden\b", "gradient")
    hidden = torch.ones(1, requires_grad=True).expand(count).add(1)
    hidden.retain_grad()
    (hidden * 2).sum().backward()


@plant("gradient of a leaf that is no parameter")
def gradient_of_an_input():
    global image
    image = torch.ones(room(r"\bimage\b"), requires_grad=True)
    expect(image.numel() * 4, r"\bimage\b.*grad|grad.*\bimage\b", "gradient")
    image.sin().sum().backward()


@plant("sparse gradient")
def sparse_gradient():
    global vocabulary
    vocabulary = nn.Embedding(1000, 4, sparse=True)
    count = room(r"vocabulary\.weight.*grad|grad.*vocabulary\.weight", "gradient") // 4
    vocabulary(torch.arange(count) % 1000).sum().backward()


@plant("Adam's state")
def adam():
    global weights, optimizer
    weights = nn.Parameter(torch.ones(room(r"\bweights\b", "parameter")))
    expect(weights.numel() * 4, r"optimizer.*exp_avg\b", "optimizer", sited=False)
    expect(weights.numel() * 4, r"optimizer.*exp_avg_sq\b", "optimizer", sited=False)
    optimizer = torch.optim.Adam([weights])
    weights.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@plant("SGD's momentum")
def momentum():
    global slope, descent
    slope = nn.Parameter(torch.ones(room(r"\bslope\b", "parameter")))
    expect(slope.numel() * 4, r"descent.*momentum_buffer", "optimizer", sited=False)
    descent = torch.optim.SGD([slope], lr=0.1, momentum=0.9)
    slope.sum().backward()
    descent.step()
    descent.zero_grad()


@plant("parameter that only the optimizer still holds")
def left_in_the_optimizer():
    global forgetful
    lost = nn.Parameter(torch.ones(room(r"\bforgetful\b", ("parameter", "optimizer", "other"))))
    forgetful = torch.optim.SGD([lost], lr=0.1)


@plant("copy of a state dict")
def copied_state():
    global best
    small = nn.Module()
    small.weight = nn.Parameter(torch.ones(room(r"best\['weight'\]", ("other", "input", "parameter"), sited=False)))
    best = copy.deepcopy(small.state_dict())


@plant("swapped-out copy of a module")
def copied_module():
    global average
    small = nn.Module()
    small.weight = nn.Parameter(torch.ones(room(r"average(\.module)?\.weight", "parameter", sited=False)))
    average = torch.optim.swa_utils.AveragedModel(small)


@plant("closure of a module's hook")
def module_hook():
    global watched_module
    watched_module = nn.Linear(1, 1)
    seen = torch.ones(room(r"watched_module|\bseen\b"))
    watched_module.register_forward_hook(lambda module, inputs, output: seen)


@plant("scripted module's parameter")
def scripted():
    global script
    plain = nn.Linear(4, room(r"\bscript\b.*weight", "parameter") // 4, bias=False)
    script = torch.jit.script(plain)


class Remembering(nn.Module):
    entries: list[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.entries = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        self.entries.append(y)
        return y.sum()


@plant("list inside a scripted module")
def script_list():
    global remembering
    remembering = torch.jit.script(Remembering())
    remembering(torch.ones(1).expand(room(r"\bremembering\b|C\+\+", HELD)))
