"""Is it told where ranks drift apart, and nothing where they do not?"""

import processes
import pytest
import torch.distributed as dist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo"),
]

PROGRAM = """
import os, socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def average(net):
    for one in net.parameters():
        dist.all_reduce(one.data)
        one.data /= 2

def average_gradients(parameters):
    for one in parameters:
        dist.all_reduce(one.grad)
        one.grad /= 2

def averaged_already(parameters):
    average_gradients([one for one in parameters if one.grad is not None])
    return 1

def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    ddp = DistributedDataParallel(net)
    {change}
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    torch.manual_seed(100 + rank)
    for step in range(20):
        x = torch.randn(16, 6) + rank
        with {around}:
            loss = (ddp(x){result} - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
        {reduce}
        optimizer.step()
        {after}
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)

if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(work, args=(port,), nprocs=2, start_method="{start}")
"""
ALONE = "net = ddp = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))"
BY_HAND = {"change": f"torch.manual_seed(0); {ALONE}", "reduce": "average_gradients(net.parameters())"}
FAULTY = {
    "begun apart": ({**BY_HAND, "change": f"torch.manual_seed(rank); {ALONE}"}, "`net[0].weight`"),
    "one left out": ({**BY_HAND, "reduce": "average_gradients([*net.parameters()][:-1])"}, "`net[2].bias`"),
    "added": ({"change": "net.scale = nn.Parameter(torch.ones(1))", "result": " * net.scale"}, "`net.scale`"),
    "spawned": ({"start": "spawn", "change": "net.a = nn.Parameter(torch.ones(1))", "result": " * net.a"}, "`net.a`"),
    "initialised": ({"change": "torch.manual_seed(rank); nn.init.normal_(net[2].weight)"}, "`net[2].weight`"),
}
HEALTHY = {
    "wrapped": {},
    "spawned": {"start": "spawn"},
    "gradients averaged by hand": BY_HAND,
    "a part of each rank": {
        "change": f"torch.manual_seed(0); {ALONE}; nn.init.constant_(net[2].bias, rank)",
        "reduce": "average_gradients([*net.parameters()][:-1])",
    },
    "alone from the beginning": {"change": f"torch.manual_seed(rank); {ALONE}", "after": "dist.barrier()"},
    "averaged by hand without a wrapper": {
        **BY_HAND,
        "reduce": "dist.barrier()",
        "after": "average(net) if step % 3 == 2 else 0",
    },
    "averaged by hand": {"around": "ddp.no_sync()", "after": "average(net) if step % 3 == 2 else None"},
}


def said(tmp_path, **changed):
    source = PROGRAM
    plain = {"change": "", "around": "torch.enable_grad()", "result": "", "after": "", "reduce": "", "start": "fork"}
    for name, words in (plain | changed).items():
        source = source.replace(f"{{{name}}}", words)
    (tmp_path / "train.py").write_text(source)
    command = "-m byname run --check train.py".split()
    done = processes.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return processes.without_gloo(done.stderr)


@pytest.mark.parametrize("name", FAULTY)
def test_ranks_that_drift_apart_are_told_with_the_first_parameter_and_the_step(name, tmp_path):
    how, parameter = FAULTY[name]
    told = said(tmp_path, **how)
    assert (
        f"ranks-apart: {parameter} has other values in rank 1 than in rank 0 since step 1 of SGD at train.py:" in told
    )
    assert ("it was added at train.py:" in told and "after the wrapping" in told) == (name in ("added", "spawned"))


def test_gradients_that_no_sync_never_lets_out_are_told(tmp_path):
    told = said(tmp_path, around="ddp.no_sync()")
    assert "ranks-apart: suspicious: each backward at train.py:" in told and "the last one too" in told


def test_a_module_that_is_called_past_its_wrapper_is_told_in_each_rank(tmp_path):
    told = said(tmp_path, change="wrapped, ddp = ddp, net")
    assert told.count("bare-module: the module itself is called at train.py:") == 2
    assert "the gradients of `net[0].weight`, `net[0].bias`, `net[2].weight`" in told


def test_ranks_with_the_same_batches_are_told(tmp_path):
    told = said(tmp_path, change="rank = 0")
    assert "ranks-alike: suspicious: rank 1 is given the same batches at train.py:" in told


def test_gradients_that_are_averaged_before_the_backward_are_told(tmp_path):
    told = said(tmp_path, change=BY_HAND["change"], result=" * averaged_already(net.parameters())")
    assert told.count("ranks-apart: all_reduce() of the gradients at train.py:") == 2
    assert "comes before the backward at train.py:" in told and "behind the backward" in told


def test_ranks_that_begin_equal_and_never_exchange_anything_are_told(tmp_path):
    told = said(tmp_path, change=BY_HAND["change"], after="dist.barrier()")
    assert "ranks-apart: suspicious: `net[0].weight` has the same values in rank 1 as in rank 0 at first" in told
    assert "since step 1 of SGD at train.py:" in told and "DistributedDataParallel" in told


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_told_of_ranks_that_are_equal_now_and_then(name, tmp_path):
    assert said(tmp_path, **HEALTHY[name]) == ""
