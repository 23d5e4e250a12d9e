"""Is what all ranks have seen together the same as what one process sees of all the data?"""

import os
from pathlib import Path

import pytest
import torch.distributed as dist
from every_statistic import EVERY
from processes import run_forked_ranks

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

START = f"""
import os, sys
import torch, torch.distributed as dist
from datetime import timedelta
torch.set_num_threads(1)
sys.path += {[str(one) for one in Path(__file__).parents[1:3]]!r}
from every_statistic import EVERY, assert_same
from byname.analyse import *
from byname.errors import BadArgumentError

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()

def filled(case, numbers):
    made = case.make()
    for number in numbers:
        made.add(*case.batch(1 + number % 5, seed=number))
    return made

def error_of(call):
    try:
        call()
    except BadArgumentError as error:
        return " ".join(str(error).split())

def leave():  # a process group that is torn down at exit may hang or crash (PyTorch 2.13, gloo)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
"""

SAME = (
    START
    + """
numbers = {0: [0, 1, 2], 1: [], 2: [3], 3: [4, 5, 6, 7, 8, 9]}  # one rank saw nothing
found = []
for name, case in EVERY.items():
    mine = filled(case, numbers[rank])
    before = mine.state_dict()
    whole = mine.reduce()
    assert_same(mine.state_dict(), before)
    assert type(whole) is type(mine) and whole is not mine
    expected = filled(case, [number for each in range(world) for number in numbers[each]])
    assert whole.count == expected.count
    assert_same(case.told(whole), case.told(expected), case.rtol)
    found.append(whole.state_dict())
    print(name)
everyone = [None] * world
dist.all_gather_object(everyone, found)
assert_same(everyone, [found] * world)  # to the last bit
assert_same(Mean().reduce().state_dict(), Mean().state_dict())
"""
)

SUBGROUP = """
some = dist.new_group([1, 3])
for name, case in EVERY.items():
    mine = filled(case, [rank])
    if rank in (1, 3):
        assert_same(case.told(mine.reduce(some)), case.told(filled(case, [1, 3])), case.rtol)
    else:
        assert f"rank {rank} is not in this group" in error_of(lambda: mine.reduce(some))
    print(name)
assert Mean().add([float(rank)]).reduce().mean().item() == 1.5  # all together again
"""


def test_all_ranks_get_what_a_single_process_gets(tmp_path):
    assert run_forked_ranks(tmp_path, SAME + "leave()", world=2) == [list(EVERY)] * 2


def test_of_four_ranks_all_do_and_a_subgroup_reduces_alone_and_others_are_told(tmp_path):
    assert run_forked_ranks(tmp_path, f"{SAME}{SUBGROUP}leave()", world=4) == [[*EVERY, *EVERY]] * 4


def test_ranks_that_differ_are_all_told_which_and_none_waits(tmp_path):
    program = """
    kinds = {
        "settings": [Extremes(), Extremes(nan="raise"), Extremes()],
        "shape": [Extremes().add([[1.0]]), Extremes().add([[1.0]]), Extremes().add([[1.0, 2.0]])],
        "type": [Extremes().add([1]), Extremes().add([1.5]), Extremes().add([1])],
        "kind": [Extremes(), Extremes(), History()],
        "limit": [History(limit=16).add([1.0])] * 3,
    }
    for name, each in kinds.items():
        before = each[rank].state_dict()
        print(name, error_of(each[rank].reduce))
        assert_same(each[rank].state_dict(), before)
    print(Extremes().add([float(rank)]).reduce().result().max.item())
    leave()
    """
    told = run_forked_ranks(tmp_path, START + _flat(program), world=3)
    assert [lines[-1] for lines in told] == ["2.0"] * 3  # they go on together
    by_name = [dict(line.split(" ", 1) for line in lines[:-1]) for lines in told]
    for rank, of in enumerate(by_name):
        mine, other = ("raise", "omit") if rank == 1 else ("omit", "raise")
        told = f"this is the state of an Extremes with nan={other!r} and cannot be loaded into one with nan={mine!r}: load it"
        assert of["settings"].startswith(f"rank {0 if rank == 1 else 1} cannot be merged with the others: {told}")
        assert of["shape"].startswith(
            "rank 2 cannot be merged with the others: the samples of this Extremes had shape (1,)"
        )
        assert of["type"].startswith("rank 1 cannot be merged with the others: Extremes was given torch.int64 before")
        told = "this is the state of an Extremes, not" if rank == 2 else "this is the state of a History, not"
        assert of["kind"].startswith(f"rank {0 if rank == 2 else 2} cannot be merged with the others: {told}")
        assert of["limit"].startswith("rank 2 cannot be merged with the others: this History would hold 24 bytes")


def test_ranks_seen_by_other_processes_are_not_asked_without_a_group():
    assert "RANK" not in os.environ
    case = EVERY["Mean"]
    assert case.make().add(*case.batch(3)).reduce().count == 3


def _flat(program):
    return program.replace("\n    ", "\n")
