"""Gather: windows of all ranks come to rank 0 as one, whatever becomes of the others, and nobody waits for them."""

import pytest
import torch
import torch.distributed as dist
from several import KILLED, run_ranks

from byname import Series
from byname.recording.distributed.gather import combined
from byname.recording.distributed.gather import gatherer as made

gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

GATHER = """
from byname import Series
from byname.recording.distributed.gather import gatherer as made

def window(*iterations, path="x", width=None, times=1):
    n = len(iterations)
    values = [torch.full((rank + 1, i % 3) if width is None else (width,), float(i)) for i in iterations]
    shapes = [tuple(value.shape) for value in values]
    return {path: Series(path, values, list(iterations), [rank] * n, [0] * n, ["train"] * n, shapes)}

got = []

def collect(gatherer):
    got.extend(gatherer.ready())
    gatherer.stored()

def finish(gatherer, **options):
    got.extend(gatherer.closing(**options))
    gatherer.close()
    told = [[one["x"].iterations, one["x"].ranks, [v.flatten().tolist() for v in one["x"].values]] for one in got if "x" in one]
    kept = [i for one in gatherer.undelivered() for i in one["x"].iterations]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("byname")]
    tell(got=told, kept=kept, lost=gatherer.lost(), threads=threads, groups=len(dist.distributed_c10d._world.pg_map))
"""


def series(path="x", rank=0, values=(), iterations=None, calls=None, modes=None):
    values = values if isinstance(values, torch.Tensor) else list(values)
    n = len(values)
    shapes = [tuple(value.shape) if isinstance(value, torch.Tensor) else () for value in values]
    iterations = list(range(n)) if iterations is None else iterations
    return Series(path, values, iterations, [rank] * n, calls or [0] * n, modes or ["train"] * n, shapes)


def one(told):
    (fact,) = told
    return fact


def moments(told):
    """The iterations and ranks that came, window by window."""
    return [(tuple(iterations), tuple(ranks)) for iterations, ranks, _ in told["got"]]


# several ranks' windows as one


def test_records_of_all_ranks_are_ordered_by_iteration_then_rank():
    first = series(rank=0, values=[1, 2, 3], iterations=[4, 4, 5], calls=[0, 1, 0])
    second = series(rank=1, values=[10, 20], iterations=[3, 5])
    other = series(path="y", rank=1, values=["only here"], iterations=[5])
    found = combined([{"x": first}, {"x": second, "y": other}, {}])
    assert found["x"].iterations == [3, 4, 4, 5, 5]
    assert found["x"].ranks == [1, 0, 0, 0, 1]
    assert found["x"].calls == [0, 0, 1, 0, 0]
    assert found["x"].values == [10, 1, 2, 3, 20]
    assert found["y"].values == ["only here"]


def test_training_and_evaluation_stay_in_their_turns():
    turns = ["train", "train", "eval", "train"]
    parts = [{"x": series(rank=rank, values=[1, 2, 3, 4], iterations=[8, 9, 0, 10], modes=turns)} for rank in (0, 1)]
    found = combined(parts)["x"]
    assert found.iterations == [8, 8, 9, 9, 0, 0, 10, 10]
    assert found.modes == [mode for mode in turns for _ in range(2)]


def test_stacked_values_stay_stacked_where_they_fit():
    fits = combined([{"x": series(values=torch.ones(2, 3))}, {"x": series(rank=1, values=torch.zeros(2, 3))}])["x"]
    assert torch.equal(fits.values[:, 0], torch.tensor([1.0, 0.0, 1.0, 0.0]))
    differs = combined([{"x": series(values=torch.ones(2, 3))}, {"x": series(rank=1, values=torch.zeros(2, 4))}])["x"]
    assert [tuple(value.shape) for value in differs.values] == [(3,), (4,), (3,), (4,)]


