"""``%load_ext byname``: the magics of notebooks, in IPython's shell, and in a real notebook with a kernel."""

import asyncio
import sys

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell  # noqa: E402
from IPython.utils.capture import capture_output  # noqa: E402

TWICE = """import torch
w = torch.ones(3, requires_grad=True)
h = w.tanh()
h.sum().backward()
h.mean().backward()
"""
FORGOTTEN = """import torch
a, b = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD(a.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    (a(torch.ones(4, 2)) * b).square().mean().backward()
    optimizer.step()
a.weight.shape
"""


@pytest.fixture
def shell():
    shell = InteractiveShell()
    shell.colors = "nocolor"
    shell.run_line_magic("load_ext", "byname")
    yield shell
    shell.history_manager.end_session()
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell, monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        return result, shown.stdout, shown.stderr

    return run


def test_an_error_is_explained_once_and_its_lines_are_those_of_the_cell(run):
    result, out, err = run("%%explain\n" + TWICE)
    assert type(result.error_in_exec) is RuntimeError
    shown = out + err
    assert shown.count("byname: backward-twice: this backward at In[1]:6 goes through `h`") == 1
    assert "the backward at In[1]:5 freed them" in shown
    assert "In[1]:5  h.sum().backward()" in shown
    assert "magics.py" not in shown


def test_a_cell_runs_as_without_the_magic(run, shell):
    result, out, _ = run("%%explain\nx = 3\nprint('hello')\nx + 1")
    assert result.result == 4 and "hello" in out and shell.user_ns["x"] == 3
    assert run("%%explain\nx + 1;")[0].result is None
    assert run("%%explain\ny = !echo shell\ny[0]")[0].result == "shell"
    assert run("%%explain\n \n")[0].success
    assert isinstance(run("%%explain\nx = (")[0].error_in_exec, SyntaxError)


def test_functions_of_other_cells_have_their_own_numbers(run):
    run("import torch\ndef twice(h):\n    h.sum().backward()\n    h.sum().backward()")
    _, out, err = run("%%explain\ntwice(torch.ones(2, requires_grad=True).tanh())")
    assert "this backward at In[1]:4" in out + err


AWAITED = """import asyncio, torch
async def loss(w):
    await asyncio.sleep(0)
    return w.tanh()
h = await loss(torch.ones(3, requires_grad=True))
h.sum().backward()
"""


def test_a_cell_may_await(run, shell):
    result, out, err = run("%%explain\n" + AWAITED + "await asyncio.sleep(0, h.shape)")
    assert result.success and tuple(result.result) == (3,), out + err
    assert shell.user_ns["h"].shape == (3,)
    assert run("%%explain\nawait asyncio.sleep(0, 3);")[0].result is None
    run("async def three():\n    return 3")
    coroutine = run("%%explain\nawait asyncio.sleep(0)\nthree()")[0].result  # not awaited, as without the magic
    assert asyncio.iscoroutine(coroutine)
    coroutine.close()
    result, out, err = run("%%explain\nasync with asyncio.Lock():\n    x = 5\nx")
    assert result.result == 5


def test_an_error_in_a_cell_that_awaits_is_explained_once(run):
    result, out, err = run("%%explain\n" + AWAITED + "await asyncio.sleep(0)\nh.mean().backward()")
    assert type(result.error_in_exec) is RuntimeError
    shown = out + err
    assert shown.count("byname: backward-twice: this backward at In[1]:9 goes through `h`") == 1
    assert "the backward at In[1]:7 freed them" in shown and "magics.py" not in shown


def test_check_of_a_cell_that_awaits_tells_findings(run):
    result, _, err = run("%%check\nimport asyncio\nawait asyncio.sleep(0)\n" + FORGOTTEN)
    assert err.count("byname: not-in-optimizer: `b` gets a gradient") == 1 and tuple(result.result) == (2, 2)
    _, _, err = run("%%check\nawait asyncio.sleep(0)")
    assert err.strip() == "byname: no finding; only backward calls in this cell were checked"


def test_where_the_shell_awaits_nothing_a_cell_may_not_either(run, shell):
    shell.autoawait = False
    assert isinstance(run("%%explain\nawait three()")[0].error_in_exec, SyntaxError)


def test_check_tells_findings_once_and_shows_the_value(run):
    result, _, err = run("%%check\n" + FORGOTTEN)
    assert err.count("byname: not-in-optimizer: `b` gets a gradient") == 1
    assert tuple(result.result) == (2, 2)


def test_check_says_that_it_found_nothing_and_what_it_looked_at(run):
    _, _, err = run("%%check\n1 + 1")
    assert err.strip() == "byname: no finding; only backward calls in this cell were checked"


def test_census_shows_the_variables_of_the_notebook(run):
    run("import torch\nkept = torch.ones(123)")
    result, out, _ = run("%census")
    assert "kept" in [str(row.name) for row in result.result] or "kept" in out


def test_arguments_that_no_magic_takes_are_refused(run):
    for cell in ("%%explain now\n1", "%%check now\n1", "%census now"):
        _, out, err = run(cell)
        assert "takes no arguments, but was given 'now'" in out + err


def test_nothing_stays_behind(run):
    import torch

    before = torch.autograd.backward, torch.Tensor.backward, sys.gettrace(), sys.getprofile()
    run("%%check\n" + FORGOTTEN)
    run("%%explain\n" + TWICE)
    assert before == (torch.autograd.backward, torch.Tensor.backward, sys.gettrace(), sys.getprofile())


@pytest.mark.slow
def test_a_real_notebook(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = ["%load_ext byname", "%%check\n" + FORGOTTEN, "%%explain\n" + TWICE, "%census"]
    cells += ["%%explain\n" + AWAITED + "await asyncio.sleep(0, tuple(h.shape))"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    checked, failed, alive, awaited = notebook.cells[1:]
    told = "".join(one["text"] for one in checked.outputs if one.output_type == "stream")
    assert told.count("byname: not-in-optimizer: `b`") == 1
    (error,) = failed.outputs
    assert error.output_type == "error"
    assert "\n".join(error.traceback).count("backward at In[3]:6") == 1
    (table,) = alive.outputs
    assert "a.weight" in table.data["text/html"] and "a.weight" in table.data["text/plain"]
    (shape,) = awaited.outputs
    assert shape.data["text/plain"] == "(3,)"
