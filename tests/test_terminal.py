r"""No text of byname steers a terminal: an escape in a name, a file or an error is shown as ``\x1b`` wherever it comes up."""

import contextlib
import sys
import warnings
from collections.abc import Callable

import processes
import pytest
import torch
from torch import nn

import byname
from byname import select
from byname.analyse import LinearProbe, Mean, Outliers

ESCAPE = "\x1b"
NAME = f"a{ESCAPE}cb"


class Model(nn.Module):
    """The name of the class, of a child, of a parameter, of a buffer and of a key has an escape."""

    def __init__(self):
        super().__init__()
        self.add_module(NAME, nn.Linear(2, 2))
        self.register_parameter(f"p{NAME}", nn.Parameter(torch.ones(2)))
        self.register_buffer(f"b{NAME}", torch.ones(2))
        self.add_module(f"u{NAME}", nn.Linear(2, 2))

    def forward(self, x):
        x = x + 1
        values = {NAME: self._modules[NAME](x)}
        values[NAME] = values[NAME] * 1
        return values[NAME] * self._parameters[f"p{NAME}"] * self._buffers[f"b{NAME}"]


Model.__name__ = Model.__qualname__ = f"Model{NAME}"


def nothing(name, module, value):
    return None


nothing.__name__ = nothing.__qualname__ = f"nothing{NAME}"


class Failing:
    def __call__(self, name, module, value):
        raise ValueError("of the user")


Failing.__name__ = Failing.__qualname__ = f"Failing{NAME}"


class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("of the user")


Broken.__name__ = Broken.__qualname__ = f"Broken{NAME}"


class Own(Outliers):
    """An analyser of the user's."""


Own.__name__ = Own.__qualname__ = f"Own{NAME}"


class OwnMean(Mean):
    """A statistic of the user's."""


OwnMean.__name__ = OwnMean.__qualname__ = f"OwnMean{NAME}"

X = torch.ones(1, 2)


def run(where, interjection, model=None):
    model = Model() if model is None else model
    with byname.interject(model, where, interjection) as handle:
        model(X)
    return handle


def recorded(folder, where="**", **options):
    model = Model()
    with byname.record(model, where, to=folder / f"run{NAME}.h5", **options) as recorder:
        model(X).sum().backward()
    return recorder


def opened(folder):
    recorded(folder)
    return byname.open(folder / f"run{NAME}.h5")


def failed_backward():
    model = Model()
    with byname.explaining():
        losses = {NAME: model(X).sum()}
        losses[NAME].backward()
        losses[NAME].backward()


def changed_in_place():
    model = Model()
    with byname.explaining():
        hidden = {NAME: model(X).exp()}
        hidden[NAME].add_(1)
        hidden[NAME].sum().backward()


def a_finding():
    model = Model()
    return byname.check(model(X).sum(), model=model)


def observed(model=None):
    model = Model() if model is None else model
    outliers = Outliers()
    with byname.observe(model, ["*", "*.grad"], outliers, label=f"l{NAME}/") as observation:
        model(X)
    return outliers, observation


def held():
    model = Model()
    keep = {NAME: torch.ones(1 << 20)}  # the largest there is, so that it is in every table
    return model, keep


@contextlib.contextmanager
def holding():
    sys.modules[__name__].kept = held()
    try:
        yield
    finally:
        del sys.modules[__name__].kept


def looked(look):
    with holding():
        return look()


def grown():
    model = Model()
    store = []
    with byname.growth() as growth:
        for _ in range(3):
            store.append({NAME: model(X)})
            growth.mark()
    return growth


def tracked():
    model = Model()
    with byname.track() as tracker:
        loss = model(X).sum()
        return [tracker, byname.leaves(loss), byname.saved(loss), byname.graph(loss)]


def rewritten(interjection):
    return byname.rewrite(Model(), "*", interjection, example=X)


def probe_without_targets():
    model = Model()
    with byname.observe(model, select.linear, LinearProbe(classes=2)):
        model(X)


