"""Features of a fixed network are taken under no_grad; only the probe on top of them learns."""

import torch
from torch import nn

torch.manual_seed(8)


class Extractor:
    def __init__(self, network):
        self.network = network.eval()

    @torch.no_grad()
    def __call__(self, images):
        return self.network(images).flatten(1)


network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
extract = Extractor(network)
probe = nn.Linear(16, 3)
optimizer = torch.optim.SGD(probe.parameters(), lr=0.1, nesterov=True, momentum=0.9)

images, labels = torch.randn(24, 1, 8, 8), torch.randint(3, (24,))
features = extract(images)
for epoch in range(4):
    for batch in torch.randperm(24).split(8):
        logits = probe(features[batch])
        loss = nn.functional.cross_entropy(logits, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with torch.inference_mode():
    accuracy = (probe(extract(images)).argmax(1) == labels).float().mean().item()

FINAL = [*network.parameters(), *network.buffers(), *probe.parameters(), torch.tensor(accuracy)]
