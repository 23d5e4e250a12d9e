"""Does a long recording to a file hold memory flat?"""

import pytest
import torch
from processes import run_alone

pytestmark = pytest.mark.slow

PROGRAM = """
    import ctypes, gc, resource, sys
    import torch
    from torch import nn
    import byname

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)

        def forward(self, x, step):
            h = self.norm(self.lin(x))
            word = f"step {{step}}"
            cache = {{"k": [h.mean(), step]}}
            return torch.relu(h)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def measured(at):
        recorder.flush()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # what is free is no memory in use, and is more or less by chance
        count = len(gc.get_objects())  # whose list takes room, too
        print(at, resident(), count)

    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 4)
    places = ["forward.h", "lin", "forward.word", "forward.cache['k'][1]", "norm.running_mean", "lin.weight", "lin.weight.grad", "forward.h.grad", "relu"]
    with {begun} as recorder:
        for step in range(20_000):
            optimizer.zero_grad()
            model(x, step).square().sum().backward()
            optimizer.step()
            if step + 1 in (4_000, 20_000):
                measured(step + 1)
"""
RECORDED = "byname.record(model, places, to={to!r}, **{options})"
OPENED = """
    with byname.open({to!r}) as recording:
        print("stored", len(recording["forward.h"]), recording["forward.word"].values[-1].split()[1])
"""


def recorded(path, options):
    """The program, and what it prints at the end, when it is recorded to a file."""
    begun = RECORDED.format(to=str(path), options=options)
    return PROGRAM.format(begun=begun) + OPENED.format(to=str(path))


def grown_without_byname():
    """The bytes by which the program itself grows between the two moments."""
    words = run_alone(PROGRAM.format(begun="open('/dev/null', 'w')"), timeout=280)
    return int(words[4]) - int(words[1])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [{}, {"gather_every": 50}], ids=["all", "gathered"])
def test_memory_after_twenty_thousand_iterations_is_that_after_four_thousand(tmp_path, options):
    words = run_alone(recorded(tmp_path / "run.h5", options), timeout=800)
    at, early, few, end, late, many, _, stored, last = words
    assert (int(at), int(end), int(stored), int(last)) == (4_000, 20_000, 20_000, 19_999)
    assert int(late) - int(early) < 6 * 2**20
    assert int(many) - int(few) < 1_000


def test_memory_is_flat_where_nothing_is_due(tmp_path):
    words = run_alone(recorded(tmp_path / "run.h5", {"stop": 1}), timeout=280)
    assert words[-2:] == ["1", "0"]
    own = 0 if torch.__version__ < "2.15" else grown_without_byname()  # 2.6 MiB
    assert int(words[4]) - int(words[1]) - own < 2 * 2**20
    assert int(words[5]) - int(words[2]) < 1_000
