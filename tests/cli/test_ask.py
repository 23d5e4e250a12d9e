"""``byname census --pid`` and ``byname status --pid``: a process that runs already, asked from another one."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from json_page import fields
from processes import checked, run

from byname.cli import ask, main

TRAINING = """
import sys, threading, time, torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
    def forward(self, x):
        hidden = self.lin(x)
        print("ready", flush=True)
        for _ in range(6000):
            time.sleep(0.01)
            if stop.is_set():
                break
        return hidden

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
    def forward(self, x):
        return self.blocks[0](x)

stop = threading.Event()
def listen():
    sys.stdin.readline()
    stop.set()
threading.Thread(target=listen, name="listener", daemon=True).start()
torch.manual_seed(0)
net = Net()
loss = net(torch.ones(2, 4)).sum()
loss.backward()
print(torch.rand(1).item(), net.blocks[0].lin.weight.grad.sum().item())
"""
FOLDER = Path(f"/tmp/byname-{os.getuid()}")
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at /proc")


@pytest.fixture
def started(tmp_path):
    processes = []

    def started(*words):
        (tmp_path / "train.py").write_text(TRAINING)
        pipe = subprocess.PIPE
        command = [sys.executable, *words]
        environment = os.environ | {"PYTHONPATH": str(Path(ask.__file__).parents[2])}
        process = subprocess.Popen(
            command, cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def left_behind():
    return sorted(path.name for path in FOLDER.iterdir()) if FOLDER.exists() else []


def test_a_process_tells_what_it_does_and_goes_on_as_without(started, capsys, tmp_path):
    (tmp_path / "byname").write_text("import sys\nfrom byname.cli import main\nsys.exit(main())\n")  # as pip does
    process = started("byname", "run", "--census-on-signal", "train.py")
    before = left_behind()
    assert main(["status", "--pid", str(process.pid)]) == 0
    told = capsys.readouterr().out
    assert re.match(rf"process {process.pid} at train.py:1[1-5]\n", told)
    main_thread, _, rest = told.partition("listener:")
    assert re.search(r"train.py:32  loss = net\(torch.ones\(2, 4\)\).sum\(\)\n +train.py:23  return self.blocks", told)
    assert "  in a call of blocks.0 (Block) of Net\n" in main_thread
    assert "    train.py:27  sys.stdin.readline()\n" in rest
    assert re.search(r"alive: \d+ storages, .*parameter 80 B", told)
    assert "byname" not in told and "runpy" not in told
    assert main(["census", "--pid", str(process.pid), "--top", "3"]) == 0
    told = capsys.readouterr().out
    assert "net.blocks[0].lin.weight" in told and "1 row more" in told
    out, err = process.communicate("stop\n", timeout=60)
    plain = checked(run(["-c", TRAINING], input="stop\n", capture_output=True, text=True))
    assert out == plain.partition("\n")[2] and err == ""
    assert left_behind() == before


@pytest.mark.slow
def test_a_process_tells_the_same_as_json(started, capsys):
    process = started("-m", "byname", "run", "--track", "--census-on-signal", "train.py")
    assert main(["status", "--pid", str(process.pid), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {*told} == fields("byname status --pid N --json") and told["process"] == process.pid
    first, other = told["threads"]
    assert {*first} == {"name", "sites", "module", "library"}
    assert (first["name"], first["module"]) == ("MainThread", "blocks.0 (Block) of Net")
    assert first["sites"][0]["statement"] == "loss = net(torch.ones(2, 4)).sum()"
    assert {*first["sites"][0]} == {"file", "line", "function", "statement"}
    assert other["name"] == "listener" and other["module"] == "" and other["sites"][-1]["line"] == 27
    assert told["alive"]["kinds"]["parameter"] == 80 and {*told["alive"]} == {"storages", "bytes", "kinds"}
    assert main(["census", "--pid", str(process.pid), "--json", "-", "--top", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {*told} == (fields("byname census --json FILE") | {"process"}) - {"kind", "looks", "error"}
    assert told["step"] is None and told["when"].startswith("at train.py:")
    weight = next(row for row in told["rows"] if row["name"] == "net.blocks[0].lin.weight")
    assert {*weight} == fields("Rows of a census")
    assert (weight["site"]["line"], weight["site"]["statement"]) == (8, "self.lin = nn.Linear(4, 4)")
    assert main(["status", "--pid", str(process.pid)]) == 0
    assert capsys.readouterr().out.startswith(f"process {process.pid} at train.py:")


@pytest.mark.slow
def test_an_answer_without_facts_is_an_error_of_a_command_that_wants_json(started, capsys, monkeypatch):
    process = started("-m", "byname", "run", "--census-on-signal", "train.py")
    monkeypatch.setattr(ask, "read_answer", lambda request: ask.Answer("could not look"))
    assert main(["status", "--pid", str(process.pid), "--json"]) == 1
    assert capsys.readouterr() == ("", "byname: could not look\n")


@pytest.mark.slow
def test_a_process_that_does_not_listen_is_left_alone(started, capsys, monkeypatch):
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    process = started("train.py")
    assert main(["census", "--pid", str(process.pid)]) == 1
    told = capsys.readouterr().err
    assert f"process {process.pid} (" in told and "train.py) does not listen: start it with `byname run" in told
    assert process.poll() is None


@pytest.mark.parametrize("name", ["status", "explain"])
def test_a_process_that_is_not_there_is_told_of_also_under_the_former_name_of_the_command(name, capsys):
    assert main([name, "--pid", str(2**22 + 1)]) == 1
    assert "there is no process" in capsys.readouterr().err


def test_processes_that_cannot_be_asked_are_told_of(capsys):
    assert main(["status", "--pid", str(os.getpid())]) == 1
    assert "the process that asks" in capsys.readouterr().err
    assert main(["census", "--pid", "1", "train.py"]) == 2
    assert "leave out the program" in capsys.readouterr().err
    assert main(["census"]) == 2
    assert "give a program" in capsys.readouterr().err


@pytest.mark.slow
def test_no_answer_in_time_is_told_and_the_question_taken_back(started, capsys):
    process = started("-m", "byname", "run", "--census-on-signal", "train.py")
    process.send_signal(signal.SIGSTOP)
    before = left_behind()
    assert main(["census", "--pid", str(process.pid), "--timeout", "0.2"]) == 1
    assert "gave no answer in 0.2 seconds" in capsys.readouterr().err
    assert left_behind() == before
    process.send_signal(signal.SIGCONT)


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, monkeypatch):
    open_to_all = tmp_path / "byname"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    linked = tmp_path / "link"
    linked.symlink_to(tmp_path)
    for folder in (open_to_all, linked):
        monkeypatch.setattr(ask, "_place", lambda folder=folder: folder)
        with pytest.raises(PermissionError):
            ask.ask(1, "census", 3)
        assert ask.take_request(1) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[1]",
        '{"about": "run", "top": 1, "answer": "a"}',
        '{"about": "census", "top": 1, "answer": "../a"}',
        '{"about": "census", "top": "1", "answer": "a"}',
    ],
)
def test_questions_of_nobody_are_dropped(text, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(ask, "_place", lambda: tmp_path)
    (tmp_path / "7.request").write_text(text)
    assert ask.take_request(7) is None
    assert not [*tmp_path.iterdir()]


REMOTE = """
import os, sys, torch
from byname.cli import ask
request = ask.ask(os.getpid(), "status", 5)
script = ask.script_for(request)
def step():
    kept = torch.ones(3)
    exec(compile(script.read_text(), str(script), "exec"), vars(sys.modules["__main__"]))
names, before = {*globals(), "names", "before"}, sys.path[:]
step()
assert ({*globals()}, sys.path) == (names, before)
print(ask.read_answer(request).text)
ask.delete_request(os.getpid(), request)
"""


@pytest.mark.slow
def test_the_file_that_python_runs_in_another_process_answers_and_leaves_no_name(tmp_path):
    """All of PEP 768 but the call: the file is run in the middle of a program, as `sys.remote_exec` has it run."""
    (tmp_path / "program.py").write_text(REMOTE)
    before = left_behind()
    environment = os.environ | {"PYTHONPATH": str(Path(ask.__file__).parents[2])}
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "program.py:10  step()" in done.stdout and "MainThread:" in done.stdout
    assert "byname-" not in done.stdout
    assert left_behind() == before


@pytest.mark.slow
def test_a_census_of_a_tracked_program_has_the_lines_that_allocated(started, capsys):
    process = started("-m", "byname", "run", "--track", "--census-on-signal", "train.py")
    assert main(["census", "--pid", str(process.pid)]) == 0
    weight = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("net.blocks[0].lin.weight"))
    assert "train.py:8" in weight
