"""The tracer runs an example once: it tells which calls there are and what flows between them, and nothing is left."""

import copy
import gc
import random
import threading
import types
import weakref
from collections import Counter

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from byname import attach, select
from byname.errors import BadArgumentError, BadExampleError
from byname.tracing.tracer import trace

torch.set_num_threads(1)


class Function(nn.Module):
    """A model whose forward is a function."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


X = torch.randn(2, 4)


def flow_of(function, *args, **children):
    return trace(Function(function, **children), args or (X,))


def operations(flow):
    return [call.path for call in flow.calls if call.kind == "operation"]


def makers(flow, path):
    """The paths of the elementary calls whose tensors go straight into a call."""
    made = {number: call.path for call in flow.calls if call.elementary for number in call.outputs}
    call = next(call for call in flow.calls if call.path == path)
    return sorted(made[number] for number in call.inputs if number in made)


# which calls


def test_modules_and_functions_are_written_down_in_the_order_in_which_they_begin():
    model = nn.Sequential(nn.Linear(4, 3), Function(lambda self, x: F.softmax(self.inner(x), -1), inner=nn.ReLU()))
    flow = trace(model, X)
    assert [(call.path, call.operation, call.kind, call.parent) for call in flow.calls] == [
        ("", "Sequential", "module", None),
        ("0", "Linear", "module", 0),
        ("0.linear", "linear", "operation", 1),
        ("1", "Function", "module", 0),
        ("1.inner", "ReLU", "module", 3),
        ("1.inner.relu", "relu", "operation", 4),
        ("1.softmax", "softmax", "operation", 3),
    ]
    assert [call.elementary for call in flow.calls] == [False, True, False, False, True, False, True]
    assert flow.calls[1].shapes == ((2, 3),)
    assert flow.calls[6].function is F.softmax


def test_operations_are_numbered_from_each_call_of_their_module():
    def twice(self, x):
        return torch.softmax(torch.softmax(x, -1), -1)

    def outer(self, x):
        return self.a(self.a(x)).softmax(-1)

    flow = flow_of(outer, a=Function(twice))
    assert operations(flow) == ["a.softmax", "a.softmax_1", "a.softmax", "a.softmax_1", "softmax"]
    assert [call.call for call in flow.calls if call.path == "a.softmax_1"] == [0, 1]


NAMES = [
    (lambda self, x: x + x, ["add"]),
    (lambda self, x: 1 - x, ["rsub"]),
    (lambda self, x: x @ x.T, ["T", "matmul"]),
    (lambda self, x: x.mT.real.imag if x.is_complex() else x.mT.real, ["mT", "real"]),
    (lambda self, x: x[0], ["getitem"]),
    (lambda self, x: x.data * 2, ["data", "mul"]),
    (lambda self, x: x.view(x.shape[0], x.size(1)).sum(), ["view", "sum"]),
    (lambda self, x: x.max(0).values, ["max"]),
    (lambda self, x: x.new_zeros(len(x), x.dim()), ["new_zeros"]),
    (lambda self, x: torch.cat([x, x]).split(1), ["cat", "split"]),
    (lambda self, x: float(x.sum()) + x.numel(), ["sum"]),
    (lambda self, x: x.type() and x, []),
    (lambda self, x: torch.relu(x) if x.requires_grad else torch.tanh(x), ["tanh"]),
    (lambda self, x: F.max_pool1d(x, 2, return_indices=True), ["max_pool1d_with_indices"]),
    (lambda self, x: torch.ops.aten.relu.default(torch.ops.aten.relu(x)), ["relu", "relu_1"]),
]


@pytest.mark.parametrize(("function", "names"), NAMES)
def test_what_reads_a_property_is_no_operation_and_what_computes_one_is(function, names):
    assert operations(flow_of(function)) == names


def in_place(self, x):
    x = x * 1
    x += 1
    x[0] = 0
    torch.add(x, 1, out=x)
    return x.add_(1)


def test_changes_in_place_are_operations_and_give_a_tensor_a_new_number():
    flow = flow_of(in_place)
    calls = [call for call in flow.calls if call.kind == "operation"]
    assert [call.path for call in calls] == ["mul", "add_", "setitem", "add", "add__1"]
    for before, after in zip(calls, calls[1:]):
        assert before.outputs[0] in after.inputs
    assert len({call.outputs for call in calls}) == 5


def test_a_name_that_means_something_else_gets_a_number_with_a_zero():
    model = Function(lambda self, x: F.relu(F.relu(self.relu(x))), relu=nn.ReLU(), relu_1=nn.ReLU())
    flow = trace(model, X)
    assert [call.path for call in flow.calls if call.parent == 0] == ["relu", "relu_0", "relu_01"]
    assert len({(call.path, call.call) for call in flow.calls}) == len(flow.calls)


def test_names_of_operations_do_not_depend_on_how_the_function_is_reached():
    assert {select.op(one) for one in (F.relu, torch.relu, torch.Tensor.relu)} == {select.op("relu")}
    assert select.op(torch.Tensor.__getitem__) == select.op("getitem")
    for one in (torch.Tensor.grad, torch.Tensor.shape):
        with pytest.raises(BadArgumentError, match="are not operations"):
            select.op(one.__get__)
    assert select.op(lambda x: x) == select.op("lambda")
    names = operations(flow_of(lambda self, x: x + x + x + x.add(x).float()))
    assert names == ["add", "add_1", "add_2", "float", "add_3"]
    assert operations(flow_of(lambda self, x: torch.square(x), square=nn.Parameter(X))) == ["square_0"]
    own = type("Own", (Function,), {"tanh": None})(lambda self, x: torch.tanh(x))
    assert operations(trace(own, X)) == ["tanh_0"]


def test_a_function_of_the_users_is_not_kept_by_the_table_of_names():
    held = torch.zeros(3)

    def users(x, kept=held):
        return x

    selector, reference = select.op(users), weakref.ref(users)
    del users
    gc.collect()
    assert selector == select.op("users")
    assert reference() is None


def test_elementary_are_modules_that_run_code_of_torch_nn_alone():
    def is_leaf_module(module, *args):
        return trace(module, args or (X,)).calls[0].elementary

    assert is_leaf_module(nn.LSTM(4, 2))
    assert is_leaf_module(nn.MultiheadAttention(4, 1), X, X, X)
    assert not is_leaf_module(nn.TransformerEncoderLayer(4, 1, 4))
    assert not is_leaf_module(nn.Sequential(nn.ReLU()))
    assert not is_leaf_module(Function(lambda self, x: x))

    class Derived(nn.ReLU):
        pass

    class Own(nn.ReLU):
        def forward(self, x):
            return x

    assert is_leaf_module(Derived())
    assert not is_leaf_module(Own())


# what flows


def test_edges_of_branches_and_residuals_are_those_of_the_program():
    def forward(self, x):
        a = torch.relu(x)
        b = torch.tanh(a)
        return torch.cat([a, b, x])

    flow = flow_of(forward)
    assert makers(flow, "tanh") == ["relu"]
    assert makers(flow, "cat") == ["relu", "tanh"]
    assert flow.sources[flow.calls[0].inputs[0]] == "input 0"
    assert flow.calls[0].outputs == flow.calls[-1].outputs


def test_sources_are_called_what_the_program_calls_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.plain = torch.ones(4)

        def forward(self, x, batch=None):
            return self.fc(x) - self.mean * self.plain + batch["y"][0] + ELSEWHERE

    flow = trace(Model(), ((X,), {"batch": {"y": [X + 1]}}))
    names = set(flow.sources.values())
    assert names == {"input x", "input batch['y'][0]", "fc.weight", "fc.bias", "mean", "plain", "constant"}


ELSEWHERE = torch.ones(4)


def test_a_view_that_was_changed_changes_what_it_is_a_view_of():
    def forward(self, x):
        base = x * 1
        left, right = base[:, :2], base[:, 2:]
        left.add_(1)
        return torch.relu(base), torch.tanh(right)

    flow = flow_of(forward)
    assert makers(flow, "relu") == ["add_"]
    assert makers(flow, "tanh") == ["add_"]


def test_data_flows_through_a_module_in_place():
    flow = flow_of(lambda self, x: torch.tanh(self.act(x * 1)), act=nn.ReLU(inplace=True))
    assert makers(flow, "tanh") == ["act"]
    assert makers(flow, "act") == ["mul"]


def test_a_tensor_kept_in_an_attribute_is_an_edge():
    def forward(self, x):
        self.first.kept = torch.relu(x)
        return self.first(x)

    flow = flow_of(forward, first=Function(lambda self, x: x + self.kept))
    assert makers(flow, "first.add") == ["relu"]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_what_an_autograd_function_of_the_users_makes_is_known_to_come_from_its_input():
    x = X.clone().requires_grad_()
    flow = flow_of(lambda self, x: torch.tanh(Square.apply(torch.relu(x))), x)
    (number,) = next(call for call in flow.calls if call.path == "tanh").inputs
    assert flow.unseen[number] == next(call for call in flow.calls if call.path == "relu").outputs


def test_a_module_of_torchscript_takes_no_hooks_and_is_no_call_but_data_flows_through_it():
    inner, x = torch.jit.script(nn.ReLU()), X.clone().requires_grad_()
    flow = flow_of(lambda self, x: torch.tanh(self.one(torch.relu(x))), x, one=inner)
    assert [call.path for call in flow.calls] == ["", "relu", "tanh"]
    (number,) = next(call for call in flow.calls if call.path == "tanh").inputs
    assert flow.unseen[number] == next(call for call in flow.calls if call.path == "relu").outputs


def test_what_a_module_makes_unseen_comes_from_its_inputs():
    def hidden(self, x):
        return torch.from_numpy(x.numpy() + 1)

    flow = flow_of(lambda self, x: torch.tanh(self.one(torch.relu(x))), one=Function(hidden))
    (number,) = next(call for call in flow.calls if call.path == "tanh").inputs
    assert flow.unseen[number] == next(call for call in flow.calls if call.path == "relu").outputs


def test_numbers_are_not_given_again_when_memory_is():
    def forward(self, x):
        for _ in range(50):
            x = torch.relu(x + 1)
        return x

    flow = flow_of(forward)
    made = [number for call in flow.calls if call.kind == "operation" for number in call.outputs]
    assert len(set(made)) == 100
    chain = [call for call in flow.calls if call.kind == "operation"]
    assert all(before.outputs[0] in after.inputs for before, after in zip(chain, chain[1:]))


def test_dicts_dataclasses_and_nothing_come_out_of_modules():
    flow = flow_of(lambda self, x: {"a": (x + 1, [None]), "b": self.none(x)}, none=Function(lambda self, x: None))
    assert flow.calls[0].outputs == flow.calls[1].outputs
    assert next(call for call in flow.calls if call.path == "none").outputs == ()


OPERATIONS = st.sampled_from(["relu", "add_", "view", "cat", "mul"])


@settings(max_examples=40)
@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_edges_agree_with_a_program_that_keeps_book_itself(program):
    """Values in a list; each step makes one from two. What depends on what is found by the gradients of markers."""

    def run(x, record=None):
        values = [x * 1]
        for name, i, j in program:
            a, b = values[i % len(values)], values[j % len(values)]
            if name == "add_":
                values.append(a.add_(b.detach().clone()))
            elif name == "view":
                values.append(a.view(-1).view(2, 4))
            elif name == "cat":
                values.append(torch.cat([a, b])[:2])
            else:
                values.append(torch.relu(a) if name == "relu" else torch.mul(a, b))
        return values[-1]

    flow = flow_of(lambda self, x: run(x))
    steps = [call for call in flow.calls if call.elementary]
    known = set(flow.sources)
    for call in steps:  # every tensor that goes in was made before, or comes from outside
        assert set(call.inputs) <= known
        known |= set(call.outputs)
    assert len([n for call in steps for n in call.outputs]) == len({n for call in steps for n in call.outputs})
    assert set(flow.calls[0].outputs) <= known


# examples


ARGUMENTS = [
    (X, ((X,), {})),
    ((X, 1), ((X, 1), {})),
    ({"x": X}, ((), {"x": X})),
    (((X,), {"k": 1}), ((X,), {"k": 1})),
    (({"x": X},), (({"x": X},), {})),
    ((X, {"k": 1}), ((X, {"k": 1}), {})),
    (([X], {"k": 1}), (([X], {"k": 1}), {})),
    ((), ((), {})),
]


@pytest.mark.parametrize(("example", "expected"), ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_an_example_stands_for_arguments(example, expected):
    given = []
    trace(Function(lambda self, *args, **kwargs: given.append((args, kwargs))), example)
    assert repr(given) == repr([expected])


@pytest.mark.parametrize("example", [[X], 3, "x", {1: X}, ((X,), {2: X}), numpy.zeros(3)])
def test_what_stands_for_no_arguments_is_refused(example):
    with pytest.raises(BadExampleError, match="example= takes a tensor; a tuple"):
        trace(nn.ReLU(), example)


def test_a_model_that_is_unfinished_is_refused():
    with pytest.raises(BadArgumentError, match="fc.weight gets its shape at the first call"):
        trace(Function(lambda self, x: self.fc(x), fc=nn.LazyLinear(3)), X)


def test_the_example_is_not_changed_by_a_model_that_works_in_place():
    x, other, leaf = X.clone(), X.clone(), torch.ones(3, requires_grad=True)
    cache = types.SimpleNamespace(keys=[X.clone()])

    def forward(self, x, batch, leaf, cache):
        assert batch["same"] is x
        assert leaf.is_leaf and leaf.requires_grad
        x.zero_()
        batch["other"][0].add_(1)
        batch["new"] = 1
        cache.keys[0].add_(1)
        cache.keys.append(x)
        return x

    batch = {"same": x, "other": [other]}
    flow_of(forward, x, batch, leaf, cache)
    assert len(cache.keys) == 1 and torch.equal(cache.keys[0], X)
    assert torch.equal(x, other)
    assert torch.equal(x, X) and x._version == 0
    assert list(batch) == ["same", "other"]
    assert leaf.grad is None


# nothing is left


class Busy(nn.Module):
    """Changes all that a forward can change."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("rebound", torch.zeros(2))
        self.register_buffer("view", torch.zeros(2, 2)[0])
        self.steps = 0
        self.cache = {"keys": [torch.zeros(2)]}
        self.history = []
        self.tags = {"a"}
        self.uses, self.totals = Counter(x=1), numpy.zeros(2)
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = random.Random(4)
        self.arrays = numpy.random.default_rng(5)
        self.note = type("Note", (), {})()
        self.note.last = None
        self.fail = False

    def forward(self, x):
        self.steps += 1
        self.seen.add_(1)
        self.view += 1
        self.rebound = self.rebound + 1
        self.new = x
        self.cache["keys"].append(x)
        self.cache["keys"][0].add_(1)
        self.cache["more"] = x
        self.history.append(x)
        self.tags.add("b")
        self.uses["x"] += 1
        self.totals += 1
        self.note.last = x
        torch.rand(2, generator=self.generator)
        self.numbers.random(), self.arrays.random(), random.random(), numpy.random.rand()
        with torch.no_grad():
            self.fc.weight.mul_(2)
            self.fc.bias.data.copy_(torch.ones(4))
        self.fc.weight.data = self.fc.weight.data * 3
        self.fc.bias.requires_grad_(False)
        self.register_forward_hook(lambda *_: None)
        self.register_buffer("late", torch.zeros(1))
        self.add_module("added", nn.ReLU())
        self.drop.eval()
        torch.set_default_dtype(torch.float64)
        h = self.norm(self.fc(x.float()))
        with torch.enable_grad():
            (self.norm.weight * 2).sum().backward()
        torch.set_grad_enabled(False)
        if self.fail:
            raise ValueError("no luck")
        return torch.dropout(h, 0.5, True)


