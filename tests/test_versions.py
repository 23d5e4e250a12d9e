"""A PyTorch that is too old is refused where byname is first used, with what is needed, and not by a later accident."""

import importlib.util
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import run_alone

ROOT = Path(__file__).parents[1]


def test_an_older_pytorch_is_an_import_error_wherever_byname_is_first_used_and_a_newer_one_is_not():
    uses = [f"import byname; byname.{name}" for name in ("leaves", "record", "name")]
    newer = ["2.10.0", "2.13.0+cpu", "2.15.0a0+git12ab", "2.14.0rc1", "3.0.0"]
    out = run_alone(f"""
        import os, torch
        for version, use in {[*(("2.9.1+cpu", use) for use in uses), *((version, uses[0]) for version in newer)]}:
            child = os.fork()
            if not child:
                torch.__version__ = version
                try:
                    exec(use)
                except ImportError as error:
                    print(error, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """)
    said = "byname needs PyTorch 2.10 or newer, but found 2.9.1+cpu: pip install --upgrade 'torch>=2.10'"
    assert " ".join(out) == " ".join([said] * len(uses))


def test_what_is_refused_is_what_the_package_and_the_pages_say():
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "torch>=2.10" in needs
    assert re.search(r"PyTorch\s+2.10 or newer", (ROOT / "README.md").read_text())


def needed(package, extras=frozenset(), seen=None):
    """All packages that a package and its extras need here, PyTorch's own apart: they differ from build to build."""
    seen = set() if seen is None else seen
    if (package, extras) in seen:
        return seen
    seen.add((package, extras))
    for one in map(Requirement, requires(package) or () if package != "torch" else ()):
        if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            try:
                needed(canonicalize_name(one.name), frozenset(one.extras), seen)
            except PackageNotFoundError:
                seen.discard((canonicalize_name(one.name), frozenset(one.extras)))
    return seen


def test_every_package_that_the_tests_need_is_pinned():
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    names = {name for name, _ in needed("byname", frozenset({"dev"}))} - {"byname"}
    assert len(names) > 50
    assert names <= {canonicalize_name(name) for name in pinned}, "make lock"


ROW = "| 3.13.0 | 2.15.0 | numpy 1 | `make test`, 2026-01-01 | 1 passed, 0 failed |"


@pytest.fixture
def table():
    spec = importlib.util.spec_from_file_location("versions_table", ROOT / "docs/versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_adds_up_what_pytest_printed(table):
    log = (
        "....\n3 failed, 10 passed in 2.31s\nFAILED a.py - 7 passed over\n1,000 passed\n5 passed in 61.00s (0:01:01)\n"
    )
    assert table.row("test slow", log).endswith(" | 15 passed, 3 failed |")
    assert "`make test` and `make slow`, 2" in table.row("test slow", log)


def test_a_row_takes_the_place_of_that_of_the_same_versions(table):
    page = f"# Versions\n\n| Python | PyTorch |\n|---|---|\n{ROW}\n\nmore\n"
    again, other = ROW.replace("numpy 1", "numpy 2"), ROW.replace("3.13.0", "3.12.1")
    assert table.written(page, again) == page.replace("numpy 1", "numpy 2")
    assert table.written(page, other) == page.replace(ROW, f"{ROW}\n{other}")
