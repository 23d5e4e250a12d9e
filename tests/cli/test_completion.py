"""A shell that has read the script completes commands, options and files."""

import argparse
import subprocess
import sys

import pytest

from byname.cli import COMMANDS, main, parser

pytest.importorskip("shtab")


def completed(folder, *words):
    """What bash completes the last word of a command line to."""
    script = """
source completion.bash
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_byname "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    found = subprocess.run(
        ["bash", "-c", script, "bash", *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return {word.strip() for word in found.stdout.splitlines()} - {""}


@pytest.fixture
def folder(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "completion.bash").write_text(capsys.readouterr().out)
    (tmp_path / "digits.h5").touch()
    (tmp_path / "train.py").touch()
    return tmp_path


def test_commands(folder):
    assert completed(folder, "byname", "") >= {one.name for one in COMMANDS}
    assert completed(folder, "byname", "re") == {"report"}


@pytest.mark.parametrize("command", [one.name for one in COMMANDS])
def test_every_option(folder, command):
    (parts,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    options = {word for one in parts.choices[command]._actions for word in one.option_strings if word[:2] == "--"}
    assert completed(folder, "byname", command, "--") == options


@pytest.mark.parametrize("words", [("show",), ("report",), ("run",), ("run", "--json"), ("census", "--json")])
def test_files(folder, words):
    expected = "train.py" if words[-1] == "run" else "digits.h5"
    assert completed(folder, "byname", *words, expected[:3]) == {expected}


def test_zsh(capsys):
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert all(one.name in script for one in COMMANDS) and "--growth" in script


def test_a_pipe_that_nobody_reads():
    command = f"{sys.executable} -m byname completion bash | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert found.stderr == "" and found.stdout.startswith("#")


def test_without_shtab(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert 'pip install "byname[completion]"' in capsys.readouterr().err
