"""Tables: rows of plain values, shown in a terminal, in a notebook or as a DataFrame."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from byname.errors import BadArgumentError
from byname.extras import needs
from byname.text import WIDE, printable, table_width

if TYPE_CHECKING:
    import pandas
    from rich.table import Table as RichTable

    from byname.source.location import Site

R = TypeVar("R")
Row = dict[str, Any]

SHOWN = 60
"""Number of rows that are printed of a longer table; ``rows()`` has all of them."""


class Rows(Sequence[R], Generic[R]):
    """A result that is a sequence of row objects and prints as a table.

    A subclass holds its row objects in `items`, returns their plain values from `rows` and the heading from `_title`.
    """

    __slots__ = ()
    items: Sequence[R]

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> list[Row]:
        """Return one dict of plain values per row."""
        raise NotImplementedError

    def _shown(self) -> list[Row]:
        """Return the dicts to show in the table; by default those of `rows`."""
        return self.rows()

    def _title(self) -> str:
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        """Return sentences to print under the table, such as what the result does not show."""
        return ()

    @overload
    def __getitem__(self, position: int) -> R: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[R]: ...
    def __getitem__(self, position: int | slice) -> R | Sequence[R]:
        return self.items[position]

    def _spare(self) -> Sequence[str]:
        """Return the columns that a narrow terminal may leave out, in the order in which to drop them."""
        return ()

    def __str__(self) -> str:
        return self.head()

    def head(self, most: int = SHOWN, *, width: int | None = None) -> str:
        """Return the table with its first rows.

        Args:
            most: number of rows.
            width: in characters; by default that of the terminal on standard output, or 160 where that is no terminal.
        """
        rows = self._shown()
        return text(rows, title=self._title(), notes=self._notes(), spare=self._spare(), width=width, most=most)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return to_html(self._shown(), title=self._title(), notes=self._notes())

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame.

        Raises:
            NotInstalledError: pandas is not installed (``pip install "byname[frames]"``).
        """
        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame(self.rows())


def text(
    rows: Sequence[Row],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    spare: Sequence[str] = (),
    width: int | None = None,
    most: int = SHOWN,
) -> str:
    """Return the rows as a table for a terminal.

    No cell is broken: columns that do not fit are left out, and a line below names them.

    Args:
        rows: dicts of plain values with the same keys.
        title: one line above the table.
        notes: lines below the table.
        spare: the columns that may be left out where the terminal is narrow, in the order in which to drop them.
        width: in characters; by default the terminal's, or 160 where the text goes to no terminal.
        most: number of rows shown.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if width is None:
        width = table_width(sys.stdout) if sys.stdout.isatty() else WIDE
    columns, left_out = _fitting(rows[:most], _columns(rows), spare, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if _numeric(rows, column) else "left", no_wrap=True)
    for row in rows[:most]:
        table.add_row(*(Text(cell(column, row.get(column))) for column in columns))
    lines = [line.rstrip() for line in _rendered(table).splitlines()] if rows else []
    below = [*_more(rows, most), *([f"not shown here: {', '.join(left_out)}"] if left_out else []), *notes]
    return "\n".join([printable(title), *lines, *map(printable, below)])


def _rendered(table: RichTable) -> str:
    import io

    from rich.console import Console

    page = io.StringIO()
    # In Jupyter, rich would display the table instead of writing it to the file that it was given.
    Console(file=page, width=10_000, color_system=None, legacy_windows=False, force_jupyter=False).print(table)
    return page.getvalue()


def _fitting(rows: Sequence[Row], columns: list[str], spare: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """Return the columns that fit side by side, and those that are left out."""
    needed = {name: max([len(name), *(len(cell(name, row.get(name))) for row in rows)]) + 3 for name in columns}
    kept, left_out = list(columns), []
    for name in spare:
        if sum(needed[one] for one in kept) - 3 <= width:
            break
        if name in kept:
            kept.remove(name)
            left_out.append(name)
    for name in left_out[::-1]:  # leaving out a wide column may have made room for narrower ones
        if sum(needed[one] for one in (*kept, name)) - 3 <= width:
            kept.append(name)
    return [name for name in columns if name in kept], [name for name in left_out if name not in kept]


def to_html(rows: Sequence[Row], *, title: str = "", notes: Sequence[str] = ()) -> str:
    """Return the rows as an HTML table, with all text escaped."""
    styles = {column: _RIGHT if _numeric(rows, column) else _LEFT for column in _columns(rows)}
    head = "".join(f"<th{style}>{html.escape(column)}</th>" for column, style in styles.items())
    body = "".join(
        "<tr>"
        + "".join(f"<td{style}>{html.escape(cell(column, row.get(column)))}</td>" for column, style in styles.items())
        + "</tr>"
        for row in rows[:SHOWN]
    )
    below = "".join(f"<p>{html.escape(printable(note))}</p>" for note in (*_more(rows), *notes))
    caption = f"<caption{_LEFT}>{html.escape(printable(title))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


# In a notebook every cell is aligned to the right, and a caption is in the middle of what may be wider than the page.
_LEFT = ' style="text-align:left"'
_RIGHT = ' style="text-align:right;white-space:nowrap"'


def _numeric(rows: Sequence[Row], column: str) -> bool:
    return all(type(row.get(column)) in (int, float, type(None)) for row in rows)


_SIZES = ("bytes", "used", "each")
"""Columns whose values are numbers of bytes."""


def cell(column: str, value: object) -> str:
    """Return the text that shows one value."""
    if value is None:
        return ""
    if column in _SIZES and type(value) is int:
        return bytes_text(value)
    if type(value) is bool:
        return "yes" if value else "no"
    if type(value) is int and value > 10**15:
        return f"about 2^{value.bit_length() - 1}"
    if type(value) is tuple:
        return "×".join(map(str, value)) if column == "shape" and value else ", ".join(map(str, value)) or "scalar"
    return printable(str(value))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 node``, ``2 nodes``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def bytes_text(count: int) -> str:
    """Return a number of bytes in a unit that people can read.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def grouped(
    members: Iterable[tuple[Hashable, Hashable | None, int]],
) -> list[tuple[Any, int, int]]:
    """Return ``(key, count, bytes)`` for each key, most bytes first.

    Each storage counts once, for the first key that has it.

    Args:
        members: for each row its key, its storage (None if it has none) and the size of that storage in bytes.
    """
    counts: dict[Hashable, int] = {}
    sizes: dict[Hashable, int] = {}
    seen: set[Hashable] = set()
    for key, storage, size in members:
        counts[key] = counts.get(key, 0) + 1
        fresh = storage is None or storage not in seen
        seen.add(storage)
        sizes[key] = sizes.get(key, 0) + (size if fresh else 0)
    return sorted(((key, counts[key], sizes[key]) for key in counts), key=lambda row: (-row[2], -row[1], str(row[0])))


