"""Read what `byname run --record` has kept of the training in `train_digits.py`, which has no line about recording.

    make demo

The scores are a local variable of a method, the gradient exists between backward and the next step, the buffer changes
in every forward: all three are there for every step, under the names that the program gives them.
"""

from __future__ import annotations

import sys

import torch

import byname

EPOCH = 12
"""Steps in one."""


def attention(recording: byname.Recording, block: int, iteration: int) -> str:
    """How much of its attention a row of an image gives to the one row that it looks at most."""
    scores = recording[f"blocks.{block}.attention.forward.scores"].at(iteration, mode="train")
    sharpness = recording[f"blocks.{block}.attention.sharpness"].at(iteration, mode="train")
    most = (scores * sharpness).softmax(-1).max(-1).values
    return f"{most.mean():.0%}"


def main() -> None:
    with byname.open(sys.argv[1]) as recording:
        gradient = recording["head.weight.grad"]
        print("\nHow the training went, from the recording alone:")
        print(
            f"{'epoch':>5} {'attention of block 0':>21} {'of block 1':>11} {'gradient of head':>17} {'mean image':>11}"
        )
        for epoch in (1, 2, 4, 8, 16, 24):
            last = epoch * EPOCH - 1
            images = recording["mean_image"].at(last, mode="train")
            size = torch.linalg.vector_norm(gradient.at(last))
            shown = attention(recording, 0, last), attention(recording, 1, last)
            print(f"{epoch:5} {shown[0]:>21} {shown[1]:>11} {size:17.4f} {images.mean():11.3f}")
        whole = gradient.to_xarray()
        print(f"\nAll gradients of head.weight as one labelled array: {dict(whole.sizes)}, {whole.dtype}")


if __name__ == "__main__":
    main()
