# cause: detached-parameter
# culprits: model.encoder.weight, model.encoder.bias
# group: model.encoder
# kind: check
# Without a straight-through estimator the choice of a code cuts the encoder off.
import torch
from torch import nn

import byname

FOUND = []


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.codebook = nn.Embedding(5, 2)
        self.decoder = nn.Linear(2, 4)

    def forward(self, x):
        code = self.encoder(x)
        distances = (code.unsqueeze(1) - self.codebook.weight).square().sum(-1)
        nearest = distances.argmin(dim=1)  #: 1
        return self.decoder(self.codebook(nearest))


torch.manual_seed(0)
model = Quantizer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(3, 4)
loss = (model(batch) - batch).square().mean()
FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
loss.backward()
optimizer.step()
