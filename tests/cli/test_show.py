"""``byname show``: what it tells of a recording that is whole, still being written, cut short, or none at all."""

import re
import signal
import subprocess
import sys

import pytest
import torch
from processes import Fork
from programs import write
from torch import nn

import byname
from byname.cli import main, show


@pytest.fixture(scope="module")
def runs(files):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with byname.record(model, ["1", "0.weight.grad", "0.bias"], to=files / "shown.h5"):
        for _ in range(3):
            model(torch.ones(4, 2)).sum().backward()
    return files


def lines(ours):
    assert ours.code == 0, ours.err.decode()
    return ours.out.decode().splitlines()


def test_a_table_tells_the_run_and_each_place_with_its_range(runs, forks):
    header, program, started, _, title, _, _, *rows = lines(forks.run(runs, ["show", "shown.h5"]))
    assert header == "shown.h5: a recording of Sequential, complete"
    assert program.startswith("program: ")
    assert re.match(r"started:   \d{4}-\d\d-\d\dT", started)
    assert title == "shown.h5: 3 places"
    assert {row.split()[0] for row in rows} == {"1", "0.weight.grad", "0.bias"}
    weight = next(row.split() for row in rows if row.startswith("0.weight.grad"))
    with byname.open(runs / "shown.h5") as recording:
        largest = recording["0.weight.grad"].to_numpy().max()
    assert f"{largest:.6g}" in " ".join(weight)


def test_which_iterations_stayed_and_why_it_ended_stand_at_the_top(files, forks):
    model = nn.Linear(2, 1)
    options = {"keep": 2, "by": "bias", "stop_when": lambda values: values["bias"] > 3}
    with byname.record(model, "bias", to=files / "ended.h5", reduce="mean", on_change=False, **options):
        for number in range(6):
            model.bias.data.fill_(number)
            model(torch.ones(1, 2))
    header = lines(forks.run(files, ["show", "ended.h5"]))
    assert "kept:      2 iterations of largest bias" in header
    assert "stopped:   stop_when (<lambda>) was true after train iteration 4" in header


def test_without_ranges_no_value_is_read(runs, forks):
    assert "min" not in forks.run(runs, ["show", "--no-ranges", "shown.h5"]).out.decode().split()
    assert "min" in forks.run(runs, ["show", "shown.h5"]).out.decode().split()


def test_of_a_large_recording_ranges_are_read_on_request_only(runs, monkeypatch, capsys):
    monkeypatch.setattr(show, "SMALL", 100)
    file = str(runs / "shown.h5")
    assert main(["show", file]) == 0
    out, err = capsys.readouterr()
    assert "min" not in out.split()
    assert f"byname show --ranges {file}" in " ".join(err.split())
    assert main(["show", "--ranges", file]) == 0
    out, err = capsys.readouterr()
    assert "min" in out.split()
    assert not err


def test_the_records_of_a_place_are_shown_one_a_line(runs, forks):
    title, _, _, *rows = lines(forks.run(runs, ["show", "--place", "1", "shown.h5"]))
    assert title.startswith("1: 3 records")
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    several = lines(forks.run(runs, ["show", "--place", "0.**", "shown.h5"]))
    assert sum("record" in line for line in several) == 2


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["no_such.h5"], "there is no file no_such.h5"),
        (["facts.py"], "facts.py"),
        (["folder"], "folder is a directory"),
        (
            ["--place", "0.weigth.grad", "shown.h5"],
            "nothing was recorded at `0.weigth.grad`; recorded: 0.weight.grad",
        ),
    ],
)
def test_what_cannot_be_shown_is_said(command, sentence, runs, forks):
    ours = forks.run(runs, ["show", *command])
    assert (ours.code, ours.out) == (1, b"")
    assert ours.err.decode().startswith(f"byname: {sentence}")
    assert b"Traceback" not in ours.err


