"""The leaking programs gain as many bytes as their comments say, and the healthy ones none."""

import pytest
from leak_corpus import CAUSES, HEALTHY, LEAKS, Gain, mend, names, parse, story, witnessed

leaking = pytest.mark.parametrize("name", names(LEAKS))


def test_every_cause_has_three_programs_and_one_of_them_is_minimal():
    programs = {name: parse(LEAKS / f"{name}.py") for name in names(LEAKS)}
    for cause in CAUSES:
        prefix = cause.replace("-", "_")
        mine = [name for name in programs if name.startswith(prefix)]
        assert len(mine) >= 3
        assert f"{prefix}_minimal" in mine
        assert all(truth.cause == cause for name in mine for truth in programs[name].truths)
    for program in programs.values():
        assert program.truths
        assert all(truth.cause in CAUSES for truth in program.truths)
        assert [truth.bytes for truth in program.truths] == sorted((t.bytes for t in program.truths), reverse=True)
        assert list(program.mended) == list(story(program)) == list(range(1, len(program.mended) + 1))


def test_there_are_healthy_programs_enough_and_they_tell_of_no_leak():
    assert len(names(HEALTHY)) >= 15
    assert not [name for name in names(HEALTHY) if parse(HEALTHY / f"{name}.py").truths]


@pytest.mark.grid(fast=8)
@leaking
def test_a_leak_is_as_large_as_it_says(name):
    program = parse(LEAKS / f"{name}.py")
    gain = witnessed(program)
    garbage = program.bytes // program.steps * (program.warm + program.steps) if program.collectable else 0
    assert gain == Gain(program.bytes, garbage)


@pytest.mark.grid(fast=8)
@leaking
def test_the_marked_line_mends_it(name, tmp_path):
    program = parse(LEAKS / f"{name}.py")
    assert witnessed(mend(program, tmp_path)) == Gain(program.left)


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("name", names(HEALTHY))
def test_a_healthy_program_gains_nothing(name):
    assert witnessed(parse(HEALTHY / f"{name}.py")) == Gain(0)
