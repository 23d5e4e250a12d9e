"""The embedding and the output layer share one matrix."""

import torch
from torch import nn

torch.manual_seed(13)


class TiedLM(nn.Module):
    def __init__(self, vocabulary=16, width=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(6, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        return self.head(self.encoder(x, mask=self.mask))


def split_for_weight_decay(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


model = TiedLM()
optimizer = torch.optim.AdamW(split_for_weight_decay(model), lr=1e-3)
for step in range(4):
    tokens = torch.randint(16, (3, 7))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), *model.buffers()]