def test_a_name_that_could_steer_the_terminal_is_escaped(runs, forks):
    class Named(nn.Module):
        def forward(self, x):
            h = {"\x1b[31mred": x}
            return x

    name, model = "\x1b[2Jclear.h5", Named()
    with byname.record(model, "forward.h", to=runs / name):
        model(torch.ones(1))
    ours = forks.run(runs, ["show", name])
    place = forks.run(runs, ["show", "--place", "forward.h", name])
    assert ours.code == place.code == 0
    assert b"\x1b" not in ours.out + place.out + ours.err
    assert rb"\x1b[2Jclear.h5" in ours.out


def test_the_files_of_all_ranks_are_shown_as_one(runs, forks):
    for rank in (0, 1):
        (runs / f"parts.rank{rank}.h5").write_bytes((runs / "shown.h5").read_bytes())
    shown = forks.run(runs, ["show", "parts.h5"]).out.decode()
    assert "parts.rank0.h5, parts.rank1.h5" in shown
    assert sorted(int(row.split()[3]) for row in shown.splitlines()[7:10]) == [2, 6, 6]


WRITES = """
    import os, signal, sys, torch, byname
    model = torch.nn.Linear(2, 2)
    recorder = byname.record(model, "forward", to=sys.argv[1])
    for line in sys.stdin:
        for _ in range(int(line)):
            model(torch.randn(1, 2))
        recorder.flush()
        print("flushed", flush=True)
    recorder.close()
"""


class Writer:
    """A program that records, and goes on when it is told to."""

    def __init__(self, folder, to):
        write(folder, {"writes.py": WRITES})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = Fork(["writes.py", to], cwd=folder, text=True, **pipes)

    def forwards(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "flushed\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


def start_tail(folder, name):
    command = ["-W", "error", "-m", "byname", "show", "--tail", name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Fork(command, cwd=folder, text=True, **pipes)


def test_a_file_that_does_not_exist_yet_is_followed_from_its_first_window_until_it_is_closed(runs):
    with start_tail(runs, "live.h5") as tail:
        assert tail.stderr.readline() == "byname: waiting for live.h5\n"
        writer = Writer(runs, "live.h5")
        writer.forwards(3)
        assert tail.stdout.readline().split("  ")[1] == "to iteration 2: 3 records of 1 place, 3 in all\n"
        writer.forwards(2)
        assert tail.stdout.readline().split("  ")[1] == "to iteration 4: 2 records of 1 place, 5 in all\n"
        writer.end()
        assert tail.stdout.readline() == "live.h5 is closed and complete\n"
        assert tail.wait(60) == 0


def test_ctrl_c_ends_following_and_a_look_in_between_tells_what_is_missing(runs, forks):
    writer = Writer(runs, "going.h5")
    writer.forwards(2)
    shown = forks.run(runs, ["show", "going.h5"]).out.decode()
    assert "not complete" in shown.splitlines()[0]
    assert "was not closed" in shown.splitlines()[-1]
    with start_tail(runs, "going.h5") as tail:
        assert "2 in all" in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=60)
    assert (tail.returncode, out.strip(), err) == (0, "", "")
    writer.end()


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_nobody_reads_is_no_error(runs, buffered):
    python = f"env -u PYTHONUNBUFFERED {sys.executable}" if buffered else f"{sys.executable} -u"
    command = f"{python} -m byname show --place 1 shown.h5 | true"
    done = subprocess.run(["bash", "-c", command], cwd=runs, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_shows_examples(runs, forks):
    assert b"byname show --tail run.h5" in forks.run(runs, ["show", "--help"]).out


def test_nan_is_counted_and_in_no_figure(runs, forks):
    model = nn.Linear(2, 2)
    with byname.record(model, "forward.input", to=runs / "nan.h5"):
        model(torch.tensor([[1.0, float("nan")], [3.0, 2.0]]))
    *_, head, _, row = lines(forks.run(runs, ["show", "nan.h5"]))
    assert head.split()[-4:] == ["min", "max", "mean", "nan"]
    assert row.split()[-4:] == ["1.0", "3.0", "2.0", "1"]