def grouped_by_site(members: Iterable[tuple[Site | None, Hashable | None, int]]) -> list[tuple[Any, int, int]]:
    """Return totals by line of a file, as `grouped` does by key, with ``""`` for rows without a site."""
    from byname.source.location import short_names

    rows = list(members)
    names = short_names(site for site, _, _ in rows if site is not None)
    return grouped(("" if site is None else names[site], storage, size) for site, storage, size in rows)


def column_of(column: str, known: dict[str, Callable[[Any], Hashable]]) -> Callable[[Any], Hashable]:
    """Return the function that reads a column.

    Raises:
        BadArgumentError: there is no such column; the message names the columns there are.
    """
    if type(column) is not str or column not in known:
        asked = repr(column) if type(column) is str else f"of type {type(column).__name__}"
        raise BadArgumentError(f"there is no column {asked} to group by; choose from {closest(str(asked), known)}")
    return known[column]


_COMPARED = 300
"""The longest name that is compared with others, in characters."""


def closest(wanted: str, there: Iterable[str]) -> str:
    """Return up to twelve of the names there are, those most like the wanted one first, and the number of others.

    >>> closest("relv", ["tanh", "relu"])
    'relu, tanh'
    """
    import difflib

    every = list(there)
    comparable = [one for one in every if len(one) <= _COMPARED]  # comparing takes time quadratic in the length
    near = difflib.get_close_matches(str(wanted)[:_COMPARED], comparable, n=3, cutoff=0.4)
    return listed(list(dict.fromkeys([*near, *every])), 12)


def listed(names: Sequence[str], most: int) -> str:
    """Return names side by side, and the number of those that are left out.

    >>> listed(["a", "b", "c"], 2), listed(["a", "b"], 2)
    ('a, b, and 1 more', 'a, b')

    Args:
        names: all names.
        most: number of names that are listed.
    """
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that have a value to show in some row."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]


def _more(rows: Sequence[Row], most: int = SHOWN) -> Iterator[str]:
    if len(rows) > most:
        yield f"… and {counted(len(rows) - most, 'row')} more; .rows() has them all"
