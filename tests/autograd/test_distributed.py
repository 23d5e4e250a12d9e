"""Names leave out the wrappers of torch.distributed."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import byname

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_ddp_is_left_out_of_the_name_and_the_shorter_path_is_not_called_exact(group):
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4)).sum()
    found = {leaf.name.path: leaf for leaf in byname.leaves(loss, model=model, optimizer=optimizer)}
    assert set(found) == {f"model.layers[{n}].{what}" for n in (0, 1) for what in ("weight", "bias")}
    assert all(leaf.kind == "parameter" and leaf.in_optimizer for leaf in found.values())
    assert not any(leaf.name.exact for leaf in found.values())
    loss.backward()
    assert byname.saved(loss)[0].state == "freed"


def test_the_inner_models_own_variable_gives_the_exact_name(group):
    net = Net()
    model = nn.parallel.DistributedDataParallel(net)
    loss = model(torch.ones(2, 4)).sum()
    names = {leaf.name.path: leaf.name for leaf in byname.leaves(loss, model=model)}
    assert "net.layers[0].weight" in names
    assert names["net.layers[0].weight"].exact


@pytest.mark.filterwarnings("ignore")  # fully_shard's own, about CPU tensors
@pytest.mark.parametrize("per_layer", [False, True])
def test_fsdp2_parameters_are_found_under_the_names_of_the_model(group, per_layer):
    from torch.distributed.fsdp import fully_shard

    model = Net()
    if per_layer:
        for layer in model.layers:
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4)).sum()
    found = byname.leaves(loss, model=model, optimizer=optimizer)
    assert {leaf.name.path for leaf in found} == {
        f"model.layers[{n}].{what}" for n in (0, 1) for what in ("weight", "bias")
    }
    assert all(leaf.kind == "parameter" for leaf in found)
    assert all(leaf.in_optimizer and leaf.group == 0 for leaf in found)
    loss.backward()
