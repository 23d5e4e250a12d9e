"""Train a small network on handwritten digits, and look inside it while it learns.

One layer learns much too fast. The loss falls all the same, and the test accuracy says nothing of it. Snapshots between
the steps do: how much of the digits a linear probe reads at each place, which units are dead there, and how many
directions the values fill. A second training, with one rate for all, tells what the mistake has done. What is printed
below the tables is read from the snapshots. Run it with `make demo`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import byname
from byname.analyse import DeadUnits, Evaluation, LinearProbe, Rank, Record, Records, Results, Several, Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPOCHS = 12
BATCH = 64
TEST = 400
RATE = 0.02
TOO_FAST = 100
"""How many times faster than all others the layer `fc1` learns: the mistake."""
SNAPSHOTS = (3, 11, 22, 66, 132)
"""After so many steps, 22 in an epoch; and at the start and at the end."""

HIDDEN = ("forward.edges", "forward.shapes", "forward.parts", "forward.whole")
"""The variables of `Digits.forward` that a ReLU has made."""
PLACES = ("forward.images", *HIDDEN)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3)
        self.conv2 = nn.Conv2d(12, 16, 3)
        self.fc1 = nn.Linear(256, 64)
        self.fc2 = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        edges = self.conv1(images).relu()
        shapes = self.conv2(edges).relu()
        parts = self.fc1(shapes.flatten(1)).relu()
        whole = self.fc2(parts).relu()
        digits: Tensor = self.head(whole)
        return digits


@dataclass(frozen=True)
class Data:
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Story:
    """The snapshots taken during a training."""

    probes: Records
    inside: Records


class TrainThenTest:
    """Has a probe learn from the training images, four times over, and then tested on the others."""

    def __init__(self, probe: LinearProbe, data: Data) -> None:
        self.probe = probe
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.probe.train().reset()
        for _ in range(4):
            yield from zip(cut(self.data.images), cut(self.data.labels), strict=True)
        self.probe.eval()
        yield self.data.test_images, self.data.test_labels


def cut(values: Tensor) -> tuple[Tensor, ...]:
    """The values in batches."""
    batches: tuple[Tensor, ...] = values.split(BATCH)  # type: ignore[no-untyped-call]
    return batches


def load() -> Data:
    """Images and labels, in an order drawn at random."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    labels = torch.tensor(digits.target)[order]
    return Data(images[TEST:], labels[TEST:], images[:TEST], labels[:TEST])


