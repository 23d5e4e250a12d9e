"""Runs a little program in a Python of its own."""

import subprocess
import sys
import textwrap

STRICT = ("-W", "error", "-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")


def run_alone(program, *options, timeout=120):
    """What the program printed, as words; fails with its error output when it fails."""
    command = [sys.executable, *(options or STRICT), "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout.split()


def run_file(tmp_path, program, name="program.py"):
    """The same for a program in a file, so that its source can be read."""
    file = tmp_path / name
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, *STRICT, str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()
