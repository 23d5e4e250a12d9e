"""Where a package is missing that only a part of byname needs, the error has the line that installs it, and the rest works."""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import byname
from byname.cli import main
from byname.errors import NotInstalledError
from byname.extras import INSTALLED_BY, needs

ROOT = Path(__file__).parents[1]
SOURCE = Path(byname.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = {re.match(r"\w+", one)[0] for one in PROJECT["dependencies"]}

series = byname.Series("x", [torch.ones(2)] * 2, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2,)] * 2)


def recording(tmp_path):
    model = torch.nn.Linear(2, 2)
    with byname.record(model, ["forward", "weight"], to=tmp_path / "run.h5"):
        model(torch.ones(2, 2))
        model(torch.ones(2, 2))
    return byname.open(tmp_path / "run.h5")


def spectrum():
    analyser, model = byname.analyse.Spectrum(), torch.nn.Linear(2, 2)
    with byname.observe(model, "forward", analyser):
        model(torch.randn(8, 2))
    return analyser.result()


HERE = {
    "pandas": [
        lambda tmp: series.to_pandas(),
        lambda tmp: byname.census().to_pandas(),
        lambda tmp: spectrum().to_pandas(),
        lambda tmp: recording(tmp).to_pandas(),
        lambda tmp: recording(tmp)["*"].to_pandas(),
    ],
    "xarray": [
        lambda tmp: series.to_xarray(),
        lambda tmp: spectrum().to_xarray(),
        lambda tmp: recording(tmp)["*"].to_xarray(),
    ],
    "dask": [lambda tmp: series.to_xarray(chunks=1), lambda tmp: recording(tmp)["*"].to_xarray(chunks="auto")],
    "matplotlib": [
        lambda tmp: series.plot(),
        lambda tmp: spectrum().plot(),
        lambda tmp: recording(tmp)["*"].plot(),
    ],
    "h5py": [
        lambda tmp: byname.record(torch.nn.Linear(2, 2), "forward", to=tmp / "run.h5"),
        lambda tmp: byname.repair(tmp / "run.h5"),
        lambda tmp: byname.finish(tmp / "run.h5"),
    ],
    "jinja2": [lambda tmp: byname.report(series, to=tmp / "report.html")],
    "tensorboard": [lambda tmp: byname.plug.tensorboard(tmp)],
    "wandb": [lambda tmp: byname.plug.wandb()],
    "mlflow": [lambda tmp: byname.plug.mlflow()],
    "trackio": [lambda tmp: byname.plug.trackio()],
    "transformers": [lambda tmp: importlib.import_module("byname.plug.transformers")],
    "lightning": [lambda tmp: importlib.import_module("byname.plug.lightning")],
}


@pytest.fixture
def without(monkeypatch):
    """A function that makes a package one that is not installed."""

    def take(*packages):
        for name in [*sys.modules]:
            if name.split(".")[0] in packages or name in ("byname.plug.transformers", "byname.plug.lightning"):
                monkeypatch.delitem(sys.modules, name)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    return take


@pytest.mark.grid(fast=5)
@pytest.mark.parametrize(
    ("package", "use"),
    [(package, use) for package, uses in HERE.items() for use in uses],
    ids=lambda one: str(one)[:12],
)
def test_what_is_missing_is_named_with_the_line_that_installs_it(package, use, without, tmp_path, monkeypatch):
    if package in ("pandas", "xarray", "dask", "matplotlib"):
        monkeypatch.setattr(sys.modules[__name__], "recording", lambda tmp, made=recording(tmp_path): made)
        use(tmp_path)  # works with it; and what xarray remembers about dask stays true for the tests after this one
    without(package, *(["pytorch_lightning"] if package == "lightning" else []))
    with pytest.raises(NotInstalledError) as raised:
        use(tmp_path)
    assert isinstance(raised.value, ImportError)
    assert str(raised.value).endswith(f" needs {package}: pip install {INSTALLED_BY[package]}")


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("shtab", "completion bash"),
        ("h5py", "show --repair run.h5"),
        ("h5py", "finish run.h5"),
        ("h5py", "run --record fc1 --to run.h5 {script}"),
        ("jinja2", "run --report report.html {script}"),
    ],
)
def test_a_command_says_it_before_a_program_runs(package, command, without, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("raise AssertionError('it ran')")
    without(package)
    assert main(command.format(script="script.py").split()) in (1, 2)
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(f" needs {package}: pip install {INSTALLED_BY[package]}")


def test_a_package_whose_own_import_fails_is_told_with_the_reason():
    with pytest.raises(
        NotInstalledError, match=r"pandas, which is installed but cannot be imported \(no libm\): pip install"
    ):
        with needs("to_pandas()", "pandas"):
            raise ImportError("no libm")
    with pytest.raises(NotInstalledError, match=r"cannot be imported \(No module named 'pytz'\)"):
        with needs("to_pandas()", "pandas"):
            raise ModuleNotFoundError("No module named 'pytz'", name="pytz")


def test_each_package_is_in_the_extra_that_is_named():
    extras = PROJECT["optional-dependencies"]
    for package, installed_by in INSTALLED_BY.items():
        extra = re.fullmatch(r'"byname\[(\w+)\]"', installed_by)
        listed = extras[extra[1]] if extra else [f"{installed_by.split()[0]}>="]
        assert any(re.match(rf"{package}\b", one) for one in listed), f"{package} is not in {installed_by}"
    named = {re.fullmatch(r'"byname\[(\w+)\]"', one)[1] for one in INSTALLED_BY.values() if "[" in one}
    assert named <= set(extras) and "all" in extras


THERE = {
    "plug/pytest.py": {"pytest", "_pytest"},  # which loads it
    "plug/magics.py": {"IPython"},  # which loads it
    "recording/hdf5.py": {"h5py"},  # the doors to it are guarded, and in HERE
    "recording/finish.py": {"h5py"},  # the same
    "recording/to_xarray.py": {"xarray"},  # the same
    "reporting/page.py": {"markupsafe"},  # comes with jinja2, and is imported after it
}
"""Packages that are there whenever this file imports them."""


def unguarded(path):
    """The packages that a file imports at run time and outside of ``with needs(...)``."""

    def visit(node, guarded):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for other in node.orelse:
                yield from visit(other, guarded)
            return
        if isinstance(node, ast.With):
            guarded = guarded or any(ast.unparse(item.context_expr).startswith("needs(") for item in node.items)
        if isinstance(node, ast.Import) and not guarded:
            yield from (alias.name.split(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not guarded and not node.level:
            yield node.module.split(".")[0]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, guarded)

    return {*visit(ast.parse(path.read_text(encoding="utf-8")), False)}


def test_every_import_of_an_optional_package_is_guarded():
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE).as_posix()
        allowed = {*sys.stdlib_module_names, *REQUIRED, "byname", *THERE.get(file, ())}
        assert not unguarded(path) - allowed, file
