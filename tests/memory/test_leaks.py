"""Growth of every leaking program has the right name, size and cause, and that of a healthy one is empty."""

import contextlib

import pytest
from leak_corpus import HEALTHY, LEAKS, Witness, drive, loaded, mend, names, no_collection, parse

import byname

MINIMAL = [name for name in names(LEAKS) if name.endswith("_minimal")]


def of_these(every, fast):
    """A test of each of these programs; those not named as fast are slow."""
    return pytest.mark.parametrize(
        "name", [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in every]
    )


leaking = of_these(names(LEAKS), MINIMAL)


def grown(program, *, marks=False, look=lambda: None):
    """The rows for the program's steps after its first ones; `look` is called before them and after them."""
    rows = []

    def steps():
        yield from range(program.warm)
        look()
        with byname.growth() as growth:
            for number in range(program.warm, program.warm + program.steps):
                yield number
                if marks:
                    growth.mark()
        rows.extend(growth.rows())
        look()

    with loaded(program), no_collection() if program.collectable else contextlib.nullcontext():
        drive(steps())
    return rows


def assert_told(program, rows):
    """Every row is part of the truth, and all of the truth is in the rows, a row each."""
    reported = [(row["cause"], row["name"], row["count"], row["bytes"]) for row in rows]
    assert sorted(reported) == sorted((truth.cause, truth.name, truth.count, truth.bytes) for truth in program.truths)
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    for row in rows:
        assert row["each"] == row["bytes"] // row["count"]
        assert row["holder"]
        assert row["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [("minimal", "Exp keeps its own result in ctx.y,"), ("threads", "in ctx.stash['outputs'][0],")]
)
def test_a_context_cycle_is_reported_with_function_and_attribute(name, words):
    (row,) = grown(parse(LEAKS / f"context_cycle_{name}.py"))
    assert words in row["remedy"]


@pytest.mark.grid(fast=2)
@leaking
def test_a_leak_is_told_by_name_count_bytes_and_cause(name):
    program = parse(LEAKS / f"{name}.py")
    assert_told(program, grown(program))


@pytest.mark.grid(fast=2)
@leaking
def test_nothing_but_what_is_wanted_grows_when_the_line_is_mended(name, tmp_path):
    program = mend(parse(LEAKS / f"{name}.py"), tmp_path)
    rows = grown(program)
    assert sum(row["bytes"] for row in rows) == program.left
    assert bool(rows) == bool(program.left)
    assert "view-pins-base" not in [row["cause"] for row in rows]


@pytest.mark.grid(fast=2)
@of_these(
    names(HEALTHY),
    "bounded_deque ema_copy error_last_only graph_replaced hooks_removed kv_cache_per_request loader_threads "
    "logging_flushed lru_cache_full ring_buffer".split(),
)
def test_a_healthy_program_has_no_rows(name):
    assert grown(parse(HEALTHY / f"{name}.py")) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"{one}_minimal" for one in ("retained_graph", "stored_copies", "view_pins_base", "prefetch")]
)
def test_marks_change_nothing_but_tell_the_pace(name):
    program = parse(LEAKS / f"{name}.py")
    rows = grown(program, marks=True)
    assert_told(program, rows)
    assert all(row["a_mark"].startswith("+") for row in rows)


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize(
    "name", ["stored_graph_minimal", "prefetch_minimal", "stored_exception_minimal", "view_pins_base_minimal"]
)
def test_looking_keeps_nothing_alive(name):
    program = parse(LEAKS / f"{name}.py")
    alive = []
    with Witness() as witness:
        grown(program, look=lambda: alive.append(sum(witness.alive().values())))
    assert alive[1] - alive[0] == program.bytes
