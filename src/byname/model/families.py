"""Families: modules and functions of one kind, such as ``nn.ReLU``, ``F.relu``, ``torch.relu`` and ``x.relu_()``.

Classes that other libraries write from scratch are known by their names: ``LlamaRMSNorm`` is a norm, and the ``Conv1D``
of GPT-2 a linear map.

Classes of PyTorch are known by the file of ``torch.nn.modules`` that names them, so that a new one belongs by itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from byname.model.call_graph import ModelCall, is_place
from byname.place import NameSegment, parse
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of, name_of_class, namespace_of, parents_of, snapshot
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.table import listed


@dataclass(frozen=True, slots=True)
class Family:
    """Modules and functions that do one kind of thing.

    Subclasses of the classes belong to it too, and so do the forms in place (``relu_``) of the functions.
    """

    name: str
    classes: tuple[type, ...]
    functions: frozenset[str]

    def has_module(self, module: nn.Module) -> bool:
        """Return whether a module belongs to the family, by its nearest base class in ``torch.nn`` or by its name.

        ``nn.ReLU6`` is a ``relu6`` and not a ``hardtanh``, though its class is derived from ``nn.Hardtanh``.
        """
        kind: type = type(module)
        nearest = _nearest(kind)
        if isinstance(nearest, _ByName):
            return self.name in nearest.families and nearest.fits(module)
        return nearest in self.classes

    def includes_inside(self, module: nn.Module) -> bool:
        """Return whether a function of this family that a module calls belongs to the module's own place.

        The ``tanh`` inside a GELU is a step of that activation and no activation of its own.
        """
        if self.has_module(module):
            return True
        kind: type = type(module)
        nearest = _nearest(kind)
        if self.name not in _ACTIVATIONS or not isinstance(nearest, _ByName) or not nearest.fits(module):
            return False
        return not nearest.families.isdisjoint(_ACTIVATIONS)

    def has_operation(self, name: str) -> bool:
        return name in self.functions or (name.endswith("_") and name[:-1] in self.functions)


_ACTIVATIONS = {
    **{
        name: name
        for name in "celu elu gelu glu gumbel_softmax hardshrink hardsigmoid hardswish hardtanh leaky_relu mish prelu "
        "relu relu6 rrelu selu silu softmin softplus softshrink softsign tanh tanhshrink".split()
    },
    "log_softmax": "log_softmax special_log_softmax _log_softmax",
    "logsigmoid": "logsigmoid log_sigmoid",
    "sigmoid": "sigmoid special_expit",
    "softmax": "softmax special_softmax _softmax",
    "threshold": "threshold _threshold",
}
"""The functions of each activation. Its classes are those of its name: ``nn.LeakyReLU``, ``nn.Softmax2d``."""

_OTHERS = {
    "arithmetic": (
        "add sub mul div neg pow remainder fmod subtract multiply divide true_divide negative positive floor_divide "
        "float_power abs absolute radd rsub rmul rdiv truediv floordiv rfloordiv mod rmod rpow iadd isub imul idiv "
        "ifloordiv imod ipow addcmul addcdiv lerp square sqrt rsqrt reciprocal"
    ),
    "attention": "scaled_dot_product_attention multi_head_attention_forward flex_attention",
    "conv": (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution _convolution "
        "miopen_convolution miopen_depthwise_convolution miopen_convolution_transpose cudnn_convolution "
        "cudnn_convolution_transpose mkldnn_convolution"
    ),
    "distance": "cosine_similarity pairwise_distance cdist pdist dist",
    "dropout": (
        "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout native_dropout"
    ),
    "embedding": "embedding embedding_bag",
    "linear": "linear bilinear",
    "loss": (
        "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss "
        "gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy margin_ranking_loss "
        "mse_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss nll_loss_nd nll_loss2d "
        "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss "
        "cross_entropy_loss"
    ),
    "matmul": (
        "matmul rmatmul imatmul mm bmm mv dot vdot inner outer ger addmm addmv addr addbmm baddbmm einsum tensordot "
        "chain_matmul linalg_matmul linalg_multi_dot linalg_vecdot kron sspaddmm saddmm smm hsmm dsmm grouped_mm "
        "_grouped_mm scaled_mm _scaled_mm scaled_addmm scaled_grouped_mm _int_mm _addmm_activation matrix_power "
        "linalg_matrix_power"
    ),
    "norm": (
        "batch_norm instance_norm layer_norm group_norm rms_norm local_response_norm normalize native_batch_norm "
        "native_layer_norm native_group_norm _fused_rms_norm _native_batch_norm_legit miopen_batch_norm "
        "cudnn_batch_norm quantized_batch_norm"
    ),
    "pad": "pad constant_pad_nd",
    "pool": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
        "adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices "
        "adaptive_max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d fractional_max_pool2d fractional_max_pool3d "
        "fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices lp_pool1d lp_pool2d lp_pool3d "
        "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
        "max_unpool1d max_unpool2d max_unpool3d quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d"
    ),
    "recurrent": (
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell quantized_lstm_cell "
        "quantized_gru_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell miopen_rnn"
    ),
    "shuffle": "channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle",
    "upsample": "interpolate upsample upsample_bilinear upsample_nearest",
}
"""The functions of the other families."""

_FILES = {
    "activation": "activation",
    "attention": "activation",
    "conv": "conv",
    "distance": "distance",
    "dropout": "dropout",
    "embedding": "sparse",
    "linear": "linear",
    "loss": "loss adaptive",
    "norm": "batchnorm instancenorm normalization",
    "pad": "padding",
    "pool": "pooling",
    "recurrent": "rnn",
    "shuffle": "channelshuffle pixelshuffle",
    "upsample": "upsampling",
}
"""The files of ``torch.nn.modules`` that name the classes of a family, in their ``__all__``."""

_FUNCTIONS = {**_ACTIVATIONS, **_OTHERS, "activation": " ".join(_ACTIVATIONS.values())}

FAMILIES = tuple(sorted(_FUNCTIONS))
"""The names of the families."""


@lru_cache
def family_named(name: str) -> Family:
    """Return the family of a name, with the classes that this version of PyTorch has.

    >>> family_named("relu").classes, family_named("relu").has_operation("relu_")
    ((<class 'torch.nn.modules.activation.ReLU'>,), True)
    """
    return Family(name, _classes_of(name), frozenset(_FUNCTIONS[name].split()))


def _classes_of(name: str) -> tuple[type, ...]:
    if name in _ACTIVATIONS:
        plain = name.replace("_", "")
        return tuple(kind for kind in _classes_of("activation") if kind.__name__.removesuffix("2d").lower() == plain)
    named = [kind for file in _FILES.get(name, "").split() for kind in _named_in(file)]
    if name in ("activation", "attention"):  # of one file
        return tuple(kind for kind in named if ("Attention" in kind.__name__) is (name == "attention"))
    return tuple(kind for kind in named if kind is not nn.Identity)


def _named_in(file: str) -> list[type]:
    """Return the classes of modules in the ``__all__`` of a file of ``torch.nn.modules``."""
    module = getattr(nn.modules, file)
    named = [getattr(module, name) for name in module.__all__]
    return [one for one in named if isinstance(one, type) and issubclass(one, nn.Module)]


@dataclass(frozen=True, slots=True)
class _ByName:
    """The families that the name of a class names; `weights` is whether its modules have a matrix of their own."""

    families: frozenset[str]
    weights: bool = False

    def fits(self, module: nn.Module) -> bool:
        """Return whether a module contains no other modules; one that does is more than its name says."""
        held = attributes_of(module)
        children = {name for name, one in snapshot(held.get("_modules") or {}) if one is not None}
        if children - {"parametrizations"}:
            return False
        return not self.weights or bool(children) or any(map(_is_matrix, _tensors_of(held)))


def _tensors_of(held: dict[str, Any]) -> list[Any]:
    return [one for registry in ("_parameters", "_buffers") for _, one in snapshot(held.get(registry) or {})]


def _is_matrix(value: Any) -> bool:
    if not is_tensor(value):
        return False
    with DisableTorchFunction():
        return len(fact(value, "shape") or ()) > 1


@lru_cache(maxsize=4096)
def _nearest(kind: type) -> type | _ByName | None:
    """Return the first of a class and its bases that is in a family, or the families that its name names."""
    known = {one for name in FAMILIES for one in family_named(name).classes}
    if (of_torch := next((parent for parent in parents_of(kind) if parent in known), None)) is not None:
        return of_torch
    for parent in parents_of(kind):
        written_by = str(namespace_of(parent).get("__module__")).partition(".")[0]
        if nn.Module in parents_of(parent) and written_by != "torch":
            named = _by_name(name_of_class(parent))
            if named is not None:
                return named
    return None


def _by_name(name: str) -> _ByName | None:
    """Return the families that the name of a class names.

    >>> sorted(_by_name("NewGELUActivation").families), _by_name("LlamaRMSNorm").families, _by_name("PreNorm")
    (['activation', 'gelu'], frozenset({'norm'}), None)
    """
    if _NORM.search(name) and not _NO_NORM.search(name):
        return _ByName(frozenset({"norm"}))
    if _LINEAR.search(name):
        return _ByName(frozenset({"linear"}), weights=True)
    plain = name.replace("_", "").lower()
    base = plain.removesuffix("activation")
    kind = "gelu" if _GELU.search(base) else _SPELLED.get(base)
    if kind is not None:
        return _ByName(frozenset({"activation", kind}))
    return _ByName(frozenset({"activation"})) if base != plain else None


_NORM = re.compile(r"(Norm|_norm|Normalization)(\dd|\dD|\dP)?(Gated|FP32|Fp32)?$")
_NO_NORM = re.compile(r"^(No|Pre|Post)_?Norm|(Pre|Post|Weight|Spectral|Grad|Gradient|Clip)_?[Nn]orm")
"""Names of classes that apply a norm before or after another module, or to weights; they are no norms."""

_LINEAR = re.compile(r"Linear(\d+bit\w*)?$|^Conv1D$")
"""The ``Conv1D`` of GPT-2 is a linear map with its weight transposed."""

_GELU = re.compile(r"gelu(tanh|new|fast|quick|python|pytorch|accurate|exact)?$")

_SPELLED = {
    **{name.replace("_", ""): name for name in _ACTIVATIONS if name != "threshold"},
    "swish": "silu",
    "memoryefficientswish": "silu",
    "hswish": "hardswish",
    "hsigmoid": "hardsigmoid",
}
"""How the names of activations are spelled in names of classes."""


_INSIDE = {
    "softmax": ("attention",),
    "dropout": ("attention",),
    "matmul": ("attention", "linear"),
    "log_softmax": ("loss",),
    "sigmoid": ("recurrent",),
    "tanh": ("recurrent",),
}
"""For a function, the families whose functions contain it."""


def near_calls_hint(path: str, known: Sequence[str], calls: Sequence[ModelCall], others: Iterable[str] = ()) -> str:
    """Return what an error says of a path that no call matches: known ones close to it, or some; where it is hidden."""
    close = difflib.get_close_matches(path, known, n=3, cutoff=0.4)
    named = listed([f"`{one}`" for one in close or [*known, *others]], NAMED)
    last = parse(path).segments[-1]
    hidden = containing_call_hint(last.plain, calls) if isinstance(last, NameSegment) else ""
    near = f"{'close to it:' if close else 'there are'} {named}" if named else ""
    return "".join(f"; {one}" for one in (near, hidden) if one)


NAMED = 6
"""The number of places that an error names if none is similar to the requested one."""


def containing_call_hint(name: str, calls: Sequence[ModelCall]) -> str:
    """Return a sentence that names the call in which a family or function is hidden; empty if none is known."""
    for family in _INSIDE.get(name, ()):
        within = family_named(family)
        for call in calls:
            found = within.has_module(call.module) if call.kind == "module" else within.has_operation(call.operation)
            if found and is_place(call):
                remedy = ', or attn_implementation="eager" for a model of transformers' if family == "attention" else ""
                return f"the {name} is inside `{call.operation}`: select.{family}{remedy}"
    return ""


def python_attention_hint(calls: Sequence[ModelCall]) -> str:
    """Return a sentence that names an attention written in Python, or what may be one; empty if none is known."""
    known, possible = SoftmaxDetector(), AttentionOutputDetector(is_named=lambda module: True)
    for call in calls:
        if known(call):
            return (
                f"this model computes attention in Python, and `{call.path}` is its pattern: use select.softmax, or "
                'attn_implementation="sdpa" where a model of transformers supports it'
            )
        if possible(call):
            return (
                f"`{call.path}` comes after a softmax in {type(call.module).__name__}, but byname knows attention in "
                "Python only by a class name with Attention, Attn, MultiHead or MHA; give that path"
            )
    return ""


def _is_named_for_attention(module: nn.Module) -> bool:
    return _ATTENTION.search(name_of_class(type(module))) is not None


_ATTENTION = re.compile(r"att|mha|multi_?head", re.IGNORECASE)


def _is_a(name: str, call: ModelCall) -> bool:
    if call.kind == "module":
        return family_named(name).has_module(call.module)
    return is_place(call) and family_named(name).has_operation(call.operation)


class SoftmaxDetector:
    """Finds the softmax of an attention that is written in Python, in calls in the order of the run."""

    def __init__(self) -> None:
        self._attentions: set[str] = set()

    def __call__(self, call: ModelCall) -> bool:
        """Return whether a call is the softmax of a module whose class is named for attention."""
        if call.kind == "module" and _is_named_for_attention(call.module):
            self._attentions.add(call.path)
        if not _is_a("softmax", call):
            return False
        if call.kind == "module":
            return call.path.rpartition(".")[0] in self._attentions
        return _is_named_for_attention(call.module)


class AttentionOutputDetector:
    """Finds the output of an attention that is written in Python: the product that follows its softmax.

    One module multiplies queries and keys, takes a softmax, itself or by a child, and multiplies the result and values.
    """

    def __init__(self, is_named: Callable[[nn.Module], bool] = _is_named_for_attention) -> None:
        self._is_named = is_named
        self._scored: set[str] = set()
        self._softmax = False
        self._children: dict[int, str] = {}

    def __call__(self, call: ModelCall) -> bool:
        """Return whether a call, in the order of the run, is the output of an attention."""
        if _is_a("softmax", call):
            self._softmax = True
            self._children.update({id(call.module): call.path} if call.kind == "module" else {})
        if call.kind == "module" or not _is_a("matmul", call) or not self._is_named(call.module):
            return False
        owner = call.path.rpartition(".")[0]
        follows = self._softmax or self._shares_softmax(call.module, owner)
        found = follows and owner in self._scored and not family_named("attention").has_module(call.module)
        self._softmax = False
        (self._scored.discard if found else self._scored.add)(owner)
        return found

    def _shares_softmax(self, module: nn.Module, path: str) -> bool:
        """Return whether a child is a softmax of another module, too, under whose path all its calls are reported."""
        paths = (self._children.get(id(one)) for one in modules_in(module))
        return any(one is not None and not one.startswith(f"{path}.") for one in paths)
