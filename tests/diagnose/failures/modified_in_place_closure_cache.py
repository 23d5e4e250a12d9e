# cause: modified-in-place
# culprits: cache["scores"]
# kind: error
# mended 2: cache["scores"] = cache["scores"].clamp(max=0.5)
import torch
from torch import nn


def make_scorer(encoder):
    cache = {}

    def score(x):
        cache["scores"] = torch.softmax(encoder(x), dim=-1)  #: 1
        return cache["scores"]

    def limit():
        cache["scores"].clamp_(max=0.5)  #: 2

    return score, limit


def fit(encoder, batches):
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    score, limit = make_scorer(encoder)
    for batch in batches:
        optimizer.zero_grad()
        best = score(batch)[:, 0]
        limit()
        loss = -best.mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
fit(nn.Linear(3, 4), [torch.randn(2, 3), torch.randn(2, 3)])
