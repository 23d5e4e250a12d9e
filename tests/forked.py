"""Runs little programs in processes of their own that begin with PyTorch imported: forks of a Python that has it.

To import PyTorch takes longer than all that most of these programs do. A fork is a process as a started one is; what
it cannot show is how a program begins: what is imported by whom, and options of Python. `alone` starts one for that.
"""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

PROGRAM = """
import sys

def serve():
    import atexit, gc, json, os, signal, types, warnings
    import torch, torch._dynamo  # which every optimizer that is made imports

    gc.collect()
    gc.freeze()  # else every fork copies the million objects of PyTorch when it is collected
    case = None
    while case is None:
        children = []
        for each in json.loads(sys.stdin.readline() or sys.exit()):
            if not (child := os.fork()):
                case = each
                break
            children.append(child)
        else:
            ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            print(json.dumps(ends), flush=True)
    signal.alarm(case["timeout"])
    for number, name in enumerate((os.devnull, case["out"], case["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.chdir(case["folder"])
    os.environ.update(case["environment"])
    if case["strict"]:  # as -W error
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)
    sys.argv = case["arguments"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    sys.modules["__main__"] = types.ModuleType("__main__")
    if os.path.exists(sys.argv[0]):
        sys.modules["__main__"].__file__ = sys.argv[0]
    gc.unfreeze()
    atexit.register(gc.freeze)  # after all else: to collect once more would take longer than most programs do
    return compile(case["program"], sys.argv[0], "exec")

exec(serve(), sys.modules["__main__"].__dict__)
"""


class Run(NamedTuple):
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str


class Template:
    """The Python that is forked."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True, **pipes)

    def ends(self, cases):
        """Runs the programs at the same time, and returns their exit codes."""
        try:
            self.process.stdin.write(json.dumps(cases) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except BaseException:  # a test that took too long, or Ctrl-C: the programs end with it
            template.cache_clear()
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def close(self):
        with self.process:  # closes its stdin, and waits
            atexit.unregister(self.close)


@functools.cache
def template():
    """Started by the first test that needs it."""
    started = Template()
    atexit.register(started.close)
    return started


def run_together(cases, program, name, *, folder=".", strict=False, timeout=240):
    """Runs the program in several processes at the same time, and waits for all.

    cases: a dict for each process, of its ``arguments`` and what is added to its ``environment``.
    """
    shared = {"program": program, "folder": str(Path(folder).absolute()), "strict": strict, "timeout": timeout}
    with tempfile.TemporaryDirectory() as outputs:
        paths = [(f"{outputs}/{number}.out", f"{outputs}/{number}.err") for number in range(len(cases))]
        whole = [
            {**shared, "out": out, "err": err, **case, "arguments": [str(name), *case["arguments"]]}
            for case, (out, err) in zip(cases, paths)
        ]
        codes = template().ends(whole)
        return [Run(code, Path(out).read_text(), Path(err).read_text()) for code, (out, err) in zip(codes, paths)]


def run_forked(program):
    """What the program printed, as words; fails with its error output when it fails."""
    return _printed(textwrap.dedent(program), "<string>", ".").split()


def run_forked_file(tmp_path, program, name="program.py"):
    """The same for a program in a file, so that its source can be read; as lines."""
    file = tmp_path / name
    file.write_text(textwrap.dedent(program))
    return _printed(file.read_text(), file, tmp_path).splitlines()


def run_forked_ranks(tmp_path, program, name="program.py", world=2):
    """The same for a program of several processes, as ``torchrun`` would start them: what each rank printed."""
    file = tmp_path / name
    file.write_text(textwrap.dedent(program))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [{"arguments": [], "environment": {**shared, "RANK": n, "LOCAL_RANK": n}} for n in map(str, range(world))]
    return [_checked(done).splitlines() for done in run_together(ranks, file.read_text(), file, folder=tmp_path)]


def _printed(program, name, folder):
    (done,) = run_together([{"arguments": [], "environment": {}}], program, name, folder=folder, strict=True)
    return _checked(done)


def _checked(done):
    assert done.code == 0, f"exit {done.code}\n{done.err[-3000:]}"
    return without_gloo(done.out)


def without_gloo(printed):
    """What was printed, less what gloo of PyTorch 2.10 says when it connects."""
    return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("[Gloo] Rank"))
