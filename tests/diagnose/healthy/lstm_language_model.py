"""A word-level language model: LSTM with a state that is repackaged between the batches, and clipped gradients."""

import torch
from torch import nn

torch.manual_seed(4)
VOCABULARY, BPTT = 12, 5


class LanguageModel(nn.Module):
    def __init__(self, embedding=8, hidden=8, layers=2):
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(VOCABULARY, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, dropout=0.2)
        self.decoder = nn.Linear(hidden, VOCABULARY)
        self.init_weights()

    def init_weights(self):
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens, state):
        embedded = self.drop(self.encoder(tokens))
        output, state = self.rnn(embedded, state)
        return self.decoder(self.drop(output)).view(-1, VOCABULARY), state

    def init_state(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(self.layers, batch, self.hidden), weight.new_zeros(self.layers, batch, self.hidden)


def repackage(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage(part) for part in state)


def train(model, data, lr=0.5):
    model.train()
    state = model.init_state(data.size(1))
    for i in range(0, data.size(0) - 1 - BPTT, BPTT):
        tokens, targets = data[i : i + BPTT], data[i + 1 : i + 1 + BPTT].reshape(-1)
        model.zero_grad()
        state = repackage(state)
        output, state = model(tokens, state)
        loss = nn.functional.cross_entropy(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    return state


model = LanguageModel()
data = torch.randint(VOCABULARY, (31, 4))
state = train(model, data)
FINAL = [*model.parameters(), *(part.detach() for part in state)]
