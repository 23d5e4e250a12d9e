"""A PyTorch that is too old is refused where byname is first used, with what is needed, and not by a later accident."""

import re
import tomllib
from pathlib import Path

import pytest
from alone import run_alone

from byname.reading.quiet import OLDEST, check_version

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "use", ["import byname; byname.leaves", "import byname; byname.record", "from byname.naming.names import name"]
)
def test_an_older_pytorch_is_an_import_error(use):
    out = run_alone(f"""
        import torch
        torch.__version__ = "2.9.1+cpu"
        try:
            {use}
        except ImportError as error:
            print(error)
    """)
    assert " ".join(out) == (
        "byname needs PyTorch 2.10 or newer, but found 2.9.1+cpu: pip install --upgrade 'torch>=2.10'"
    )


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "2.15.0a0+git12ab", "2.14.0rc1", "3.0.0"])
def test_a_newer_one_is_not(version):
    check_version(version)


def test_what_is_refused_is_what_the_package_and_the_pages_say():
    oldest = ".".join(map(str, OLDEST))
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"torch>={oldest}" in needs
    assert re.search(rf"PyTorch\s+{oldest} or newer", (ROOT / "README.md").read_text())
