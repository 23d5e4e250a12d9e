"""The path language: what is read is printed the same, and matches what it says."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byname.errors import BadPathError, BynameError
from byname.place import ANY, ANY_ITEM, Item, NameSegment, Place, Slice, join, parse

NAMES = st.text(st.sampled_from("ab_0.*?[]\\ é'\n"), min_size=1, max_size=6)
KEYS = st.one_of(
    st.integers(-9, 9), st.text(max_size=5), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
CONCRETE = st.lists(st.one_of(NAMES.map(NameSegment.of), KEYS.map(Item)), min_size=1, max_size=6).map(tuple)
PATTERNS = st.lists(
    st.one_of(
        NAMES.map(NameSegment.of),
        KEYS.map(Item),
        st.just(ANY),
        st.just(ANY_ITEM),
        st.sampled_from(["*", "a*", "?b", "a?", "*0*"]).map(NameSegment),
    ),
    min_size=1,
    max_size=6,
).map(tuple)


@pytest.mark.parametrize(
    "path",
    [
        "fc1",
        "forward",
        "layers.3.attn.forward.scores",
        "layers.*.attn.forward.scores",
        "**.attn.forward.cache['k'][0]",
        "forward.self.*.running_var",
        "layers.0.attn.softmax_1.grad",
        "forward.d[\"k\"][-1][(1, 'x')]",
        "**",
        "layers[0].h_*.layer?",
        "x[*]['a.b[c]']",
        "layers[1:3].fc",
        "layers[:-1]",
        "layers[1::2].fc",
    ],
)
def test_a_path_prints_back_to_the_same_text(path):
    assert str(parse(path)) == path


@given(PATTERNS)
def test_segments_printed_and_read_are_the_same_segments(segments):
    text = join(segments)
    assert parse(text) == Place(segments)
    assert str(parse(text)) == text


@given(CONCRETE)
def test_a_path_without_wildcards_matches_itself_alone(segments):
    place = Place(segments)
    assert not place.wild
    assert place.matches(str(place))
    assert not place.matches(f"{place}.more")
    assert not place.matches(f"{place}[0]")


def slowly(pattern, concrete):
    """Matching as it is defined, case by case."""
    if not pattern:
        return not concrete
    if pattern[0] == ANY:
        return any(slowly(pattern[1:], concrete[skipped:]) for skipped in range(len(concrete) + 1))
    if not concrete:
        return False
    first, other = pattern[0], concrete[0]
    if isinstance(first, NameSegment):
        same = isinstance(other, NameSegment) and (
            other.plain == first.plain if not first.wild else fnmatchcase(other.plain, first.text)
        )
    else:
        same = isinstance(other, Item) and (first == ANY_ITEM or first.key == other.key)
    return same and slowly(pattern[1:], concrete[1:])


@given(PATTERNS, CONCRETE)
def test_matching_is_what_its_definition_says(pattern, concrete):
    assert Place(pattern).matches(Place(concrete)) == slowly(pattern, concrete)


@given(CONCRETE, st.data())
def test_wildcards_put_in_the_place_of_segments_still_match(concrete, data):
    pattern = []
    for one in concrete:
        wild = [ANY, NameSegment("*") if isinstance(one, NameSegment) else ANY_ITEM, one]
        pattern.append(data.draw(st.sampled_from(wild)))
    assert Place(tuple(pattern)).matches(Place(concrete))


def test_many_double_stars_do_not_take_forever():
    assert not parse(".".join(["**", "a"] * 40)).matches(".".join(["a"] * 39 + ["b"]))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 12 + "b", "a" * 60),
        ("*a" * 400 + "b", "a" * 5000),
        ("*?" * 400 + "b", "a" * 5000),
        ("a*" * 200 + "ab*", "a" * 5000),
        ("*" + "?" * 200 + "*b*c", "b" * 5000),
    ],
)
def test_many_stars_in_one_name_do_not_take_forever(pattern, name):
    assert not NameSegment(pattern).matches(name)
    assert NameSegment(pattern).matches(name + "abc" if pattern[-1] == "c" else name + "ab")


@given(st.text("ab*?", max_size=12).filter(lambda text: "**" not in text), st.text("ab\n", max_size=12))
def test_a_name_matches_its_pattern_as_in_a_shell(pattern, name):
    assert NameSegment(pattern).matches(name) == fnmatchcase(name, pattern)


def test_two_stars_match_no_segment_at_all():
    assert parse("**.attn").matches("attn")
    assert parse("layers.**.attn").matches("layers.attn")
    assert parse("layers.**.attn").matches("layers.0.x.attn")
    assert not parse("*.attn").matches("attn")


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "a..b",
        "a.",
        ".a",
        "a[",
        "a[0",
        "a[]",
        "a[b]",
        "a]b",
        "a***b",
        "a.**b",
        "a[0]b",
        "a[__import__('os')]",
        "a[[0]]",
    ],
)
def test_what_is_no_path_is_refused_in_words(path):
    with pytest.raises(BadPathError, match="path"):
        parse(path)


@pytest.mark.parametrize("path", [3, None, ["a"]])
def test_what_is_no_text_is_refused(path):
    with pytest.raises(BynameError, match="a path is a string"):
        parse(path)


BOUNDS = st.none() | st.integers(-9, 9)


@given(st.integers(0, 7), BOUNDS, BOUNDS, st.none() | st.integers(1, 4) | st.integers(-4, -1))
def test_a_slice_counted_from_the_beginning_takes_the_same_items_in_any_longer_list(length, start, stop, step):
    taken = Slice(start, stop, step)
    counted = taken.counted(length)
    assert {*counted.positions(length + 5)} == {*taken.positions(length)} == {*range(length)[start:stop:step]}
