"""Is the iteration of every forward known, whatever was recorded of it, and in little memory?"""

import random

import pytest

from byname.recording.clock import Times
from byname.recording.sampling import Time


@pytest.mark.parametrize("seed", range(30))
def test_the_iteration_of_every_forward_is_known_whatever_the_modes_and_gaps(seed):
    chance, times, told = random.Random(seed), Times(), {}
    counts = {"train": 0, "eval": 0}
    for forward in range(200):
        if forward % 20 == 0:
            mode, apart = chance.choice(["train", "train", "eval"]), chance.choice([1, 1, 2, 10])
        told[forward] = Time(mode, counts[mode])
        times.note(forward, told[forward])
        counts[mode] += chance.choice([apart] * 8 + [1])
    assert {forward: times.of(forward) for forward in told} == told
    assert times.of(-1) is None


@pytest.mark.parametrize("every", [1, 2, 7, 100])
def test_a_listener_that_records_one_iteration_of_several_keeps_one_stretch(every):
    times = Times()
    for forward in range(1000):
        times.note(forward, Time("train", forward * every))
    assert len(times) == 1
    assert times.of(321) == Time("train", 321 * every)
