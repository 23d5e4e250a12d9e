"""The causes of findings: each is in the list of them, and described in the documentation."""

import ast
from pathlib import Path

import byname
from byname.diagnose.finding import CAUSES

FOLDER = Path(byname.__file__).parent / "diagnose"
PAGE = Path(__file__).parents[2] / "docs" / "failures.md"


def causes_in(tree):
    """The identifiers that findings of a file are made with."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    made = (call for call in calls if ast.unparse(call.func) in ("Finding", "Explanation") and call.args)
    return {call.args[0].value for call in made if isinstance(call.args[0], ast.Constant)}


def test_every_cause_is_listed_and_described():
    made = set().union(*(causes_in(ast.parse(file.read_text())) for file in FOLDER.rglob("*.py")))
    assert len(made) > 30
    assert made <= set(CAUSES)
    assert [cause for cause in CAUSES if cause not in PAGE.read_text()] == []
