"""Two losses over one forward pass go backward separately: the first keeps the graph, one step follows both."""

import torch
from torch import nn

torch.manual_seed(32)
encoder = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
decoder = nn.Linear(4, 6)
classifier = nn.Linear(4, 2)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters(), *classifier.parameters()], lr=0.1)
norms = []

for step in range(5):
    x, y = torch.randn(7, 6), torch.randint(2, (7,))
    optimizer.zero_grad()
    code = encoder(x)
    reconstruction_loss = (decoder(code) - x).pow(2).mean()
    class_loss = nn.functional.cross_entropy(classifier(code), y)
    reconstruction_loss.backward(retain_graph=True)
    norms.append(encoder[0].weight.grad.norm().item())
    class_loss.backward()
    optimizer.step()

FINAL = [*encoder.parameters(), *decoder.parameters(), *classifier.parameters(), torch.tensor(norms)]
