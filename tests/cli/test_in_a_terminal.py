"""What the commands print: no colour codes in a pipe or under NO_COLOR, and no line longer than the terminal is wide."""

import os
import re
import subprocess
import threading

import pytest
import torch
from forking import Forks, without_leaks
from processes import Fork
from programs import write
from torch import nn

import byname

TRAINS = """
    import torch
    torch.manual_seed(0)
    class AModelWithALongName(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        def forward(self, x):
            for block in self.blocks:
                x = block(x).relu()
            return x
    model, forgotten, history = AModelWithALongName(), torch.nn.Parameter(torch.ones(4)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(torch.ones(3, 4)) * forgotten).square().mean()
        loss.backward()
        optimizer.step()
        history.append(loss)
"""
WAITS = "import sys, torch\nkept = torch.ones(3)\nprint('ready', flush=True)\nsys.stdin.readline()\n"
COMMANDS = {
    "run": ["run", "--check", "trains.py"],
    "run --record": ["run", "--record", "blocks.*", "--to", "made.h5", "--overwrite", "trains.py"],
    "run --report": ["run", "--check", "--report", "run.html", "trains.py"],
    "census": ["census", "trains.py"],
    "census --every": ["census", "--every", "2", "--top", "3", "trains.py"],
    "census --growth": ["census", "--growth", "trains.py"],
    "census --pid": ["census", "--pid", "PID"],
    "status": ["status", "--pid", "PID"],
    "status --json": ["status", "--json", "--pid", "PID"],
    "show": ["show", "run.h5"],
    "show --place": ["show", "--place", "**", "run.h5"],
    "show --json": ["show", "--json", "run.h5"],
    "show --tail": ["show", "--tail", "run.h5"],
    "show --repair": ["show", "--repair", "run.h5"],
    "report": ["report", "run.h5", "--to", "shown.html"],
    "a file that is not there": ["show", "a_file_that_is_not_there.h5"],
    "a process that is not there": ["status", "--pid", "4194305"],
    "an option that is not there": ["census", "--nothing", "trains.py"],
    "help": ["--help"],
    **{f"help of {name}": [name, "--help"] for name in ("run", "census", "status", "show", "report")},
}
WITH_TABLES = [name for name in COMMANDS if name.startswith(("run", "census", "show", "status")) and "json" not in name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal") / "runs"
    write(folder, {"trains.py": TRAINS, "waits.py": WAITS})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))
    with byname.record(model, ["0.weight.grad", "2.0.forward.input", "1"], to=folder / "run.h5"):
        for step in range(3):
            model(torch.randn(5, 3)).sum().backward()
    return folder


@pytest.fixture(scope="module")
def waiting(runs):
    command = ["-m", "byname", "run", "--census-on-signal", "waits.py"]
    pipe = subprocess.PIPE
    with Fork(command, cwd=runs, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield str(process.pid)
        process.communicate("\n", timeout=60)


def forks_under(**environment):
    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return Forks(env={**without, "TERM": "xterm-256color", **environment})


@pytest.fixture(scope="module")
def plain():
    return forks_under()


@pytest.fixture(scope="module", params=[60, 200])
def narrow(request):
    return request.param, forks_under(NO_COLOR="1", COLUMNS=str(request.param))


def printed(forks, folder, name, process, ends):
    """What a command writes into one end, read from the other."""
    reader, writer = ends
    parts = []

    def read():
        try:
            while part := os.read(reader, 4096):
                parts.append(part)
        except OSError:  # how a terminal ends whose last writer has closed it
            pass

    thread = threading.Thread(target=read)
    thread.start()
    words = [process if word == "PID" else word for word in COMMANDS[name]]
    ending = forks.run(folder, words, to=writer)
    os.close(writer)
    thread.join(60)
    os.close(reader)
    assert ending.code in (0, 1, 2)
    return without_leaks(b"".join(parts)).decode().replace("\r\n", "\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_triton_says_of_itself_at_the_end_is_not_what_a_command_prints(end):
    said = ["before", "nanobind: leaked 2 instances!", ' - leaked instance of type "ir.module"', " - ... skipped 1", "",
            "nanobind: this is likely caused by a reference counting issue in the", "binding code.",
            "See https://nanobind.readthedocs.io/en/latest/refleaks.html", "after"]  # fmt: skip
    assert without_leaks(end.join(said).encode()) == end.join(["before", "after"]).encode()
    assert without_leaks(end.join(said[:4]).encode()) == f"before{end}".encode()
    assert without_leaks(b"".join([b"nanobind: leaked 1 types!", b" See https://x/refleaks.html"])) == b""


@pytest.mark.grid(fast=5)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_in_a_pipe_has_a_colour_code(name, runs, waiting, plain):
    text = printed(plain, runs, name, waiting, os.pipe())
    assert text and "\x1b" not in text


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_color_is_kept_and_lines_fit_the_terminal(name, runs, waiting, narrow):
    width, forks = narrow
    text = printed(forks, runs, name, waiting, os.openpty())
    assert text and "\x1b" not in text
    if name in WITH_TABLES:
        too_long = [line for line in text.splitlines() if len(line) > width]
        assert [line for line in too_long if not is_excepted(line)] == []
        assert width < 200 or not too_long


def test_a_terminal_shows_how_values_went_and_a_pipe_does_not(runs, waiting, narrow, plain):
    _, forks = narrow
    lines = printed(forks, runs, "show --tail", waiting, os.openpty()).splitlines()
    with byname.open(runs / "run.h5") as recording:
        means = [float(value.double().mean()) for value in recording["1"].values]
    (mine,) = [line.split() for line in lines if line.startswith("  1 ")]
    bars, low, high = "▁▂▃▄▅▆▇█", min(means), max(means)
    went = "".join(bars[round(7 * (mean - low) / (high - low))] for mean in means)
    assert mine == ["1", went, f"{means[-1]:.4g}"] and len({*went}) > 1
    assert not {*bars} & {*printed(plain, runs, "show --tail", waiting, os.pipe())}


def is_excepted(line):
    """Whether a line may be too long: one word, such as a path, also behind a label, or a line of the program."""
    return bool(re.fullmatch(r" *(\w+: +)?\S+|    [\w/.]+\.py:\d+  .*", line))
