"""Low-rank adapters are put into a frozen model, only they are trained, then they are merged into the weights."""

import torch
from torch import nn

torch.manual_seed(65)


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_a.t()) @ self.lora_b.t()

    @torch.no_grad()
    def merged(self):
        self.base.weight += self.scale * self.lora_b @ self.lora_a
        return self.base


def replace_linears(module, wrap, kind):
    for name, child in module.named_children():
        if isinstance(child, kind):
            setattr(module, name, wrap(child))
        else:
            replace_linears(child, wrap, kind)


model = nn.Sequential(
    nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 3)
).requires_grad_(False)
replace_linears(model, LoRALinear, nn.Linear)
adapters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=1e-2)
for _ in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
replace_linears(model, LoRALinear.merged, LoRALinear)

FINAL = [*model.parameters(), *adapters]
