import pytest
from hypothesis import given
from hypothesis import strategies as st

from byname.recording.stores.journal.frames import Extents

SIZE = 64
WRITES = st.lists(st.tuples(st.integers(0, SIZE - 9), st.binary(min_size=1, max_size=9)), max_size=30)


def covered(extents, start=0, size=SIZE):
    view = bytearray(b"." * size)
    extents.cover(start, memoryview(view))
    return bytes(view)


@given(WRITES, st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, SIZE))
def test_extents_are_like_one_buffer_written_over_and_over(writes, start, size, end):
    extents, buffer = Extents(), bytearray(b"." * SIZE)
    for offset, data in writes:
        extents.write(offset, data)
        buffer[offset : offset + len(data)] = data
    assert covered(extents) == buffer
    assert covered(extents, start, size)[: SIZE - start] == buffer[start : start + size]
    pieces = [(offset, offset + len(piece)) for offset, piece in extents]
    assert all(first[1] <= second[0] for first, second in zip(pieces, pieces[1:]))
    runs = list(extents.runs())
    assert all(offset + len(piece) < after for (offset, piece), (after, _) in zip(runs, runs[1:]))
    assert sum(len(piece) for _, piece in runs) == sum(stop - begin for begin, stop in pieces) == extents.size()
    copy = Extents()
    for offset, piece in runs:
        copy.write(offset, piece)
    assert covered(copy) == buffer
    extents.cut(end)
    assert covered(extents) == buffer[:end] + b"." * (SIZE - end)


@given(WRITES, WRITES)
def test_an_update_stands_over_what_was_there(below, above):
    one, two, all_of = Extents(), Extents(), Extents()
    for offset, data in below:
        one.write(offset, data)
        all_of.write(offset, data)
    for offset, data in above:
        two.write(offset, data)
        all_of.write(offset, data)
    one.update(two)
    assert covered(one) == covered(all_of)
    assert bool(one) == bool(below or above)


@given(WRITES)
def test_pieces_put_together_at_once_are_those_written_one_after_another(writes):
    made, slowly = Extents.of(writes), Extents()
    for offset, data in writes:
        slowly.write(offset, data)
    assert covered(made) == covered(slowly)
    assert list(made.runs()) == list(slowly.runs())
    starts = [offset for offset, _ in made]
    assert starts == sorted(set(starts))


class Compared(int):
    """A number that counts how often it is compared with another."""

    times = 0

    def __lt__(self, other):
        Compared.times += 1
        return int(self) < int(other)


@pytest.mark.parametrize("order", ["ascending", "descending", "one over the other"])
def test_the_work_of_putting_pieces_together_grows_with_their_number(order):
    def comparisons(count):
        Compared.times = 0
        starts = {"ascending": range(0, 2 * count, 2), "descending": range(2 * count, 0, -2)}.get(order, range(count))
        length = count if order == "one over the other" else 1
        Extents.of([(Compared(start), memoryview(bytes(length))) for start in starts])
        return Compared.times

    assert comparisons(4000) < 6 * comparisons(1000) + 1000
