"""Train a small attention model on handwritten digits, then call everything in its graph by name.

The model learns, yet one number that was meant to be learned never changes, and PyTorch raises no error. One more step,
under `byname.track()`, shows what it has: the leaves that gradients go to, what autograd keeps for backward in each
module, and what one attention module keeps, by its own variable names. Run it with `make demo`, which also records what
passes in the model, without a line about that in this file, and has `report_digits.py` write a page about it.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

import byname
from byname.table import bytes_text

WIDTH = 48
EPOCHS = 24
BATCH = 128
TEST = 360


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(width**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        scores = q @ k.transpose(-2, -1)
        weights = (scores * self.sharpness).softmax(-1)
        mixed: Tensor = weights @ v
        return mixed


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x


class Digits(nn.Module):
    """Reads an image of 8 by 8 pixels as eight tokens, its rows, less what it has seen on average."""

    mean_image: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean_image", torch.zeros(8, 8))
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.widen = nn.Linear(8 * width, 2 * width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.mean_image.lerp_(images.mean(dim=0), 0.05)
        x = self.embed(images - self.mean_image) + self.position
        for block in self.blocks:
            x = block(x)
        hidden = self.widen(x.flatten(1)).relu()
        logits: Tensor = self.head(hidden)
        # The mistake: meant to be learned, it should be an nn.Parameter of the model. Here every step makes another.
        temperature = torch.ones(1, requires_grad=True)
        temperature = temperature.clamp(min=0.05)
        return logits / temperature


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on, then images and labels to test on."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
    labels = torch.tensor(digits.target)[order]
    return images[TEST:], labels[TEST:], images[:TEST], labels[:TEST]


def learn(loss: Tensor, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def train(model: Digits, optimizer: Optimizer, images: Tensor, labels: Tensor) -> None:
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            batch = order[start : start + BATCH]
            loss = cross_entropy(model(images[batch]), labels[batch])
            learn(loss, optimizer)
            total += loss.item() * len(batch)
        if epoch % 6 == 0:
            print(f"epoch {epoch:2}: training loss {total / len(images):.3f}")


@torch.no_grad()
def accuracy(model: Digits, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = model(images).argmax(dim=1) == labels
    model.train()
    return float(right.float().mean())


def show_one_more_step(model: Digits, optimizer: Optimizer, images: Tensor, labels: Tensor) -> None:
    batch = torch.randperm(len(images))[:BATCH]
    with byname.track():
        loss = cross_entropy(model(images[batch]), labels[batch])
        kept = byname.saved(loss)
        learn(loss, optimizer)
        ends = byname.leaves(loss, model=model, optimizer=optimizer)
    print("\nWhere the gradients of one step go:", ends)
    print_modules(kept)
    print_saved(kept, "model.blocks[0].attention")
    for leaf in ends:
        if not leaf.in_optimizer:
            print_lost(leaf)


def print_modules(kept: byname.Saved) -> None:
    print(f"\nWhat autograd keeps for backward, {bytes_text(kept.bytes)}, by the module that ran:")
    print(f"{'module':38} {'memory':>10} {'tensors':>8}")
    for module, count, size in kept.by("module"):
        print(f"{module or 'outside the model':38} {bytes_text(size):>10} {count:8}")


def print_saved(kept: byname.Saved, module: str) -> None:
    print(f"\nWhat {module} keeps, by its own names:")
    for one in kept:
        if one.module == module:
            print(f"{one.name!s:38} {bytes_text(one.bytes):>10}  {one.node} at {one.site}")


def print_lost(leaf: byname.Leaf) -> None:
    name = leaf.name
    print(f"\nWhat is wrong: {name.path}, made at {leaf.site}, is in no optimizer.")
    print(f"The statement at {name.rebound_at} gave its name to another tensor; only the {leaf.held} still holds it.")
    print(f"Backward gave it the gradient {leaf.card.alive().grad}, and nothing will use that.")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is too small for a second one to help
    images, labels, test_images, test_labels = load()
    model = Digits(WIDTH)
    optimizer = AdamW(model.parameters(), lr=4e-3)
    train(model, optimizer, images, labels)
    print(f"test accuracy {accuracy(model, test_images, test_labels):.3f} on {TEST} images not trained on")
    if sys.argv[1:]:
        torch.save(model.state_dict(), sys.argv[1])
    show_one_more_step(model, optimizer, images, labels)


if __name__ == "__main__":
    main()