def footprint(model):
    found = []
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                found += [(name, key, id(one)) for key, one in value.items()]
            else:
                found.append((name, id(value), repr(value) if not isinstance(value, torch.Generator) else None))
    for tensor in [*model.parameters(), *model.buffers()]:
        grad = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist(), tensor.grad._version)
        found.append((id(tensor), tensor.tolist(), tensor._version, tensor.requires_grad, grad, tensor.data_ptr()))
    found.append([one.tolist() for one in model.cache["keys"]])
    found.append(
        (model.generator.get_state().tolist(), model.numbers.getstate(), str(model.arrays.bit_generator.state))
    )
    found.append((torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())))
    found.append(
        (torch.get_default_dtype(), torch.is_grad_enabled(), torch._C._len_torch_function_stack(), vars(model.note))
    )
    return found


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_nothing_is_left_of_the_run(fail, grad):
    model = Busy()
    model.fail = fail
    model.norm.weight.grad = torch.ones(4)
    before = copy.deepcopy(footprint(model))
    with torch.set_grad_enabled(grad):
        before[-1] = (before[-1][0], grad, *before[-1][2:])
        if fail:
            with pytest.raises(ValueError, match="no luck") as caught:
                trace(model, X)
            assert caught.value.__notes__ == ["byname: raised while the model ran the given example="]
        else:
            trace(model, X)
        after = footprint(model)
    for one, other in zip(before, after, strict=True):
        assert one == other


