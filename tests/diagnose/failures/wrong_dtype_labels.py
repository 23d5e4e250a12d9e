# cause: wrong-dtype
# culprits: targets
# kind: error
# mended 2: loss = F.cross_entropy(logits, target.to(torch.int64))
import torch
import torch.nn.functional as F
from torch import nn


def train(model, optimizer, batches):
    for x, target in batches:
        logits = model(x)
        loss = F.cross_entropy(logits, target)  #: 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
targets = torch.tensor([0, 1, 1, 0], dtype=torch.int32)  #: 1
train(model, optimizer, [(torch.randn(4, 3), targets)])
