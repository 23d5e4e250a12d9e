"""Census of a heap with one example of everything that can keep a tensor alive: each is found once, with its bytes.

`plants` leaves storages of sizes that nothing else has in more than a hundred kinds of place. It was written before the census.
"""

import itertools
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from processes import run_alone

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def planted(way, folder):
    """What the censuses of a program that planted everything said."""
    file = folder / f"{way}.json"
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import planted; planted.main({way!r}, {str(file)!r})"
    run_alone(program, "-W", "ignore", timeout=120)
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return planted("plain", tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    return planted("tracked", tmp_path_factory.mktemp("tracked"))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    return planted("frozen", tmp_path_factory.mktemp("frozen"))


def pairs(said):
    """Every storage planted, with its row; None where there is none."""
    rows, wanted = defaultdict(list), defaultdict(list)
    for row in said["rows"]:
        rows[row["bytes"]].append(row)
    for one in said["expected"]:
        wanted[one["bytes"]].append(one)
    for size, expected in wanted.items():
        there = rows[size][: len(expected)]
        orders = itertools.permutations([*there, *[None] * (len(expected) - len(there))])
        best = max(orders, key=lambda order: sum(fits(one, row) for one, row in zip(expected, order)))
        yield from zip(expected, best)


def fits(one, row):
    return row is not None and kind_fits(one, row) + 2 * words_fit(one, row)


def kind_fits(one, row):
    return row["kind"] in one["kinds"]


def words_fit(one, row):
    return re.search(one["words"], f"{row['name']} | {'; '.join(row['held_by'])}", re.DOTALL) is not None


def site_fits(one, row):
    file, first, last = one["where"]
    line = re.fullmatch(rf"{re.escape(Path(file).name)}:(\d+)", str(row["site"]))
    return line is not None and first <= int(line[1]) <= last


def missing(said):
    return [one for one, row in pairs(said) if row is None and one["counts"]]


def coverage(said):
    everything = sum(one["bytes"] for one in said["expected"] if one["counts"])
    return 1 - sum(one["bytes"] for one in missing(said)) / everything


def table(misses):
    """What was wanted of each storage, and what the census says, a line each."""
    return "\n" + "\n".join(
        f"{one['place']:40.40} {one['bytes']:8} {'/'.join(one['kinds']):22.22} {one['words']:44.44} "
        + (f"got {row['kind']}: {row['name']!r} held by {row['held_by']!r} at {row['site']}" if row else "nothing")
        for one, row in misses
    )


def test_the_corpus_is_large_and_every_size_belongs_to_one_place(plain):
    places = defaultdict(set)
    for one in plain["expected"]:
        places[one["bytes"]].add(one["place"])
    assert all(len(found) == 1 for found in places.values())
    assert len(set().union(*places.values())) >= 100
    assert len(plain["expected"]) >= 140


def test_with_no_setup_at_least_95_percent_of_the_bytes_are_found(plain):
    assert coverage(plain) >= 0.95, table((one, None) for one in missing(plain))


def test_when_allocations_are_tracked_at_least_99_percent_are_found(tracked):
    assert coverage(tracked) >= 0.99, table((one, None) for one in missing(tracked))


def test_a_frozen_heap_is_said_to_be_frozen_and_most_is_found_and_it_stays_frozen(frozen):
    assert any("gc.freeze" in note for note in frozen["notes"]), frozen["notes"]
    assert coverage(frozen) >= 0.8, table((one, None) for one in missing(frozen))
    assert frozen["still frozen"]


def test_a_heap_that_is_not_frozen_has_no_note_of_it(plain):
    assert not [note for note in plain["notes"] if "freeze" in note]


@pytest.mark.parametrize("way", ["plain", "tracked", "frozen"])
def test_no_storage_stands_in_two_rows(way, request):
    said = request.getfixturevalue(way)
    wanted = Counter(one["bytes"] for one in said["expected"])
    rows = [row for row in said["rows"] if row["bytes"] in wanted]
    twice = [size for size, count in Counter(row["bytes"] for row in rows).items() if count > wanted[size]]
    assert not twice, "\n" + "\n".join(f"{row['bytes']} {row}" for row in rows if row["bytes"] in twice)


def test_what_is_no_memory_has_no_row(plain):
    nothing = {one["bytes"] for one in plain["expected"] if one["words"] == "never"}
    assert nothing
    assert not [row for row in plain["rows"] if row["bytes"] in nothing]


@pytest.mark.parametrize("way", ["plain", "tracked"])
def test_what_was_found_has_the_name_or_the_holder_that_a_reader_expects(way, request):
    said = request.getfixturevalue(way)
    wrong = [(one, row) for one, row in pairs(said) if row is not None and not words_fit(one, row)]
    assert not wrong, table(wrong)


@pytest.mark.parametrize("way", ["plain", "tracked"])
def test_what_was_found_has_its_kind(way, request):
    said = request.getfixturevalue(way)
    wrong = [(one, row) for one, row in pairs(said) if row is not None and not kind_fits(one, row)]
    assert not wrong, table(wrong)


def test_shared_memory_is_said_to_be_shared_and_other_memory_is_not(plain):
    found = [(one, row) for one, row in pairs(plain) if row is not None]
    wrong = [(one, row) for one, row in found if one["memory"] is not None and row["memory"] != one["memory"]]
    assert not wrong, table(wrong)
    ordinary = [row for one, row in found if one["place"] in ("parameter", "global variable", "gradient that was read")]
    assert {row["memory"] for row in ordinary} == {""}


def test_when_allocations_are_tracked_every_site_lies_in_the_function_that_planted(tracked):
    found = [(one, row) for one, row in pairs(tracked) if row is not None and one["where"]]
    assert len(found) >= 120
    wrong = [(one, row) for one, row in found if not site_fits(one, row)]
    assert not wrong, table(wrong)


def test_without_tracking_no_site_is_told(plain):
    assert {row["site"] or "" for row in plain["rows"]} == {""}


@pytest.mark.parametrize("way", ["plain", "tracked", "frozen"])
def test_two_censuses_in_a_row_agree(way, request):
    said = request.getfixturevalue(way)
    assert said["rows"] == said["again"]
    assert Counter(said["quick"]) == Counter(row["bytes"] for row in said["rows"])


@pytest.mark.parametrize("way", ["plain", "tracked", "frozen"])
def test_a_census_keeps_no_tensor_and_no_graph_alive(way, request):
    said = request.getfixturevalue(way)
    assert said["censuses"] == 3
    assert not said["survivors"]


@pytest.mark.parametrize("way", ["plain", "tracked", "frozen"])
def test_a_census_warns_of_nothing(way, request):
    assert not request.getfixturevalue(way)["warnings"]


@pytest.mark.parametrize("column", ["kind", "name", "site", "dtype", "device", "module"])
def test_totals_count_every_storage_once(plain, column):
    sizes = [size for _, _, size in plain["totals"][column]]
    assert sum(sizes) == plain["bytes"] == sum(row["bytes"] for row in plain["rows"])
    assert sizes == sorted(sizes, reverse=True)
    assert sum(count for _, count, _ in plain["totals"][column]) == len(plain["rows"])


def test_rows_come_with_the_most_bytes_first(plain):
    sizes = [row["bytes"] for row in plain["rows"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_table_shows_names_of_the_largest(plain):
    assert plain["rows"][0]["name"].split("[")[0] in plain["text"]
