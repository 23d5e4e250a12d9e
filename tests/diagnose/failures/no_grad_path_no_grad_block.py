# cause: no-grad-path
# culprits: scores
# kind: error
# mended 1: scores = torch.enable_grad()(model)(x)
import torch
import torch.nn.functional as F
from torch import nn


def evaluate(model, x, metrics):
    with torch.no_grad():
        scores = model(x)  #: 1
        metrics["confidence"] = scores.softmax(-1).max().item()
    return scores


def train(model, batches):
    metrics = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, target in batches:
        scores = evaluate(model, x, metrics)
        loss = F.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()  #: 2
        optimizer.step()
    return metrics


torch.manual_seed(0)
train(nn.Linear(3, 2), [(torch.randn(4, 3), torch.randint(0, 2, (4,)))])