def test_one_process_alone_gets_its_own_windows_at_once():
    gatherer = made()
    gatherer.offer(0, {"x": series(values=[1])})
    assert [window["x"].values for window in gatherer.ready()] == [[1]]
    gatherer.offer(1, {"x": series(values=[2])})
    assert [window["x"].values for window in gatherer.closing()] == [[2]]
    gatherer.close()
    assert (gatherer.undelivered(), gatherer.lost()) == ([], [])


# with real processes


@gloo
def test_windows_of_two_ranks_come_together_at_rank_0_and_nothing_is_left(tmp_path):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=30)
for number in range(12):
    if rank == 0 or number % 4:  # a rank may have nothing in a window, or less
        gatherer.offer(number, window(2 * number) if rank == 0 else window(2 * number, 2 * number + 1))
    elif number == 4:
        gatherer.offer(number, {})
    collect(gatherer)
if rank == 1:
    gatherer.offer(12, window(24, 25))  # and one more than the other
finish(gatherer)
leave()
""",
    )
    first, second = one(first), one(second)
    both = [((2 * n, 2 * n, 2 * n + 1), (0, 1, 1)) if n % 4 else ((2 * n,), (0,)) for n in range(12)]
    assert moments(first) == [*both, ((24, 25), (1, 1))]
    assert first["got"][1][2] == [[2.0, 2.0], [2.0] * 4, []]
    assert second["got"] == []
    for told in (first, second):
        assert (told["kept"], told["lost"], told["threads"], told["groups"]) == ([], [], [], 1)


@gloo
def test_when_a_rank_is_killed_the_others_go_on_and_rank_0_says_what_is_missing(tmp_path):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=30)
for number in range(10):
    gatherer.offer(number, window(number))
    collect(gatherer)
    if rank == 1 and number == 5:
        wait_for("the sixth is there")
        kill()
    while rank == 0 and number == 5 and not any(5 in one["x"].iterations for one in got):
        collect(gatherer)
        time.sleep(0.01)
    if rank == 0 and number == 5:
        announce("the sixth is there")
finish(gatherer)
leave()
""",
        ends={1: KILLED},
    )
    told = one(first)
    assert moments(told) == [((n, n), (0, 1)) if n < 6 else ((n,), (0,)) for n in range(10)]
    (lost,) = told["lost"]
    assert "rank 1 ended without closing" in lost and "after iteration 5 are missing" in lost
    assert told["threads"] == []


@gloo
def test_when_rank_0_is_killed_the_others_keep_what_it_had_not_stored(tmp_path):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=30)
for number in range(10):
    gatherer.offer(number, window(number))
    collect(gatherer)
    if rank == 0 and number == 5:
        while len(got) < 6:
            collect(gatherer)
        tell(stored=[one["x"].iterations for one in got])
        kill()
    time.sleep(0.02)
finish(gatherer)
leave()
""",
        ends={0: KILLED},
    )
    stored = {i for iterations in one(first)["stored"] for i in iterations}
    told = one(second)
    assert stored == set(range(6))
    assert set(told["kept"]) | stored == set(range(10))
    assert told["kept"] == sorted(told["kept"])
    (lost,) = told["lost"]
    assert lost.startswith("rank 0 ") and "this rank's own file" in lost  # gloo does not always notice the end
    assert told["threads"] == []


@gloo
@pytest.mark.slow
def test_a_stopped_rank_holds_nobody_up_and_keeps_its_own(tmp_path):
    first, second, third = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=3)
for number in range(20):
    gatherer.offer(number, window(number))
    collect(gatherer)
    time.sleep(0.02)
    if rank == 1 and number == 10:
        stop_until("rank 0 is done")
finish(gatherer)
announce(f"rank {rank} is done")
leave()
""",
        world=3,
    )
    first, second, third = one(first), one(second), one(third)
    came = {(i, r) for iterations, ranks in moments(first) for i, r in zip(iterations, ranks)}
    assert {(i, r) for i in range(20) for r in (0, 2)} <= came
    assert {i for i, r in came if r == 1} | set(second["kept"]) == set(range(20))
    assert any("rank 1 had not closed" in sentence for sentence in first["lost"])
    assert (third["kept"], third["lost"]) == ([], [])


