"""The image is what learns: it sits in the optimizer, the network is frozen and gives features through hooks."""

import torch
from torch import nn

torch.manual_seed(24)

vgg = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()
).eval()
for weight in vgg.parameters():
    weight.requires_grad = False

features = {}
for name, index in {"content": 3, "style": 1}.items():
    vgg[index].register_forward_hook(lambda module, args, output, name=name: features.__setitem__(name, output))


def gram_matrix(x):
    batch, channels, height, width = x.size()
    flat = x.reshape(batch * channels, height * width)
    return flat @ flat.t() / flat.numel()


content_image, style_image = torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8)
vgg(content_image)
content_target = features["content"].detach()
vgg(style_image)
style_target = gram_matrix(features["style"]).detach()

image = content_image.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([image], max_iter=3)
evaluations = 0


def closure():
    global evaluations
    with torch.no_grad():
        image.clamp_(0, 1)
    optimizer.zero_grad()
    vgg(image)
    content_loss = nn.functional.mse_loss(features["content"], content_target)
    style_loss = nn.functional.mse_loss(gram_matrix(features["style"]), style_target)
    loss = content_loss + 100 * style_loss
    loss.backward()
    evaluations += 1
    return loss


for _ in range(3):
    optimizer.step(closure)
with torch.no_grad():
    image.clamp_(0, 1)

FINAL = [image, torch.tensor(evaluations)]
