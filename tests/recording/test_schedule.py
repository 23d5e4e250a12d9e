"""Which iterations are due is what a count by hand says, and a schedule without meaning is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byname.errors import BadArgumentError
from byname.recording.sampling import Schedule, Time

MODES = {"train": {"train"}, "eval": {"eval"}, "both": {"train", "eval"}}


@given(
    st.integers(1, 9),
    st.integers(0, 9),
    st.none() | st.integers(1, 20),
    st.sampled_from([*MODES]),
    st.sampled_from(["train", "eval"]),
)
def test_iterations_are_due_as_counted_by_hand(every, start, length, mode, now):
    stop = None if length is None else start + length
    schedule = Schedule(every, start, stop, mode)
    due = [number for number in range(40) if schedule.due(Time(now, number))]
    counted = list(range(start, 40 if stop is None else min(stop, 40), every))
    assert due == (counted if now in MODES[mode] else [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": 0}, "every is a whole number from 1 on, not 0"),
        ({"every": 2.0}, "every is a whole number from 1 on, not 2.0"),
        ({"every": True}, "not True"),
        ({"start": -1}, "start is a whole number from 0 on"),
        ({"start": 5, "stop": 5}, "stop=5 is not after start=5"),
        ({"stop": 0}, "stop is a whole number from 1 on"),
        ({"mode": "training"}, "'train', 'eval', 'both', not 'training'"),
    ],
)
def test_a_schedule_without_meaning_is_refused(wrong, said):
    with pytest.raises(BadArgumentError, match=said):
        Schedule(**wrong)


def test_a_schedule_is_over_when_its_last_iteration_has_passed_in_every_mode_it_has():
    times = Time("train", 5), Time("eval", 2)
    in_training = {"mode": "train"}
    assert Schedule(stop=5, **in_training).over(*times) and not Schedule(stop=6, **in_training).over(*times)
    assert not Schedule().over(*times) and not Schedule(stop=5).over(*times)
    assert Schedule(stop=2).over(*times) and Schedule(stop=2, mode="eval").over(*times)
