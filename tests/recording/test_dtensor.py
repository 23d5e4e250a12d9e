"""Parts of distributed tensors: put together they are what `full_tensor()` gives, and none is ever made up.

Some cuts need more processes than a test has: of these `Shard` is the description, and `indices` says what a part has.
"""

from dataclasses import astuple
from itertools import product

import pytest
import torch
import torch.distributed as dist
from ranks import as_rank
from several import run_ranks
from stored_runs import written

import byname
from byname import Series, assembled
from byname.errors import BadArgumentError, NotStorableError, RecordingError
from byname.recording.distributed.dtensor import Shard, indices

gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

COMPARE = """
import byname
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

def compare(name, tensor):
    whole = tensor.detach().full_tensor()
    model = torch.nn.Identity()
    with byname.record(model, "forward") as recorder:
        model(tensor)
    mine, every = recorder.results["forward"], [None] * world
    dist.all_gather_object(every, mine)
    columns = [[x for one in every for x in getattr(one, field)] for field in
               ("values", "iterations", "ranks", "calls", "modes", "shapes", "shards")]
    found = byname.assembled(byname.Series("forward", *columns))
    (local,), (shard,) = mine.values, mine.shards
    same = torch.equal(found.values[0], whole) and found.values[0].dtype == whole.dtype
    due = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    tell(name=name, same=same, offset=shard.offset == tuple(due[1]), records=len(found), placements=shard.placements,
         plain=type(local) is torch.Tensor, graph=local.grad_fn is not None)
"""

TWO = """
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
for shape in [(4, 3), (5, 3), (1, 3), (0, 3), (7,)]:
    whole = torch.randn(shape)
    dist.broadcast(whole, 0)
    for placement in [Shard(0), Replicate()] + [Shard(1)] * (len(shape) > 1):
        compare(f"{shape} {placement}", distribute_tensor(whole, mesh, [placement]))
for operation in ["sum", "avg", "max", "min"]:
    compare(operation, DTensor.from_local(torch.randn(3, 2), mesh, [Partial(operation)], run_check=False))
compare("scalar", DTensor.from_local(torch.tensor(2.0), mesh, [Replicate()], run_check=False))
compare("bool", distribute_tensor(torch.tensor([True, False, True]), mesh, [Shard(0)]))
compare("bfloat16", distribute_tensor(torch.arange(5).bfloat16(), mesh, [Shard(0)]))
compare("transposed", distribute_tensor(torch.arange(15.0).view(5, 3), mesh, [Shard(0)]).t())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
fully_shard(model)
model(torch.ones(2, 3)).sum().backward()
for name, parameter in model.named_parameters():
    compare(name, parameter)
    compare(f"{name}.grad", parameter.grad)
whole, part = torch.arange(15.0).view(5, 3), torch.nn.Identity()
with byname.record(part, "forward", gather_every=1) as recorder:
    part(distribute_tensor(whole, mesh, [Shard(0)]))
if rank == 0:
    found = byname.assembled(recorder.results["forward"])
    tell(name="gathered", same=torch.equal(found.values[0], whole), offset=True, records=len(found), plain=True, graph=False)
leave()
"""

FOUR = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for shape in [(8, 3), (7, 5), (3, 2), (1, 1), (2, 9)]:
    whole = torch.randn(shape)
    dist.broadcast(whole, 0)
    for placements in [(Shard(0), Shard(0)), (Shard(0), Shard(1)), (Shard(1), Shard(0)), (Replicate(), Shard(0)), (Shard(1), Replicate())]:
        compare(f"{shape} {placements}", distribute_tensor(whole, mesh, placements))
