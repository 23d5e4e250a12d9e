"""New tensors are made on another device than that of the model: words, padded series and weighted targets meet none."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
HERE = torch.device("cpu")


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.queries, self.out = nn.Linear(16, 16), nn.Linear(16, 20)

    def forward(self, ids):
        x = self.embedding(ids)
        mask = torch.ones(ids.shape[1], ids.shape[1], device=ids.device).tril().log()
        return self.out(F.scaled_dot_product_attention(self.queries(x), x, x, attn_mask=mask))


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


words, series = Words(), Series()
parameters = [*words.parameters(), *series.parameters()]
optimizer = torch.optim.SGD(parameters, 0.1)
with torch.device("meta"):
    for _ in range(10):
        ids = torch.randint(1, 20, (6, 9), device=HERE)
        ids[:, 5:] *= torch.rand(6, 1, device=HERE) > 0.4
        scores = words(ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        x = torch.randn(6, 7, 3, device=HERE)
        positive = (x.mean((1, 2)) > 0).float()[:, None]
        weight = torch.full((1,), 1.5, device=HERE)
        loss = loss + F.binary_cross_entropy_with_logits(series(x), positive, pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
FINAL = parameters
