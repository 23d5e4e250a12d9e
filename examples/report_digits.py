"""Read what `byname run --record` has kept of the training in `train_digits.py`, and write one page about the model.

    make demo

`train_digits.py` has no line about recording. The attention weights are a local variable of a method, the gradient
exists between backward and the next step, the buffer changes in every forward: all three are there for every step,
under the names that the program gives them. What was not recorded is asked of the trained model: what its units do on
all test images, how well a linear probe reads the digits at each place, what one step keeps in memory, and what is
wrong.
"""

from __future__ import annotations

import sys
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from train_digits import BATCH, WIDTH, Digits, load

import byname
from byname.analyse import DeadUnits, LinearProbe, Results

Data: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]

EPOCH = 12
"""Steps in one."""


def attention(recording: byname.Recording, block: int, iteration: int) -> str:
    """How much of its attention a row of an image gives to the one row that it looks at most."""
    weights = recording[f"blocks.{block}.attention.forward.weights"].at(iteration, mode="train")
    return f"{weights.max(-1).values.mean():.0%}"


def tell_of_training(recording: byname.Recording) -> None:
    gradient = recording["head.weight.grad"]
    print("\nHow the training went, from the recording alone:")
    print(f"{'epoch':>5} {'attention of block 0':>21} {'of block 1':>11} {'gradient of head':>17} {'mean image':>11}")
    for epoch in (1, 2, 4, 8, 16, 24):
        last = epoch * EPOCH - 1
        images = recording["mean_image"].at(last, mode="train")
        size = torch.linalg.vector_norm(gradient.at(last))
        shown = attention(recording, 0, last), attention(recording, 1, last)
        print(f"{epoch:5} {shown[0]:>21} {shown[1]:>11} {size:17.4f} {images.mean():11.3f}")
    whole = gradient.to_xarray()
    print(f"\nAll gradients of head.weight as one labelled array: {dict(whole.sizes)}, {whole.dtype}")


@torch.no_grad()
def probed(model: Digits, data: Data) -> Results:
    """How well a linear probe reads the digits at each place: learned from training images, tested on the others."""
    images, labels, test_images, test_labels = data
    probe = LinearProbe(10)
    with byname.observe(model, ["forward.hidden", "blocks.*"], probe):
        for _ in range(8):
            for batch in torch.randperm(len(images)).split(BATCH):  # type: ignore[no-untyped-call]
                probe.targets = labels[batch]
                model(images[batch])
        probe.eval().targets = test_labels
        model(test_images)
    return probe.result()


@torch.no_grad()
def units(model: Digits, images: Tensor) -> Results:
    """How often each unit of the widest layer fires."""
    dead = DeadUnits()
    with byname.observe(model, "forward.hidden", dead):
        model(images)
    return dead.result()


def looked_into(model: Digits, images: Tensor, labels: Tensor) -> list[object]:
    """What one step of a training keeps, where its gradients go, and what is wrong with it."""
    optimizer = AdamW(model.parameters())
    with byname.track():
        loss = cross_entropy(model(images), labels)
        found = byname.check(loss, model=model, optimizer=optimizer)
        return [found, byname.leaves(loss, model=model, optimizer=optimizer), byname.saved(loss), byname.census()]


def main() -> None:
    recorded, weights, page = sys.argv[1:]
    torch.manual_seed(0)
    data = load()
    model = Digits(WIDTH)
    model.load_state_dict(torch.load(weights, weights_only=True))
    with byname.open(recorded) as recording:
        tell_of_training(recording)
        print("\nLooking into the trained model, and writing the page:")
        findings, *kept = looked_into(model, data[0][:BATCH], data[1][:BATCH])
        model.eval()
        reads = probed(model, data)
        for path, figures in reads.items():
            print(f"a linear probe reads {figures['accuracy']:.1%} of the test images rightly from {path}")
        drawn = byname.draw(model, example=data[2][:BATCH])
        costs = byname.summary(model, data[2][:BATCH])
        byname.report(findings, recording, drawn, reads, units(model, data[2]), costs, *kept, to=page)
    print(f"\nWritten to {page}: open it in a browser.")


if __name__ == "__main__":
    main()
