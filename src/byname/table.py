"""Tables: rows of plain values, shown in a terminal, in a notebook or as a DataFrame."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, overload

from byname.errors import BadArgumentError
from byname.source.tracebacks import warn
from byname.text import WIDE, printable, table_width

if TYPE_CHECKING:
    import pandas

R = TypeVar("R")
F = TypeVar("F")
Row = dict[str, Any]

SHOWN = 60
"""Number of rows that are printed of a longer table; ``rows()`` has all of them."""


class Lazy(Sequence[R], Generic[F, R]):
    """A sequence whose items are made on access from their fields. It is equal to a tuple of the items."""

    __slots__ = ("_fields", "_make")

    def __init__(self, fields: Sequence[F], make: Callable[[F], R]) -> None:
        self._fields, self._make = fields, make

    def __len__(self) -> int:
        return len(self._fields)

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[R, ...]: ...
    def __getitem__(self, at: int | slice) -> R | tuple[R, ...]:
        return tuple(map(self._make, self._fields[at])) if isinstance(at, slice) else self._make(self._fields[at])

    def __iter__(self) -> Iterator[R]:
        return map(self._make, self._fields)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if type(other) is Lazy else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the items, because fields may hold what cannot be copied."""
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))


class Column(NamedTuple):
    """A column of a table: the attribute of a row that it shows, and its form.

    Attributes:
        key: the name of the attribute, which is the key in ``rows()``.
        drop_order: its place in the order in which a narrow terminal leaves out columns, from 1; 0 if it always stays.
        read, show: return the plain value, and the value to print; by default that of the attribute.
        printed: False for a column that only ``rows()`` has.
        title: the heading, if it is not the key with spaces.
    """

    key: str
    drop_order: int = 0
    read: Callable[[Any], Any] | None = None
    show: Callable[[Any], Any] | None = None
    printed: bool = True
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or self.key.replace("_", " ")

    def value(self, one: Any) -> Any:
        """Return the plain value of the column for a row."""
        return plain_value(getattr(one, self.key)) if self.read is None else self.read(one)

    def shown(self, one: Any) -> Any:
        """Return the value to print for a row."""
        return self.value(one) if self.show is None else self.show(one)


def plain_value(value: Any) -> Any:
    """Return numbers, text and tuples as they are, and any other object as text: a dtype as ``float32``."""
    if type(value) in (str, int, float, bool, tuple, NoneType):
        return value
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else str(value)


class Alias(Generic[R]):
    """Second name of an attribute of a row: that of the table's column."""

    def __init__(self, of: str) -> None:
        self._read = attrgetter(of)

    def __get__(self, one: object, kind: type) -> R:
        return self if one is None else self._read(one)  # type: ignore[return-value]


class Tabled:
    """A row object. Each of its columns is an attribute."""

    __slots__ = ()
    columns: ClassVar[Sequence[Column]] = ()

    def row(self) -> Row:
        """Return the row as plain values."""
        return RowDict([(one.key, one.value(self)) for one in self.columns])

    def shown(self) -> Row:
        """Return the values to print, by the headings of all columns."""
        return {one.heading: one.shown(self) for one in self.columns}


