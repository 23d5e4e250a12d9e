"""Which process is this, and which files are there of a run?"""

from pathlib import Path

import pytest
import torch.distributed as dist
from processes import run_forked

from byname.recording.distributed.ranks import rank, rank_file, rank_files, rank_of, world


def test_a_program_without_other_processes_is_rank_0_of_1():
    assert (rank(), world()) == (0, 1)


def test_asking_does_not_import_torch_distributed():
    told = run_forked("""
        import sys
        from byname.recording.distributed import ranks
        kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("torch.distributed")}
        print(ranks.rank(), ranks.world(), [name for name in sys.modules if name.startswith("torch.distributed")])
    """)
    assert told == ["0", "1", "[]"]


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_the_process_group_of_the_program_is_asked(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert (rank(), world()) == (0, 1)
    finally:
        dist.destroy_process_group()
    assert (rank(), world()) == (0, 1)


@pytest.mark.parametrize(
    ("path", "due"),
    [
        ("run.h5", "run.rank1.h5"),
        ("some/where/run.h5", "some/where/run.rank1.h5"),
        ("run.v2.h5", "run.v2.rank1.h5"),
        ("run", "run.rank1"),
        (".h5", ".h5.rank1"),
        ("run[1]*.h5", "run[1]*.rank1.h5"),
        ("run.rank0.h5", "run.rank0.rank1.h5"),
    ],
)
def test_rank_files_have_the_rank_before_the_suffix_and_are_found(tmp_path, path, due):
    assert rank_file(path, 1) == Path(due)
    assert rank_of(due) == 1
    whole = tmp_path / path
    whole.parent.mkdir(parents=True, exist_ok=True)
    for number in (11, 0, 2):
        rank_file(whole, number).write_text("")
    assert list(rank_files(whole)) == [0, 2, 11]
    assert rank_files(whole) == {number: rank_file(whole, number) for number in (0, 2, 11)}


def test_only_the_files_of_this_run_are_found(tmp_path):
    for name in (
        "run.h5 run.rank0.h5 run.rank01.h5 run.rank.h5 run.rank-1.h5 run.rankx.h5 run.rank0.hdf5 run2.rank1.h5 "
        "run.v2.rank1.h5 run.rank0.rank3.h5 xrun.rank4.h5 run.rank5.h5.part"
    ).split():
        (tmp_path / name).write_text("")
    (tmp_path / "run.rank7.h5").mkdir()
    assert list(rank_files(tmp_path / "run.h5")) == [0]
    assert list(rank_files(tmp_path / "run.rank0.h5")) == [3]
    assert list(rank_files(tmp_path / "run.v2.h5")) == [1]


def test_a_directory_that_is_not_there_has_no_rank_files(tmp_path):
    (tmp_path / "file").write_text("")
    assert rank_files(tmp_path / "none" / "run.h5") == {}
    assert rank_files(tmp_path / "file" / "run.h5") == {}


@pytest.mark.parametrize(
    "name", ["run.h5", "run.rank.h5", "rank0.h5", "run.rank01.h5", "run.rank1x.h5", "run.RANK1.h5"]
)
def test_other_names_speak_of_no_rank(name):
    assert rank_of(name) is None
