"""What every test starts from: the same random numbers, and nothing left behind by the one before."""

import gc

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def no_collection():
    """Lets a test see what reference counts alone free."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
