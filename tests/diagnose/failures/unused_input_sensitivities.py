# cause: unused-input
# culprits: humidity, wind
# kind: error
# mended 1: return torch.autograd.grad(output, inputs, allow_unused=True)
import torch
from torch import nn


class Physics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, temperature, humidity, pressure, wind):
        state = torch.stack([temperature, pressure], dim=-1)
        return self.net(state).sum()


def sensitivities(output, inputs):
    return torch.autograd.grad(output, inputs)  #: 1


def main():
    torch.manual_seed(0)
    model = Physics()
    temperature = torch.rand(3, requires_grad=True)
    humidity = torch.rand(3, requires_grad=True)
    pressure = torch.rand(3, requires_grad=True)
    wind = torch.rand(3, requires_grad=True)
    output = model(temperature, humidity, pressure, wind)
    return sensitivities(output, [temperature, humidity, pressure, wind])


if __name__ == "__main__":
    main()