for placements in [(Partial(), Shard(0)), (Shard(1), Partial("max")), (Partial(), Partial()), (Partial("avg"), Replicate())]:
    local = torch.randint(9, (2, 2)).float() if placements[1] != Replicate() else torch.full((2, 2), 1.5 * (rank // 2))
    compare(f"{placements}", DTensor.from_local(local, mesh, placements, run_check=False))
line = init_device_mesh("cpu", (4,))
for size in (1, 3, 4, 5, 6, 9):
    compare(f"line {size}", distribute_tensor(torch.arange(float(size)), line, [Shard(0)]))
for width in (8, 6, 5):  # 5 is cut unevenly, which forward does not take (PyTorch 2.13)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    try:
        fully_shard(model, mesh=mesh["dp"])
    except NotImplementedError:  # FSDP2 refuses uneven strided shards itself in some versions
        tell(name=f"refused {width}", same=True, offset=True, records=1, plain=True, graph=False, placements=[])
        continue
    if width % 2 == 0:
        model(torch.ones(2, 4)).sum().backward()
    for name, parameter in model.named_parameters():
        compare(f"2d {width} {name}", parameter)
        if parameter.grad is not None:
            compare(f"2d {width} {name}.grad", parameter.grad)
leave()
"""


def compared(folder, program, world):
    told = [fact for rank in run_ranks(folder, COMPARE + program, world) for fact in rank]
    assert told
    wrong = [fact for fact in told if not fact["same"] or not fact["offset"] or fact["records"] != 1]
    assert not wrong
    assert all(fact["plain"] and not fact["graph"] for fact in told)
    return told


@gloo
def test_two_ranks_make_the_whole_that_full_tensor_gives(tmp_path):
    told = compared(tmp_path, TWO, 2)
    assert {"0.weight", "0.weight.grad", "2.bias", "gathered"} <= {fact["name"] for fact in told}


@gloo
@pytest.mark.slow
def test_four_ranks_on_meshes_of_two_dimensions_do_so_too(tmp_path):
    told = compared(tmp_path, FOUR, 4)
    assert any("Strided" in text for fact in told for text in fact["placements"])


def parts(whole, mesh, placements, change=None):
    """The series that the ranks of a mesh would record of a tensor, without any process."""
    records = []
    for rank, coordinate in enumerate(product(*map(range, mesh))):
        shard = Shard(mesh, (), coordinate, placements, tuple(whole.shape), ())
        part = whole
        for dimension, ranges in enumerate(indices(shard)):
            part = part.index_select(dimension, torch.tensor([i for one in ranges for i in one], dtype=torch.long))
        records.append((rank, part.clone(), shard))
    if change:
        change(records)
    n = len(records)
    ranks, values, shards = (list(column) for column in zip(*records)) if n else ([], [], [])
    return Series("w", values, [7] * n, ranks, [0] * n, ["train"] * n, [tuple(v.shape) for v in values], shards)


PLACEMENTS = [
    ((4,), ("Shard(0)",)),
    ((4,), ("Shard(1)",)),
    ((2, 3), ("Shard(0)", "Shard(0)")),
    ((2, 3), ("Shard(1)", "Shard(0)")),
    ((2, 2), ("StridedShard(0, 2)", "Shard(0)")),
    ((2, 2, 2), ("StridedShard(0, 4)", "StridedShard(0, 2)", "Shard(0)")),
    ((3, 2), ("StridedShard(1, 2)", "Shard(1)")),
    ((2, 2), ("Replicate()", "Shard(0)")),
    ((2,), ("Replicate()",)),
]


@pytest.mark.parametrize(("mesh", "placements"), PLACEMENTS)
@pytest.mark.parametrize("shape", [(8, 12), (7, 5), (1, 1), (3, 0), (0, 3), (16, 2)])
def test_every_element_belongs_to_one_part_and_comes_back_to_its_place(mesh, placements, shape):
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found = assembled(parts(whole, mesh, placements))
    assert torch.equal(found.values[0], whole)
    assert (found.iterations, found.ranks, found.calls, found.modes, found.shapes) == (
        [7],
        [-1],
        [0],
        ["train"],
        [shape],
    )


def test_iterations_modes_and_calls_are_put_together_each_for_itself():
    one = parts(torch.arange(6.0), (2,), ("Shard(0)",))
    twice = Series("w", [*one.values, *(v + 1 for v in one.values)], [3, 3, 3, 3], [0, 1, 0, 1], [0, 0, 1, 1], ["eval"] * 4,
                   one.shapes * 2, one.shards * 2)  # fmt: skip
    found = assembled(twice)
    assert (found.iterations, found.calls, found.modes) == ([3, 3], [0, 1], ["eval", "eval"])
    assert torch.equal(found.values[1], torch.arange(6.0) + 1)
    assert len(assembled(parts(torch.ones(2), (2,), ("Shard(0)",), list.clear))) == 0


def test_a_missing_part_is_named_and_never_zeros():
    with pytest.raises(RecordingError, match=r"at \(2,\) of its mesh \(3,\) was not recorded, and with it 1 elements"):
        assembled(parts(torch.arange(5.0), (3,), ("Shard(0)",), lambda records: records.pop(2)))
    with pytest.raises(RecordingError, match=r"w at iteration 7 .*\(1, 0\), \(1, 1\).* its reduction"):
        assembled(
            parts(
                torch.ones(2),
                (2, 2),
                ("Partial(sum)", "Partial(sum)"),
                lambda records: records.__delitem__(slice(2, 4)),
            )
        )


def test_a_part_without_elements_or_a_second_replica_may_be_missing():
    whole = torch.arange(3.0)
    assert torch.equal(assembled(parts(whole, (4,), ("Shard(0)",), list.pop)).values[0], whole)
    assert torch.equal(assembled(parts(whole, (2,), ("Replicate()",), list.pop)).values[0], whole)


def test_replicas_that_differ_are_an_error_but_nan_is_equal_to_itself():
    whole = torch.tensor([1.0, float("nan")])
    assert assembled(parts(whole, (2,), ("Replicate()",))).values[0].isnan().tolist() == [False, True]
    with pytest.raises(RecordingError, match=r"\(0,\) and \(1,\).* differ"):
        assembled(parts(whole, (2,), ("Replicate()",), lambda records: records[1][1].add_(1)))


def test_partial_values_are_reduced():
    def numbered(records):
        for rank, part, _ in records:
            part.fill_(rank + 1)

    for operation, due in {"sum": 6.0, "avg": 2.0, "max": 3.0, "min": 1.0, "product": 6.0}.items():
        found = assembled(parts(torch.ones(2), (3,), (f"Partial({operation})",), numbered))
        assert found.values[0].tolist() == [due, due]
    with pytest.raises(RecordingError, match="does not know"):
        assembled(parts(torch.ones(2), (2,), ("Partial(mystery)",)))
    with pytest.raises(RecordingError, match="MaskPartial"):
        assembled(parts(torch.ones(2), (2,), ("MaskPartial()",)))
    with pytest.raises(RecordingError, match="does not know"):
        assembled(parts(torch.ones(2), (2, 2), ("Partial(sum)", "Partial(max)")))


def test_parts_that_do_not_belong_together_are_refused():
    with pytest.raises(RecordingError, match="two parts"):
        assembled(parts(torch.ones(4), (2,), ("Shard(0)",), lambda records: records.append(records[0])))
    with pytest.raises(RecordingError, match="disagree"):
        assembled(
            parts(
                torch.ones(4),
                (2,),
                ("Shard(0)",),
                lambda records: records.append((2, torch.ones(1), Shard((3,), (), (2,), ("Shard(0)",), (3,), (2,)))),
            )
        )
    with pytest.raises(RecordingError, match="differ in dtype"):
        assembled(
            parts(
                torch.ones(4),
                (2,),
                ("Shard(0)",),
                lambda records: records.__setitem__(1, (1, torch.ones(2).int(), records[1][2])),
            )
        )
    with pytest.raises(RecordingError, match=r"has shape \(1,\) instead of \(2,\)"):
        assembled(
            parts(
                torch.ones(4),
                (2,),
                ("Shard(0)",),
                lambda records: records.__setitem__(1, (1, torch.ones(1), records[1][2])),
            )
        )


def test_a_part_is_stored_whenever_its_tensor_was_written_to_since_another_process_may_have_changed_its_own():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import Shard as Cut

    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(DTensor.from_local(torch.ones(2, 2), mesh, [Cut(0)], run_check=False))
        model.forward = lambda: None
        with byname.record(model, "weight") as recorder:
            for step in range(4):
                with torch.no_grad():
                    model.weight.add_(0) if step == 2 else None  # the other process adds something else
                model()
    assert list(recorder.results["weight"].iterations) == [0, 2]


def test_plain_tensors_are_no_parts():
    plain = Series("w", [torch.ones(2)], [0], [0], [0], ["train"], [(2,)], [None])
    with pytest.raises(BadArgumentError, match="1 of 1 records of w are not parts"):
        assembled(plain)


def test_parts_are_described_and_a_part_of_another_shape_than_its_placements_say_is_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor import Shard as Cut

    with as_rank(3, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        part = DTensor.from_local(torch.ones(4, 2), mesh, [Replicate(), Cut(0)], run_check=False)
        plain = torch.ones(2)
        written(tmp_path / "run.h5", {"w": [part, torch.nn.Parameter(part), plain, torch.nn.Parameter(plain), None]})
        wrong = DTensor.from_local(part.to_local(), mesh, [Replicate()] * 2, shape=torch.Size((3, 2)), stride=(2, 1))
        with pytest.raises(NotStorableError, match=r"part of shape \(4, 2\) instead of \(3, 2\)"):
            with byname.record(model := torch.nn.Identity(), "forward"):
                model(wrong)
    found = byname.open(tmp_path / "run.rank3.h5")["w"]
    assert [torch.equal(one, torch.ones(4, 2)) for one in found.values[:2]] == [True] * 2
    wanted = (2, 2), ("dp", "tp"), (1, 1), ("Replicate()", "Shard(0)"), (8, 2), (4, 0)
    assert [one and astuple(one) for one in found.shards] == [wanted] * 2 + [None] * 3
