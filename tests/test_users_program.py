"""A program that calls every function of byname, as a user writes it: it runs without a warning, and its types are right."""

import re
from pathlib import Path

import pytest
from processes import run, start

import byname

PROGRAM = Path(__file__).with_name("users_program.py")
NOT_NAMED = {
    *("BynameError", "Finding", "Site", "WrappedForwardBackwardInterjection", "WrappedForwardInterjection"),
    *("assembled", "finish", "open", "repair", "stack_padded"),
}
"""What the program need not name: base classes, classes of results, and what has several processes or a crash before."""


def ran(*words, run=run):
    return run(words, capture_output=True, text=True)


def test_it_names_every_public_name():
    named = set(re.findall(r"byname\.(\w+)", PROGRAM.read_text()))
    assert set(byname.__all__) - named <= NOT_NAMED


@pytest.mark.parametrize("run", [run, pytest.param(start, marks=pytest.mark.slow)])  # which sees its imports too
def test_it_runs_without_a_warning(run):
    ended = ran("-W", "error", PROGRAM, run=run)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert ended.stdout.split()[1:] == ["True", "True", "3", "report.html"]


@pytest.mark.slow
def test_its_types_are_right(tmp_path):
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(PROGRAM.read_text() + "\nnumber: int = byname.report()\n")
    command = ("-m", "mypy", "--strict", "--config-file=", "--no-incremental", "--follow-imports=silent")
    assert ran(*command, PROGRAM, run=start).returncode == 0
    assert 'expression has type "Path"' in ran(*command, wrong, run=start).stdout
