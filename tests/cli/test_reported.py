"""``byname report``, and ``byname run --report``: the page of a recording, and of a run."""

import pytest
from programs import write

FAILING = """
import torch
from torch import nn

model, scale = nn.Linear(4, 2), nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    (model(torch.ones(3, 4)) * scale).sum().backward()
    optimizer.step()
hidden = model(torch.ones(3, 4)).exp()
hidden.add_(1)
hidden.sum().backward()
"""


@pytest.fixture(scope="module")
def run(files, forks):
    write(files, {"failing.py": FAILING, "ends.py": "import sys; print('out'); sys.exit(7)"})
    where = ["--record", "0", "--to", "reported.h5", "--report", "reported.html"]
    where[1] = "forward"
    return forks.run(files, ["run", "--check", *where, "failing.py"])


def test_a_run_leaves_a_page_of_what_was_found_and_recorded(run, files):
    assert run.code == 1
    assert b"byname: report: reported.html" in run.err
    page = (files / "reported.html").read_text()
    for words in (
        "Run of failing.py",
        "not-in-optimizer",
        "modified-in-place",
        "hidden.add_(1)",
        "Recording of Linear",
    ):
        assert words in page
    assert "ended by RuntimeError" in page


def test_recordings_become_a_page(run, files, forks):
    found = forks.run(files, ["report", "reported.h5", "reported.h5", "--to", "two.html"])
    assert (found.code, found.out) == (0, b"two.html\n")
    assert (files / "two.html").read_text().count("<h2>Recording of Linear</h2>") == 2


def test_a_page_follows_a_recording_until_it_is_closed(run, files, forks):
    found = forks.run(files, ["report", "--tail", "reported.h5", "--to", "tail.html"])
    assert (found.code, found.out) == (0, b"tail.html\n")
    assert "data-refresh" not in (files / "tail.html").read_text().partition(">")[0]


def test_the_exit_code_and_the_output_are_the_program_s(run, files, forks):
    found = forks.run(files, ["run", "--report", "ends.html", "ends.py"])
    assert (found.code, found.out) == (7, b"out\n")
    assert "ended with exit code 7" in (files / "ends.html").read_text()


def test_a_recording_of_an_earlier_run_is_not_taken_for_this_one(run, files, forks):
    write(files, {"without_model.py": "print('no model')"})
    where = ["--record", "forward", "--to", "reported.h5", "--overwrite", "--report", "earlier.html"]
    found = forks.run(files, ["run", *where, "without_model.py"])
    assert found.code == 0
    assert "Recording" not in (files / "earlier.html").read_text()


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (["run", "--report", "page.txt", "ends.py"], 2, b"should end in .html"),
        (["run", "--report", "nowhere/page.html", "ends.py"], 2, b"there is no folder nowhere"),
        (["report", "--tail", "reported.h5", "other.h5"], 2, b"--tail follows one recording"),
        (["report", "none.h5"], 1, b"there is no file none.h5"),
        (["report", "failing.py"], 1, b"failing.py is not a recording"),
        (["report", "reported.h5", "--to", "reported.h5"], 1, b"should end in .html"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(command, code, sentence, run, files, forks):
    found = forks.run(files, command)
    assert (found.code, found.out) == (code, b"")
    assert sentence in found.err
