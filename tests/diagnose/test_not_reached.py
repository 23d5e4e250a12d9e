"""What is said of the calls that may have cut a parameter off."""

import torch
from torch import nn

import byname
from byname.diagnose.causes.not_reached import MAY_BE, _Evidence


def test_calls_on_one_line_are_told_once(monkeypatch):
    found = _Evidence.cuts_behind
    monkeypatch.setattr(_Evidence, "cuts_behind", lambda log, parameter: (2 * found(log, parameter)[0], MAY_BE))
    encoder, head = nn.Linear(3, 3, bias=False), nn.Linear(3, 1)
    with byname.explaining():
        hidden = encoder(torch.randn(4, 3)).detach()
        loss = head(hidden).mean()
        (finding,) = byname.check(loss, model=nn.ModuleList([encoder, head]))
    assert "The path may be cut here: `hidden`" in finding.message
    assert "; or " not in finding.message


def test_a_line_that_ran_several_times_is_told_once():
    encoder, head, x = nn.Linear(3, 3, bias=False), nn.Linear(3, 1), torch.randn(4, 3)
    with byname.explaining():
        rows = []
        for _ in range(3):
            rows.append(encoder(x).detach().mean(0).tolist())  # noqa: PERF401 - as many programs do
        loss = head(torch.tensor(rows)).mean()
        (finding,) = byname.check(loss, model=nn.ModuleList([encoder, head]))
    assert "The path may be cut here" in finding.message
    assert finding.message.count("is detached from the graph") == 1
