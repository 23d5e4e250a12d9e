# cause: stored-graph
# name: meters['val'].values[*]
# count: 8
# bytes: 8 * (16 * 250 * 4 + 16 * 7 * 4 + 16 * 8 + 4 + 4)
# mended 1: self.values.append(value.item())
# All is local to the function that trains. Cross entropy keeps its log softmax, the labels (8 bytes each) and the
# total weight (one number); the layer keeps the batch; the loss is one more number.
import torch
import torch.nn.functional as F
from torch import nn


class AverageMeter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)  #: 1

    @property
    def average(self):
        raise AssertionError("nobody asked for the average")


def evaluate(model, batch, meter):
    images, labels = batch
    meter.update(F.cross_entropy(model(images), labels))


def train(steps):
    model = nn.Linear(250, 7)
    meters = {"train": AverageMeter(), "val": AverageMeter()}
    for _ in steps:
        batch = torch.randn(16, 250), torch.randint(7, (16,))
        evaluate(model, batch, meters["val"])