class RowDict(dict[str, Any]):
    """A row by attribute names. For one version its headings, such as ``made at``, are keys too."""

    def __missing__(self, key: str) -> Any:
        name = key.replace(" ", "_") if type(key) is str else key
        if name == key or name not in self:
            raise KeyError(key)
        warn(f"the key {key!r} of rows() is now {name!r}", DeprecationWarning)
        value = self[name]
        texts = type(value) is tuple and all(type(one) is str for one in value)
        return "; ".join(value) if texts else value  # under the old key it was one text

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, also of an old one."""
        try:
            return self[key]
        except KeyError:
            return default


class Rows(Sequence[R], Generic[R]):
    """A result that is a sequence of row objects and prints as a table.

    A subclass holds its rows in `items`, names their class in `_row`, and returns the heading from `_title`.
    """

    __slots__ = ()
    items: Sequence[R]
    _row: ClassVar[type[Tabled]] = Tabled

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[R]:
        return iter(self.items)

    def __reversed__(self) -> Iterator[R]:
        return reversed(self.items)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a row; `items`, which may take a snapshot of the heap, are read once."""
        return tuple(self.items).index(value, start, *(() if stop is None else (stop,)))

    def rows(self) -> list[Row]:
        """Return one dict of plain values per row."""
        return [one.row() for one in self.items]  # type: ignore[attr-defined]

    def _columns(self) -> Sequence[Column]:
        return self._row.columns

    def _shown(self) -> list[Row]:
        """Return the dicts to show in the table, by heading."""
        columns = [one for one in self._columns() if one.printed]
        return [{one.heading: one.shown(row) for one in columns} for row in self.items] if columns else self.rows()

    def _title(self) -> str:
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        """Return sentences to print under the table, such as `notes` on what the result does not show."""
        notes: Sequence[str] = getattr(self, "notes", ())
        return notes

    @overload
    def __getitem__(self, position: int) -> R: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[R]: ...
    def __getitem__(self, position: int | slice) -> R | Sequence[R]:
        return self.items[position]

    def _drop_order(self) -> Sequence[str]:
        """Return the columns that a narrow terminal may leave out, in the order in which to drop them."""
        return [one.heading for one in sorted(self._columns(), key=attrgetter("drop_order")) if one.drop_order]

    def head(self, most: int = SHOWN, *, width: int | None = None) -> str:
        """Return the table with its first rows; of `byname.points` also one of the places that did not run.

        Args:
            most: number of rows.
            width: in characters; by default that of the terminal on standard output, or 160 where that is no terminal.
        """
        order = self._drop_order()
        tables = [text(rows, title=title, drop_order=order, width=width, most=most) for title, rows in self._tables()]
        return "\n".join(["\n\n".join(tables), *map(printable, self._notes())])

    def _tables(self) -> list[tuple[str, list[Row]]]:
        """Return the title and the rows of each table to show, of which there is one, as a rule."""
        shown = self._shown()  # first, because it may take a snapshot that changes the title
        return [(self._title(), shown)]

    def __repr__(self) -> str:
        return self.head()

    def _repr_html_(self) -> str:
        *others, (title, rows) = self._tables()
        tables = [to_html(some, title=one) for one, some in others]
        return "".join([*tables, to_html(rows, title=title, notes=self._notes())])

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame.

        Raises:
            NotInstalledError: pandas is not installed (``pip install "byname[frames]"``).
        """
        from byname.extras import needs

        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame(self.rows())


class Totals(Rows[R]):
    """Rows about memory, with totals by the columns named in `_by`."""

    __slots__ = ()
    _by: ClassVar[Sequence[str]]

    def by(self, column: str) -> list[tuple[Any, int, int]]:
        """Return totals ``(key, count, bytes)``, most bytes first; ``bytes`` counts whole storages, each once.

        Args:
            column: an attribute of the rows, such as ``kind``.

        Raises:
            BadArgumentError: there are no totals by this attribute; the message lists the attributes that have some.
        """
        if type(column) is not str or column not in self._by:
            requested = repr(column) if type(column) is str else f"of type {type(column).__name__}"
            raise BadArgumentError(
                f"there is no column {requested} to group by; choose from {closest(requested, self._by)}"
            )
        if column == "site":
            from byname.source.location import short_names  # here: it imports PyTorch, which a command's help needs not

            rows = [(one.site, self._memory(one)) for one in self.items]  # type: ignore[attr-defined]
            names = short_names(site for site, _ in rows if site is not None)
            return totals_by_key(("" if site is None else names[site], *memory) for site, memory in rows)
        return totals_by_key((self._key(one, column), *self._memory(one)) for one in self.items)

    def _key(self, one: R, column: str) -> Hashable:
        value: Hashable = plain_value(getattr(one, column))
        return "" if value is None else value

    def _memory(self, one: Any) -> tuple[Hashable | None, int]:
        """Return the key and the size in bytes of a row's storage."""
        return (None, 0) if one.card is None else (one.card.storage, one.card.storage_bytes)


