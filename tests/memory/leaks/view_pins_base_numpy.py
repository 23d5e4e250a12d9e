# cause: view-pins-base
# name: curves[*].base.base
# count: 8
# bytes: 8 * (300 * 13 * 4)
# mended 1: return scores.numpy()[:, 0].copy()
# Columns for a plot, as arrays: an array of a tensor's memory keeps the whole tensor.
import torch

curves = []


def column(scores):
    return scores.numpy()[:, 0]  #: 1


def step(i):
    curves.append(column(torch.rand(300, 13)))
