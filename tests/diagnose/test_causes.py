"""The tables of causes: each row is described in the documentation as it is, and nothing is told beside them."""

import ast
import re
import string
from pathlib import Path

import pytest

import byname
from byname import Name, Site
from byname.diagnose.cause import Cause, Sentence, Subject, always, nothing_more, tell
from byname.diagnose.causes.losses import LOSSES
from byname.diagnose.causes.not_reached import NO_GRAD_PATH
from byname.diagnose.causes.training import BY_HAND, NEVER_STEPPED, OVER_STEPS, STEPPING
from byname.diagnose.check import GRAPH, OF_AN_EXAMPLE
from byname.diagnose.explain import ERRORS
from byname.diagnose.nonfinite.backward import IN_BACKWARD
from byname.diagnose.nonfinite.watch import BY_STEP, IN_FORWARD
from byname.diagnose.silent import loading, ranks_apart, samples, sequences, steps, validation, weights

W, B, NAMELESS = Name("model.w", "parameter"), Name("model.b", "parameter"), Name("", "unnamed", exact=False)
MADE, STEP = Site("train.py", 3), Site("train.py", 9)


def rows_of(module):
    """The causes that a module names."""
    return [one for one in vars(module).values() if isinstance(one, Cause)]


FOLDER = Path(byname.__file__).parent / "diagnose"
PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
CHECKED = (*GRAPH, *NO_GRAD_PATH)
SILENT = tuple(
    [
        one
        for module in (loading, ranks_apart, samples, sequences, steps, validation, weights)
        for one in rows_of(module)
    ]
)
TRAINED = (*LOSSES, *STEPPING, *OVER_STEPS, NEVER_STEPPED, BY_HAND, *SILENT, *OF_AN_EXAMPLE)
NOT_FINITE = (*IN_FORWARD, *IN_BACKWARD, *BY_STEP)
EVERY = (*ERRORS, *CHECKED, *TRAINED, *NOT_FINITE)


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
    assert {(cause.id, "suspicious:" in cause.says) for cause in TRAINED} <= page
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
    for words in (cause.says, cause.remedy):
        fields = [field for _, field, _, _ in string.Formatter().parse(words) if field is not None]
        assert all(re.fullmatch(r"\w+(\.\w+)*", field) for field in fields)
        assert not words.endswith((".", " "))


def test_what_a_sentence_mentions_are_its_culprits_and_its_lines():
    cause = Cause(
        "some", always, nothing_more, "{names} {names:has|have} none{made:at}, {it} has{noticed:at}", "{n:x|y}"
    )
    found = cause.finding({"names": (W, NAMELESS), "made": MADE, "it": B, "noticed": STEP, "n": 1})
    assert found.message == (
        "`model.w` and a tensor without a name have none at train.py:3, `model.b` has at train.py:9"
    )
    assert found.culprits == (W, B)
    assert found.sites == (MADE, STEP)
    assert found.remedy == "x"


def test_the_line_that_ends_the_story_is_last_and_unknown_lines_are_left_out():
    cause = Cause("some", always, nothing_more, "here{noticed:at}{made:at}{lines:-}", "{w.path}.clone()")
    found = cause.finding({"noticed": STEP, "made": None, "lines": [None, MADE], "w": W})
    assert (found.message, found.sites, found.remedy) == ("here at train.py:9", (MADE, STEP), "model.w.clone()")


def test_names_that_are_not_printed_are_culprits_as_they_are_and_each_fact_counts_once():
    sentence = tell("{names:-}{names:1} and {names}", names=[B, NAMELESS, W])
    assert sentence == "`model.b` and 2 more and `model.b`, a tensor without a name and `model.w`"
    assert sentence.names == (B, NAMELESS, W)


def test_a_part_of_a_sentence_brings_its_names_and_lines():
    parts = [tell("{one} is cut", one=Subject(name, MADE)) for name in (W, B)]
    sentence = tell("because {why}", why=Sentence.joined("; ", parts))
    assert sentence == "because `model.w` at train.py:3 is cut; `model.b` at train.py:3 is cut"
    assert (sentence.names, sentence.sites) == ((W, B), (MADE, MADE))
