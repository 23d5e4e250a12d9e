"""The gradients of a call are those of the call alone: of the graph cut off before it and behind it."""

import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from custom import Scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from byname.errors import InterjectionError
from byname.watch.call_gradients import follow, note_arguments


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return [value.data]
    return [one for part in value for one in tensors_of(part)] if isinstance(value, (tuple, list)) else []


def watched(call, inputs, receive):
    """Calls and follows; the result, and the list in which the gradients come."""
    entered = note_arguments(inputs)
    result = call(*inputs)
    told = []

    def received(grad_inputs, grad_outputs):
        told.append((grad_inputs, grad_outputs))
        return receive(grad_inputs, grad_outputs) if receive else None

    follow(entered, tensors_of(result), received)
    return result, told


def by_cutting(call, inputs, grad_outputs):
    """The gradients of the call alone, by hand."""
    cut = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    outputs = tensors_of(call(*[one.clone() for one in cut]))
    wanted = [one for one in cut if one.requires_grad]
    pairs = [(o, g) for o, g in zip(outputs, grad_outputs) if o.requires_grad and g is not None]
    found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    found = iter(found)
    return [next(found) if one.requires_grad else None for one in cut]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert (one is None) == (other is None), (found, wanted)
        if one is not None:
            torch.testing.assert_close(one, other)


def check_against_cutting(call, *leaves):
    """The call within a larger graph, its inputs used elsewhere too; and a change of what it passes back."""
    leaves = [one.requires_grad_(one.is_floating_point()) for one in leaves]
    inputs = [one * 1.5 if one.requires_grad else one for one in leaves]
    values = [one.detach().clone() for one in inputs]
    elsewhere = sum((one * 2).sum() for one in inputs if one.requires_grad)
    torch.manual_seed(1)
    result, told = watched(call, inputs, None)
    outputs = [one for one in tensors_of(result) if one.requires_grad]
    loss = sum((one * torch.randn_like(one)).sum() for one in outputs) + elsewhere
    loss.backward()
    assert len(told) == 1
    grad_inputs, grad_outputs = told[0]
    cut = [v.requires_grad_(i.requires_grad) for v, i in zip(values, inputs)]
    torch.manual_seed(1)
    assert_same(grad_inputs, by_cutting(call, cut, grad_outputs))
    for leaf, own in zip(leaves, grad_inputs):
        if leaf.requires_grad and own is not None:
            torch.testing.assert_close(leaf.grad, 1.5 * (own + 2))


ACTIVATIONS = [
    nn.ELU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardtanh(), nn.Hardswish(), nn.LeakyReLU(), nn.LogSigmoid(), nn.PReLU(),
    nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.CELU(), nn.GELU(), nn.Sigmoid(), nn.SiLU(), nn.Mish(), nn.Softplus(),
    nn.Softshrink(), nn.Softsign(), nn.Tanh(), nn.Tanhshrink(), nn.Threshold(0.1, 20.0), nn.GLU(), nn.Softmin(1),
    nn.Softmax(1), nn.LogSoftmax(1), nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.Dropout1d(), nn.Flatten(0),
    nn.ELU(inplace=True), nn.ReLU(inplace=True), nn.LeakyReLU(inplace=True), nn.Hardtanh(inplace=True),
    nn.Hardswish(inplace=True), nn.SiLU(inplace=True), nn.Mish(inplace=True), nn.Dropout(0.3, inplace=True),
    nn.SELU(inplace=True), nn.ReLU6(inplace=True), nn.Threshold(0.1, 2.0, inplace=True), nn.Hardsigmoid(inplace=True),
    nn.CELU(inplace=True), nn.RReLU(inplace=True),
]  # fmt: skip
OTHERS = [
    (nn.Linear(6, 4), (3, 6)), (nn.Linear(6, 4), (2, 3, 6)), (nn.Linear(6, 4, bias=False), (2, 3, 6)),
    (nn.Conv1d(3, 4, 3), (2, 3, 8)), (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 6, 6)), (nn.Conv3d(2, 2, 2), (1, 2, 4, 4, 4)),
    (nn.ConvTranspose2d(3, 4, 2, stride=2), (2, 3, 4, 4)), (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 6)),
    (nn.BatchNorm1d(6), (4, 6)), (nn.BatchNorm2d(3), (4, 3, 5, 5)), (nn.LayerNorm(6), (3, 6)), (nn.GroupNorm(2, 4), (3, 4, 5)),
    (nn.InstanceNorm1d(3, affine=True), (2, 3, 6)), (nn.RMSNorm(6), (3, 6)), (nn.LocalResponseNorm(2), (2, 4, 5)),
    (nn.MaxPool2d(2), (2, 3, 6, 6)), (nn.AvgPool1d(2), (2, 3, 6)), (nn.AdaptiveAvgPool2d(2), (2, 3, 6, 6)), (nn.LPPool1d(2, 2), (2, 3, 6)),
    (nn.ReflectionPad1d(2), (2, 3, 6)), (nn.ZeroPad2d(1), (2, 3, 4, 4)), (nn.PixelShuffle(2), (1, 4, 3, 3)), (nn.Upsample(scale_factor=2), (1, 2, 4)),
    (nn.LSTM(6, 4), (5, 2, 6)), (nn.GRU(6, 4, bidirectional=True), (5, 2, 6)), (nn.RNN(6, 4), (5, 2, 6)),
    (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (4, 2, 8)), (nn.Unfold(2), (1, 2, 4, 4)), (nn.ChannelShuffle(2), (1, 4, 3, 3)),
    (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)), (2, 3, 5, 5)),
    (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6)), (2, 3, 6)),
]  # fmt: skip


