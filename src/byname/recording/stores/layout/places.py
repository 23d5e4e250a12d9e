"""Which parts does a place have in the file? One, as long as all its values are of one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from byname.recording.sampling import Sampling
from byname.recording.series import Series
from byname.recording.stores.layout.arrays import Settings
from byname.recording.stores.layout.columns import Part
from byname.recording.stores.layout.names import ASKED, group_name
from byname.recording.stores.layout.parts import SHAPES, Batch, Form, batches

__all__ = ["Place"]


class Place:
    """A place in a file that is being written.

    Args:
        file: open for writing.
        path: the place.
        number: how many places the file had before.
        settings: of the file.
        sampling: how its values were taken, if that is known.
    """

    def __init__(self, file: Any, path: str, number: int, settings: Settings, sampling: Sampling | None = None) -> None:
        self._path = path
        self._group = file.create_group(group_name(path))
        self._group.attrs["path"] = path
        self._group.attrs["number"] = number
        for name, fact in ({} if sampling is None else sampling.facts()).items():
            self._group.attrs[ASKED.get(name, name)] = fact
        self.sampling = sampling
        self._by_form: dict[Form, Part] = {}
        self._own: set[Form] = set()  # those with rows of their own
        self._shapes: Counter[Any] = Counter()
        self._count = 0
        self._settings = settings

    @property
    def parts(self) -> Iterable[Part]:
        """One for each form of values."""
        return self._by_form.values()

    def named(self) -> Iterator[tuple[tuple[str, ...], Part]]:
        """The parts, with the names that lead to each from the file."""
        own = group_name(self._path)
        for number, part in enumerate(self._by_form.values()):
            yield ((own, "more", str(number)) if number else (own,)), part

    def write(self, series: Series) -> None:
        """Adds records."""
        several = batches(series, self._count, self._settle)
        ordered = len({*self._by_form, *(batch.form for batch in several)}) > 1
        for batch in several:
            self._part(batch).write(batch, ordered=ordered)
        self._count += len(series)

    def _settle(self, form: Form) -> Form:
        """The form in which values are stored: where there are many shapes, those that come later are laid flat."""
        if form in self._own or form.kind != "tensor" or form.padded:
            return form
        alike = (form.dtype, form.shard)
        if self._shapes[alike] >= SHAPES:
            return replace(form, layout="flat", shape=tuple(0 for _ in form.shape))
        self._shapes[alike] += 1
        self._own.add(form)
        return form

    def _part(self, batch: Batch) -> Part:
        form = batch.form
        if form not in self._by_form:
            group = self._group if not self._by_form else self._group.create_group(f"more/{len(self._by_form)}")
            self._by_form[form] = Part(group, form, self._settings, batch)
        return self._by_form[form]
