"""What changes in one mode has changed in the other: it is stored once, and `at` does not guess which came first."""

import pytest
import torch
from torch import nn

import byname
from byname.errors import BadArgumentError


def test_a_value_that_came_first_in_evaluation_is_stored_there_only_and_at_says_where_it_cannot_tell():
    model = nn.Linear(2, 2)
    with byname.record(model, "bias", mode="both") as recorder:
        for new in (1.0, 2.0):
            model(torch.ones(1, 2))
            with torch.no_grad():
                model.bias.fill_(new)
            model.eval()(torch.ones(1, 2))
            model.train()
        model(torch.ones(1, 2))
    bias = recorder.results["bias"]
    assert [*zip(bias.modes, bias.iterations)] == [("train", 0), ("eval", 0), ("eval", 1)]
    assert [value[0].item() for value in bias.values][1:] == [1.0, 2.0]
    assert bias.at(1, mode="eval")[0] == 2.0
    with pytest.raises(BadArgumentError, match="train iteration 0, then changed in the other mode"):
        bias.at(1, mode="train")


def test_what_does_not_change_is_stored_once():
    model = nn.Linear(2, 2)
    with byname.record(model, "bias", mode="both") as recorder:
        for _ in range(3):
            model.train()(torch.ones(1, 2))
            model.eval()(torch.ones(1, 2))
    bias = recorder.results["bias"]
    assert [*zip(bias.modes, bias.iterations)] == [("train", 0)]
