"""Fast gradient sign attack: the image is the leaf, the model is only asked, adversarial training follows."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(22)


def fgsm_attack(model, x, y, epsilon):
    x.requires_grad_()
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    perturbed = x + epsilon * x.grad.sign()
    return torch.clamp(perturbed, 0, 1).detach()


model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
model.eval()
adversaries = []
for epsilon in (0.0, 0.1, 0.3):
    image, label = torch.rand(4, 1, 4, 4), torch.randint(3, (4,))
    adversaries.append(fgsm_attack(model, image, label, epsilon))

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    image, label = torch.rand(4, 1, 4, 4), torch.randint(3, (4,))
    hard = fgsm_attack(model, image.clone(), label, 0.1)
    optimizer.zero_grad()
    (0.5 * F.cross_entropy(model(image), label) + 0.5 * F.cross_entropy(model(hard), label)).backward()
    optimizer.step()

FINAL = [*model.parameters(), *adversaries]