TEXTS: dict[str, Callable] = {
    "no match of a path": lambda folder: byname.interject(Model(), "nothere", nothing),
    "no match that suggests": lambda folder: byname.interject(Model(), f"a{ESCAPE}cc", nothing),
    "no match of a suggested parameter": lambda folder: byname.interject(Model(), "pa", nothing),
    "no match of a class": lambda folder: byname.interject(Model(), nn.Conv2d, nothing),
    "no match of a class with an escape": lambda folder: byname.interject(nn.ReLU(), Model, nothing),
    "no match of a selector": lambda folder: byname.points(Model(), select.conv, example=X),
    "no match of an operation": lambda folder: run(f"{NAME}.softmax", nothing),
    "no match in the first forward": lambda folder: run(select.softmax, nothing),
    "an operation that is not called": lambda folder: byname.points(Model(), f"{NAME}.softmax", example=X),
    "no path": lambda folder: byname.interject(Model(), f"..{NAME}", nothing),
    "no place": lambda folder: byname.interject(Model(), object.__new__(Failing), nothing),
    "no module": lambda folder: byname.interject(Failing(), "0", nothing),
    "no interjection": lambda folder: byname.interject(Model(), "*", type(NAME, (), {})()),
    "a bad value": lambda folder: run("*", lambda name, module, value: value[:0]),
    "a bad dict": lambda folder: run("forward.values", lambda name, module, value: {f"c{NAME}": 1}),
    "an error in an interjection": lambda folder: run("*", Failing()),
    "an error in an example": lambda folder: byname.points(Broken(), example=X),
    "an error in a rewritten model": lambda folder: rewritten(Failing())(X),
    "a tracker": lambda folder: tracked()[0],
    "a place that was not come to": lambda folder: run(f"u{NAME}", nothing).notes,
    "an item that is not there": lambda folder: run("forward.values['nope']", nothing).notes,
    "a variable changed again": lambda folder: (
        run(f"forward.values['{NAME}']", lambda name, module, value: value + 1).notes
    ),
    "a handle": lambda folder: byname.interject(Model(), "**", nothing),
    "the paths of a handle in its repr": lambda folder: byname.interject(Model(), f"p{NAME}", nothing),
    "a selector": lambda folder: select.module(Model) & select.where(nothing) & select.op(NAME),
    "points": lambda folder: byname.points(Model()),
    "points of an example": lambda folder: byname.points(Model(), example=X),
    "a row of points": lambda folder: byname.points(Model())[1],
    "a replacement": lambda folder: byname.replace(Model(), nn.Linear, lambda old: nn.Linear(2, 2)),
    "a replacement that is none": lambda folder: byname.replace(Model(), nn.Linear, lambda old: type(NAME, (), {})()),
    "no rewritten model": lambda folder: byname.rewrite(Model(), f"x{ESCAPE}", nothing, example=X),
    "a drawing": lambda folder: byname.draw(Model(), example=X),
    "the text of a drawing": lambda folder: byname.draw(Model(), example=X).svg,
    "a drawing as DOT": lambda folder: byname.draw(Model(), example=X).dot,
    "a drawing as Mermaid": lambda folder: byname.draw(Model(), example=X).mermaid,
    "a recorder": lambda folder: recorded(folder),
    "the notes of a recorder": lambda folder: recorded(folder, ["*", f"u{NAME}", "forward.values['nope']"]).notes,
    "a file that is there": lambda folder: [recorded(folder), recorded(folder)],
    "a folder that is not there": lambda folder: recorded(folder / NAME),
    "a recording": lambda folder: opened(folder),
    "a recording in HTML": lambda folder: opened(folder)._repr_html_(),
    "a series": lambda folder: [*opened(folder).values()],
    "a record that is not there": lambda folder: next(iter(opened(folder).values()))[10**6],
    "a place that was not recorded": lambda folder: opened(folder)[f"x{ESCAPE}"],
    "places by a pattern": lambda folder: opened(folder)["**"],
    "no recording": lambda folder: byname.open(folder / f"none{NAME}.h5"),
    "a folder for a recording": lambda folder: byname.open(made(folder / NAME)),
    "a text for a recording": lambda folder: byname.open(written(folder / f"text{NAME}.h5", f"text{NAME}")),
    "an error in a reduction": lambda folder: recorded(folder, "forward.values[*]", reduce=failing_reduction),
    "an error in a callback": lambda folder: recorded(folder, "*", on_value=failing_reduction),
    "what cannot be stored": lambda folder: recorded(folder, "forward.self"),
    "results of an analyser": lambda folder: observed()[0].result(),
    "an analyser": lambda folder: observed()[0],
    "an analyser of the user's": lambda folder: Own(),
    "a statistic of the user's": lambda folder: OwnMean(),
    "notes of an observation": lambda folder: observed(Model().requires_grad_(False))[1],
    "an error in an analyser": lambda folder: probe_without_targets(),
    "a backward that is explained": lambda folder: failed_backward(),
    "a change in place that is explained": lambda folder: changed_in_place(),
    "findings": lambda folder: a_finding(),
    "a finding in HTML": lambda folder: [one._repr_html_() for one in a_finding()],
    "the parts of a finding": lambda folder: [(one.message, one.remedy, *one.details) for one in a_finding()],
    "leaves, saved tensors and a graph": lambda folder: tracked(),
    "a census": lambda folder: looked(byname.census),
    "holders": lambda folder: looked(lambda: byname.holders(sys.modules[__name__].kept[1][NAME])),
    "growth": lambda folder: grown(),
    "a column that is not there": lambda folder: tracked()[1].by(NAME),
    "a family that is not there": lambda folder: getattr(select, NAME),
    "an analyser that is not there": lambda folder: getattr(byname.analyse, NAME),
}