def steps(model: Digits, data: Data, *, too_fast: float, epochs: int = EPOCHS) -> Iterator[None]:
    """Trains the model as anybody would, and yields after each step."""
    groups = [{"params": module.parameters(), "lr": RATE} for module in model.children()]
    groups[2]["lr"] = too_fast * RATE
    optimizer = SGD(groups, momentum=0.9)
    for _ in range(epochs):
        for batch in cut(torch.randperm(len(data.images))):
            optimizer.zero_grad()
            cross_entropy(model(data.images[batch]), data.labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield


def train(model: Digits, data: Data, *, epochs: int = EPOCHS, at: tuple[int, ...] = SNAPSHOTS) -> Story:
    """Trains the model with the mistake, and takes snapshots."""
    probe, units = LinearProbe(10), Several(DeadUnits(), Rank(), Spectrum())
    probes = Evaluation(probe, TrainThenTest(probe, data))
    inside = Evaluation(units, cut(data.images))
    with (
        byname.observe(model, PLACES, probe),
        byname.observe(model, HIDDEN, units),
        probes.during(model, at=at) as probed,
        inside.during(model, at=at) as looked,
    ):
        for _ in steps(model, data, too_fast=TOO_FAST, epochs=epochs):
            probed.step()
            looked.step()
    return Story(probes.records, inside.records)


def without_mistake(model: Digits, data: Data) -> Results:
    """The dead units of the model after a training in which all layers learn at one rate."""
    for _ in steps(model, data, too_fast=1):
        continue
    units = DeadUnits()
    with byname.observe(model, HIDDEN, units), torch.no_grad():
        model(data.images)
    return units.result()


@torch.no_grad()
def accuracy(model: Digits, images: Tensor, labels: Tensor) -> float:
    return float((model(images).argmax(dim=1) == labels).double().mean())


def dead(record: Record, place: str) -> set[int]:
    """The numbers of the units that fired for no image."""
    return {*(record.result[place]["fired"] == 0).nonzero().flatten().tolist()}


def short(place: str) -> str:
    return place.removeprefix("forward.")


def told_of_probes(records: Records) -> Iterator[str]:
    """What the probes say, as far as their numbers say it."""
    first, last = (
        {place: record.result[place]["accuracy"] for place in PLACES} for record in (records[0], records[-1])
    )
    hidden = sorted(HIDDEN, key=lambda place: first[place])
    worst, best = hidden[0], hidden[-1]
    yield (
        f"Before the training a probe reads {first[worst]:.1%} of the test images rightly from `{short(worst)}`, "
        f"{first[best]:.1%} from `{short(best)}` and {first[PLACES[0]]:.1%} from the pixels themselves."
    )
    if all(first[one] >= first[deeper] for one, deeper in pairwise(HIDDEN)):
        yield "The deeper the place, the less it reads there."
    gains = {place: last[place] - first[place] for place in HIDDEN}
    most, least = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
    yield (
        f"The training changes most at `{short(most)}`, to {last[most]:.1%} ({100 * gains[most]:+.1f} points), "
        f"and least at `{short(least)}` ({100 * gains[least]:+.1f} points)."
    )
    if len({record.result[PLACES[0]]["accuracy"] for record in records}) == 1:
        yield "The probe of the pixels is the same in all snapshots, as it has to be: no training reaches them."


def told_of_units(records: Records, plain: Results) -> Iterator[str]:
    """Which units are dead, where most are, and how many are when nothing learns too fast."""
    first, last = records[0], records[-1]
    place = max(HIDDEN, key=lambda one: len(dead(last, one)))
    gone, figures = dead(last, place), last.result[place]
    if not gone:
        yield "No unit is dead."
        return
    yield (
        f"`{short(place)}` has most dead units: {len(gone)} of {figures['total']} fire for none of the "
        f"{figures['DeadUnits.samples']} training images: {', '.join(map(str, sorted(gone)))}."
    )
    killed = [unit for unit in sorted(gone) if not all(unit in dead(record, place) for record in records)]
    yield f"{len(killed)} of these fired in an earlier snapshot: they have died in the training."
    alone = plain[place]["dead"]
    yield f"Trained with one rate for all layers, from the same weights, {alone} of its units are dead."
    other = {short(one): f"{len(dead(last, one))} of {last.result[one]['total']}" for one in HIDDEN if one != place}
    yield "Dead elsewhere: " + ", ".join(f"{count} in `{name}`" for name, count in other.items()) + "."
    yield (
        f"The values of `{short(place)}` had an effective rank of {first.result[place]['effective_rank']:.1f} and have "
        f"{figures['effective_rank']:.1f}, with {figures['total'] - len(gone)} units alive."
    )


def probes_table(records: Records) -> str:
    """Accuracy on test images: a row a place, a column a snapshot."""
    lines = ["step   " + "".join(f"{record.step:>8}" for record in records)]
    for place in PLACES:
        lines.append(f"{short(place):7}" + "".join(f"{one.result[place]['accuracy']:8.1%}" for one in records))
    return "\n".join(lines)


def draw(story: Story, path: Path) -> None:
    """Three drawings beside each other: the probes, the units of the layer that learns too fast, and the spectra."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5), layout="constrained", dpi=120)
    probes, units, spectra = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.1))
    draw_probes(story.probes, probes)
    draw_units(story.inside, "forward.parts", units)
    story.inside[-1].result.plot("eigenvalues", axes=spectra)
    spectra.set_title("Spectrum of the values at the end", loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_probes(records: Records, axes: Axes) -> None:
    from matplotlib import colormaps

    numbers = range(len(records))
    for place, shade in zip(PLACES, (None, 0.0, 0.3, 0.6, 0.9), strict=True):
        values = [record.result[place]["accuracy"] for record in records]
        colour = "#9aa3ad" if shade is None else colormaps["viridis"](shade)
        axes.plot(numbers, values, "--" if shade is None else "o-", color=colour, linewidth=2, label=short(place))
    axes.set_title("What a linear probe reads", loc="left")
    axes.set_ylabel("accuracy on test images")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(color="#d8dee4", linewidth=0.6)
    mark_steps(records, axes)


def draw_units(records: Records, place: str, axes: Axes) -> None:
    """A row a unit, a column a snapshot: for how many images it fires; dead ones are red."""
    from matplotlib import colormaps

    shares = torch.stack([one.result[place]["fired"] / one.result[place]["DeadUnits.samples"] for one in records], 1)
    shares = shares[torch.argsort(shares[:, -1], stable=True)]
    colours = colormaps["Blues"].with_extremes(bad="#c8372d")
    shown = shares.masked_fill(shares == 0, torch.nan).numpy()
    image = axes.imshow(shown, cmap=colours, vmin=0, vmax=1, aspect="auto", interpolation="nearest", origin="lower")
    axes.set_title(f"Units of `{short(place)}`: red is dead", loc="left")
    axes.set_ylabel("units, the least active at the bottom")
    axes.figure.colorbar(image, ax=axes, label="fires for so many of the training images", format="{x:.0%}")
    mark_steps(records, axes)


def mark_steps(records: Records, axes: Axes) -> None:
    axes.set_xticks(range(len(records)), [str(record.step) for record in records])
    axes.set_xlabel("step of the training")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is too small for a second one to help
    data, model = load(), Digits()
    twin = deepcopy(model)
    story = train(model, data)
    print("Accuracy of linear probes on test images, in snapshots of the training:")
    print(probes_table(story.probes))
    print("\nInside, at the end, over all training images:")
    print(
        story.inside[-1].result.to_pandas()[["path", "dead", "total", "rank", "effective_rank"]].to_string(index=False)
    )
    print(f"\nThe model itself: {accuracy(model, data.test_images, data.test_labels):.1%} of the test images.")
    for sentence in (*told_of_probes(story.probes), *told_of_units(story.inside, without_mistake(twin, data))):
        print(sentence)
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "build/digits.png")
    draw(story, path)
    print(f"\nDrawn in {path}.")


if __name__ == "__main__":
    main()
