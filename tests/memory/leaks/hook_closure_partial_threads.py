# cause: hook-closure
# name: ensemble.models[*]._forward_pre_hooks[*].args[*]
# count: 16
# bytes: 8 * (33 * 64 * 4 + 33 * 65 * 4)
# mended 1: partial(shift, torch.randn(rows, columns))(model, (torch.randn(rows, columns),))
# Two workers prepare two models at once; their hooks are partial functions with a tensor.
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn


def shift(offset, module, args):
    return (args[0] + offset,)


def prepare(model, rows, columns):
    model.register_forward_pre_hook(partial(shift, torch.randn(rows, columns)))  #: 1
    with torch.no_grad():
        model(torch.randn(rows, columns))


class Ensemble:
    def __init__(self):
        self.models = [nn.Linear(64, 2), nn.Linear(65, 2)]
        self.workers = ThreadPoolExecutor(max_workers=2)

    def prepare(self):
        for done in [self.workers.submit(prepare, model, 33, model.in_features) for model in self.models]:
            done.result()


ensemble = Ensemble()


def step(i):
    ensemble.prepare()


def stop():
    ensemble.workers.shutdown()
