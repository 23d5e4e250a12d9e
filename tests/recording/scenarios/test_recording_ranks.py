"""Is a run of several processes recorded: in a file of each, or in one of all, whatever becomes of single ranks?"""

import pytest
import torch
import torch.distributed as dist
from several import KILLED, run_ranks

import byname

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

TRAIN = """
import contextlib, warnings
import byname
from byname.errors import RecordingWarning
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 6)
        self.fc2 = nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        h = self.fc1(x).relu()
        kept = {"many": len(x), "rank": dist.get_rank()}
        self.seen += len(x)
        return self.fc2(h)

def batch(iteration, of=None):
    of = rank if of is None else of
    torch.manual_seed(1000 * of + iteration)
    return torch.randn(1 + (iteration + of) % 3, 4)  # each rank has its own sizes

torch.manual_seed(0)
net = Net()
where = ["forward.h", "forward.kept", "fc1.weight.grad", "fc2.bias", "seen"]

def train(model, iterations, each=lambda iteration: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in iterations:
        optimizer.zero_grad()
        model(batch(iteration)).mean().backward()
        optimizer.step()
        each(iteration)
"""

DDP = (
    TRAIN
    + """
model = DistributedDataParallel(net)
"""
)


def came(series):
    return list(zip(series.iterations, series.ranks))


def right_sizes(series):
    return all(
        len(value) == 1 + (iteration + rank) % 3
        for value, iteration, rank in zip(series.values, series.iterations, series.ranks)
    )


def test_each_rank_writes_its_own_file_and_they_open_as_one(tmp_path):
    first, _ = run_ranks(
        tmp_path,
        DDP
        + """
gradients = []
with byname.record(model, where, to=f"{folder}/run.h5") as recorder:
    train(model, range(5), lambda iteration: gradients.append(net.fc1.weight.grad.tolist()))
tell(gradients=gradients)
leave()
""",
    )
    assert sorted(one.name for one in tmp_path.glob("*.h5")) == ["run.rank0.h5", "run.rank1.h5"]
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete and not recording.missing
        assert sorted(recording.paths) == sorted(["forward.h", "forward.kept", "fc1.weight.grad", "fc2.bias", "seen"])
        h = recording["forward.h"]
        assert sorted(came(h)) == [(i, r) for i in range(5) for r in (0, 1)]
        assert right_sizes(h)
        kept = recording["forward.kept"]
        assert all(value["rank"] == rank for value, rank in zip(kept.values, kept.ranks))
        gradient = recording["fc1.weight.grad"]
        own = dict(zip(came(gradient), gradient.values))
        for iteration, averaged in enumerate(
            first[0]["gradients"]
        ):  # each rank's own was recorded, before DDP averages
            mean = (own[iteration, 0] + own[iteration, 1]) / 2
            assert torch.allclose(mean, torch.tensor(averaged))
            assert not torch.allclose(own[iteration, 0], torch.tensor(averaged))
    with byname.open(tmp_path / "run.rank1.h5") as recording:
        assert set(recording["forward.h"].ranks) == {1}


