"""Is the same told of a program whose tensors are on a GPU?"""

import pytest
import torch
import torch.nn.functional as F
from checking import findings_of
from torch import nn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(30, 32), nn.Linear(32, 30)
        self.layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)

    def forward(self, ids, mask):
        return self.out(self.layer(self.embedding(ids), mask, is_causal=mask is not None))


def language_model(device, causal=True, ignored=0):
    """With neither a mask nor an ignored class it sees the future, and learns the padding."""
    model = Words().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(12):
        ids = torch.randint(1, 30, (8, 13))
        ids = ids.masked_fill(torch.arange(13, device=ids.device) >= torch.randint(5, 13, (8, 1)), 0).to(device)
        mask = nn.Transformer.generate_square_subsequent_mask(12, device=device) if causal else None
        scores = model(ids[:, :-1], mask).flatten(0, 1)
        loss = F.cross_entropy(scores, ids[:, 1:].flatten(), **({} if ignored is None else {"ignore_index": ignored}))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def series(device):
    model, out = nn.LSTM(5, 16).to(device), nn.Linear(16, 2).to(device)
    optimizer = torch.optim.Adam([*model.parameters(), *out.parameters()])
    for _ in range(12):
        x = torch.randn(9, 20, 5).to(device)
        loss = F.cross_entropy(out(model(x)[0].mean(0)), (x[-1, :, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, out, optimizer


def masked_attention(device):
    """The mask of the padding lacks a dimension, and is broadcast over queries in place of samples."""
    embedding, out = nn.Embedding(30, 8).to(device), nn.Linear(8, 30).to(device)
    optimizer = torch.optim.SGD([*embedding.parameters(), *out.parameters()], 0.1)
    for _ in range(4):
        ids = torch.randint(1, 30, (6, 6))
        ids = ids.masked_fill(torch.arange(6, device=ids.device) >= torch.randint(2, 7, (6, 1)), 0).to(device)
        x = embedding(ids)
        scores = (x @ x.transpose(1, 2)).masked_fill(ids == 0, -1e9)
        loss = F.cross_entropy(out(scores.softmax(-1) @ x).mean(1), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return embedding, out, optimizer


RIGHT = [language_model, series]
WRONG = {"future-leak": lambda device: language_model(device, causal=False),
         "loss-over-padding": lambda device: language_model(device, ignored=None), "mask-inverted": masked_attention}  # fmt: skip


@pytest.fixture(params=["moved", "default"])
def device(request):
    """The GPU, to which tensors are moved, or on which all are made."""
    torch.set_default_device("cuda" if request.param == "default" else None)
    yield torch.device("cuda")
    torch.set_default_device(None)


@pytest.mark.parametrize("program", RIGHT)
def test_nothing_is_told_of_a_program_that_is_right(program, device):
    assert findings_of(program, device) == []


@pytest.mark.parametrize("cause", WRONG)
def test_what_is_wrong_is_found_as_on_the_cpu(cause, device):
    assert cause in {one.cause for one in findings_of(WRONG[cause], device)}
