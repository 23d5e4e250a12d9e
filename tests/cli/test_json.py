"""What the commands write for other programs is JSON, with the fields that docs/json.md names."""

import json

import processes
import pytest
import torch
from json_page import fields
from torch import nn

import byname
from byname.cli import main


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


def test_what_comes(recorded, capsys):
    assert main(["show", "--json", "--tail", str(recorded)]) == 0
    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert {*told} == fields("byname show --tail --json")
    assert told["came"] == told["records"] == {"0": 3, "1": 3}
    assert (told["iteration"], told["ended"], told["complete"], told["missing"]) == (2, True, True, [])


def test_a_report(recorded, tmp_path, capsys):
    assert main(["report", "--json", str(recorded), "--to", str(tmp_path / "page.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {*told} == fields("byname report --json")
    page = (tmp_path / "page.html").read_bytes()
    assert told == {"page": str(tmp_path / "page.html"), "bytes": len(page), "files": [str(recorded)]}


def test_a_difference(recorded, tmp_path, capsys):
    model = nn.Linear(2, 3)
    for name, at in (("a.h5", None), ("b.h5", 1)):
        with byname.record(model, "forward", to=tmp_path / name):
            for step in range(3):
                model(torch.full((4, 2), float("nan") if step == at else 1.0))
    assert main(["diff", "--json", str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {*told} == fields("byname diff --json")
    found = byname.diff(tmp_path / "a.h5", tmp_path / "b.h5")
    assert told["names"] == ["a.h5", "b.h5"] and told["equal"] is False and [*told["places"][0]] == [*found.rows()[0]]
    assert (told["first"]["path"], told["first"]["iteration"], told["first"]["nan"]) == ("forward", 1, 12)
    assert main(["diff", "--json", str(recorded), str(recorded)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["equal"] is True and told["first"] is None and len(told["places"]) == 2
    assert main(["diff", "--json", str(recorded), "nope.h5"]) == 2 and not capsys.readouterr().out


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
    command = "-m byname run --check --json found.jsonl --report run.html train.py".split()
    done = processes.run(command, cwd=tmp_path, capture_output=True, text=True)
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
    command = ["-m", "byname", "run", "--json", "no/found.jsonl", "train.py"]
    done = processes.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and "--json: no/found.jsonl cannot be written" in done.stderr


ALIVE = """
import os, signal, torch
torch.manual_seed(0)
history, odd = [], {"\x1b[31mred\u2028": torch.full((3,), 0.123456)}
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.ones(4)).sum()
    loss.backward()
    history.append(loss)
    optimizer.step()
print("trained", flush=True)
if os.fork() == 0:
    optimizer.step(), optimizer.step()
    raise SystemExit(3)
os.wait()
raise ValueError("no more")
"""
SITE = {"file", "line", "function", "statement"}


def run(folder, *words):
    command = ["-m", "byname", *words, "train.py"]
    (folder / "train.py").write_text(ALIVE)
    done = processes.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "trained\n"
    text = (folder / "alive.jsonl").read_text()
    return done.stderr, text, [*map(json.loads, text.splitlines())]


def test_censuses_of_a_program(tmp_path):
    err, text, (first, second, last, end) = run(
        tmp_path, "census", "--every", "2", "--top", "1", "--json", "alive.jsonl"
    )
    assert [one["when"] for one in (first, second, last)] == [
        "after optimizer step 2 (SGD at train.py:11)",
        "after optimizer step 4 (SGD at train.py:11)",
        "at the ValueError",
    ]
    assert [one["step"] for one in (first, second, last)] == [2, 4, None]
    assert end == {"kind": "end", "error": "ValueError"}
    assert {*last} | {*end} == fields("byname census --json FILE") - {"looks"}
    assert all({*row} == fields("Rows of a census") for row in last["rows"])
    weight = next(row for row in last["rows"] if row["name"] == "model.weight")
    assert (weight["kind"], weight["shape"], weight["dtype"], weight["bytes"]) == ("parameter", [2, 4], "float32", 32)
    assert last["bytes"] == sum(row["bytes"] for row in last["rows"]) and len(last["rows"]) > 4
    assert r"odd['\x1b[31mred\u2028']" in [row["name"] for row in last["rows"]]
    assert text.isascii() and "\x1b" not in text and "0.1234" not in text
    assert err.count("byname: census") == 4


def test_growth_of_a_program(tmp_path):
    err, text, (grown, end) = run(tmp_path, "census", "--growth", "--json", "alive.jsonl")
    assert (grown["kind"], end["kind"]) == ("growth", "end")
    assert {*grown} | {*end} == fields("byname census --json FILE") - {
        *("when", "step", "bytes", "unattributed", "notes"),
    }
    assert grown["looks"][0] == "optimizer step 1 (SGD at train.py:11)" and len(grown["looks"]) == 3
    row = next(row for row in grown["rows"] if row["name"] == "history[*]")
    assert {*row} == fields("Rows of growth") and row["cause"] == "stored-graph" and row["count"] == 3
    assert "growth from" in err


def test_a_census_without_a_file_to_write_to(tmp_path, capsys):
    assert main(["census", "--json", "-", __file__]) == 2
    assert "name a file" in capsys.readouterr().err
    assert main(["census", "--json", str(tmp_path / "no" / "file"), __file__]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["census", "--pid", "1", "--json", "some"]) == 2
    assert "--json -" in capsys.readouterr().err