def test_gather_every_brings_all_ranks_into_one_file(tmp_path):
    first, second = run_ranks(
        tmp_path,
        DDP
        + """
def sizes(path, series):
    seen.append((path, len(series), sorted(set(series.ranks))))
seen = []
with byname.record(model, where, to=f"{folder}/run.h5", gather_every=3, after_gather=sizes) as recorder:
    train(model, range(7))
tell(seen=[list(one) for one in seen if one[0] == "forward.h"], notes=recorder.notes, threads=threading.active_count())
warnings.simplefilter("ignore", RecordingWarning)
with contextlib.suppress(KeyError), byname.record(model, "forward.h", to=f"{folder}/left.h5", gather_every=2):
    train(model, range(3))
    if rank:
        raise KeyError("in rank 1 alone")
leave()
""",
    )
    assert sorted(one.name for one in tmp_path.glob("*.h5")) == ["left.h5", "run.h5"]
    with byname.open(tmp_path / "left.h5") as recording:
        assert recording.missing == ("rank 1: the recorded program was left in iteration 2 by a KeyError",)
    assert first[0]["seen"] == [["forward.h", 6, [0, 1]], ["forward.h", 6, [0, 1]], ["forward.h", 2, [0, 1]]]
    assert second[0]["seen"] == []
    assert (first[0]["notes"], second[0]["notes"]) == ([], [])
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete and not recording.missing
        assert came(recording["forward.h"]) == [(i, r) for i in range(7) for r in (0, 1)]
        assert right_sizes(recording["forward.h"])
        assert came(recording["forward.kept"]) == [(i, r) for i in range(7) for r in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("gather", [None, 2])
def test_recording_changes_no_parameter_of_any_rank(tmp_path, gather):
    told = run_ranks(
        tmp_path,
        DDP
        + f"""
from copy import deepcopy
start = deepcopy(net.state_dict())
train(model, range(6))
plain = [p.detach().clone() for p in net.parameters()]
net.load_state_dict(start)
with byname.record(model, where, to=f"{{folder}}/run.h5", gather_every={gather}) as recorder:
    train(model, range(6))
tell(same=all(torch.equal(a, b) for a, b in zip(plain, net.parameters())))
leave()
""",
    )
    assert [one[0]["same"] for one in told] == [True, True]


@pytest.mark.slow
def test_ranks_with_uneven_numbers_of_batches_are_all_there(tmp_path):
    run_ranks(
        tmp_path,
        TRAIN
        + """
with byname.record(net, where, to=f"{folder}/run.h5", gather_every=2) as recorder:
    train(net, range(4 + 5 * rank))
leave()
""",
    )
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete
        assert sorted(came(recording["forward.h"])) == sorted([(i, 0) for i in range(4)] + [(i, 1) for i in range(9)])


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_the_others_nothing(tmp_path):
    run_ranks(
        tmp_path,
        TRAIN
        + """
def die(iteration):
    if rank == 1 and iteration == 7:
        time.sleep(3)  # what was flushed, or sent and stored, is safe
        kill()
warnings.simplefilter("ignore", RecordingWarning)
with byname.record(net, where, to=f"{folder}/own.h5") as own:
    with byname.record(net, "forward.h", to=f"{folder}/all.h5", gather_every=2) as recorder:
        train(net, range(8), die)
        if rank == 0:
            train(net, range(8, 20), lambda iteration: time.sleep(0.4))  # windows are taken where one closes
leave()
""",
        ends={1: KILLED},
    )
    with byname.open(tmp_path / "all.h5") as recording:
        found = set(came(recording["forward.h"]))
        assert {(i, 0) for i in range(20)} <= found
        assert {(i, 1) for i in range(4)} <= found
        assert any("rank 1 ended without closing" in sentence for sentence in recording.missing)
        assert not recording.complete
    with byname.open(tmp_path / "own.h5") as recording:
        assert {(i, 0) for i in range(20)} <= set(came(recording["forward.h"]))
        assert not recording.complete and any(
            "rank1" in sentence or "rank 1" in sentence for sentence in recording.missing
        )


@pytest.mark.slow
def test_when_rank_0_is_killed_the_others_write_files_of_their_own(tmp_path):
    run_ranks(
        tmp_path,
        TRAIN
        + """
def die(iteration):
    if rank == 0 and iteration == 7:
        time.sleep(2)
        kill()
warnings.simplefilter("ignore", RecordingWarning)
with byname.record(net, where, to=f"{folder}/run.h5", gather_every=2) as recorder:
    train(net, range(8), die)
    time.sleep(4)
    train(net, range(8, 12))
tell(notes=recorder.notes)
leave()
""",
        ends={0: KILLED},
    )
    assert sorted(one.name for one in tmp_path.glob("*.h5*")) == ["run.h5.log", "run.rank1.h5"]
    with byname.open(tmp_path / "run.h5") as recording:
        found = came(recording["forward.h"])
        assert {(i, 1) for i in range(12)} <= set(found)
        assert len(found) == len(set(found))
        assert not recording.complete


@pytest.mark.slow
def test_a_rank_that_is_stopped_holds_no_step_up(tmp_path):
    run_ranks(
        tmp_path,
        TRAIN
        + """
def stop(iteration):
    if rank == 1 and iteration == 5:
        stop_until("rank 0 is done")
with byname.record(net, where, to=f"{folder}/run.h5", gather_every=2) as recorder:
    train(net, range(20), stop)
    announce(f"rank {rank} is done")
leave()
""",
    )
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete
        assert set(came(recording["forward.h"])) == {(i, r) for i in range(20) for r in (0, 1)}


@pytest.mark.slow
def test_when_rank_0_cannot_write_any_more_the_others_write_files_of_their_own(tmp_path):
    first, second = run_ranks(
        tmp_path,
        TRAIN
        + """
import resource
from byname.errors import RecordingError
warnings.simplefilter("ignore", RecordingWarning)
recorder = byname.record(net, where, to=f"{folder}/run.h5", gather_every=1)
train(net, range(4))
time.sleep(1)
train(net, range(4, 6))
if rank == 0:
    full = os.path.getsize(f"{folder}/run.h5.log") // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, full))
train(net, range(6, 12), lambda iteration: time.sleep(0.3))
try:
    recorder.close()
    tell(error=None)
except RecordingError as error:
    tell(error=str(error))
leave()
""",
    )
    assert first[0]["error"] and second[0]["error"] is None
    assert sorted(one.name for one in tmp_path.glob("run*")) == ["run.h5.log", "run.rank1.h5"]
    with byname.open(tmp_path / "run.h5") as recording:
        assert {(i, 1) for i in range(12)} <= set(came(recording["forward.h"]))
        assert not recording.complete


@pytest.mark.slow
def test_a_file_that_is_there_ends_rank_0_and_the_others_say_so(tmp_path):
    (tmp_path / "run.h5").write_text("mine")
    first, second = run_ranks(
        tmp_path,
        TRAIN
        + """
from byname.errors import RecordingError
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        with byname.record(net, where, to=f"{folder}/run.h5", gather_every=1) as recorder:
            train(net, range(3))
        error = None
    except RecordingError as found:
        error = str(found)
tell(error=error, caught=[str(one.message) for one in caught if one.category is RecordingWarning],
     threads=[one.name for one in threading.enumerate() if one.name.startswith("byname")])
leave()
""",
    )
    assert "exists already" in first[0]["error"] and (tmp_path / "run.h5").read_text() == "mine"
    assert second[0]["error"] is None and "rank 0 cannot be reached" in second[0]["caught"][0]
    assert first[0]["threads"] == second[0]["threads"] == []
    with byname.open(tmp_path / "run.rank1.h5") as recording:
        assert came(recording["forward.h"]) == [(i, 1) for i in range(3)]


@pytest.mark.slow
def test_an_error_on_one_rank_is_seen_soon_and_what_came_is_kept(tmp_path):
    run_ranks(
        tmp_path,
        TRAIN
        + """
warnings.simplefilter("ignore", RecordingWarning)
def fail(iteration):
    if rank == 0 and iteration == 5:
        raise ValueError("oh")
try:
    with byname.record(net, where, to=f"{folder}/run.h5", gather_every=2) as recorder:
        train(net, range(8), fail)
except ValueError:
    pass
leave()
""",
    )
    with byname.open(tmp_path / "run.h5") as recording:
        found = set(came(recording["forward.h"]))
        assert {(i, 0) for i in range(6)} | {(i, 1) for i in range(8)} <= found
        assert any("ValueError" in sentence for sentence in recording.missing)


FSDP = (
    TRAIN
    + """
from torch.distributed.fsdp import fully_shard
warnings.simplefilter("ignore")
fully_shard(net.fc1)
fully_shard(net)
model = net
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("gather", [None, 2])
@pytest.mark.parametrize("world", [2, 4])
def test_sharded_parameters_and_gradients_are_put_together_again(tmp_path, gather, world):
    from byname import assembled

    told = run_ranks(
        tmp_path,
        FSDP
        + f"""
where = ["fc1.weight", "fc1.bias", "fc1.weight.grad", "fc2.weight", "forward.h"]
truth, gradients = [], []
def each(iteration):
    gradients.append(net.fc1.weight.grad.full_tensor().tolist())
with byname.record(model, where, to=f"{{folder}}/run.h5", gather_every={gather}) as recorder:
    before = net.fc1.weight.full_tensor().tolist()
    train(model, range(4), each)
tell(before=before, gradients=gradients)
leave()
""",
        world=world,
    )
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.complete and not recording.missing
        weight = assembled(recording["fc1.weight"])
        assert torch.equal(weight.values[0], torch.tensor(told[0][0]["before"]))
        assert weight.iterations == [0, 1, 2, 3]
        gradient = assembled(recording["fc1.weight.grad"])
        assert torch.equal(torch.stack(list(gradient.values)), torch.tensor(told[0][0]["gradients"]))
        whole = recording["fc2.weight"]  # FSDP has the outermost module's own parameters whole when its forward ends
        assert set(whole.shapes) == {(1, 6)} and set(whole.ranks) == set(range(world))
        assert right_sizes(recording["forward.h"])
        assert set(recording["forward.h"].ranks) == set(range(world))
