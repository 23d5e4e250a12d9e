"""The programs of `make demo`, run as it runs them: what they say and write is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
EXAMPLES = HOME / "examples"


def places_of_demo():
    """The places that the Makefile has recorded."""
    return re.search(r"^PLACES = (.*)$", (HOME / "Makefile").read_text(), re.MULTILINE)[1].split()


def run(*command, cwd):
    environment = os.environ | {"PYTHONPATH": str(HOME / "src"), "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_demo_trains_records_and_writes_a_page(tmp_path):
    recorded = [word for place in places_of_demo() for word in ("--record", place)]
    trained = run(
        *("-m", "byname", "run", *recorded, "--to", "digits.h5", str(EXAMPLES / "train_digits.py"), "digits.pt"),
        cwd=tmp_path,
    )
    assert "What is wrong: temperature, made at train_digits.py:" in trained
    told = run(EXAMPLES / "report_digits.py", "digits.h5", "digits.pt", "report.html", cwd=tmp_path)
    assert "How the training went" in told and told.count("a linear probe reads 9") == 3
    page = (tmp_path / "report.html").read_text()
    for section in ("Findings", "Leaves", "Saved for backward", "Memory", "LinearProbe", "DeadUnits"):
        assert section in page
    assert "blocks.0.attention.forward.weights" in page and "temperature (before train_digits.py:" in page
    assert len(page) < 10_000_000


@pytest.mark.slow
def test_the_demo_finds_the_layer_that_learns_too_fast(tmp_path):
    told = run(EXAMPLES / "probe_digits.py", "digits.png", cwd=tmp_path)
    assert "`parts` has most dead units" in told
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
