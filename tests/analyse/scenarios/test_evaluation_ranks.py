"""Snapshots with several ranks: models run without their wrapper, and figures are put together when that is asked."""

from processes import run_forked_ranks

COMMON = """
import torch, byname
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()

class Largest(byname.analyse.Analyser):
    def begin(self, sample):
        return byname.analyse.Extremes()
    def take(self, kept, sample):
        kept.add(sample.value)
    def figures(self, kept):
        return {"samples": kept.count, "largest": float(kept.max().max())}

class LargestGradient(Largest):
    listens = frozenset({"gradient"})

def data(batches, seed):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 3, generator=generator), torch.randint(2, (4,), generator=generator)) for _ in range(batches)]

def entropy(output, batch):
    return F.cross_entropy(output, batch[1])

def built():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
"""


def test_each_rank_runs_its_own_batches_and_ddp_trains_as_without(tmp_path):
    program = """
def trained(snapshots):
    model = built()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    analyser, gradients = Largest(), LargestGradient()
    byname.observe(wrapped, "2", analyser)
    byname.observe(model, ["0.weight", "3"], gradients)
    own = data(1 + 2 * rank, 7)  # another number on each rank: nobody may wait for another
    evaluations = byname.analyse.Evaluation(analyser, own), byname.analyse.Evaluation(gradients, own, backward=entropy)
    for x, y in data(3, rank):
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(x), y)
        loss.backward()
        if snapshots and rank:  # one rank alone
            for one in evaluations:
                one.take(wrapped)
        optimizer.step()
    if snapshots and rank:
        print([one.result["2"]["samples"] for one in evaluations[0].records], evaluations[1].records[0].result["3"]["samples"])
    return list(model.state_dict().values())

print(all(map(torch.equal, trained(False), trained(True))))
distributed.destroy_process_group()
"""
    assert run_forked_ranks(tmp_path, COMMON + program) == [["True"], ["[12, 12, 12] 12", "True"]]


def test_reduce_gives_every_rank_the_figures_of_all_also_where_one_has_no_batch(tmp_path):
    program = """
analyser = Largest()
model = built()
handle = byname.observe(model, "2", analyser)
evaluation = byname.analyse.Evaluation(analyser, data(2 * rank, 7), reduce=True)
reduced = evaluation.take(model).result["2"]
handle.remove()
alone = Largest()
whole = built().eval()
with byname.observe(whole, "2", alone):
    for x, _ in data(2, 7):
        whole(x)
print(reduced == alone.result()["2"], reduced["samples"])
distributed.destroy_process_group()
"""
    assert run_forked_ranks(tmp_path, COMMON + program) == [["True 8"], ["True 8"]]
