# cause: hook-closure
# name: target (closure of step.<locals>.compare, model._forward_hooks[*])
# count: 8
# bytes: 8 * (50 * 64 * 4)
# mended 1: handle = model.register_forward_hook(compare); model(torch.randn(50, 20)); handle.remove()
# A new hook at every step, and each closes over the targets of its step.
import torch

model = torch.nn.Linear(20, 64)
distances = {}


def step(i):
    target = torch.randn(50, 64)

    def compare(module, args, output):
        distances["last"] = (output.detach() - target).abs().max().item()

    model.register_forward_hook(compare)  #: 1
    with torch.no_grad():
        model(torch.randn(50, 20))
