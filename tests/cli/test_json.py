"""What the commands write for other programs is JSON, with the fields that docs/json.md names."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import byname
from byname.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def fields(section):
    """The fields that the page names in one of its tables."""
    text = PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.fixture
def recorded(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with byname.record(model, ["0", "1"], to=tmp_path / "run.h5"):
        for _ in range(3):
            model(torch.randn(4, 2))
    return tmp_path / "run.h5"


def test_a_recording(recorded, capsys):
    assert main(["show", "--json", str(recorded)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {*told} == fields("byname show --json") - {"records"}
    assert told["complete"] is True and told["missing"] == [] and told["run"]["model"] == "Sequential"
    assert [(row["path"], row["shape"], row["records"]) for row in told["places"]] == [
        ("0", [4, 3], 3),
        ("1", [4, 3], 3),
    ]
    assert all({"min", "max", "mean", "bytes", "ranks", "iterations", "kind"} <= {*row} for row in told["places"])
    assert main(["show", "--json", "--no-ranges", str(recorded)]) == 0
    assert "min" not in json.loads(capsys.readouterr().out)["places"][0]


def test_records_of_a_place(recorded, capsys):
    assert main(["show", "--json", "--place", "1", str(recorded)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {*told} == fields("byname show --json") - {"places"}
    with byname.open(recorded) as recording:
        values = recording["1"].values
        assert [row["iteration"] for row in told["records"]] == [0, 1, 2]
        assert {"path", "iteration", "rank", "call", "mode", "shape", "value"} <= {*told["records"][0]}
        for row, value in zip(told["records"], values, strict=True):
            assert torch.equal(torch.tensor(row["value"]), value)
    assert main(["show", "--json", "--place", "nope", str(recorded)]) == 1
    assert main(["show", "--json", "--tail", str(recorded)]) == 2


PROGRAM = """
import torch
a, b = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD(a.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = (a(torch.ones(4, 2)) * b).square().mean()
    loss.backward()
    optimizer.step()
print("trained", flush=True)
loss.backward()
"""


def test_what_a_run_found(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "byname",
        "run",
        "--check",
        "--json",
        "found.jsonl",
        "--report",
        "run.html",
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "trained\n"
    found, *rest = map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())
    explained, end = rest[-2:]
    assert (found["kind"], found["cause"], found["culprits"]) == ("finding", "not-in-optimizer", ["b"])
    assert (explained["kind"], explained["cause"]) == ("explanation", "backward-twice")
    assert end == {"kind": "end", "error": "RuntimeError"}
    assert {*explained} | {*end} == fields("byname run --json FILE") - {"file", "line", "function", "statement"}
    site = explained["sites"][-1]
    assert {*site} == {"file", "line", "function", "statement"}
    assert (site["file"], site["line"], site["statement"]) == (str(tmp_path / "train.py"), 11, "loss.backward()")
    assert done.stderr.count("byname: not-in-optimizer") == 1 and (tmp_path / "run.html").exists()


def test_a_file_that_cannot_be_written_is_told_before_the_program_runs(tmp_path):
    (tmp_path / "train.py").write_text("print('ran')")
    command = [sys.executable, "-m", "byname", "run", "--json", "no/found.jsonl", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "--json: no/found.jsonl cannot be written" in done.stderr
