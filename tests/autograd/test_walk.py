"""The nodes of a graph come in one order, whichever way they are asked for."""

import torch

from byname.autograd.walk import Walk, nodes_behind


def ladder():
    w = torch.ones(3, requires_grad=True)
    return ((w.exp() * 2).sigmoid() + w.exp()[torch.tensor([0, 2, 1])] * w).sum()


def test_the_nodes_behind_tensors_come_in_the_order_of_the_walk():
    loss, other = ladder(), ladder()
    for roots in ([loss], [loss, other, loss], [loss, other + loss]):
        assert nodes_behind(roots) == Walk(roots).nodes[1:]
