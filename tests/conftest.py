"""What every test starts from: the same random numbers, and nothing left behind by the one before."""

import gc
import logging
import os
import sys
from pathlib import Path

import hypothesis
import pytest
import template
import torch

hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")  # how long an example takes says how busy the machine is
torch.set_num_threads(1)  # several tests run at once, on as many cores
os.environ["OMP_NUM_THREADS"] = "1"  # and so do their programs, of which some are compared bit for bit
os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"  # else gloo looks the host's name up
os.unsetenv("COLUMNS")  # which readline, that pytest imports, sets past os.environ for every program it starts
template.hear_ctrl_c()

HERE = Path(__file__).parent
SEED = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
"""For absent devices `torch.manual_seed` writes a traceback: a millisecond."""
FROZEN = {"analyse", "drawing", "edits", "model", "recording", "rewriting", "tracing", "watch"}
"""The folders of which no test looks at the whole heap."""


def pytest_collection_modifyitems(items):
    grids = {}
    for item in items:
        if (grid := item.get_closest_marker("grid")) and not item.get_closest_marker("slow"):
            grids.setdefault(item.nodeid.partition("[")[0], (grid.kwargs["fast"], []))[1].append(item)
    for fast, cases in grids.values():
        quick = {round(at * (len(cases) - 1) / max(fast - 1, 1)) for at in range(fast)}
        for at, item in enumerate(cases):
            if at not in quick:
                item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("sees_nothing"):
            item.add_marker(pytest.mark.filterwarnings("ignore::byname.errors.NothingSeenWarning"))


@pytest.fixture(autouse=True)
def seeded():
    SEED(0)


@pytest.fixture(autouse=True)
def nothing_goes_wrong_in_byname():
    """A fault of byname's own while it looks is only logged, for the program is to go on; a test fails by it."""
    handler, logged = logging.Handler(), []
    handler.emit = lambda record: logged.append(handler.format(record))
    logging.getLogger("byname").addHandler(handler)
    yield
    logging.getLogger("byname").removeHandler(handler)
    assert not logged, "\n".join(logged)


@pytest.fixture(scope="module", autouse=True)
def only_new_objects_are_collected(request):
    """Many tests collect garbage, and pytest does at the end: all would go through PyTorch, pytest and all tests."""
    if request.path.relative_to(HERE).parts[0] in FROZEN:
        gc.freeze()
        yield
        gc.collect()
    else:
        gc.unfreeze()  # what the runner has frozen
        yield
        gc.collect(0 if request.path == request.session.items[-1].path else 2)
        gc.freeze()  # who comes next would go through it in every look, and pytest at the end


@pytest.fixture
def no_collection():
    """Lets a test see what reference counts alone free."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
