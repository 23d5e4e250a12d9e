"""Is a forward that asks for shapes, dtypes and devices rewritten with an example, and is its graph told when it does not hold?"""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from architectures import NAMES, architecture, cache_word
from torch import nn
from torch.utils import _pytree as pytree

from byname import rewrite, select
from byname.errors import RewriteError

FIVE = ("gpt2", "llama", "bert", "vit", "t5")
REFUSED = {
    "mamba": "mark_static_address",  # its cache asks for the address of a tensor
    "mamba2": "mark_static_address",
    "rwkv": "sets `layers_are_rescaled`",  # they keep something from one call to the next
    "swin": "sets `window_size`",
    "wav2vec2": "numpy.random",
    "hubert": "numpy.random",
}
ROUTED = {"mixtral": "goes through the items", "olmoe": "goes through the items"}
if torch.__version__ < "2.15":  # which has no fake kernel of their experts for float32
    REFUSED |= ROUTED


def nothing(name, module, value):
    return None


def tensors(output):
    return [one for one in pytree.tree_leaves(tuple(output.values())) if isinstance(one, torch.Tensor)]


def same(one, other):
    assert type(one) is type(other)
    found, wanted = tensors(one), tensors(other)
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize(
    "name",
    [name if name in FIVE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in REFUSED],
)
@pytest.mark.parametrize("training", [False, True])
def test_a_model_of_transformers_computes_the_same(name, training):
    torch.manual_seed(0)
    model, example = architecture(name)
    model.train(training)
    before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    seen = []
    layers = select.conv if name == "resnet" else select.linear
    new = rewrite(model, layers, lambda path, module, value: seen.append(path), example=example)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    torch.manual_seed(1)
    wanted = model(**example)
    torch.manual_seed(1)
    same(new(**example), wanted)
    hooked = []
    modules = dict(model.named_modules())
    for path in modules.keys() & seen:
        modules[path].register_forward_hook(lambda *_, path=path: hooked.append(path))
    model(**example)
    assert hooked == [path for path in seen if path in modules]
    assert (seen != hooked) == (name in ROUTED)  # the router of experts calls `linear` itself


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_rewritten_says_why(name):
    model, example = architecture(name)
    with pytest.raises(RewriteError, match=f"{REFUSED[name]}.*byname.interject"):
        rewrite(model.train(), select.linear, nothing, example=example)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_other_lengths_and_batches_share_one_graph(name):
    model, example = architecture(name)
    new = rewrite(model.eval(), select.linear, lambda path, module, value: 2 * value, example=example)
    graphs = len(new.graphs)
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            module.register_forward_hook(lambda module, args, value: 2 * value)
    for shape in [(1, 5), (1, 6), (3, 4), (2, 9)]:
        call = {key: torch.randint(30, shape) for key in example}
        same(new(**call), model(**call))
    assert len(new.graphs) == graphs


def test_the_gradients_of_a_training_step_are_those_of_the_model():
    model, example = architecture("llama")
    new = rewrite(model.train(), "layers.*.mlp", lambda name, module, value: value * 1, example=example)
    new(**example).last_hidden_state.square().sum().backward()
    found = {key: one.grad.clone() for key, one in model.named_parameters()}
    model.zero_grad()
    model(**example).last_hidden_state.square().sum().backward()
    assert all(torch.equal(found[key], one.grad) for key, one in model.named_parameters())


@pytest.mark.slow
def test_the_parameters_may_be_moved_to_another_dtype():
    model, example = architecture("t5")
    new = rewrite(model.eval(), "decoder.final_layer_norm", nothing, example=example)
    same(new(**example), model(**example))
    model.to(torch.bfloat16)
    wanted = model(**example)
    assert wanted.last_hidden_state.dtype is torch.bfloat16
    same(new(**example), wanted)