@pytest.mark.parametrize("module", ACTIVATIONS, ids=repr)
def test_activations_and_dropouts_in_place_too(module):
    check_against_cutting(lambda x: module(x), torch.randn(4, 6))


@pytest.mark.parametrize(("module", "shape"), OTHERS, ids=lambda value: type(value).__name__)
def test_layers(module, shape):
    module = copy.deepcopy(module)
    check_against_cutting(lambda x: module(x), torch.randn(shape))


def several(*shapes):
    return [torch.randn(shape) for shape in shapes]


def adds_in_place(x, y):
    x.add_(y)
    return x.mul_(2)


def item_in_place(x):
    x[0].mul_(3)
    x[:, 1] = x[:, 0] * 2
    return x


FUNCTIONALS = {
    "add": (torch.add, [(3, 4), (3, 4)]),
    "broadcast": (torch.mul, [(3, 4), (4,)]),
    "matmul": (torch.matmul, [(2, 3, 4), (4, 5)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "sdpa": (F.scaled_dot_product_attention, [(1, 2, 4, 8)] * 3),
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "conv2d": (F.conv2d, [(2, 3, 5, 5), (4, 3, 3, 3), (4,)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "bilinear": (F.bilinear, [(3, 4), (3, 5), (2, 4, 5)]),
    "cat": (lambda *parts: torch.cat(parts), [(2, 3), (1, 3), (4, 3)]),
    "stack": (lambda *parts: torch.stack(parts), [(2, 3), (2, 3)]),
    "chunk": (lambda x: x.chunk(3, 1), [(2, 6)]),
    "split": (lambda x: x.split([1, 5], 1), [(2, 6)]),
    "unbind": (lambda x: x.unbind(0), [(3, 2)]),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bik", x, y), [(2, 3, 4), (2, 4, 5)]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [(3, 4), (3, 4)]),
    "softmax": (lambda x: x.softmax(-1), [(3, 4)]),
    "sum": (torch.sum, [(3, 4)]),
    "max": (lambda x: x.max(1), [(3, 4)]),
    "topk": (lambda x: x.topk(2), [(3, 4)]),
    "index": (lambda x: x[[0, 2, 0]], [(3, 4)]),
    "permute": (lambda x: x.permute(1, 0), [(3, 4)]),
    "expand": (lambda x: x.expand(5, 3, 4), [(3, 4)]),
    "fft": (lambda x: torch.fft.rfft(x).abs(), [(3, 4)]),
    "norm": (torch.linalg.norm, [(3, 4)]),
    "loss": (F.mse_loss, [(3, 4), (3, 4)]),
    "twice in the call": (lambda x: x.sin() * x + x.exp(), [(3, 4)]),
    "one unused": (lambda x, y: y * 2, [(3, 4), (3, 4)]),
    "inputs at different depths": (lambda x, y: (x.sin().exp().tanh(), (y * x.cos()).sin()), [(3, 4), (3, 4)]),
    "relu_": (F.relu_, [(3, 4)]),
    "add_": (adds_in_place, [(3, 4), (3, 4)]),
    "items in place": (item_in_place, [(3, 4)]),
    "cumulative loop": (lambda x: [x := x * 1.1 + 0.1 for _ in range(5)][-1], [(3, 4)]),
    "detour": (lambda x: x.detach() * x, [(3, 4)]),
}


@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functions(name):
    call, shapes = FUNCTIONALS[name]
    check_against_cutting(call, *several(*shapes))


def test_a_cross_attention_and_an_embedding():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    check_against_cutting(lambda q, k, v: attention(q, k, v)[0], *several((2, 3, 8), (2, 5, 8), (2, 5, 8)))
    embedding = nn.Embedding(5, 3)
    indices = torch.tensor([1, 2])
    result, told = watched(embedding, [indices], None)
    result.sum().backward()
    assert told[0][0] == (None,) and torch.equal(told[0][1][0], torch.ones(2, 3))


def test_the_cell_of_an_lstm_with_all_its_inputs():
    cell = nn.LSTM(6, 4)
    check_against_cutting(lambda x, h, c: cell(x, (h, c)), *several((5, 2, 6), (1, 2, 4), (1, 2, 4)))


def test_a_packed_sequence():
    lstm = nn.LSTM(6, 4)
    x = torch.randn(5, 2, 6, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
    entered, told = note_arguments([packed.data]), []
    result, (h, c) = lstm(packed)
    follow(entered, [result.data, h, c], lambda *gradients: told.append(gradients))
    result.data.pow(2).sum().backward()
    (inputs, (out, hidden, cell)) = told[0]
    assert inputs[0].shape == packed.data.shape and out is not None and hidden is None and cell is None


@st.composite
def programs(draw):
    """A random call: operations on what there is, some in place, and which results are returned."""
    steps = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
    returned = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    return steps, returned


OPERATIONS = [
    lambda a, b: a * b, lambda a, b: a + b, lambda a, b: a.sin(), lambda a, b: a.clone().add_(b).mul_(2.0),
    lambda a, b: a.reshape(-1).view(2, 3).exp(), lambda a, b: torch.cat([a, b])[1:3], lambda a, b: a.detach() + b,
    lambda a, b: a.add(1).mul_(0.5), lambda a, b: a.t().contiguous().t() - b,
]  # fmt: skip


@settings(max_examples=60)
@given(programs())
def test_random_programs(program):
    steps, returned = program

    def call(x, y):
        values = [x, y]
        for operation, first, second in steps:
            values.append(OPERATIONS[operation](values[first % len(values)], values[second % len(values)]))
        made = values[2:]
        return tuple(dict.fromkeys(made[one % len(made)] for one in returned))

    x, y = (torch.randn(2, 3, requires_grad=True) * 1 for _ in range(2))
    result, told = watched(call, [x, y], None)
    loss = sum(one.sum() for one in result if one.requires_grad)
    if not isinstance(loss, torch.Tensor):
        return
    loss.backward(retain_graph=True)
    assert len(told) == 1
    if len(result) == 1:
        assert_same(told[0][0], by_cutting(call, [x, y], told[0][1]))
    else:  # results that are made of one another: the gradient of an output is the whole one of that value
        cut = [one.detach().requires_grad_() for one in (x, y)]
        total = sum(one.sum() for one in call(*cut) if one.requires_grad)
        assert_same(told[0][0], torch.autograd.grad(total, cut, allow_unused=True))


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "linear",
        "matmul",
        "twice in the call",
        "add_",
        "inputs at different depths",
        "sdpa",
        "chunk",
        "relu_",
    ],
)
def test_changing_it_equals_a_function_inserted_by_hand(name):
    call, shapes = FUNCTIONALS[name]
    leaves = several(*shapes)

    def run(change):
        own = [one.clone().requires_grad_() for one in leaves]
        inputs = [one * 1 for one in own]
        elsewhere = sum((one * 2).sum() for one in inputs)
        result = change(inputs)
        (sum((one.sin()).sum() for one in tensors_of(result)) + elsewhere).backward()
        return [one.grad for one in own]

    factors = [10.0 + number for number in range(len(leaves))]

    def by_hand(inputs):
        return call(*[Scaled.apply(one, factor) for one, factor in zip(inputs, factors)])

    def watching(inputs):
        receive = lambda gradients, _: tuple(one * factor for one, factor in zip(gradients, factors))
        return watched(call, inputs, receive)[0]

    assert_same(run(watching), run(by_hand))


def test_a_single_door_is_exact():
    x = torch.randn(3, requires_grad=True)
    y = x * 1
    new = torch.randn(3)
    result, _ = watched(torch.tanh, [y], lambda inputs, outputs: (new,))
    result.sum().backward()
    assert torch.equal(x.grad, new)


def test_none_keeps_a_gradient():
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    result, _ = watched(torch.mul, [x, y], lambda inputs, outputs: (None, inputs[1] * 2))
    result.sum().backward()
    assert torch.equal(x.grad, y.detach()) and torch.equal(y.grad, x.detach() * 2)


@pytest.mark.parametrize(
    "call", [nn.Identity(), nn.Dropout(0.5).eval(), lambda x: x.to(torch.float32), lambda x: x.contiguous()]
)
def test_a_call_that_returns_its_input_has_the_values_whole_gradient(call):
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 2
    result, told = watched(call, [x], lambda inputs, outputs: (inputs[0] * 10,))
    (result * 3 + x).sum().backward()
    assert told[0][0][0].tolist() == told[0][1][0].tolist() == [4.0] * 3
    assert leaf.grad.tolist() == [80.0] * 3


def test_a_leaf_that_is_returned():
    leaf = torch.ones(3, requires_grad=True)
    entered, told = note_arguments([leaf]), []
    followed = follow(entered, [leaf], lambda inputs, outputs: told.append((inputs, outputs)) or (inputs[0] * 10,))
    (leaf * 3).sum().backward()
    assert told[0][0][0].tolist() == [3.0] * 3 and leaf.grad.tolist() == [30.0] * 3
    assert followed.lasting
    followed.remove()
    assert leaf._backward_hooks is None


def test_a_parameter_among_the_outputs_is_waited_for():
    weight = nn.Parameter(torch.ones(3))
    x = torch.ones(3, requires_grad=True) * 1
    entered, told = note_arguments([x]), []
    result = x * 2 * weight
    followed = follow(entered, [result, weight], lambda *gradients: told.append(gradients))
    ((result * 5).sum() + (weight * 7).sum()).backward()
    assert [one.tolist() for one in told[0][1]] == [[5.0] * 3, [17.0] * 3] and len(told) == 1
    followed.remove()


def test_a_tensor_given_twice_has_it_all_in_the_first_place():
    x = torch.full((3,), 2.0, requires_grad=True) * 1
    result, told = watched(torch.mul, [x, x], None)
    result.sum().backward()
    assert told[0][0][0].tolist() == [4.0] * 3 and told[0][0][1] is None


def test_the_first_layer_has_no_gradient_of_its_input():
    layer = nn.Linear(3, 2)
    result, told = watched(layer, [torch.randn(4, 3)], None)
    result.sum().backward()
    assert told[0][0] == (None,) and torch.equal(told[0][1][0], torch.ones(4, 2))


def test_nothing_is_followed_where_nothing_flows():
    with torch.no_grad():
        x = torch.ones(2)
        assert follow(note_arguments([x]), [x * 2], lambda *_: None) is None


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_conv_like_value_changed_in_place_afterwards(shape):
    """The output of a layer that an in-place activation overwrites, also where the layer returns a view."""
    layer = nn.Linear(6, 6)
    x = torch.randn(shape, requires_grad=True) * 1
    result, told = watched(layer, [x], None)
    activated, told_of_relu = watched(F.relu_, [result], lambda inputs, outputs: (inputs[0] * 2,))
    (activated * 3).sum().backward()
    mask = (F.linear(x, layer.weight, layer.bias) > 0).float()
    torch.testing.assert_close(told_of_relu[0][1][0], torch.full(shape[:-1] + (6,), 3.0))
    torch.testing.assert_close(told_of_relu[0][0][0], 3 * mask)
    torch.testing.assert_close(told[0][1][0], 6 * mask)
    torch.testing.assert_close(told[0][0][0], (6 * mask) @ layer.weight)


def test_a_view_of_part_of_a_tensor_changed_in_place():
    leaf = torch.randn(4, 6, requires_grad=True)
    base = leaf * 1
    view = base[1:3].t()
    result, told = watched(F.relu_, [view], lambda inputs, outputs: (inputs[0] * 5,))
    (base * 2).sum().backward()
    mask = (leaf[1:3] > 0).float() * 2
    torch.testing.assert_close(told[0][0][0], mask.t())
    wanted = torch.full((4, 6), 2.0)
    wanted[1:3] = mask * 5
    torch.testing.assert_close(leaf.grad, wanted)


def test_two_backwards_of_one_graph():
    x = torch.randn(3, requires_grad=True) * 1
    result, told = watched(torch.tanh, [x], None)
    result.sum().backward(retain_graph=True)
    (result * 2).sum().backward()
    assert len(told) == 2
    torch.testing.assert_close(told[1][0][0], told[0][0][0] * 2)


def test_gradients_for_some_inputs_only():
    a, b = (torch.randn(3, requires_grad=True) * 1 for _ in range(2))
    result, told = watched(lambda a, b: a.sin() * b.exp(), [a, b], None)
    torch.autograd.grad(result.sum(), [b], retain_graph=True)
    assert len(told) == 1
    inputs, outputs = told[0]
    torch.testing.assert_close(inputs[1], a.sin() * b.exp())
    torch.autograd.grad(result.sum(), [a, b])
    assert len(told) == 2 and all(one is not None for one in told[1][0])


def test_gradients_for_a_value_inside_the_call():
    x = torch.randn(3, requires_grad=True) * 1
    inside = []

    def call(x):
        inside.append(x.sin())
        return inside[0].exp()

    result, told = watched(call, [x], None)
    torch.autograd.grad(result.sum(), inside)
    assert told[0][0] == (None,) and torch.equal(told[0][1][0], torch.ones(3))


def test_gradients_for_leaves_by_autograd_grad():
    weight, x = nn.Parameter(torch.randn(3, 3)), torch.randn(2, 3, requires_grad=True)
    result, told = watched(F.linear, [x, weight], None)
    torch.autograd.grad(result.sum(), [x, weight])
    assert_same(told[0][0], by_cutting(F.linear, [x, weight], told[0][1]))


def test_gradients_of_changed_gradients():
    leaf = torch.randn(3, requires_grad=True)
    x = leaf * 1
    result, told = watched(lambda x: x.sin(), [x], lambda inputs, outputs: (inputs[0] * 3,))
    (first,) = torch.autograd.grad(result.sum(), [leaf], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [leaf])
    torch.testing.assert_close(first, 3 * leaf.cos())
    torch.testing.assert_close(second, -3 * leaf.sin())
    assert len(told) == 1  # the second backward does not pass through the call


def test_gradients_of_gradients_are_those_of_the_call():
    leaf = torch.randn(3, requires_grad=True)
    x = leaf * 1
    result, told = watched(lambda x: x.pow(3) + x.sin(), [x], None)
    (first,) = torch.autograd.grad(result.sum(), [leaf], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), [leaf])
    torch.testing.assert_close(second, 6 * leaf - leaf.sin())
    torch.testing.assert_close(told[0][0][0], 3 * leaf**2 + leaf.cos())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_call_around_and_inside_a_checkpoint(reentrant):
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = torch.randn(2, 4, requires_grad=True) * 1
    inner = []

    def call(x):
        result, told = watched(layer[0], [x], None)
        inner.append(told)
        return layer[2](layer[1](result))

    result, told = watched(lambda x: checkpoint(call, x, use_reentrant=reentrant), [x], None)
    result.pow(2).sum().backward()
    assert len(told) == 1 and len(inner) == 2
    assert_same(told[0][0], by_cutting(layer, [x], told[0][1]))
    assert [len(one) for one in inner] == ([0, 1] if reentrant else [1, 0])
    assert_same((inner[0] or inner[1])[0][0], told[0][0])


def test_a_shared_module_has_each_calls_own():
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True) * 1
    first, told_first = watched(layer, [x], None)
    second, told_second = watched(layer, [first], None)
    second.sum().backward()
    assert_same(told_second[0][0], told_first[0][1])
    assert_same(told_first[0][0], by_cutting(layer, [x], told_first[0][1]))


def test_a_function_written_by_the_user():
    x = torch.randn(3, requires_grad=True) * 1
    result, told = watched(lambda x: Scaled.apply(x, 4.0), [x], lambda inputs, outputs: (inputs[0] * 2,))
    result.sum().backward(inputs=[x.grad_fn.next_functions[0][0].variable])
    assert told[0][0][0].tolist() == [4.0] * 3
    assert x.grad_fn.next_functions[0][0].variable.grad.tolist() == [8.0] * 3


def test_an_error_of_the_receiver_comes_out_and_leaves_nothing():
    x = torch.randn(3, requires_grad=True)
    fail = [True]

    def receive(inputs, outputs):
        if fail:
            raise KeyError("mine")

    entered = note_arguments([x])
    result = x.tanh()
    followed = follow(entered, [result], receive)
    with pytest.raises(KeyError, match="mine"):
        result.sum().backward(retain_graph=True)
    assert not followed._tasks
    fail.clear()
    result.sum().backward()
    assert x.grad is not None and not followed._tasks


def test_a_gradient_that_cannot_be_changed_any_more_is_an_error():
    weight = nn.Parameter(torch.randn(3))
    x = torch.randn(2, 3, requires_grad=True) * 1
    result, _ = watched(lambda x, w: x.sin() + w, [x, weight], lambda inputs, outputs: (None, inputs[1] * 2))
    with pytest.raises(InterjectionError, match="passed on the gradient of input 1 "):
        result.sum().backward()


def test_nothing_is_told_after_removal():
    x = torch.randn(3, requires_grad=True)
    entered, told = note_arguments([x]), []
    result = x.tanh()
    follow(entered, [result], lambda *gradients: told.append(gradients)).remove()
    result.sum().backward()
    assert told == [] and x.grad is not None


@pytest.mark.parametrize(
    "name", ["softmax", "linear", "chunk", "add_", "twice in the call", "items in place", "inputs at different depths"]
)
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_is_kept_alive(name, backward, no_collection):
    call, shapes = FUNCTIONALS[name]
    leaves = [one.requires_grad_() for one in several(*shapes)]
    inputs = [one * 1 for one in leaves]
    seen = []
    entered = note_arguments(inputs)
    result = call(*inputs)
    follow(
        entered,
        tensors_of(result),
        lambda ins, outs: seen.extend(map(weakref.ref, filter(torch.is_tensor, (*ins, *outs)))),
    )
    watched_tensors = [weakref.ref(one) for one in (*inputs, *tensors_of(result))]
    saved = torch.randn(3, requires_grad=True) * 1
    kept = weakref.ref(saved)
    loss = sum(one.sum() for one in tensors_of(result)) + (saved * saved).sum()
    if backward:
        loss.backward(retain_graph=True)
        assert seen and all(reference() is None for reference in seen)
    del entered, inputs, result, loss, saved
    assert all(reference() is None for reference in watched_tensors)
    assert kept() is None


def test_full_size_model_with_every_call_followed_gives_the_same_gradients():
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    twin = copy.deepcopy(model)
    told = []

    def pre(module, args):
        module.entered = note_arguments(tensors_of(args))

    def post(module, args, result):
        follow(module.entered, tensors_of(result), lambda *gradients: told.append(type(module).__name__))

    for module in model.modules():
        module.register_forward_pre_hook(pre)
        module.register_forward_hook(post)
    x = torch.randn(2, 3, 8)
    model(x).pow(2).sum().backward()
    twin(x).pow(2).sum().backward()
    for one, other in zip(model.parameters(), twin.parameters()):
        assert torch.equal(one.grad, other.grad)
    assert "MultiheadAttention" in told and "LayerNorm" in told and told[0] == "TransformerEncoderLayer"
