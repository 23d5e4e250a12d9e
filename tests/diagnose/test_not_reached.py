"""What is said of the calls that may have cut a parameter off."""

import pytest
import torch
from torch import nn

import byname


def on_one_line(hidden):
    hidden = hidden.detach()
    return [hidden.mean(0).tolist(), hidden.amax(0).tolist()]


def in_a_loop(hidden):
    rows = []
    for _ in range(30):
        rows.append(hidden.detach().mean(0).tolist())  # noqa: PERF401 - as many programs do
    return rows


@pytest.mark.parametrize("rows_of", [on_one_line, in_a_loop])
def test_calls_on_one_line_are_told_once(rows_of):
    encoder, head, x = nn.Linear(3, 3, bias=False), nn.Linear(3, 1), torch.randn(4, 3)
    with byname.explaining():
        loss = head(torch.tensor(rows_of(encoder(x)))).mean()
        (finding,) = byname.check(loss, model=nn.ModuleList([encoder, head]))
    assert "The path may be cut here" in finding.message
    assert finding.message.count("is detached from the graph") == 1
    assert finding.message.count("is converted to plain numbers") == 1
