"""What the tests of memory share: each file begins without the garbage of others, through which every look would go."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def without_garbage():
    gc.collect()
