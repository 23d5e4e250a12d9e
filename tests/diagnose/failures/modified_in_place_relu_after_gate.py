# cause: modified-in-place
# culprits: gate
# also: activated
# kind: error
# mended 2: activated = torch.relu(gate)
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x):
        gate = torch.sigmoid(self.score(x))  #: 1
        activated = self.activation(gate)  #: 2
        return activated * self.value(x)


def epoch(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).abs().mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
model = Gated()
epoch(model, torch.optim.Adam(model.parameters()), [(torch.randn(2, 4), torch.randn(2, 4))])
