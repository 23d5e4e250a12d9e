"""Sequences get longer with every step, so the graph grows, and nothing is wrong with that."""

import torch
from torch import nn

torch.manual_seed(58)


class Parity(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.cell = nn.LSTMCell(1, width)
        self.out = nn.Linear(width, 1)

    def forward(self, bits):
        state, logits = None, []
        for bit in bits.unbind(1):
            state = self.cell(bit.unsqueeze(1), state)
            logits.append(self.out(state[0]))
        return torch.cat(logits, dim=1)


model = Parity()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for length in range(1, 11):
    bits = torch.randint(2, (8, length)).float()
    target = bits.cumsum(1) % 2
    total_loss = 0
    for logit, bit in zip(model(bits).unbind(1), target.unbind(1), strict=True):
        total_loss += nn.functional.binary_cross_entropy_with_logits(logit, bit)
    loss = total_loss / length
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), loss.detach()]