def text(
    rows: Sequence[Row],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    drop_order: Sequence[str] = (),
    width: int | None = None,
    most: int = SHOWN,
) -> str:
    """Return rows with the same keys as a table for a terminal, with a title above and notes below.

    No cell is broken: columns that do not fit are left out in the order of `drop_order`, and a line below names them.
    The width is by default the terminal's, or 160 characters without a terminal.
    """
    if width is None:
        width = table_width(sys.stdout) if sys.stdout.isatty() else WIDE
    columns, left_out = _fitting(rows[:most], _columns(rows), drop_order, width)
    lines = _laid_out(rows, columns, most) if columns else [""] * bool(rows)
    below = [*_more(rows, most), *([f"not shown here: {', '.join(left_out)}"] if left_out else []), *notes]
    return "\n".join([printable(title), *lines, *map(printable, below)])


def _laid_out(rows: Sequence[Row], columns: Sequence[str], most: int) -> list[str]:
    from rich.cells import cell_len

    padded = []
    for column in columns:
        cells = [printable(column), *(cell(column, row.get(column)) for row in rows[:most])]
        width, right = max(map(cell_len, cells)), _numeric(rows, column)
        spaces = [" " * (width - cell_len(one)) for one in cells]
        padded.append([space + one if right else one + space for one, space in zip(cells, spaces, strict=True)])
    head, *lines = ["   ".join(cells) for cells in zip(*padded, strict=True)]
    return [head.rstrip(), "─" * cell_len(head), *map(str.rstrip, lines)]


def _fitting(
    rows: Sequence[Row], columns: list[str], drop_order: Sequence[str], width: int
) -> tuple[list[str], list[str]]:
    """Return the columns that fit side by side, and those that are left out."""
    from rich.cells import cell_len

    needed = {name: 3 + max(map(cell_len, [name, *(cell(name, row.get(name)) for row in rows)])) for name in columns}
    kept, left_out = list(columns), []
    for name in drop_order:
        if sum(needed[one] for one in kept) - 3 <= width:
            break
        if name in kept:
            kept.remove(name)
            left_out.append(name)
    for name in left_out[::-1]:  # where a wide column was dropped, narrower ones may fit again
        if sum(needed[one] for one in (*kept, name)) - 3 <= width:
            kept.append(name)
    return [name for name in columns if name in kept], [name for name in left_out if name not in kept]


def to_html(rows: Sequence[Row], *, title: str = "", notes: Sequence[str] = ()) -> str:
    """Return the rows as an HTML table, with all text escaped."""
    import html

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


# Notebooks align every cell to the right, and center a caption above a table that may be wider than the page.
_LEFT = ' style="text-align:left"'
_RIGHT = ' style="text-align:right;white-space:nowrap"'


def _numeric(rows: Sequence[Row], column: str) -> bool:
    return all(type(row.get(column)) in (int, float, type(None)) for row in rows)


_SIZES = ("bytes", "used", "each")
"""Columns whose values are numbers of bytes."""


def cell(column: str, value: object) -> str:
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
    """Return a number of bytes in a readable unit.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    size = float(count)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def totals_by_key(members: Iterable[tuple[Hashable, Hashable | None, int]]) -> list[tuple[Any, int, int]]:
    """Return ``(key, count, bytes)`` for each key, most bytes first, from a key, a storage and its size for each row.

    Each storage counts once, for the first key that has it.
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


_COMPARED = 300
"""The longest name that is compared with others, in characters."""


def closest(wanted: str, there: Iterable[str]) -> str:
    """Return up to twelve of some names, those most like the wanted one first, and the number of others.

    >>> closest("relv", ["tanh", "relu"])
    'relu, tanh'
    """
    import difflib

    every = list(there)
    comparable = [one for one in every if len(one) <= _COMPARED]  # comparing takes time quadratic in the length
    near = difflib.get_close_matches(str(wanted)[:_COMPARED], comparable, n=3, cutoff=0.4)
    return listed(list(dict.fromkeys([*near, *every])), 12)


def listed(names: Sequence[str], most: int) -> str:
    """Return up to `most` names, and the number of the others.

    >>> listed(["a", "b", "c"], 2), listed(["a", "b"], 2)
    ('a, b, and 1 more', 'a, b')
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
