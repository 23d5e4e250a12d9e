# cause: stored-exception
# name: activations (local of encode, kept by the traceback of report['errors'][*].__cause__)
# count: 8
# bytes: 8 * (15 * 150 * 4)
# mended 1: report["errors"].append(str(wrapped.__cause__))
# The stored error holds nothing itself: the one it was raised from does. All is local to the function that trains.
import torch
from torch import nn


class DataError(Exception):
    pass


def encode(model):
    with torch.no_grad():
        activations = model(torch.randn(15, 10))
    if activations.shape[1] != 151:
        raise KeyError("the wrong width")


def load(model):
    try:
        encode(model)
    except KeyError as error:
        raise DataError("no batch") from error


def train(steps):
    model = nn.Linear(10, 150)
    report = {"errors": []}
    for _ in steps:
        try:
            load(model)
        except DataError as wrapped:
            report["errors"].append(wrapped)  #: 1
