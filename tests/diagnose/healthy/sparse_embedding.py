"""Word vectors with sparse gradients and SparseAdam; a dense part has an optimizer of its own."""

import torch
from torch import nn

torch.manual_seed(54)


class SkipGram(nn.Module):
    def __init__(self, words=30, width=4):
        super().__init__()
        self.center = nn.Embedding(words, width, sparse=True)
        self.context = nn.Embedding(words, width, sparse=True)
        self.bias = nn.Linear(width, 1)

    def forward(self, center, context, negatives):
        u, v, n = self.center(center), self.context(context), self.context(negatives)
        positive = (u * v).sum(-1) + self.bias(u).squeeze(-1)
        negative = torch.bmm(n, u.unsqueeze(2)).squeeze(2)
        return -(nn.functional.logsigmoid(positive).mean() + nn.functional.logsigmoid(-negative).sum(1).mean())


model = SkipGram()
sparse = torch.optim.SparseAdam([*model.center.parameters(), *model.context.parameters()], lr=1e-2)
dense = torch.optim.Adam(model.bias.parameters(), lr=1e-2)
for step in range(5):
    words = torch.randint(30, (6,))
    loss = model(words, (words + 1) % 30, torch.randint(30, (6, 3)))
    for optimizer in (sparse, dense):
        optimizer.zero_grad()
    loss.backward()
    for optimizer in (sparse, dense):
        optimizer.step()

FINAL = [*(p.detach() for p in model.parameters()), loss.detach()]
