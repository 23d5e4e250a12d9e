"""Hooks of every sort: on tensors, on modules, on gradients after they have accumulated, on the optimizer."""

import torch
from torch import nn

torch.manual_seed(36)
activations, gradient_norms, updates = {}, [], []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
        return self.second(hidden)


def remember(module, args, output):
    activations[module] = output.detach().mean()


def watch(module, grad_input, grad_output):
    gradient_norms.append(grad_output[0].norm().item())


def double(parameter):
    parameter.grad.mul_(2)


model = Net()
handles = [
    model.first.register_forward_hook(remember),
    model.second.register_forward_pre_hook(lambda module, args: (args[0] * 1.5,)),
    model.second.register_full_backward_hook(watch),
    model.first.weight.register_hook(lambda grad: grad * 0.5),
    model.first.bias.register_post_accumulate_grad_hook(double),
]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handles.append(optimizer.register_step_post_hook(lambda opt, args, kwargs: updates.append(len(opt.state))))

for step in range(4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.randint(2, (5,))).backward()
    optimizer.step()
for handle in handles:
    handle.remove()

FINAL = [*model.parameters(), activations[model.first], torch.tensor(gradient_norms), torch.tensor(updates)]
