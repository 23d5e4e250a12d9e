# cause: index-out-of-range
# culprits: labels
# culprits: logits
# kind: error
# mended 2: loss = criterion(logits, labels - 1)
import torch
from torch import nn


def train(model, optimizer, criterion, x, ratings):
    for _ in range(2):
        labels = ratings.clone()  #: 1
        logits = model(x)
        loss = criterion(logits, labels)  #: 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 5)
ratings = torch.arange(10) % 5 + 1
train(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), torch.randn(10, 3), ratings)
