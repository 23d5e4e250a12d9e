"""Tensors that the compiler and the distributed package hold; last, what only the garbage collector would find."""

import torch
import torch.distributed as dist
from torch import nn

from plants.ground import cleaner, expect, plant, room


@plant("saved by a compiled function")
def compiled():
    global compiled_loss
    torch._dynamo.reset()
    count = room(r"\bcompiled_loss\b", "saved")
    factor = torch.ones(count)
    function = torch.compile(lambda x, y: (x * y).sum(), backend="aot_eager")
    compiled_loss = function(torch.ones(1, requires_grad=True), factor)


@plant("DDP's parameter, gradient and bucket")
def ddp():
    global replica
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    inner = nn.Linear(4, room(r"replica(\.module)?\.weight", "parameter") // 4, bias=False)
    expect(inner.weight.numel() * 4, r"replica(\.module)?\.weight.*grad|grad.*replica(\.module)?\.weight", "gradient")
    expect(inner.weight.numel() * 4, r"C\+\+|unnamed|reducer|replica", ("other", "gradient"))
    replica = nn.parallel.DistributedDataParallel(inner)
    replica(torch.ones(1, 4)).sum().backward()


@plant("shard of a DTensor")
def dtensor():
    global sharded
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.ones(room(r"\bsharded\b", sited=False)), mesh, [Shard(0)])


class Knot:
    pass


@plant("only in a cycle that nothing else holds")
def garbage():
    knot = Knot()
    knot.content = [knot, torch.ones(room(r"cycle|garbage|unreachable|Knot|unnamed"))]


@cleaner
def leave():
    dist.destroy_process_group()
