"""Runs programs and command lines in processes of their own that have imported PyTorch and byname already.

To import PyTorch takes longer than all that most of these programs do, so one Python imports it for all tests
(`template`), and forks. A fork is a process as a started one is. What it cannot show is how a program begins: who imports
what, options of Python, the first lines of a traceback. For that `start` starts a Python.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

STRICT = ("-W", "error", "-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
SECONDS = 240


class Fork(subprocess.Popen):
    """A process that runs a command line of Python, given without the name of Python; else as `subprocess.Popen`.

    finalized: let Python clear all modules and collect garbage at the end, as it does; that takes ten times as long as
        all the rest, and is left out if nothing depends on it.
    """

    def __init__(self, words, *, finalized=False, **options):
        self.finalized = finalized
        super().__init__([str(word) for word in words], **options)

    def _execute_child(self, args, executable, before, close, passed, cwd, env, startup, flags, shell, *rest):
        theirs, streams = (rest[0], rest[3], rest[5]), rest[:6]
        inherited = (file if file != -1 else number for number, file in enumerate(theirs))
        self.answers, answers = os.pipe()
        case = {
            "words": args,
            "folder": str(Path(cwd or ".").absolute()),
            "environment": {**(os.environ if env is None else env)},
            "finalized": self.finalized,
        }
        socket.send_fds(template(), [json.dumps(case).encode()], [*inherited, answers])
        os.close(answers)
        self._close_pipe_fds(*streams)
        self.pid = int(self._answer())
        self._child_created = True

    def _answer(self):
        line = b""
        while not line.endswith(b"\n"):
            if not (letter := os.read(self.answers, 1)):
                raise EOFError("the template of processes has ended")
            line += letter
        return line

    def _try_wait(self, flags):
        if self.returncode is not None or (flags and not select.select([self.answers], [], [], 0)[0]):
            return 0, 0
        status = int(self._answer())
        os.close(self.answers)
        return self.pid, status

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


@functools.cache
def template():
    """The socket of the Python that forks; the first test that needs it starts it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = Path(__file__).with_name("template.py")
    command = [sys.executable, program, str(theirs.fileno())]
    started = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    theirs.close()
    atexit.register(lambda: (ours.close(), started.wait()))
    return ours


def run(words, *, input=None, timeout=SECONDS, check=False, process=Fork, **options):
    """As `subprocess.run`, for a fork."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with process(words, **options) as running:
        try:
            out, err = running.communicate(input, timeout)
        except BaseException:  # a test that took too long, or Ctrl-C: the process ends with it
            running.kill()
            raise
    done = subprocess.CompletedProcess(words, running.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def start(words, **options):
    """As `subprocess.run`, for a Python that is started: for what a fork cannot show."""
    return run([sys.executable, *words], process=subprocess.Popen, **options)


def run_forked(program, *options):
    """What the program printed, as words; fails with its error output when it fails."""
    return checked(_run([*(options or STRICT), "-c", textwrap.dedent(program)])).split()


def run_alone(program, *options, **others):
    """The same for a Python that is started."""
    return checked(_run([*(options or STRICT), "-c", textwrap.dedent(program)], run=start, **others)).split()


def run_forked_file(tmp_path, program, name="program.py", run=run):
    """The same for a program in a file, so that its source can be read; as lines."""
    file = tmp_path / name
    file.write_text(textwrap.dedent(program))
    return checked(_run([*STRICT, file], cwd=tmp_path, run=run)).splitlines()


def run_forked_ranks(tmp_path, program, name="program.py", world=2):
    """The same for a program of several processes, as ``torchrun`` would start them: what each rank printed."""
    file = tmp_path / name
    file.write_text(textwrap.dedent(program))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [{**os.environ, **shared, "RANK": n, "LOCAL_RANK": n} for n in map(str, range(world))]
    return [
        checked(done).splitlines() for done in run_together([([file], {"env": env}) for env in ranks], cwd=tmp_path)
    ]


def run_together(cases, *, timeout=SECONDS, **options):
    """Runs several forks at the same time, pairs of words and options, and waits for all."""
    running = []
    with contextlib.ExitStack() as files:
        try:
            for words, own in cases:
                out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
                streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
                running.append((Fork(words, **streams, **options, **own), out, err))
            return [_ended(*one, timeout) for one in running]
        finally:
            for process, *_ in running:
                process.kill()
                process.wait()


def _ended(process, out, err, timeout):
    process.wait(timeout)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read().decode())
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)


def checked(done):
    """What a process printed; fails with its error output when it failed."""
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return without_gloo(done.stdout)


def without_gloo(printed):
    """What was printed, less what gloo of PyTorch 2.10 says when it connects."""
    return "".join(line for line in printed.splitlines(keepends=True) if not line.startswith("[Gloo] Rank"))


def _run(words, run=run, **options):
    return run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
