# cause: non-leaf-grad
# culprits: params["scale"]
# kind: error
# mended 1: params["scale"] = torch.ones(3, dtype=torch.float64).requires_grad_()
import torch
from torch import nn


def make_params():
    params = {"shift": torch.zeros(3, dtype=torch.float64, requires_grad=True)}
    params["scale"] = torch.ones(3, requires_grad=True).double()  #: 1
    return params


def normalize(params, x):
    return (x - params["shift"]) * params["scale"]


def fit(params, head, batches):
    for x in batches:
        loss = head(normalize(params, x)).square().mean()
        loss.backward()
        for key in ("shift", "scale"):
            params[key].grad.zero_()  #: 2


torch.manual_seed(0)
fit(make_params(), nn.Linear(3, 1).double(), torch.randn(2, 4, 3, dtype=torch.float64))
