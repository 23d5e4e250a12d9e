"""Warnings of PyTorch have the program's line and obey its filters also under ``byname run``."""

import functools

import processes
import pytest

PROGRAM = """import warnings
import torch
import torch.nn.functional as F
x = torch.ones(2, requires_grad=True) * 2
x.grad
F.softmax(x)
F.softmax(
    x,
)
def twice():
    for _ in range(2):
        x.grad
twice()
twice()
x.T if x.dim() == 2 else torch.ones(3, 2, 2).T
torch.ones(1).new_tensor(x)
torch.tensor(x)
F.log_softmax(x)
for wide in (1, 1, 3):
    F.mse_loss(torch.ones(3, wide), torch.ones(3))
    F.l1_loss(torch.ones(2, wide, 1), torch.ones(2, 1))
torch.nn.Softmax()(x)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    F.softmin(x)
print([(str(one.message), one.filename.endswith("program.py"), one.lineno) for one in caught])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        F.mse_loss(torch.ones(4, 1), torch.ones(4))
    except UserWarning as error:
        print(type(error), error)
"""
FAILING = """import torch
import torch.nn.functional as F
def inner(x):
    return F.softmax(x, 7)
x = torch.ones(2)
try:
    inner(x)
except IndexError as error:
    pass
x @ torch.ones(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("warned")
    (made / "program.py").write_text(PROGRAM)
    (made / "failing.py").write_text(FAILING)
    return made


def ran(folder, *words):
    return processes.run(words, cwd=folder, capture_output=True, text=True)


plainly_ran = functools.cache(ran)


def warned(errors):
    """The warnings shown, with the lines of source that follow them."""
    lines = errors.splitlines()
    return [
        (line.replace(" (Triggered internally", "\0").partition("\0")[0], lines[at + 1] if at + 1 < len(lines) else "")
        for at, line in enumerate(lines)
        if "Warning: " in line
    ]


WATCHED = ("-m", "byname", "run", "--non-finite")
WAYS = (WATCHED, WATCHED[:3], (*WATCHED[:3], "--check"), (*WATCHED, "--check"))
FILTERS = ((), ("-W", "always"), ("-W", "once"), ("-W", "ignore:Implicit"), ("-W", "ignore:::__main__"))


def told(way):
    return " ".join(way[3:]) or "run"


@pytest.mark.grid(fast=6)
@pytest.mark.parametrize("way", WAYS, ids=told)
@pytest.mark.parametrize("flags", FILTERS)
def test_warnings_have_the_programs_lines_and_filters(flags, way, folder):
    plain = plainly_ran(folder, *flags, "program.py")
    watched = ran(folder, *flags, *way, "program.py")
    assert len(warned(plain.stderr)) >= (0 if flags[1:] == ("ignore:::__main__",) else 4)
    assert warned(watched.stderr) == warned(plain.stderr) and watched.stdout == plain.stdout


@pytest.mark.parametrize("way", WAYS[:3], ids=told)
def test_a_warning_that_is_an_error_is_one(way, folder):
    flags = ("-W", "error::UserWarning")
    plain = plainly_ran(folder, *flags, "program.py")
    watched = ran(folder, *flags, *way, "program.py")
    assert plain.returncode == watched.returncode == 1
    assert watched.stderr.partition("byname: non-leaf-grad")[0] == plain.stderr
    assert 'program.py", line 5, in <module>' in plain.stderr


def test_a_traceback_is_the_programs_own(folder):
    plain, watched = ran(folder, "failing.py"), ran(folder, *WATCHED, "failing.py")
    assert plain.returncode == watched.returncode == 1
    assert watched.stderr == plain.stderr


def test_a_value_that_is_not_finite_has_its_line_as_before(tmp_path):
    program = "import torch\nx = torch.zeros(2, requires_grad=True)\ny = torch.log(x)\n(y * 1).sum().backward()\n"
    (tmp_path / "program.py").write_text(program)
    assert "program.py:3" in ran(tmp_path, *WATCHED, "program.py").stderr
