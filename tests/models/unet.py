"""A U-Net that saves memory: activations in place, skips added in place, and concatenated."""

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Down(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out))
        self.skip = nn.Conv2d(channels, out, 1)

    def forward(self, x):
        h = self.body(x)
        h += self.skip(x)
        return F.relu_(h)


class Up(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x, skip):
        x = F.interpolate(x, scale_factor=2)
        x = torch.cat([x, skip], dim=1)
        return self.conv(x).relu_()


class UNet(nn.Module):
    def __init__(self, channels=2, width=4):
        super().__init__()
        self.enter = Down(channels, width)
        self.deeper = Down(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.bottom = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(inplace=True), nn.Dropout2d()
        )
        self.up = Up(4 * width, 2 * width)
        self.last = Up(3 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        first = self.enter(x)
        second = self.deeper(self.pool(first))
        x = self.bottom(self.pool(second))
        x = self.up(x, second)
        x = self.last(x, first)
        x = x - x.mean()
        x.mul_(0.5)
        x[:, 0] = 0
        out = self.head(x)
        out += 1
        return out


def conv(layer, x):
    return F.conv2d(x, layer.weight, layer.bias, padding=layer.padding)


def down_by_hand(model, note, at, x):
    x = note(x, f"{at}.forward.x")
    h = note(conv(model.body[0], x), f"{at}.body.0")
    h = note(model.body[1](h), f"{at}.body.1", f"{at}.body.forward", f"{at}.body", f"{at}.forward.h")
    h = note(h + note(conv(model.skip, x), f"{at}.skip"), f"{at}.add_", f"{at}.forward.h")
    return note(F.relu(h), f"{at}.forward.h", f"{at}.relu_", f"{at}.forward", at)


def up_by_hand(model, note, at, x, skip):
    x, skip = note(x, f"{at}.forward.x"), note(skip, f"{at}.forward.skip")
    x = note(F.interpolate(x, scale_factor=2), f"{at}.interpolate", f"{at}.forward.x")
    x = note(torch.cat([x, skip], dim=1), f"{at}.cat", f"{at}.forward.x")
    return note(F.relu(note(conv(model.conv, x), f"{at}.conv")), f"{at}.relu_", f"{at}.forward", at)


def unet_by_hand(model, note, x):
    x = note(x, "forward.x")
    first = note(down_by_hand(model.enter, note, "enter", x), "forward.first")
    small = note(F.max_pool2d(first, 2), "pool.max_pool2d", "pool")
    second = note(down_by_hand(model.deeper, note, "deeper", small), "forward.second")
    small = note(F.max_pool2d(second, 2), "pool.max_pool2d", "pool")
    h = note(F.relu(note(conv(model.bottom[0], small), "bottom.0")), "bottom.1")
    x = note(F.dropout2d(h, training=model.training), "bottom.2", "bottom", "forward.x")
    x = note(up_by_hand(model.up, note, "up", x, second), "forward.x")
    x = note(up_by_hand(model.last, note, "last", x, first), "forward.x")
    x = note(x - note(x.mean(), "mean"), "sub", "forward.x")
    x = note(x * 0.5, "mul_", "forward.x")
    x = note(torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], dim=1), "forward.x")
    out = note(conv(model.head, x), "head", "forward.out")
    return note(note(out + 1, "add_", "forward.out"), "forward")


SPECIMENS = [
    Specimen(
        "unet",
        make=UNet,
        example=lambda: (torch.randn(2, 2, 8, 8),),
        by_hand=unet_by_hand,
        edits=(
            ("up.forward.skip", torch.zeros_like),
            ("bottom", lambda value: value * 2),
            ("deeper.skip", lambda value: value.abs()),
            ("up.cat", lambda value: value.flip(1)),
            ("forward.second", lambda value: value * 3),
            ("deeper.body.1", lambda value: value * 2),
            ("enter.forward.x", lambda value: value.flip(-1)),
        ),
    ),
]