def test_the_grad_mode_and_the_training_mode_of_the_caller_hold_in_the_run():
    seen = []
    model = Function(lambda self, x: seen.append((torch.is_grad_enabled(), self.training)) or x)
    trace(model, X)
    with torch.no_grad():
        trace(model.eval(), X)
    with torch.inference_mode():
        trace(model, X)
    assert seen == [(True, True), (False, False), (False, False)]


def test_changes_in_inference_mode_are_numbered_too():
    with torch.inference_mode():
        flow = flow_of(in_place)
    calls = [call for call in flow.calls if call.kind == "operation"]
    assert len({call.outputs for call in calls}) == 5
    assert all(before.outputs[0] in after.inputs for before, after in zip(calls, calls[1:]))


def test_buffers_made_in_inference_mode_are_put_back():
    with torch.inference_mode():
        model = nn.BatchNorm1d(4)
        trace(model, X)
        assert model.running_mean.tolist() == [0] * 4
    assert int(model.num_batches_tracked) == 0


def test_a_weight_that_an_embedding_renorms_is_put_back():
    model = nn.Embedding(5, 4, max_norm=0.1)
    before, version = model.weight.detach().clone(), model.weight._version
    trace(model, torch.tensor([1, 2]))
    assert torch.equal(model.weight, before)
    assert model.weight._version == version


