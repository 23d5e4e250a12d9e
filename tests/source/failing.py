"""Programs that fail inside PyTorch."""

import torch


def backward_twice():
    x = torch.ones(3, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    loss.backward()


def wrong_target():
    torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(2, 4))


def wrong_shape():
    torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 3))


def operator():
    torch.ones(2) @ torch.ones(3)
