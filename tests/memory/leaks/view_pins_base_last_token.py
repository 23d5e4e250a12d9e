# cause: view-pins-base
# name: embeddings[*]
# count: 8
# bytes: 8 * (2 * 40 * 33 * 4)
# left: 8 * (2 * 33 * 4)
# mended 1: return hidden[:, -1].clone()
# The last token stands for the text; it is taken by a helper, computed in a thread, and kept in a local list.
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def last_token(hidden):
    return hidden[:, -1]  #: 1


@torch.no_grad()
def embed(model, tokens):
    return last_token(model(tokens))


def train(steps):
    model = nn.Embedding(100, 33)
    embeddings = []
    with ThreadPoolExecutor(max_workers=1) as workers:
        for i in steps:
            tokens = torch.randint(100, (2, 40))
            embeddings.append(workers.submit(embed, model, tokens).result())
