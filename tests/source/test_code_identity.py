"""Code of two files can be equal: whatever is known of code is known of the one object."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import byname

STEP = "def forward(x, w):\n    h = x * w\n    return h\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes modules into a folder and imports them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = []

    def load(name, text):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        loaded.append(name)
        return importlib.import_module(name)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def test_a_copied_file_is_told_as_itself(load):
    first, second = load("told_first", STEP), load("told_second", STEP)
    assert first.forward.__code__ == second.forward.__code__
    v, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    with byname.track():
        loss = (first.forward(torch.ones(3), v) + second.forward(torch.ones(3), w)).sum()
        told = {str(leaf.name): Path(leaf.consumers[0].site.file).name for leaf in byname.leaves(loss)}
    assert told == {"v": "told_first.py", "w": "told_second.py"}


def test_variables_of_a_copied_model_are_changed_in_each_file(load):
    text = (
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        h = x * 2\n        return h\n"
    )
    for name in ("net_first", "net_second"):
        model = load(name, text).Net()
        with byname.interject(model, "forward.h", lambda name, module, value: value * 0):
            assert model(torch.ones(1)).item() == 0


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("total", ["saved", "census"])
def test_totals_by_site_keep_files_of_one_name_apart(load, total):
    packages = ("total_pa", "total_pb")
    f, g = (load(f"{package}.net", "def f(x, w):\n    return (x * w).exp()\n").f for package in packages)
    w = torch.ones(3, requires_grad=True)
    with byname.track():
        kept = [f(torch.ones(3), w), g(torch.ones(3), w)]
        found = byname.saved([one.sum() for one in kept]) if total == "saved" else byname.census()
        keys = {site for site, _, _ in found.by("site")}
    assert {"total_pa/net.py:2", "total_pb/net.py:2"} <= keys
    assert "net.py:2" not in keys


@pytest.mark.slow
def test_a_reloaded_file_is_asked_for_what_it_says_now(tmp_path, load):
    model, temperature = torch.nn.Linear(2, 1), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def told():
        loss = (model(torch.ones(1, 2)) + temperature).sum()
        return any("temperature" in str(one) for one in byname.check(loss, model=model, optimizer=optimizer))

    silent, reads = "def show(temperature):\n    return None\n", "def show(temperature):\n    return temperature.grad\n"
    module = load("shown_again", silent)
    assert told()
    file = tmp_path / "shown_again.py"
    file.write_text(reads)
    assert told(), "what runs is the old text until the file is reloaded"
    sys.modules.pop("shown_again")
    module = load("shown_again", reads + "# loaded anew\n")
    assert not told()
    file.write_text(silent)
    assert not told(), "what runs still reads the gradient"


def test_a_cell_is_known_by_its_statements_too(monkeypatch):
    import ast
    import linecache

    text = "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
    text += "        h = torch.relu(x)\n        return h + 1\n"
    file = "<ipython-input-1-of-this-test>"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
    variables = {"__name__": "__main__"}
    for statement in ast.parse(text, file).body:
        exec(compile(ast.Module([statement], []), file, "exec"), variables)
    model = variables["Net"]()
    with byname.track():
        nodes = byname.graph(model(torch.ones(1, requires_grad=True))).nodes
    assert "h = torch.relu(x)" in [node.site.statement for node in nodes if node.site]
    with byname.interject(model, "forward.h", lambda name, module, value: value * 0):
        assert model(torch.ones(1)).item() == 1
