"""A remedy that can be pasted is pasted into the program, and the program then runs to its end."""

import contextlib
import re

import pytest
import torch
from torch import nn

import byname

RECURRENT = """
cell = nn.RNNCell(3, 4)
x = torch.randn(5, 2, 3)
h = torch.zeros(6, 2, 4)
for t in range(5):
    h[t + 1] = cell(x[t], h[t])
h[1:].sum().backward()
"""
RECURRENT_IN_TWO_LINES = """
cell = nn.RNNCell(3, 4)
x = torch.randn(5, 2, 3)
h = torch.zeros(6, 2, 4)
for t in range(5):
    new = cell(x[t], h[t])
    h[t + 1] = new
h[1:].sum().backward()
"""
SCALED_COLUMNS = """
y = torch.tanh(nn.Linear(4, 3)(torch.randn(2, 4)))
y[..., :2].mul_(0.5)
y[..., 2].add_(1)
y.square().sum().backward()
"""
FILLED = """
p = nn.Linear(4, 3)(torch.randn(2, 4)).softmax(-1)
p.fill_(0.5)
p.sum().backward()
"""
BANK = """
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.randn(20, 8))
        self.encoder = nn.Linear(8, 8)
    def forward(self, x, idx):
        f = self.encoder(x)
        logits = f @ self.bank.t()
        self.bank[idx] = 0.5 * self.bank[idx] + 0.5 * f
        return logits
memory = Memory()
for _ in range(3):
    idx = torch.randperm(20)[:4]
    F.cross_entropy(memory(torch.randn(4, 8), idx), idx).backward()
"""


def run(source, folder, context=None):
    """Run a program, and return the error that it stops at, or None."""
    file = folder / "program.py"
    file.write_text(source)
    names = {"torch": torch, "nn": nn, "F": nn.functional, "__name__": "program"}
    try:
        with context or contextlib.nullcontext():
            exec(compile(source, str(file), "exec"), names)
    except RuntimeError as error:
        return error
    return None


def put_before(source, line, statement):
    """Return a program with a line put before a statement, as deep as the statement."""
    return re.sub(rf"^( *)({re.escape(statement)})$", lambda found: f"{found[1]}{line}\n{found[0]}", source, flags=re.M)


def explained(source, folder):
    error = run(source, folder, byname.explaining())
    return byname.explain(error)


@pytest.mark.parametrize("source", [RECURRENT_IN_TWO_LINES, SCALED_COLUMNS, FILLED])
def test_the_line_put_before_an_in_place_change_mends_the_program(source, tmp_path):
    assert run(source, tmp_path) is not None
    line, statement = re.search("put `(.*?)` on the line before `(.*?)`", explained(source, tmp_path).remedy).groups()

    assert run(put_before(source, line, statement), tmp_path) is None


def test_a_statement_that_reads_copies_of_what_it_changes_mends_the_program(tmp_path):
    assert run(RECURRENT, tmp_path) is not None
    remedy = explained(RECURRENT, tmp_path).remedy
    mended = re.search("let it read a copy of what it changes: (.*?); or", remedy)[1]

    assert run(RECURRENT.replace("h[t + 1] = cell(x[t], h[t])", mended), tmp_path) is None


def test_a_bank_that_is_carried_on_is_written_without_its_graph(tmp_path):
    assert run(BANK, tmp_path) is not None
    remedy = explained(BANK, tmp_path).remedy
    line, written = re.search(
        "reads `self.bank`, put `(.*?)` there, and write without the graph: (.*)$", remedy
    ).groups()
    statement = "self.bank[idx] = 0.5 * self.bank[idx] + 0.5 * f"

    assert run(put_before(BANK, line, statement).replace(statement, written), tmp_path) is None
