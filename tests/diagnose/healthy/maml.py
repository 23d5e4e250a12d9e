"""Model-agnostic meta learning: an inner loop by functional_call, the outer gradient goes through its updates."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(39)


def sine_task(shots=6):
    amplitude, phase = 1 + torch.rand(1), torch.rand(1)
    x = torch.rand(2 * shots, 1) * 4 - 2
    y = amplitude * torch.sin(x + phase)
    return (x[:shots], y[:shots]), (x[shots:], y[shots:])


class MAML(nn.Module):
    def __init__(self, net, inner_lr=0.1, inner_steps=2):
        super().__init__()
        self.net = net
        self.inner_steps = inner_steps
        self.rates = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.tensor(inner_lr)) for n, _ in net.named_parameters()}
        )

    def adapt(self, x, y):
        fast = dict(self.net.named_parameters())
        for _ in range(self.inner_steps):
            loss = nn.functional.mse_loss(functional_call(self.net, fast, (x,)), y)
            gradients = torch.autograd.grad(loss, fast.values(), create_graph=True)
            fast = {
                name: weight - self.rates[name.replace(".", "_")] * gradient
                for (name, weight), gradient in zip(fast.items(), gradients, strict=True)
            }
        return fast

    def forward(self, support, query):
        fast = self.adapt(*support)
        return nn.functional.mse_loss(functional_call(self.net, fast, (query[0],)), query[1])


maml = MAML(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(maml.parameters(), lr=1e-2)
for iteration in range(3):
    optimizer.zero_grad()
    meta_loss = 0.0
    for _ in range(2):
        meta_loss = meta_loss + maml(*sine_task())
    (meta_loss / 2).backward()
    optimizer.step()

FINAL = [*maml.parameters(), meta_loss.detach()]
