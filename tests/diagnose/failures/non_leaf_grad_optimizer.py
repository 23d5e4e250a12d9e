# cause: non-leaf-grad
# culprits: self.prompt
# kind: error
# mended 1: self.prompt = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
import torch
from torch import nn


class PromptTuning:
    def __init__(self, model):
        self.model = model.double().requires_grad_(False)
        self.prompt = torch.zeros(2, 4, requires_grad=True).to(torch.float64)  #: 1
        self.optimizer = torch.optim.SGD([self.prompt], lr=0.1)  #: 2

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(torch.cat([self.prompt, x])).square().mean()
        loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
tuning = PromptTuning(nn.Linear(4, 1))
tuning.step(torch.randn(3, 4, dtype=torch.float64))
