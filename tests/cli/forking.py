"""Runs command lines of byname, and how they ended."""

import functools
import re
import subprocess
from typing import NamedTuple

import processes
from programs import GIVEN

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
    """Runs each command line in a fork that has imported byname."""

    def __init__(self, env=None):
        self.env = env

    def run(self, folder, command, given=b"", *, to=None, **options):
        """How the command line ended.

        to: a pipe or a terminal that both streams go to; what is written there is then not returned.
        """
        streams = {"stdout": to, "stderr": to} if to is not None else {"capture_output": True}
        words = ["-u", "-m", "byname", *command]
        return ending(processes.run(words, cwd=folder, input=given, env=self.env, **streams, **options))


def run_plain(folder, command, given=b"", **options):
    """The same for any program, as Python runs it."""
    words = ["-u", *command]
    return ending(processes.run(words, cwd=folder, input=given, capture_output=True, **options))


def run_started(folder, command, given=b""):
    """The same for a Python that is started."""
    return ending(processes.start(["-u", *command], cwd=folder, input=given, capture_output=True))


@functools.cache
def run_plainly(folder, *command):
    """How Python ends that runs what tests compare with; once for all of them."""
    return run_started(folder, command, GIVEN)


def ending(done: subprocess.CompletedProcess) -> Ending:
    return Ending(done.returncode, done.stdout or b"", without_leaks(done.stderr or b""))
