"""Errors in processes that a program spawns are explained there, as ``torch.multiprocessing.spawn`` prints them."""

import pickle
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.spawn import _wrap

import byname
from byname.cli.spawned import run_inside


def test_an_error_that_the_spawn_of_pytorch_catches_and_prints_is_explained_before(tmp_path, monkeypatch):
    def work(rank):
        loss = torch.ones(2, requires_grad=True).exp()
        loss.backward()

    def start(process):
        process._target(*process._args)

    monkeypatch.setattr(BaseProcess, "_bootstrap", start)
    run_inside(lambda: [byname.explaining()])
    process = SimpleNamespace(_target=_wrap, _args=(work, 0, (), str(tmp_path / "error")))
    with pytest.raises(SystemExit):
        BaseProcess._bootstrap(process)
    printed = pickle.loads((tmp_path / "error").read_bytes())
    assert "byname: non-scalar-backward: backward at test_spawned.py:" in printed
    assert str(Path(byname.__file__).parent) not in printed
