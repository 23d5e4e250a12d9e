"""A row of a table becomes a finding: its culprits and its lines are those that its sentence mentions."""

from byname import Name, Site
from byname.diagnose.cause import Cause, Sentence, Subject, always, no_extra_facts, render

W, B, NAMELESS = Name("model.w", "parameter"), Name("model.b", "parameter"), Name("", "unnamed", exact=False)
MADE, STEP = Site("train.py", 3), Site("train.py", 9)


def test_what_a_sentence_mentions_are_its_culprits_and_its_lines():
    cause = Cause(
        "some", always, no_extra_facts, "{names} {names:has|have} none{made:at}, {it} has{noticed:at}", "{n:x|y}"
    )
    found = cause.finding({"names": (W, NAMELESS), "made": MADE, "it": B, "noticed": STEP, "n": 1})
    assert found.message == (
        "`model.w` and a tensor without a name have none at train.py:3, `model.b` has at train.py:9"
    )
    assert found.culprits == (W, B)
    assert found.sites == (MADE, STEP)
    assert found.remedy == "x"


def test_the_line_that_ends_the_story_is_last_and_unknown_lines_are_left_out():
    cause = Cause("some", always, no_extra_facts, "here{noticed:at}{made:at}{lines:-}", "{w.path}.clone()")
    found = cause.finding({"noticed": STEP, "made": None, "lines": [None, MADE], "w": W})
    assert (found.message, found.sites, found.remedy) == ("here at train.py:9", (MADE, STEP), "model.w.clone()")


def test_names_that_are_not_printed_are_culprits_as_they_are_and_each_fact_counts_once():
    sentence = render("{names:-}{names:1} and {names}", names=[B, NAMELESS, W])
    assert sentence == "`model.b` and 2 more and `model.b`, a tensor without a name and `model.w`"
    assert sentence.names == (B, NAMELESS, W)


def test_a_part_of_a_sentence_brings_its_names_and_lines():
    parts = [render("{one} is cut", one=Subject(name, MADE)) for name in (W, B)]
    sentence = render("because {why}", why=Sentence.joined("; ", parts))
    assert sentence == "because `model.w` at train.py:3 is cut; `model.b` at train.py:3 is cut"
    assert (sentence.names, sentence.sites) == ((W, B), (MADE, MADE))
