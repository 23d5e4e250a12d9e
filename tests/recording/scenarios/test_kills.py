"""Does a recording open after a kill at any moment, with everything right that came before the last flush?"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from noted import same
from processes import Fork
from training_to_kill import FLUSH_EVERY, PLACES, truth

import byname

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the trainings that are killed")

STEPS = 60
TRUTH = {}


def true_values(rank):
    """Made once: the training is the same each time."""
    if rank not in TRUTH:
        TRUTH[rank] = truth(STEPS, rank)
    return TRUTH[rank]


class Launcher:
    """A process that has PyTorch loaded, and forks trainings."""

    def __init__(self):
        program = str(Path(__file__).parent.with_name("training_to_kill.py"))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = Fork([program], text=True, **pipes)
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()

    def start(self, directory, rank=0, world=1):
        print(STEPS, directory, rank, world, file=self.process.stdin, flush=True)
        return Training(self, int(self.process.stdout.readline()), directory / f"side{rank}")

    def errors(self):
        """What the trainings have written to stderr since it was last read."""
        os.set_blocking(self.process.stderr.fileno(), False)
        try:
            return os.read(self.process.stderr.fileno(), 1 << 16).decode()
        except BlockingIOError:
            return ""

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


class Training:
    """A forked training, and what it has said."""

    def __init__(self, launcher, pid, side):
        self.launcher, self.pid, self.side = launcher, pid, side

    @property
    def said(self):
        return self.side.read_text().splitlines() if self.side.exists() else []

    @property
    def alive(self):
        """A child that has ended stays as a zombie until its parent ends."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def wait_for(self, words, seconds=60):
        until = time.monotonic() + seconds
        while not any(line.startswith(words) for line in self.said):
            if not self.alive and not any(line.startswith(words) for line in self.said):
                pytest.fail(f"ended after {self.said[-1:]}: {self.launcher.errors()}")
            assert time.monotonic() < until, f"said only {self.said[-1:]}"
            time.sleep(0.0005)

    def kill(self):
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, seconds=60):
        until = time.monotonic() + seconds
        while self.alive:
            assert time.monotonic() < until
            time.sleep(0.001)


@pytest.fixture(scope="module")
def launcher():
    launched = Launcher()
    yield launched
    launched.close()


def check(path, said, rank=0):
    """Opens what a killed training left, and compares it with the truth; how many whole steps are there."""
    expected = true_values(rank)
    flushed = max([int(line.split()[1]) for line in said if line.startswith("flushed ")], default=0)
    with byname.open(path) as recording:
        if "closing" not in said:
            assert not recording.complete
        assert recording.complete == (recording.missing == ())
        assert recording.complete or all(type(sentence) is str and sentence for sentence in recording.missing)
        assert set(recording.paths) <= set(PLACES)
        found = {path: records_of(recording[path], rank) for path in recording.paths}
        whole = recording.complete or "closed" in said
    for place in PLACES:
        got, true = found.get(place, {}), {key[1:]: value for key, value in expected.items() if key[0] == place}
        keys = [key for key in true if key in got]
        assert list(got) == keys == list(true)[: len(keys)], f"{place}: {len(got)} of {len(true)} are no prefix"
        assert [key for key in keys if not same(got[key], true[key])] == []
        lost = [key for key in true if key not in got and (key[0] < flushed or whole)]
        assert lost == [], f"{place}: {lost[:3]} were flushed"
    return flushed


def records_of(series, rank):
    keys = list(zip(map(int, series.iterations), map(int, series.calls)))
    assert len(keys) == len(set(keys)) == len(series.values)
    series_ranks = series.ranks
    assert all(int(one) == rank for one in series_ranks)
    return dict(zip(keys, series.values))


def duration(launcher, directory):
    """Of a whole training, in seconds."""
    directory.mkdir()
    begun = time.monotonic()
    training = launcher.start(directory)
    training.wait_for("closed")
    seconds = time.monotonic() - begun
    training.wait()
    check(directory / "run.h5", training.said)
    return seconds


def kill_at_random(launcher, tmp_path, count, seed):
    chance = random.Random(seed)
    longest = duration(launcher, tmp_path / "whole")
    flushes = []
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        training = launcher.start(directory)
        training.wait_for("recording")
        time.sleep(pause := chance.uniform(0, longest))
        training.kill()
        flushes.append(check(directory / "run.h5", training.said))
        if "closed" in training.said:  # other processes left it more time than the first one
            longest = pause
    return flushes