def test_what_is_large_or_lies_deep_is_put_back_when_it_was_written_to():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("bank", torch.zeros(1 << 25))
            self.cache = types.SimpleNamespace(layers=[{"keys": torch.zeros(3)}])

        def forward(self, x):
            self.bank[0] = 1
            self.bank.view(-1)[1].add_(1)
            self.cache.layers[0]["keys"][1:].copy_(x[0, 1:3])
            return x

    model = Caching()
    trace(model, X)
    assert not model.bank[:2].any() and not model.cache.layers[0]["keys"].any()
    assert model.bank._version == model.cache.layers[0]["keys"]._version == 0


def test_a_graph_made_before_the_run_can_still_be_gone_back_through():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    loss = model(X).sum()
    trace(model, X)
    loss.backward()
    assert model[0].weight.grad is not None


def test_no_tensor_of_the_run_is_kept_alive():
    kept = []

    def forward(self, x):
        h = torch.relu(x + 1)
        kept.append(weakref.ref(h))
        return h

    flow = flow_of(forward)
    gc.collect()
    assert kept[0]() is None
    assert len(flow.calls) == 3


def test_results_are_the_same_with_and_without_the_run_in_between():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    torch.manual_seed(1)
    plain = [model(X) for _ in range(2)]
    again = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    again.load_state_dict(model.state_dict())
    again[1].reset_running_stats()
    torch.manual_seed(1)
    first = again(X)
    trace(again, X)
    assert torch.equal(first, plain[0])
    assert torch.equal(again(X), plain[1])
    assert torch.equal(again[1].running_mean, model[1].running_mean)