@gloo
@pytest.mark.slow
def test_a_stopped_rank_0_holds_nobody_up_and_what_is_too_much_is_kept(tmp_path):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=20, limit=1 << 20)
gatherer.offer(0, window(0))
if rank == 0:
    stop_until("all is offered")
    for number in range(1, 40):
        gatherer.offer(number, window(number))
else:
    for number in range(1, 40):  # 400 KB each
        gatherer.offer(number, window(number, width=100_000))
    announce("all is offered")
finish(gatherer)
leave()
""",
    )
    first, second = one(first), one(second)
    came = {i for iterations, ranks in moments(first) for i, r in zip(iterations, ranks) if r == 1}
    assert came | set(second["kept"]) == set(range(40))
    assert not came & set(second["kept"])
    assert came and second["kept"]
    assert any("not yet stored 1 MiB" in sentence for sentence in second["lost"])


@gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(0)", 0), ("raise ValueError('oh')", 1), ("dist.destroy_process_group(); sys.exit(3)", 3)],
)
def test_a_rank_that_forgets_to_close_ends_as_it_would_without(tmp_path, end, code):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + f"""
gatherer = made(timeout=20)
for number in range(6):
    gatherer.offer(number, window(number))
    collect(gatherer)
    if rank == 1 and number == 3:
        {end}
finish(gatherer)
leave()
""",
        ends={1: code},
    )
    (lost,) = one(first)["lost"]
    assert "rank 1 ended without closing" in lost
    assert [iterations[0] for iterations, _ in moments(one(first))] == list(range(6))


@gloo
@pytest.mark.slow
def test_a_rank_that_never_records_is_an_error_of_the_others_in_time(tmp_path):
    first, second = run_ranks(
        tmp_path,
        """
from byname.errors import RecordingError
from byname.recording.distributed.gather import gatherer as made
if rank == 0:
    try:
        made(timeout=2)
    except RecordingError as error:
        tell(error=str(error), threads=threading.active_count())
    announce("it was told")
else:
    wait_for("it was told")
leave()
""",
    )
    told = one(first)
    assert "needs all 2 ranks to call byname.record" in told["error"] and told["threads"] == 1


@gloo
@pytest.mark.slow
def test_steps_longer_than_the_timeout_lose_nothing(tmp_path):
    first, second = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=0.5)
for number in range(4):
    time.sleep(1 + rank * (number % 2))
    gatherer.offer(number, window(number))
    collect(gatherer)
dist.barrier()
finish(gatherer, timeout=20)
leave()
""",
    )
    first, second = one(first), one(second)
    came = sorted((i, r) for iterations, ranks in moments(first) for i, r in zip(iterations, ranks))
    assert came == [(i, r) for i in range(4) for r in (0, 1)]
    assert (first["lost"], second["lost"], second["kept"]) == ([], [], [])


@gloo
@pytest.mark.slow
def test_large_windows_of_four_ranks_arrive_whole(tmp_path):
    told = run_ranks(
        tmp_path,
        GATHER
        + """
gatherer = made(timeout=60)
for number in range(30):
    gatherer.offer(number, window(number, width=500_000 * (rank + number % 2)))
    collect(gatherer)
    time.sleep(0.05)
got.extend(gatherer.closing())
gatherer.close()
right = all(
    (value == iteration).all() and len(value) == 500_000 * (whose + iteration % 2)
    for one in got
    for value, iteration, whose in zip(one["x"].values, one["x"].iterations, one["x"].ranks)
)
tell(right=bool(right), ranks=[one["x"].ranks for one in got], lost=gatherer.lost(), kept=len(gatherer.undelivered()))
leave()
""",
        world=4,
    )
    assert one(told[0])["ranks"] == [[0, 1, 2, 3]] * 30
    assert all(one(fact)["right"] and not one(fact)["lost"] and not one(fact)["kept"] for fact in told)
