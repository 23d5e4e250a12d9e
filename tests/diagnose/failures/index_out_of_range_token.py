# cause: index-out-of-range
# culprits: ids
# culprits: model.embed.weight
# kind: error
# mended 1: ids = torch.tensor([VOCABULARY.get(word, 0) for word in text.split()])
import torch
from torch import nn

VOCABULARY = {"<unk>": 0, "a": 1, "cat": 2, "sat": 3}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), 8)
        self.head = nn.Linear(8, 2)

    def forward(self, ids):
        return self.head(self.embed(ids))  #: 2


def train(model, texts):
    for text in texts:
        ids = torch.tensor([VOCABULARY.get(word, len(VOCABULARY)) for word in text.split()])  #: 1
        model(ids).sum().backward()


torch.manual_seed(0)
model = Tagger()
train(model, ["a cat sat", "a cat slept"])