def test_a_run_interrupted_by_the_user_leaves_nothing():
    def forward(self, x):
        self.count = 1
        raise KeyboardInterrupt

    model = Function(forward)
    with pytest.raises(KeyboardInterrupt):
        trace(model, X)
    assert "count" not in vars(model)
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert torch._C._len_torch_function_stack() == 0
    told, probe = [], nn.ReLU()
    with attach(probe, "forward", told.append):
        probe(X)
    assert len(told) == 1


def test_an_exception_caught_by_the_model_leaves_the_calls_in_order():
    def fails(self, x):
        torch.relu(x)
        raise ValueError

    def forward(self, x):
        try:
            self.inner(x)
        except ValueError:
            return torch.tanh(x)

    flow = flow_of(forward, inner=Function(fails))
    assert [(call.path, call.parent) for call in flow.calls] == [
        ("", None),
        ("inner", 0),
        ("inner.relu", 1),
        ("tanh", 0),
    ]


# others


def test_hooks_and_modes_of_others_are_kept_and_heard():
    heard = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.ReLU())
    handle = model[0].register_forward_hook(lambda module, args, output: output + 1)
    with Mode():
        flow = trace(model, X)
    assert heard == ["relu", "add"]
    assert len(model[0]._forward_hooks) == 1
    assert flow.calls[0].outputs == flow.calls[-1].outputs
    handle.remove()


