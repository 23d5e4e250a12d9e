"""A library that runs the program holds its objects, too: names lead through the program's own variables."""

import sys

import pytest
import torch
from torch import nn

import byname

LIBRARY = """
class Connector:
    def __init__(self, model):
        self.model = model

class Trainer:
    def fit(self, model, x):
        self.model_of_user = None
        self._connector = Connector(model)
        return self._connector.model.training_step(self, x)

    def backward(self, loss):
        loss = loss / 2
        loss.backward()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "training_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(packages)
    import training_library  # made just now

    yield training_library
    monkeypatch.delitem(sys.modules, "training_library")


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def training_step(self, trainer, x):
        return byname.names(self.layers[1].weight), byname.leaves(self.layers(x).sum())


def test_a_public_path_of_the_program_comes_before_one_through_private_attributes_of_a_library(library):
    trainer = library.Trainer()
    names, leaves = trainer.fit(Asking(), torch.ones(1, 2))
    assert str(names[0]) == "self.layers[1].weight"
    assert {str(name) for name in names[1:]} == {"trainer._connector.model.layers[1].weight"}
    assert all(str(leaf.name).startswith("self.layers[") for leaf in leaves)
    (name,) = byname.names(trainer._connector.model.layers[1].weight)
    assert str(name) == "trainer._connector.model.layers[1].weight"


class Own:
    def __init__(self, model):
        self._model = model

    def step(self):
        return byname.name(self._model.weight)


def test_private_attributes_of_the_program_are_its_own():
    own = Own(nn.Linear(2, 1))
    assert str(own.step()) == "own._model.weight"


class Prompted:
    def __init__(self):
        self.prompt = nn.Parameter(torch.ones(2)) * 2

    def refused(self):
        groups = [{"params": [nn.Parameter(torch.ones(1))]}, {"params": [self.prompt]}]
        with pytest.raises(ValueError, match="non-leaf") as caught, byname.explaining():
            torch.optim.SGD(groups, lr=0.1)
        return caught.value


def test_what_an_optimizer_is_given_is_called_by_its_variable_and_not_by_its_group():
    (name,) = byname.explain(Prompted().refused()).culprits
    assert str(name) == "self.prompt"


class Failing(nn.Linear):
    def training_step(self, trainer, x):
        trainer.backward(self(x))


def test_the_variables_of_an_error_are_not_named_through_bynames_own_look_at_it(library):
    with pytest.raises(RuntimeError, match="only for scalar outputs") as caught, byname.explaining():
        library.Trainer().fit(Failing(2, 1), torch.ones(4, 2))
    try:
        raise caught.value
    except RuntimeError as error:
        (found,) = [str(name) for name in byname.explain(error).culprits]
    assert found == "loss"
    assert "sys.exc_info" not in "".join(caught.value.__notes__)
