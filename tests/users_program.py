"""A user's program: every function of byname once, as it is meant to be called. It runs, and mypy --strict accepts it."""

from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn

import byname
from byname.analyse import FeatureStatistics


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).relu()
        result: Tensor = self.outer(hidden)
        return result


folder = Path(mkdtemp())
model, x = nn.Sequential(Block(), Block()), torch.ones(2, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of() -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def names_and_graphs() -> list[str]:
    loss = byname.tag(loss_of(), "loss")
    byname.check(loss, model=model, optimizer=optimizer)
    leaves: byname.Leaves = byname.leaves(loss)
    leaf: byname.Leaf = leaves[0]
    saved: byname.Saved = byname.saved(loss)
    kept: byname.SavedTensor = saved[0]
    graph: byname.Graph = byname.graph(loss)
    way = byname.path(loss, x)
    found: byname.Name = byname.name(loss)
    every: tuple[byname.Name, ...] = tuple(byname.names(loss))
    return [str(found), str(every[0]), str(leaf.name), str(kept.name), graph.to_dot(), str(way)]


def memory() -> int:
    taken: byname.Census = byname.census()
    held: list[byname.Holder] = list(byname.holders(x))
    with byname.growth() as growth:
        growth.mark()
    grown: byname.Growth = growth
    return taken.bytes + len(held) + len(grown.rows())


def errors() -> byname.Explanation | None:
    with byname.track() as tracker:
        loss = loss_of()
    lines: byname.Tracker = tracker
    str(lines)
    try:
        with byname.explaining():
            loss.backward()  # type: ignore[no-untyped-call]
            loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return byname.explain(error)
    return None


def double(name: str, module: nn.Module | None, value: Tensor) -> Tensor:
    return value * 2


class Scaled(byname.ForwardInterjection):
    def process(self, name: str, module: nn.Module | None, inputs: Tensor) -> Tensor:
        return inputs * 2


def places() -> tuple[str, ...]:
    points: byname.Points = byname.points(model, example=x)
    linear: byname.Selector = byname.select.linear
    with byname.attach(model, "0", print_nothing), byname.interject(model, linear, double):
        model(x)
    seen: byname.Capture = byname.capture(model, ["0", "1.forward.hidden"])(x)
    with byname.patch(model, "0", seen["0"]), byname.steer(model, "1", torch.ones(4)), byname.ablate(model, "1.inner"):
        model(x)
    with byname.skip(model, "1"):
        model(x)
    byname.edited(model, lambda view: byname.skip(view, "1"))(x)
    with byname.interject(model, "0", Scaled()):
        model(x)
    with byname.replace(model, "0.inner", lambda old: nn.Linear(4, 4)):
        model(x)
    swept: byname.Sweep = byname.sweep(
        model,
        lambda model, place: byname.ablate(model, place),
        over={"place": ["0", "1"]},
        metric=lambda output: output.sum(),
        example=x,
        progress=False,
    )
    differs: byname.Diff = byname.diff(model, model, example=x)
    assert len(swept.rows()) == 2 and not differs
    summary: byname.Summary = byname.summary(model, x)
    drawing: byname.Drawing = byname.draw(model, example=x)
    byname.rewrite(model, "0", double)(x)
    return (str(points), str(summary), drawing.svg)


def print_nothing(event: object) -> None:
    """What a place passes on."""


def recordings() -> Path:
    with byname.record(model, ["0", "**.weight.grad"], to=folder / "run.h5", at_end=byname.stack) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    of_the_run: byname.Recorder = recorder
    with byname.open(folder / "run.h5") as recording:
        whole: byname.Recording = recording
        series: byname.Series = whole["0"]
        assert series.shapes[0] == (2, 4)
    features = FeatureStatistics()
    with byname.observe(model, "**.inner", features):
        model(x)
    str((of_the_run, features.result()))
    return byname.report(folder / "run.h5", to=folder / "report.html")


print(names_and_graphs()[0], memory() > 0, errors() is not None, len(places()), recordings().name)