def test_each_call_makes_its_own_cache():
    CACHE = cache_word()
    model, example = architecture("llama")
    new = rewrite(model.eval(), "layers.0", nothing, example=example)
    one, other = new(**example), new(**example)
    assert one[CACHE] is not other[CACHE]
    assert one[CACHE].get_seq_length() == 4
    further = model(input_ids=torch.tensor([[5]]), **{CACHE: one[CACHE]})
    wanted = model(input_ids=torch.tensor([[5]]), **{CACHE: model(**example)[CACHE]})
    assert torch.equal(further.last_hidden_state, wanted.last_hidden_state)
    assert other[CACHE].get_seq_length() == 4


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("way", [lambda new: pickle.loads(pickle.dumps(new)), copy.deepcopy, copy.copy])
def test_a_copy_holds_for_the_same_and_for_other_calls(way):
    model, example = architecture("bert")
    new = way(rewrite(model.eval(), "encoder.layer.0", nothing, example=example))
    same(new(**example), model(**example))
    call = {"input_ids": torch.randint(30, (2, 7))}
    same(new(**call), model(**call))


class Asks(nn.Module):
    """Its forward asks a number of questions that metadata answers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        if x.shape[0] > 2:
            x = x.flip(0)
        total = sum(x[row].relu() for row in range(x.shape[0]))
        for row in x:
            total = total + row
        scale = float(len(x)) if x.dtype in (torch.float32, torch.float64) else 0.5
        return total * scale + torch.zeros(x.size(1), device=x.device)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_questions_are_answered_by_the_call(rows):
    model, x = Asks(), torch.randn(rows, 4)
    new = rewrite(model, "fc", nothing, example=torch.randn(2, 4))
    assert torch.equal(new(x), model(x))
    assert torch.equal(new(x), model(x))


def test_one_graph_for_each_number_of_rows_that_the_forward_loops_over():
    model = Asks()
    new = rewrite(model, "fc", nothing, example=torch.randn(2, 4))
    for rows in (2, 3, 2, 3):
        new(torch.randn(rows, 4))
    assert len(new.graphs) == 2
    assert torch.equal(new.double()(x := torch.randn(3, 4).double()), model(x))


class AsksForStrides(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        return x.view(-1) if x.is_contiguous() else x.t().contiguous().view(-1)


def test_an_interjection_that_makes_an_answer_untrue_is_told():
    model, x = AsksForStrides(), torch.randn(4, 4)
    new = rewrite(model, "fc", lambda name, module, value: value.t(), example=x)
    with pytest.raises(RewriteError, match=r"test_known_values.py:\d+ was traced where it got True; now it gets False"):
        new(x)


class AsksForData(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


def test_what_only_data_can_answer_is_refused_with_an_example_too():
    with pytest.raises(RewriteError, match=r"`return self.fc\(x\) if x.sum\(\) > 0.*depends on a value"):
        rewrite(AsksForData(), "fc", nothing, example=torch.ones(1, 4))


def test_without_an_example_the_error_mentions_it():
    model, _ = architecture("gpt2")
    with pytest.raises(RewriteError, match="example=.*byname.interject"):
        rewrite(model, "h.0", nothing)
    with pytest.raises(RewriteError, match="example=.*byname.interject"):
        rewrite(Asks(), "fc", nothing)


def test_no_tensor_of_a_call_is_kept_alive():
    model, example, other = Asks(), torch.randn(2, 4), torch.randn(3, 4)
    new = rewrite(model, "fc", nothing, example=example)
    new(other)
    gone = weakref.ref(example), weakref.ref(other)
    del example, other
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert new is not None


class Norms(nn.Module):
    """Batch normalization, whose buffers change with each call, before a question."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.norm(x)
        return x.tanh() if x.shape[0] > 1 else x


def test_tracing_changes_no_buffer():
    model, x = Norms(), torch.randn(3, 4)
    before = copy.deepcopy(model.state_dict())
    new = rewrite(model, "norm", nothing, example=x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    new(x)
    assert model.norm.num_batches_tracked == 1
    assert torch.equal(new.eval()(x), model.eval()(x))
