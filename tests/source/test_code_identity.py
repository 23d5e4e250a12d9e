"""Code of two files can be equal: whatever is known of code is known of the one object."""

import gc
import importlib
import sys
from pathlib import Path

import pytest
import torch
from processes import start

import byname
from byname import Site
from byname.source.code import ThisCode, source_of, stands_for
from byname.source.location import is_library, locate, short_names

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


def test_code_is_a_key_by_itself(load):
    first, second = (load(name, STEP).forward.__code__ for name in ("key_first", "key_second"))
    assert ThisCode(first) == ThisCode(first)
    assert len({ThisCode(first), ThisCode(second), ThisCode(first), ThisCode(None)}) == 3
    assert [Path(locate(code, 4).site.file).name for code in (first, second)] == ["key_first.py", "key_second.py"]


def test_code_that_stands_for_other_code_is_known_by_itself():
    texts = [compile("def f():\n    return 1\n", file, "exec") for file in ("<one>", "<two>")]
    one, two = (text.co_consts[0] for text in texts)
    gc.collect()  # the code of tests before this one
    before = len(stands_for)
    made = [one.replace(co_name="g"), two.replace(co_name="g")]
    assert made[0] == made[1]
    stands_for[made[0]], stands_for[made[1]] = one, two
    assert stands_for[made[0]] is one
    assert stands_for[made[1]] is two
    assert stands_for[one] is one
    del made[0]
    gc.collect()
    assert stands_for[made[0]] is two
    del made
    gc.collect()
    assert len(stands_for) == before


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


def test_short_names_take_as_many_folders_as_tell_files_apart():
    files = ["/a/b/net.py", "/c/b/net.py", "/c/train.py", "net.py", "<cell>"]
    assert list(short_names(Site(file, 7) for file in files).values()) == [
        "a/b/net.py:7",
        "c/b/net.py:7",
        "train.py:7",
        "net.py:7",
        "<cell>:7",
    ]
    assert list(short_names([Site("/a/net.py", 1), Site("/a/net.py", 1, "f"), Site("/a/net.py", 2)]).values()) == [
        "net.py:1",
        "net.py:1",
        "net.py:2",
    ]


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/.local/lib/python3.12/site-packages/lib/net.py",
        "/usr/lib/python3/dist-packages/net.py",
        "C:\\Users\\me\\AppData\\Roaming\\Python\\Python312\\site-packages\\net.py",
    ],
)
def test_what_is_installed_is_a_library_wherever_it_lies(file):
    assert is_library(file)
    assert not is_library(file.replace("-packages", "-programs"))
    assert is_library(torch.__file__)


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
    assert source_of(module.show.__code__) is None
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
    assert source_of(variables["Net"].forward.__code__) is not None
    with byname.interject(model, "forward.h", lambda name, module, value: value * 0):
        assert model(torch.ones(1)).item() == 1


@pytest.mark.slow
def test_what_lies_beside_an_installed_pytorch_is_a_library(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; from byname.source.location import is_library\n"
    )
    program += "print(is_library(sys.argv[1] + '/other/net.py'), is_library(sys.argv[2]))"
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent)
    found = []
    for _ in range(2):  # a checkout of PyTorch's source, then what `pip install --target` leaves
        given = ["-c", program, str(tmp_path), str(tmp_path.parent / "net.py")]
        found.append(start(given, capture_output=True, text=True, check=True).stdout.split())
        (tmp_path / "torch-2.13.0.dist-info").mkdir(exist_ok=True)
    assert found == [["False", "False"], ["True", "False"]]
