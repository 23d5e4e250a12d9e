"""Runs command lines of byname without importing PyTorch for each: every one is a fork of a Python that has it.

A fork is a process of its own, which returns from `main` and ends as a started one does.
"""

import json
import re
import subprocess
import sys
from typing import NamedTuple

PROGRAM = """
import atexit, gc, json, os, signal, sys
import h5py, rich.table, torch, torch._dynamo  # which every optimizer that is made imports
import byname.diagnose.explaining, byname.memory.leaks, byname.recording.recorder, byname.recording.stores.writer
from byname.cli import main

gc.collect()
gc.freeze()  # else every fork copies and walks the million objects of PyTorch when it ends
while line := sys.stdin.readline():
    case = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(60)
os.chdir(case["folder"])
for number, name in enumerate(("in", "out", "err")):
    file = os.open(case[name], (os.O_CREAT | os.O_WRONLY | os.O_TRUNC) if number else os.O_RDONLY)
    os.dup2(file, number)
if case["thawed"]:
    gc.unfreeze()
    atexit.register(gc.freeze)
sys.exit(main(case["command"]))
"""


LEAKS = re.compile(
    rb"nanobind:\s+leaked\b.*?refleaks\.html(\r?\n)?|^(nanobind:| - (leaked|\.\.\. skipped)\b)[^\n]*\n?",
    re.DOTALL | re.MULTILINE,
)
"""What Triton, which builds with CUDA bring along, says at the end of a process whose objects are frozen: from its
first line to the address that it ends with, however the lines are broken; or line by line where there is no address."""


def without_leaks(written):
    """What a process has written, without Triton's complaint."""
    return LEAKS.sub(b"", written)


class Ending(NamedTuple):
    """How a process ended, and what it wrote."""

    code: int
    out: bytes
    err: bytes


class Forks:
    """A Python that has imported byname and forks for every command line."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM],  # a frozen stdout does not write at the end what it still holds
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder, command, given=b"", *, thawed=False, to=None):
        """How the command line ended.

        thawed: let a census look at a heap that is not frozen, which is quicker; at the end, what only the collector
            would free is then left as it is.
        to: a pipe or a terminal that both streams go to; what is written there is then not returned, and the reader
            takes `without_leaks` of it.
        """
        streams = {name: folder.parent / f"{folder.name}.{name}" for name in ("in", "out", "err")}
        streams["in"].write_bytes(given)
        streams |= {"out": to, "err": to} if to else {}
        case = {
            "folder": str(folder),
            "command": command,
            "thawed": thawed,
            **{name: str(path) for name, path in streams.items()},
        }
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        if to:
            return Ending(code, b"", b"")
        return Ending(code, streams["out"].read_bytes(), without_leaks(streams["err"].read_bytes()))

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def run_started(folder, command, given=b""):
    """The same for a Python that is started."""
    done = subprocess.run([sys.executable, "-u", *command], cwd=folder, input=given, capture_output=True, timeout=120)
    return Ending(done.returncode, done.stdout, without_leaks(done.stderr))
