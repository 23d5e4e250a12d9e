"""Families know modules and functions by their kind: each of torch.nn is in one, or listed here as being in none."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname import select
from byname.model.families import FAMILIES, family_named

torch.set_num_threads(1)

NO_FAMILY_CLASSES = set(
    "Module Container Sequential ModuleList ModuleDict ParameterList ParameterDict Identity Flatten Unflatten Fold "
    "Unfold Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer "
    "DataParallel".split()
)
ACTIVATIONS = set(
    "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish prelu relu relu6 "
    "rrelu selu sigmoid silu softmax softmin softplus softshrink softsign tanh tanhshrink threshold".split()
)
NO_FAMILY_FUNCTIONS = set("affine_grid grid_sample fold unfold one_hot".split())
HELPERS = set(
    "assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function has_torch_function_unary "
    "has_torch_function_variadic Optional".split()
)


def classes_of_nn():
    for name in dir(nn):
        kind = getattr(nn, name)
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            yield kind


def families_with_class(kind):
    module = object.__new__(kind)
    return [name for name in FAMILIES if family_named(name).has_module(module)]


def families_with_function(name):
    return [family for family in FAMILIES if family_named(family).has_operation(name)]


@pytest.mark.parametrize("kind", list(classes_of_nn()), ids=lambda kind: kind.__name__)
def test_every_class_of_torch_nn_is_in_a_family_or_in_none_on_purpose(kind):
    found = families_with_class(kind)
    assert bool(found) != (kind.__name__ in NO_FAMILY_CLASSES), found
    assert len(set(found) - {"activation"}) <= 1, "one kind of thing only"


def test_every_function_of_torch_nn_functional_is_in_a_family_or_in_none_on_purpose():
    names = {name for name in dir(F) if callable(getattr(F, name)) and not isinstance(getattr(F, name), type)}
    public = {name for name in names if not name.startswith("_")} - HELPERS
    without = {name for name in public if not families_with_function(name)}
    assert without == NO_FAMILY_FUNCTIONS
    assert not {name for name in public if len(set(families_with_function(name)) - {"activation"}) > 1}


def test_no_family_names_what_pytorch_does_not_have():
    from torch.overrides import get_testing_overrides

    known = {str(getattr(function, "__name__", "")).strip("_") for function in get_testing_overrides()}
    known |= set(dir(F)) | set(dir(torch._C._nn))
    known |= set(dir(torch)) | {
        name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()
    }
    operators = {
        f"{side}{name}" for side in ("", "r", "i") for name in ("add", "sub", "mul", "div", "truediv", "floordiv")
    }
    operators |= {f"{side}{name}" for side in ("", "r", "i") for name in ("mod", "pow", "matmul")}
    newer = {"scaled_addmm", "linear_cross_entropy"}  # PyTorch 2.10 has neither
    newer |= {"flex_attention"}  # an operator of higher order
    for family in FAMILIES:
        assert family_named(family).functions <= known | operators | newer, family


WRITTEN = {
    "activation": (
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSoftmax LogSigmoid Mish PReLU ReLU "
        "ReLU6 RReLU SELU Sigmoid SiLU Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink "
        "Threshold"
    ),
    "attention": "MultiheadAttention",
    "conv": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "distance": "CosineSimilarity PairwiseDistance",
    "dropout": "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout",
    "embedding": "Embedding EmbeddingBag",
    "linear": "Linear Bilinear",
    "loss": (
        "AdaptiveLogSoftmaxWithLoss BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss "
        "GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss MSELoss "
        "MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PoissonNLLLoss "
        "SmoothL1Loss SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss"
    ),
    "norm": (
        "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm "
        "GroupNorm RMSNorm LocalResponseNorm CrossMapLRN2d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d "
        "LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d"
    ),
    "pad": (
        "ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d "
        "ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d CircularPad1d CircularPad2d CircularPad3d"
    ),
    "pool": (
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d "
        "AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d "
        "MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d"
    ),
    "recurrent": "RNNBase RNNCellBase RNN LSTM GRU RNNCell LSTMCell GRUCell",
    "shuffle": "ChannelShuffle PixelShuffle PixelUnshuffle",
    "upsample": "Upsample UpsamplingBilinear2d UpsamplingNearest2d",
}
"""The classes of each family, written out by hand for PyTorch 2.13; an earlier one does not have them all."""
ADDED = {
    "conv": "LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d",
    "linear": "LazyLinear",
    "loss": "NLLLoss2d",
}
"""Those that ``torch.nn.modules`` names as well; they belonged to these families before, by the class above them."""


def test_the_classes_that_pytorch_names_are_those_once_written_by_hand():
    for name in sorted(WRITTEN):
        found = {kind.__name__ for kind in family_named(name).classes}
        by_hand = {kind for kind in WRITTEN[name].split() if hasattr(nn, kind)}
        assert found - by_hand == set(ADDED.get(name, "").split()), name
        assert not by_hand - found, name
    assert {name for name in FAMILIES if family_named(name).classes} - set(WRITTEN) == ACTIVATIONS


def test_each_activation_has_the_classes_of_its_name():
    assert [kind.__name__ for kind in family_named("softmax").classes] == ["Softmax", "Softmax2d"]
    for name in ACTIVATIONS - {"softmax"}:
        (kind,) = family_named(name).classes
        assert kind.__name__.lower() == name.replace("_", "")


def test_a_new_class_of_pytorch_belongs_by_itself(monkeypatch):
    class Newest(nn.Module):
        pass

    monkeypatch.setattr(nn.modules.normalization, "Newest", Newest, raising=False)
    monkeypatch.setattr(nn.modules.normalization, "__all__", [*nn.modules.normalization.__all__, "Newest"])
    family_named.cache_clear()
    assert Newest in family_named("norm").classes
    monkeypatch.undo()
    family_named.cache_clear()


def test_activation_is_all_activations_together():
    each = [
        name for name in FAMILIES if "activation" in families_with_function(next(iter(family_named(name).functions)))
    ]
    classes = {kind for name in each for kind in family_named(name).classes}
    assert classes == set(family_named("activation").classes)
    assert len(each) == 29  # 28 and `activation`


class Calls(nn.Module):
    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.held = nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x)


def paths(selector, model, example):
    return [*byname.points(model, selector, example=example).paths]


X = torch.randn(2, 4)
IMAGE = torch.randn(1, 2, 8, 8)
SEQUENCE = torch.randn(1, 3, 4)

FUNCTIONS = [
    (select.relu, F.relu, X),
    (select.relu, torch.relu, X),
    (select.relu, lambda x: x.relu(), X),
    (select.relu, lambda x: x.clone().relu_(), X),
    (select.relu, lambda x: F.relu(x.clone(), inplace=True), X),
    (select.gelu, F.gelu, X),
    (select.silu, F.silu, X),
    (select.sigmoid, torch.special.expit, X),
    (select.sigmoid, torch.sigmoid, X),
    (select.tanh, lambda x: x.tanh(), X),
    (select.softmax, lambda x: F.softmax(x, -1), X),
    (select.softmax, lambda x: x.softmax(-1), X),
    (select.softmax, lambda x: torch.special.softmax(x, -1), X),
    (select.log_softmax, lambda x: x.log_softmax(-1), X),
    (select.leaky_relu, F.leaky_relu, X),
    (select.logsigmoid, F.logsigmoid, X),
    (select.activation, lambda x: F.elu(x), X),
    (select.conv, lambda x: F.conv2d(x, torch.ones(3, 2, 3, 3)), IMAGE),
    (select.linear, lambda x: F.linear(x, torch.ones(3, 4)), X),
    (select.norm, lambda x: F.layer_norm(x, (4,)), X),
    (select.norm, lambda x: F.rms_norm(x, (4,)), X),
    (select.pool, lambda x: F.max_pool2d(x, 2), IMAGE),
    (select.pool, lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
    (select.pool, lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    (select.pad, lambda x: F.pad(x, (1, 1)), X),
    (select.dropout, lambda x: F.dropout(x, 0.5), X),
    (select.dropout, lambda x: F.dropout(x, 0.5, training=False), X),
    (select.embedding, lambda x: F.embedding(torch.tensor([0, 1]), x), X),
    (select.attention, lambda x: F.scaled_dot_product_attention(x, x, x), SEQUENCE),
    (select.loss, lambda x: F.cross_entropy(x, torch.tensor([0, 1])), X),
    (select.loss, lambda x: F.mse_loss(x, x), X),
    (select.distance, lambda x: F.cosine_similarity(x, x), X),
    (select.distance, lambda x: torch.cdist(x, x), X),
    (select.shuffle, lambda x: F.pixel_unshuffle(x, 2), IMAGE),
    (select.upsample, lambda x: F.interpolate(x, scale_factor=2), IMAGE),
    (select.recurrent, lambda x: torch.gru_cell(x, x, *[torch.ones(12, 4)] * 2), X),
    (select.matmul, lambda x: x @ x.T, X),
    (select.matmul, lambda x: torch.einsum("ij,kj->ik", x, x), X),
    (select.matmul, lambda x: x.mm(x.T), X),
    (select.matmul, lambda x: torch.bmm(x[None], x.T[None]), X),
    (select.matmul, lambda x: torch.baddbmm(torch.zeros(1), x[None], x.T[None]), X),
]


@pytest.mark.parametrize(("family", "function", "example"), FUNCTIONS, ids=lambda one: str(one)[:30])
def test_functions_and_methods_belong_to_the_family(family, function, example):
    found = paths(family, Calls(function), example)
    assert len(found) == 1
    assert "." not in found[0]


ARITHMETIC = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow,
]  # fmt: skip


@pytest.mark.parametrize("sign", ARITHMETIC, ids=lambda sign: sign.__name__)
@pytest.mark.parametrize("way", ["tensor", "number", "reversed"])
def test_every_operator_of_python_is_arithmetic(sign, way):
    def function(x):
        x = x.clone()
        return {"tensor": lambda: sign(x, x), "number": lambda: sign(x, 2.0), "reversed": lambda: sign(2.0, x)}[way]()

    assert len(paths(select.arithmetic, Calls(function), torch.ones(3) + 1)) == 1


@pytest.mark.parametrize(
    "function", [operator.neg, abs, torch.add, torch.sub, torch.mul, torch.div, torch.pow, torch.fmod]
)
def test_functions_for_operators_are_arithmetic(function):
    unary = function in (operator.neg, abs)
    found = paths(select.arithmetic, Calls((lambda x: function(x)) if unary else (lambda x: function(x, 2))), X)
    assert len(found) == 1


def test_comparisons_shapes_and_reductions_are_not_arithmetic():
    model = Calls(lambda x: (x > 0).float().sum().reshape(1).exp())
    with pytest.raises(byname.errors.NoMatchError):
        paths(select.arithmetic, model, X)


MODULES = [
    ("relu", nn.ReLU(), X), ("gelu", nn.GELU(), X), ("conv", nn.Conv2d(2, 3, 3), IMAGE), ("linear", nn.Linear(4, 2), X),
    ("norm", nn.LayerNorm(4), X), ("norm", nn.RMSNorm(4), X), ("norm", nn.BatchNorm2d(2), IMAGE),
    ("pool", nn.MaxPool2d(2), IMAGE), ("pad", nn.ZeroPad2d(1), IMAGE), ("dropout", nn.Dropout(), X),
    ("recurrent", nn.LSTM(4, 3), SEQUENCE), ("recurrent", nn.GRUCell(4, 3), X), ("shuffle", nn.PixelUnshuffle(2), IMAGE),
    ("upsample", nn.Upsample(scale_factor=2), IMAGE), ("softmax", nn.Softmax(-1), X), ("linear", nn.LazyLinear(3), X),
    ("attention", nn.MultiheadAttention(4, 2), (SEQUENCE, SEQUENCE, SEQUENCE)), ("loss", nn.MSELoss(), (X, X)),
    ("embedding", nn.Embedding(5, 3), torch.tensor([1, 2])), ("distance", nn.PairwiseDistance(), (X, X)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "module", "example"), MODULES, ids=lambda one: str(one)[:20])
def test_a_module_of_torch_nn_is_one_place(family, module, example):
    if isinstance(module, nn.LazyLinear):
        module(example)
    model = nn.Module()
    model.inner = module
    model.forward = module.__call__
    assert paths(getattr(select, family), model, example) == ["inner"]
    assert set(paths(select.all, model, example)) == {"forward", "inner"}


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class HandMade(nn.Module):
    """As in many libraries: a module of their own around a function."""

    def forward(self, x):
        return F.gelu(x)


def test_a_class_derived_from_one_of_torch_nn_belongs_to_its_family_once():
    model = nn.Sequential(Scaled(4, 4))
    assert paths(select.linear, model, X) == ["0"]
    assert paths(select.arithmetic, model, X) == ["0.mul"]


def test_a_derived_class_that_holds_other_modules_belongs_to_its_family_too():
    class LoRALinear(Scaled):
        def __init__(self):
            super().__init__(4, 4)
            self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            return super().forward(x) + self.up(self.down(x))

    found = byname.points(nn.Sequential(LoRALinear()), select.linear, example=torch.ones(1, 4)).paths
    assert set(found) == {"0", "0.down", "0.up"}


def test_a_module_of_somebody_elses_is_told_by_the_function_it_calls():
    assert paths(select.gelu, nn.Sequential(HandMade()), X) == ["0.gelu"]


def test_a_parametrized_module_stays_one_place():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False)))
    assert paths(select.linear, model, X) == ["0"]
    assert "0" in paths(select.parametrized, model, X)


def test_relu6_is_no_hardtanh_though_its_class_is_derived_from_it():
    assert paths(select.relu6, nn.Sequential(nn.ReLU6()), X) == ["0"]
    with pytest.raises(byname.errors.NoMatchError):
        paths(select.hardtanh, nn.Sequential(nn.ReLU6()), X)
