"""The tables of causes: each row is described in the documentation as it is, and nothing is told beside them."""

import ast
import importlib
import pkgutil
import re
import string
from pathlib import Path

import pytest

import byname
from byname import diagnose
from byname.diagnose import nonfinite
from byname.diagnose.cause import Cause
from byname.diagnose.causes.not_reached import NO_GRAD_PATH
from byname.diagnose.check import GRAPH
from byname.diagnose.explain import ERRORS


def rows_of(folder):
    """The causes that the modules of a folder name, alone or in a table."""
    modules = [
        importlib.import_module(one.name) for one in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")
    ]
    named = [one for module in modules for one in vars(module).values()]
    rows = [row for one in named for row in (one if isinstance(one, tuple) else [one]) if isinstance(row, Cause)]
    return list({id(row): row for row in rows}.values())


FOLDER = Path(byname.__file__).parent / "diagnose"
PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
CHECKED = (*GRAPH, *NO_GRAD_PATH)
NOT_FINITE = rows_of(nonfinite)
EVERY = rows_of(diagnose)
KNOWN = {id(row) for row in (*ERRORS, *CHECKED, *NOT_FINITE)}
TRAINED = [row for row in EVERY if id(row) not in KNOWN]


def rows(text):
    """The cells of the tables in a text, without their heads."""
    lines = [line.strip("| \n") for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r" \| ", line) for line in lines if not line.lower().startswith("cause")]


def described():
    """How each cause of the first table of the page is found."""
    first = rows(PAGE.partition("\n## ")[0])
    return {cause: found for names, _, found in first for cause in names.strip("[").partition("]")[0].split(", ")}


def described_as_trained():
    """The causes of the section about training, each with whether it is marked as suspicious."""
    section = PAGE.partition("## What learns nothing")[2].partition("\n## ")[0]
    sure, _, suspicious = section.partition("The following findings are marked")
    told = {(re.findall(r"`([\w-]+)`", cause)[0], "suspicious" in cause) for cause, *_ in rows(sure)}
    return told | {(cause.strip("`"), True) for cause, *_ in rows(suspicious)}


def test_the_page_says_of_each_cause_how_it_is_found():
    page = described()
    noted = {cause for cause, found in page.items() if "note" in found} - {"unknown"}
    checked = {cause for cause, found in page.items() if "`check`" in found}
    assert {cause.id for cause in ERRORS} == noted
    elsewhere = {cause for cause, _ in described_as_trained()}
    assert {cause.id for cause in CHECKED} - checked <= elsewhere
    assert checked <= {cause.id for cause in CHECKED}


def test_the_page_says_of_each_cause_of_training_whether_it_is_suspicious():
    page = described_as_trained()
    assert {(cause.id, "suspicious:" in cause.template) for cause in TRAINED} <= page
    assert {cause for cause, _ in page} <= {cause.id for cause in (*TRAINED, *CHECKED)}


def test_no_finding_has_a_cause_that_no_row_has():
    trees = [ast.parse(file.read_text()) for file in FOLDER.rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call.args[0] for call in calls if ast.unparse(call.func) in ("Finding", "Explanation") and call.args]
    told = {one.value for one in made if isinstance(one, ast.Constant)}
    assert told == {"unknown"}
    assert {cause.id for cause in NOT_FINITE} <= described().keys()


@pytest.mark.parametrize("cause", EVERY, ids=lambda cause: f"{cause.id}-{cause.facts.__name__}")
def test_a_row_is_a_sentence_and_a_remedy(cause):
    for words in (cause.template, cause.remedy):
        fields = [field for _, field, _, _ in string.Formatter().parse(words) if field is not None]
        assert all(re.fullmatch(r"\w+(\.\w+)*", field) for field in fields)
        assert not words.endswith((".", " "))
