# cause: backward-twice
# culprits: policy["features"]
# kind: error
# mended 2: losses["value"].backward(retain_graph=True)
# The first backward kept the graph; the second one freed it.
import torch
from torch import nn

LOSSES = {
    "policy": lambda logits: -logits.log_softmax(-1)[:, 0].mean(),
    "entropy": lambda logits: (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean(),
}


def forward(body, heads, x):
    policy = {"features": torch.sigmoid(body(x))}  #: 1
    policy["logits"] = heads["logits"](policy["features"])
    losses = {"value": heads["value"](policy["features"]).square().mean()}
    losses.update((name, function(policy["logits"])) for name, function in LOSSES.items())
    return policy, losses


def update(body, heads, x):
    policy, losses = forward(body, heads, x)
    losses["policy"].backward(retain_graph=True)
    losses["value"].backward()  #: 2
    spread = heads["spread"](policy["features"]).var()
    spread.backward()  #: 3


torch.manual_seed(0)
body = nn.Linear(3, 4)
heads = nn.ModuleDict({"logits": nn.Linear(4, 2), "value": nn.Linear(4, 1), "spread": nn.Linear(4, 1)})
update(body, heads, torch.randn(5, 3))