WITHOUT_NAMES = {"an error in an example", "a tracker", "the text of a drawing"}
"""What shows no name of the program, of a place or of a file."""


def made(folder):
    folder.mkdir()
    return folder


def written(path, words):
    path.write_text(words)
    return path


def failing_reduction(*given, **named):
    raise ValueError("of the user")


failing_reduction.__name__ = failing_reduction.__qualname__ = f"failing{NAME}"


def text_of(made):
    """What is shown of a result: also its notes, and those of an error."""
    if isinstance(made, BaseException):
        return "\n".join([str(made), repr(made), *getattr(made, "__notes__", [])])
    if isinstance(made, str):
        return made
    if isinstance(made, list | tuple) and not hasattr(made, "rows"):
        return "\n".join(map(text_of, made))
    notes = made.notes if isinstance(getattr(made, "notes", None), tuple) else ()
    return "\n".join([str(made), repr(made), *map(str, notes)])


@pytest.mark.grid(fast=14)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TEXTS)
def test_no_text_has_an_escape(name, tmp_path):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            shown = text_of(TEXTS[name](tmp_path))
        except Exception as error:
            shown = text_of(error)
    shown += "\n".join(str(one.message) for one in told)
    assert ESCAPE not in shown
    assert (r"\x1b" in shown) == (name not in WITHOUT_NAMES)


COMMANDS = {
    "a script that is not there": ["run", f"none{NAME}.py"],
    "an option that is not there": ["run", f"--none{NAME}", "x.py"],
    "a folder that is not there": ["run", "--record", "*", "--to", f"none/{NAME}/run.h5", "x.py"],
    "a path that is none": ["run", "--record", f"..{NAME}", "--to", "run.h5", "x.py"],
    "a recording that is not there": ["show", f"none{NAME}.h5"],
    "a process that is not there": ["census", f"9{NAME}"],
    "a command that is not there": [NAME],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_message_of_the_command_line_has_an_escape(name, tmp_path):
    command = ["-m", "byname", *COMMANDS[name]]
    ran = processes.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode
    assert "byname" in ran.stderr
    assert ESCAPE not in ran.stdout + ran.stderr
