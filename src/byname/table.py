"""How are results shown? Rows of plain values become a table in a terminal, in a notebook, or a DataFrame."""

from __future__ import annotations

import html
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from byname.errors import BadArgumentError, NotInstalledError
from byname.text import printable

if TYPE_CHECKING:
    import pandas
    from rich.table import Table as RichTable

    from byname.source.location import Site

__all__ = ["Rows", "bytes_text", "closest", "counted", "grouped", "listed", "printable"]

R = TypeVar("R")
Row = dict[str, Any]

SHOWN = 60
"""Rows of a longer table that are printed; ``rows()`` has all of them."""


class Rows(Sequence[R], Generic[R]):
    """A result that is a sequence of row objects and prints as a table.

    A child class holds its row objects as `items` and says by `rows` what each shows; everything else is here.
    """

    __slots__ = ()
    items: Sequence[R]

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> list[Row]:
        """One dict of plain values a row."""
        raise NotImplementedError

    def _shown(self) -> list[Row]:
        """The rows as the table has them."""
        return self.rows()

    def _title(self) -> str:
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        """Sentences under the table: what the result does not show."""
        return ()

    @overload
    def __getitem__(self, position: int) -> R: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[R]: ...
    def __getitem__(self, position: int | slice) -> R | Sequence[R]:
        return self.items[position]

    def _spare(self) -> Sequence[str]:
        """The columns that a narrow terminal may do without, the first one first."""
        return ()

    def __str__(self) -> str:
        return self.head()

    def head(self, most: int = SHOWN, *, width: int | None = None) -> str:
        """The table with its first rows.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal which shows the standard output.
        """
        rows = self._shown()
        return text(rows, title=self._title(), notes=self._notes(), spare=self._spare(), width=width, most=most)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return to_html(self._shown(), title=self._title(), notes=self._notes())

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame; needs pandas (``pip install byname[frames]``)."""
        try:
            import pandas
        except ImportError as missing:
            raise NotInstalledError("to_pandas() needs pandas: pip install 'byname[frames]'") from missing
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
    """The rows as a table for a terminal. No cell is broken: what does not fit is left out, and said to be.

    Args:
        rows: dicts of plain values with the same keys.
        title: one line above.
        notes: lines below.
        spare: the columns that may be left out where the terminal is narrow, the first one first.
        width: in characters; by default the terminal's, or 160 where the text goes to no terminal.
        most: how many rows are shown.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    width = _width() if width is None else width
    columns, left_out = _fitting(rows[:most], _columns(rows), spare, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        number = all(type(row.get(column)) in (int, float, type(None)) for row in rows)
        table.add_column(Text(column), justify="right" if number else "left", no_wrap=True)
    for row in rows[:most]:
        table.add_row(*(Text(cell(column, row.get(column))) for column in columns))
    lines = [line.rstrip() for line in _rendered(table).splitlines()] if rows else []
    below = [*_more(rows, most), *([f"not shown here: {', '.join(left_out)}"] if left_out else []), *notes]
    return "\n".join([printable(title), *lines, *map(printable, below)])


def _width() -> int:
    import shutil
    import sys

    return shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 160


def _rendered(table: RichTable) -> str:
    import io

    from rich.console import Console

    page = io.StringIO()
    # Not as rich would have it in Jupyter: there it displays whatever is printed, wherever that was to go.
    Console(file=page, width=10_000, color_system=None, legacy_windows=False, force_jupyter=False).print(table)
    return page.getvalue()


def _fitting(rows: Sequence[Row], columns: list[str], spare: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """The columns that fit side by side, and those that were left out for them."""
    needed = {name: max([len(name), *(len(cell(name, row.get(name))) for row in rows)]) + 3 for name in columns}
    kept, left_out = list(columns), []
    for name in spare:
        if sum(needed[one] for one in kept) - 3 <= width:
            break
        if name in kept:
            kept.remove(name)
            left_out.append(name)
    for name in left_out[::-1]:  # a wide one has made room for smaller ones
        if sum(needed[one] for one in (*kept, name)) - 3 <= width:
            kept.append(name)
    return [name for name in columns if name in kept], [name for name in left_out if name not in kept]


def to_html(rows: Sequence[Row], *, title: str = "", notes: Sequence[str] = ()) -> str:
    """The rows as an HTML table, with every text escaped."""
    columns = _columns(rows)
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(column, row.get(column)))}</td>" for column in columns) + "</tr>"
        for row in rows[:SHOWN]
    )
    below = "".join(f"<p>{html.escape(printable(note))}</p>" for note in (*_more(rows), *notes))
    caption = html.escape(printable(title))
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


_SIZES = ("bytes", "used", "each")
"""Columns that are numbers of bytes."""


def cell(column: str, value: object) -> str:
    """One value as it is shown."""
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
    """A number with its noun: ``1 node``, ``2 nodes``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def bytes_text(count: int) -> str:
    """A number of bytes for people.

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
    """Totals by key: ``(key, count, bytes)``, most bytes first; each storage counts once, for the first key with it.

    Args:
        members: for each row its key, its storage (None when it has none) and the bytes of that storage.
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
    """The same for places in the source: by line of a file, whatever its statement; ``""`` for no place."""
    from byname.source.location import short_names

    rows = list(members)
    names = short_names(site for site, _, _ in rows if site is not None)
    return grouped(("" if site is None else names[site], storage, size) for site, storage, size in rows)


def column_of(column: str, known: dict[str, Callable[[Any], Hashable]]) -> Callable[[Any], Hashable]:
    """The function that reads a column, or an error that names the columns there are."""
    if type(column) is not str or column not in known:
        asked = repr(column) if type(column) is str else f"of type {type(column).__name__}"
        raise BadArgumentError(f"there is no column {asked} to group by; there are {closest(str(asked), known)}")
    return known[column]


_COMPARED = 300
"""Letters of a name that is compared with others."""


def closest(wanted: str, there: Iterable[str]) -> str:
    """The names there are, those most like the wanted one first; says how many more there are than it names.

    >>> closest("relv", ["tanh", "relu"])
    'relu, tanh'
    """
    import difflib

    every = list(there)
    comparable = [one for one in every if len(one) <= _COMPARED]  # it takes the square of their lengths
    near = difflib.get_close_matches(str(wanted)[:_COMPARED], comparable, n=3, cutoff=0.4)
    return listed(list(dict.fromkeys([*near, *every])), 12)


def listed(names: Sequence[str], most: int) -> str:
    """Names side by side, and how many there are besides.

    >>> listed(["a", "b", "c"], 2), listed(["a", "b"], 2)
    ('a, b, and 1 more', 'a, b')

    Args:
        names: all of them.
        most: how many are named.
    """
    more = len(names) - most
    return ", ".join([*names[:most], *([f"and {more} more"] if more > 0 else [])])


def _columns(rows: Sequence[Row]) -> list[str]:
    """The columns in which some row has something to show."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]


def _more(rows: Sequence[Row], most: int = SHOWN) -> Iterator[str]:
    if len(rows) > most:
        yield f"… and {counted(len(rows) - most, 'row')} more; .rows() has them all"