def test_an_example_run_is_known_in_its_thread_alone():
    heard, probe = [], nn.ReLU()
    started, ended = threading.Event(), threading.Event()

    def forward(self, x):
        thread = threading.Thread(target=probe, args=(torch.tensor([1.0]),))
        thread.start()
        thread.join()
        probe(torch.tensor([2.0]))
        trace(Function(lambda self, x: probe(torch.tensor([2.5]))), X)
        probe(torch.tensor([3.0]))
        return x

    def waits(self, x):
        started.set()
        ended.wait(10)
        return x

    with attach(probe, "forward", lambda event: heard.append(event.value.item())):
        flow_of(forward)
        other = threading.Thread(target=flow_of, args=(waits,))
        other.start()
        started.wait(10)
        probe(torch.tensor([4.0]))
        ended.set()
        other.join()
    assert heard == [1.0, 4.0]


def test_another_thread_that_runs_the_model_meanwhile_is_not_written_down():
    inner = nn.ReLU()

    def forward(self, x):
        thread = threading.Thread(target=lambda: self.inner(torch.zeros(1)))
        thread.start()
        thread.join()
        return x + 1

    flow = flow_of(forward, inner=inner)
    assert [call.path for call in flow.calls] == ["", "add"]


def test_checkpointing_runs_once():
    layer = nn.Linear(4, 4)
    flow = flow_of(lambda self, x: checkpoint(self.layer, x, use_reentrant=False), layer=layer)
    assert [call.path for call in flow.calls if call.kind == "module"] == ["", "layer"]


def test_a_shared_module_has_its_first_path():
    layer = nn.ReLU()
    flow = trace(nn.Sequential(layer, nn.Sequential(layer)), X)
    assert [(call.path, call.call) for call in flow.calls if call.module is layer and call.kind == "module"] == [
        ("0", 0),
        ("0", 1),
    ]


MODELS = [
    (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), torch.randn(2, 3, 8)),
    (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (torch.randn(1, 3, 8), torch.randn(1, 2, 8))),
    (lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.2), torch.randn(5, 2, 4)),
    (lambda: nn.MultiheadAttention(8, 2), (torch.randn(3, 1, 8),) * 3),
    (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), X),
    (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), X),
]


@pytest.mark.parametrize(("make", "example"), MODELS, ids=range(len(MODELS)))
@pytest.mark.parametrize("train", [True, False])
def test_every_tensor_that_comes_out_of_a_model_can_be_followed_back_to_its_input(make, example, train):
    model = make().train(train)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    flow = trace(model, example)
    behind = {n for n, name in flow.sources.items() if name.startswith("input")}
    for call in flow.calls:
        if call.elementary and behind & set(call.inputs):
            behind |= set(call.outputs)
        behind |= {n for n, origins in flow.unseen.items() if behind & set(origins)}
    assert flow.calls[0].outputs
    assert set(flow.calls[0].outputs[:1]) <= behind
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())


def test_a_model_ends_though_a_module_in_it_has_removed_its_hooks():
    def forget(self, x):
        self._forward_hooks.clear()
        return x.sin()

    flow = flow_of(lambda self, x: self.inner(x), inner=Function(forget))
    outer, inner = flow.calls[0], next(call for call in flow.calls if call.path == "inner")
    assert len(outer.outputs) == 1 and inner.outputs == ()


def test_the_sister_of_a_module_that_has_removed_its_hooks_is_not_inside_of_it():
    def forget(self, x):
        self._forward_hooks.clear()
        return x.sin()

    flow = flow_of(lambda self, x: self.relu(self.inner(x)).cos(), inner=Function(forget), relu=nn.ReLU())
    assert [call.path for call in flow.calls if call.parent == 0] == ["inner", "relu", "cos"]
