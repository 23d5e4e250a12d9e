# cause: no-grad-path
# culprits: chosen
# kind: error
# mended 1: chosen = torch.stack([scores, scores + 1])[:, 0]
# There are a detach, a no_grad block and an item on the way which cut nothing that the loss needs.
import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(3, 1)
        self.history = []

    def forward(self, x):
        scores = self.score(x).squeeze(-1)
        self.history.append(scores.detach().mean())
        with torch.no_grad():
            spread = scores.std().item()
        chosen = torch.topk(scores, k=2).indices  #: 1
        return chosen, spread


def train(model, optimizer, batches):
    for x in batches:
        chosen, spread = model(x)
        targets = torch.arange(2)
        loss = (chosen - targets).float().square().mean() / (1 + spread)
        optimizer.zero_grad()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = Ranker()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(1, 4, 3))