def test_after_a_kill_at_a_random_moment_the_file_opens_and_is_right(launcher, tmp_path):
    assert len(set(kill_at_random(launcher, tmp_path, 8, 1))) > 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_each_of_many_kills_the_file_opens_and_is_right(launcher, tmp_path):
    flushes = kill_at_random(launcher, tmp_path, 40, 2)
    assert len(set(flushes)) > 4
    assert min(flushes) < 2 * FLUSH_EVERY


def kill_when(launcher, tmp_path, count, words, longest):
    """Kills a little after the training has said these words."""
    chance = random.Random(words)
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        training = launcher.start(directory)
        training.wait_for(words)
        time.sleep(chance.uniform(0, longest))
        training.kill()
        check(directory / "run.h5", training.said)
    assert number == count - 1


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_after_a_kill_during_close_the_file_opens_and_is_right(launcher, tmp_path, count):
    kill_when(launcher, tmp_path, count, "closing", 0.02)


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_after_a_kill_during_the_first_window_the_file_opens_and_is_right(launcher, tmp_path, count):
    kill_when(launcher, tmp_path, count, "recording", 0.02)


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_after_a_kill_during_a_flush_the_file_opens_and_is_right(launcher, tmp_path, count):
    kill_when(launcher, tmp_path, count, f"step {2 * FLUSH_EVERY - 1}", 0.004)


def two_ranks(launcher, directory):
    """Two ranks that record, and their directory. Gloo meets again where it lost its own connection before that."""
    for attempt in range(3):
        own = directory / f"attempt{attempt}"
        own.mkdir(parents=True)
        trainings = [launcher.start(own, rank, 2) for rank in range(2)]
        try:
            for training in trainings:
                training.wait_for("recording")
            return own, trainings
        except pytest.fail.Exception as error:
            for training in trainings:
                training.kill()
            if attempt == 2 or "Gloo connectFullMesh failed" not in str(error):
                raise


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_after_a_kill_of_two_ranks_both_files_open_and_are_right(launcher, tmp_path, count):
    chance = random.Random(5)
    for number in range(count):
        directory, trainings = two_ranks(launcher, tmp_path / str(number))
        time.sleep(chance.uniform(0, 0.3))
        for training in trainings:
            training.kill()
        with byname.open(directory / "run.h5") as recording:
            finished = all("closing" in training.said for training in trainings)
            assert finished or not recording.complete
            assert recording.complete or recording.missing
        for rank, training in enumerate(trainings):
            check(directory / f"run.rank{rank}.h5", training.said, rank)


def test_a_rank_that_is_killed_stops_no_other(launcher, tmp_path):
    tmp_path, trainings = two_ranks(launcher, tmp_path)
    trainings[1].wait_for("flushed")
    trainings[1].kill()
    trainings[0].wait_for("closed")
    trainings[0].wait()
    check(tmp_path / "run.rank0.h5", trainings[0].said, 0)
    with byname.open(tmp_path / "run.h5") as recording:
        said, complete = trainings[1].said, recording.complete
        counts = [sum(int(rank) == one for rank in recording["forward.h"].ranks) for one in (0, 1)]
        assert counts[0] == 2 * STEPS and counts[1] >= 2 * FLUSH_EVERY
        assert complete or "closed" not in said
        assert not complete or ("closing" in said and counts[1] == 2 * STEPS)  # its log may end before it says "closed"
        assert complete or any("rank 1" in sentence or "rank1" in sentence for sentence in recording.missing)


def test_a_killed_recording_opens_again_and_again_and_is_not_changed_by_it(launcher, tmp_path):
    training = launcher.start(tmp_path)
    training.wait_for("flushed")
    training.kill()
    first = check(tmp_path / "run.h5", training.said)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"run.h5.log", "side0"}
    assert check(tmp_path / "run.h5", training.said) == first
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert check(tmp_path / "run.h5", training.said) == first


def test_a_new_run_overwrites_a_killed_one_only_when_asked(launcher, tmp_path):
    training = launcher.start(tmp_path)
    training.wait_for("flushed")
    training.kill()
    import torch

    model = torch.nn.Linear(1, 1)
    with pytest.raises(FileExistsError):
        byname.record(model, "weight", to=tmp_path / "run.h5")
    check(tmp_path / "run.h5", training.said)
    with byname.record(model, "weight", to=tmp_path / "run.h5", overwrite=True):
        model(torch.ones(1))
    with byname.open(tmp_path / "run.h5") as recording:
        assert (recording.complete, recording.paths, len(recording["weight"])) == (True, ("weight",), 1)
