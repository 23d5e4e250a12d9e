"""Which part of the image counted: the gradient of a feature map that is no leaf is retained and read."""

import torch
from torch import nn

torch.manual_seed(68)


class GradCAM:
    def __init__(self, model, layer):
        self.model = model
        self.handle = layer.register_forward_hook(self._keep)

    def _keep(self, module, args, output):
        output.retain_grad()
        self.features = output

    def __call__(self, image, target):
        self.model.zero_grad()
        self.model(image)[:, target].sum().backward()
        weights = self.features.grad.mean(dim=(2, 3), keepdim=True)
        cam = torch.relu((weights * self.features).sum(1)).detach()
        return cam / (cam.amax() + 1e-8)


model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2)).eval()
explain = GradCAM(model, model[1])
cams = [explain(torch.randn(1, 1, 6, 6), target) for target in (0, 1)]
explain.handle.remove()

image = torch.randn(1, 1, 6, 6, requires_grad=True)
(saliency,) = torch.autograd.grad(model(image).max(), image)

FINAL = [*model.parameters(), *cams, saliency.abs()]
