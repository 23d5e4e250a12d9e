"""The reference on the site has every public name, once."""

import re
from collections import Counter
from pathlib import Path

import byname

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


def test_the_reference_has_every_public_name_once():
    public = [f"byname.{name}" for name in byname.__all__]
    public += [f"byname.analyse.{name}" for name in byname.analyse.__all__]
    assert Counter(re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE)) == Counter(public)
