"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import byname

MODULES = [info.name for info in pkgutil.walk_packages(byname.__path__, "byname.")]


@pytest.mark.grid(fast=45)
@pytest.mark.parametrize("module", MODULES)
def test_examples_of(module):
    loaded = importlib.import_module(module)
    result = doctest.testmod(loaded, extraglobs={"torch": torch, "byname": byname})
    assert result.failed == 0
