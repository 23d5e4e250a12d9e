"""Tables: columns, rows as dicts, and what a notebook shows in HTML."""

import copy
import json
import pickle
import re

import pandas
import pytest

from byname import Finding
from byname.table import Column, Lazy, Rows, Tabled, text, to_html

ROWS = [{"name": "<b>", "count": 3, "bytes": 2048}, {"name": "x", "count": None, "bytes": 1}]


def styles(tag, html):
    return re.findall(rf'<{tag} style="text-align:(\w+)', html)


def test_text_is_at_the_left_and_numbers_are_at_the_right_whatever_the_notebook_does_with_cells():
    html = to_html(ROWS, title="all & more", notes=["<i>"])
    assert styles("th", html) == ["left", "right", "right"] and styles("td", html) == ["left", "right", "right"] * 2
    assert styles("caption", html) == ["left"]


def test_all_text_is_escaped():
    html = to_html(ROWS, title="all & more", notes=["<i>"])
    assert "<b>" not in html and "&lt;b&gt;" in html and "all &amp; more" in html and "&lt;i&gt;" in html


def test_sizes_stay_on_one_line():
    assert re.search(r'<td style="[^"]*white-space:nowrap[^"]*">2\.0 KiB</td>', to_html(ROWS))


def test_a_finding_breaks_its_lines_between_words_and_is_escaped():
    html = Finding("free-leaf", "a < b")._repr_html_()
    assert Finding("free-leaf", "a < b").to_pandas()["message"].tolist() == ["a < b"]
    assert "word-break:normal" in html and "a &lt; b" in html


class Made(Tabled):
    columns = (
        Column("name"),
        Column("size", 2, printed=False),
        Column("made_at", 1, read=lambda one: one.name * 2, show=lambda one: f"<{one.name}>"),
    )

    def __init__(self, name):
        self.name, self.size = name, len(name)


class Several(Rows):
    _row = Made

    def __init__(self, *names):
        self.items = [*map(Made, names)]

    def _title(self):
        return "several"


def test_a_column_is_declared_once():
    several = Several("a", "bc")
    assert several.rows() == [{"name": "a", "size": 1, "made_at": "aa"}, {"name": "bc", "size": 2, "made_at": "bcbc"}]
    lines = str(several).splitlines()
    assert [line.split() for line in (lines[1], *lines[3:])] == [["name", "made", "at"], ["a", "<a>"], ["bc", "<bc>"]]
    assert several.head(width=4).splitlines()[-1] == "not shown here: made at"
    assert several[0].shown() == {"name": "a", "size": 1, "made at": "<a>"}


def test_a_key_of_the_last_version_gives_the_value_with_a_warning_that_names_the_new_one():
    (row,) = Several("a").rows()
    with pytest.warns(DeprecationWarning, match=r"the key 'made at' of rows\(\) is now 'made_at'") as warned:
        assert (row["made at"], row.get("made at")) == ("aa", "aa")
    assert [one.filename for one in warned] == [__file__] * 2
    row["held_by"] = ("a variable", "a graph")
    with pytest.warns(DeprecationWarning, match="held_by"):
        assert row["held by"] == "a variable; a graph"  # as it was
    for key in ("made", "made  at", 1):
        with pytest.raises(KeyError):
            row[key]
        assert row.get(key, "nothing") == "nothing"


def test_a_row_is_a_dict():
    rows = Several("a").rows()
    plain = {"name": "a", "size": 1, "made_at": "aa"}
    assert rows == [plain] and repr(rows[0]) == repr(plain) and json.loads(json.dumps(rows)) == [plain]
    assert pickle.loads(pickle.dumps(rows)) == copy.deepcopy(rows) == [plain]
    assert pandas.DataFrame(rows).to_dict("records") == [plain]


def test_items_made_on_access_are_as_a_tuple_of_them():
    made = Lazy([1, 2, 3], str)
    assert (made[0], made[-1], made[1:], len(made), [*made]) == ("1", "3", ("2", "3"), 3, ["1", "2", "3"])
    assert made == ("1", "2", "3") == made and made == Lazy(range(1, 4), str) and made != ["1", "2", "3"]
    assert hash(made) == hash(("1", "2", "3")) and repr(made) == "('1', '2', '3')"
    assert made.index("2") == 1 and "4" not in made and pickle.loads(pickle.dumps(made)) == made


class Looked(Rows):
    """Rows that a look finds anew, each time one less."""

    looks = 0

    @property
    def items(self):
        self.looks += 1
        return tuple(range(4 - self.looks))


@pytest.mark.parametrize(
    ("ask", "answer"), [(set, {0, 1, 2}), (lambda rows: [*reversed(rows)], [2, 1, 0]), (lambda rows: rows.index(2), 2)]
)
def test_rows_that_may_change_are_read_once(ask, answer):
    rows = Looked()
    assert (ask(rows), rows.looks) == (answer, 1)


def test_columns_of_wide_letters_are_left_out_where_they_do_not_fit():
    rows = [{"name": "重み" * 8, "note": "損失" * 8}]
    assert len(text(rows, drop_order=("note",), width=50).splitlines()[1]) == 4, "both would take 32 + 3 + 32 cells"
    assert "note" in text(rows, drop_order=("note",), width=70).splitlines()[1]
