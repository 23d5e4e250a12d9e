"""A program that calls every function of byname, as a user writes it: it runs without a warning, and its types are right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import byname

PROGRAM = Path(__file__).with_name("users_program.py")
NOT_NAMED = {
    *("BynameError", "Finding", "Site", "WrappedForwardBackwardInterjection", "WrappedForwardInterjection"),
    *("assembled", "open", "repair", "stack_padded"),
}
"""What the program need not name: base classes, classes of results, and what has several processes or a crash before."""


def started(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240)


def test_it_names_every_public_name():
    named = set(re.findall(r"byname\.(\w+)", PROGRAM.read_text()))
    assert set(byname.__all__) - named <= NOT_NAMED


def test_it_runs_without_a_warning():
    ended = started("-W", "error", str(PROGRAM))
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert ended.stdout.split()[1:] == ["True", "True", "3", "report.html"]


@pytest.mark.slow
def test_its_types_are_right(tmp_path):
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text() + "\nnumber: int = byname.report()\n")
    command = ("-m", "mypy", "--strict", "--config-file=", "--no-incremental", "--follow-imports=silent")
    assert started(*command, str(PROGRAM)).returncode == 0
    assert 'expression has type "Path"' in started(*command, str(wrong)).stdout
