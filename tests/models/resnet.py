"""ResNet-18 for small pictures, with activations in place, as torchvision builds it."""

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class BasicBlock(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, width=4, blocks=(2, 2, 2, 2), classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        channels = width
        for stage, count in enumerate(blocks):
            out, stride = width * 2**stage, 1 if stage == 0 else 2
            layer = [BasicBlock(channels, out, stride), *(BasicBlock(out, out, 1) for _ in range(count - 1))]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layer))
            channels = out
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            x = getattr(self, stage)(x)
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


def block_by_hand(block, note, at, x):
    x = note(x, f"{at}.forward.x")
    identity = note(x, f"{at}.forward.identity")
    h = note(block.bn1(note(block.conv1(x), f"{at}.conv1.conv2d", f"{at}.conv1")), f"{at}.bn1.batch_norm", f"{at}.bn1")
    out = note(F.relu(h), f"{at}.relu.relu", f"{at}.relu", f"{at}.forward.out")
    out = note(block.bn2(note(block.conv2(out), f"{at}.conv2")), f"{at}.bn2", f"{at}.forward.out")
    if block.downsample is not None:
        h = note(block.downsample[1](note(block.downsample[0](x), f"{at}.downsample.0")), f"{at}.downsample.1")
        identity = note(h, f"{at}.downsample", f"{at}.forward.identity")
    out = note(out + identity, f"{at}.add_", f"{at}.forward.out")
    return note(F.relu(out), f"{at}.forward.out", f"{at}.relu.relu", f"{at}.relu", f"{at}.forward", at)


def resnet_by_hand(model, note, x):
    x = note(x, "forward.x")
    x = note(F.relu(note(model.bn1(note(model.conv1(x), "conv1")), "bn1")), "relu", "forward.x")
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(model, stage)):
            x = block_by_hand(block, note, f"{stage}.{index}", x)
        x = note(x, stage, "forward.x")
    x = note(torch.flatten(note(model.avgpool(x), "avgpool"), 1), "flatten", "forward.x")
    return note(F.linear(x, model.fc.weight, model.fc.bias), "fc.linear", "fc", "forward")


SPECIMENS = [
    Specimen(
        "resnet18",
        make=ResNet,
        example=lambda: (torch.randn(2, 3, 32, 32),),
        by_hand=resnet_by_hand,
        edits=(
            ("layer2.0.downsample", torch.zeros_like),
            ("layer3.1.forward.identity", lambda value: value * 2),
            ("layer1.0.conv2", lambda value: value.flip(1)),
            ("layer4.1.add_", lambda value: value * 2),
            ("avgpool", lambda value: value - 1),
            ("layer2", lambda value: value * 3),
            ("forward.x", lambda x: x * 0.5),
        ),
    ),
]
