"""Tensors that autograd holds for the backward pass."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from plants.ground import cleaner, plant, room

ANY = ("saved", "input", "other")
HIDDEN = "other"  # what `CopySlices` has inside nobody can ask for: that it is saved there is not known


def one(count):
    """A leaf of one element, seen as many: only what is computed from it takes memory."""
    return torch.ones(1, requires_grad=True).expand(count)


@plant("result of exp")
def exp():
    global exp_loss
    exp_loss = one(room("ExpBackward0.*exp_loss|exp_loss.*ExpBackward0", "saved")).exp().sum()


@plant("factor of a product")
def mul():
    global mul_loss
    count = room("MulBackward0.*mul_loss|mul_loss.*MulBackward0", "saved")
    mul_loss = (one(count) * torch.ones(count)).sum()


@plant("log-softmax inside cross_entropy")
def cross_entropy():
    global entropy
    count = room("LogSoftmaxBackward0.*entropy|entropy.*LogSoftmaxBackward0", "saved")
    entropy = F.cross_entropy(one(count).view(-1, 4), torch.zeros(count // 4, dtype=torch.long))


@plant("result of a Linear inside gelu")
def gelu():
    global gelu_loss
    narrow = nn.Linear(1, 4)
    count = room("GeluBackward0.*gelu_loss|gelu_loss.*GeluBackward0", "saved")
    gelu_loss = F.gelu(narrow(torch.ones(1, 1).expand(count // 4, 1))).sum()


@plant("indices of max_pool2d")
def max_pool():
    global pooled
    count = room("MaxPool.*pooled|pooled.*MaxPool", "saved", itemsize=8)
    pooled = F.max_pool2d(one(count * 4).view(1, 1, -1, 4), 2).sum()


@plant("mask of dropout")
def dropout():
    global dropped
    count = room("DropoutBackward0.*dropped|dropped.*DropoutBackward0", "saved", itemsize=1)
    dropped = torch.native_dropout(one(count), 0.5, True)[0].sum()


class Keeping(torch.autograd.Function):
    """Saves one tensor as PyTorch wants it, and one as an attribute of its own."""

    @staticmethod
    def forward(ctx, x, saved, kept):
        ctx.save_for_backward(saved)
        ctx.kept = kept
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0][0] * ctx.kept[0], None, None


@plant("save_for_backward and an attribute of a custom function's context")
def context():
    global kept_loss
    saved = torch.ones(room("KeepingBackward.*kept_loss|kept_loss.*KeepingBackward", "saved"))
    kept = torch.ones(room("(KeepingBackward|kept).*kept_loss|kept_loss.*kept", ANY))
    kept_loss = Keeping.apply(torch.ones(1, requires_grad=True), saved, kept)


@plant("custom function's context deep in a graph")
def deep_context():
    global deep_loss
    saved = torch.ones(room("KeepingBackward.*deep_loss|deep_loss.*KeepingBackward", "saved"))
    kept = torch.ones(room("(KeepingBackward|kept).*deep_loss|deep_loss.*kept", ANY))
    deep_loss = Keeping.apply(torch.ones(1, requires_grad=True), saved, kept)
    for _ in range(2000):
        deep_loss = -deep_loss


@plant("result of exp deep in a graph")
def deep_result():
    global far_loss
    far_loss = one(room("ExpBackward0.*far_loss|far_loss.*ExpBackward0", "saved")).exp().sum()
    for _ in range(2000):
        far_loss = -far_loss


@plant("packed by saved_tensors_hooks")
def packed():
    global packed_loss
    count = room("packed_loss", ANY)
    with saved_tensors_hooks(lambda x: ("half", x.detach().clone()), lambda pack: pack[1]):
        packed_loss = one(count).exp().sum()


@plant("save_on_cpu")
def on_cpu():
    global offloaded
    count = room("offloaded", ANY)
    with save_on_cpu():
        offloaded = (one(count) * torch.ones(count)).sum()


@plant("input of a reentrant checkpoint")
def reentrant_checkpoint():
    global first_stage
    block_input = one(room("first_stage", ANY)) * 1
    first_stage = checkpoint(lambda x: x.sin().cos().sum(), block_input, use_reentrant=True)


@plant("input of a checkpoint")
def plain_checkpoint():
    global second_stage
    block_input = one(room("second_stage", ANY)) * 1
    second_stage = checkpoint(lambda x: x.sin().cos().sum(), block_input, use_reentrant=False)


@plant("graph of which only the node is held")
def only_the_node():
    global last_node
    last_node = one(room("last_node", "saved")).exp().sum().grad_fn


@plant("leaf that only its accumulating node holds")
def only_accumulated():
    global lonely_loss
    leaf = torch.ones(room("lonely_loss", ("saved", "input", "other", "parameter")), requires_grad=True)
    lonely_loss = (leaf + 1).sum()


@plant("in-place on a view: an operand")
def in_place_operand():
    global canvas
    part = room(r"1 unexplained C\+\+ reference", HIDDEN)
    canvas = one(room(r"\bcanvas\b")).clone()
    canvas[:part].mul_(torch.ones(part))


@plant("in-place on a view: made inside PyTorch")
def in_place_unwrapped():
    global board
    mask = room(r"1 unexplained C\+\+ reference", HIDDEN)
    board = one(room(r"\bboard\b")).clone()
    F.dropout(board[:mask], 0.5, inplace=True)


@plant("graph that create_graph left in a gradient")
def graph_in_a_gradient():
    global steep
    count = room("steep", ("saved", "gradient", "other"))
    steep = torch.ones(1, requires_grad=True)
    steep.expand(count).exp().sum().backward(create_graph=True)


@plant("hook of a tensor")
def tensor_hook():
    global hooked
    scale = torch.ones(room(r"\bhooked\b|\bscale\b"))
    hooked = torch.ones(1, requires_grad=True)
    hooked.register_hook(lambda gradient: gradient * scale[0])


@plant("hook of a node")
def node_hook():
    global noted_loss
    note = torch.ones(room(r"`note` in the closure of node_hook\.<locals>\.<lambda>"))
    noted_loss = torch.ones(1, requires_grad=True).exp()
    noted_loss.grad_fn.register_prehook(lambda gradients: (gradients[0] * note[0],))


@plant("hook after a gradient has been accumulated")
def accumulate_hook():
    global summed
    sums = torch.ones(room(r"\bsummed\b|\bsums\b"))
    summed = torch.ones(1, requires_grad=True)
    summed.register_post_accumulate_grad_hook(lambda tensor: sums.add_(tensor.grad))


@plant("edge of a gradient")
def gradient_edge():
    global edge
    edge = torch.autograd.graph.get_gradient_edge(one(room(r"\bedge\b", "saved")).exp())


@cleaner
def break_cycles():
    steep.grad = None
