# cause: backward-twice
# culprits: hidden
# kind: error
# mended 1: output, hidden = model.gru(chunk, None if hidden is None else hidden.detach())
import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 5, batch_first=True)
        self.head = nn.Linear(5, 2)


def truncated_backpropagation(model, sequence, labels, width=4):
    optimizer = torch.optim.Adam(model.parameters())
    hidden = None
    for start in range(0, sequence.shape[1], width):
        chunk = sequence[:, start : start + width]
        output, hidden = model.gru(chunk, hidden)  #: 1
        logits = model.head(output).flatten(0, 1)
        loss = F.cross_entropy(logits, labels[:, start : start + width].flatten())
        optimizer.zero_grad()
        loss.backward()  #: 2 3
        optimizer.step()


torch.manual_seed(0)
truncated_backpropagation(Tagger(), torch.randn(2, 8, 3), torch.randint(0, 2, (2, 8)))
