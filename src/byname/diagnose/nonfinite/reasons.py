"""Reasons: why an operation turns finite numbers into NaN or Inf, and the remedy.

Tensors are tested for finite numbers without a trace in the modes and graphs of the program.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from byname.diagnose.cause import Sentence, render
from byname.naming.name import Name
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN
from byname.source.location import Site
from byname.table import counted

Tensors = Mapping[str, Any]


def operation_of(name: str) -> str:
    """Return the plain name of an operation: ``__rtruediv__``, ``div_`` and ``DivBackward0`` are all ``div``."""
    plain = name.rpartition("::")[2].partition("Backward")[0].strip("_")
    lowered = re.sub("^linalg_?(?=eig|svd)", "linalg.", plain.lower())
    made_by_pytorch = name[-1:].isdigit()  # a custom function keeps the name of its class
    return _ALIASES.get(lowered, lowered if made_by_pytorch or "." in lowered else plain)


_ALIASES = {
    "truediv": "div", "rtruediv": "div", "rdiv": "div", "divide": "div", "true_divide": "div", "idiv": "div",
    "itruediv": "div", "linalgvectornorm": "norm", "vector_norm": "norm", "linalg_vector_norm": "norm", "rpow": "pow",
    "ipow": "pow", "arccos": "acos", "arcsin": "asin", "arctanh": "atanh",
}  # fmt: skip


def call_of(operation: str, site: Site | None, result: Name | None) -> Sentence:
    """Return a phrase for a call of an operation, with its line and the variable that it made."""
    words = "`{operation}`"
    if site is not None:
        words += "{site:at} (`{site.statement}`)" if site.statement else "{site:at}"
    if result is not None and result.path:
        words += ", which made `{result.path}`,{result:-}"
    return render(words, operation=operation, site=site, result=result)


class _Rule(NamedTuple):
    """One way in which a tensor makes an operation fail: the slot of the tensor, the test, and the words for it."""

    slot: str
    test: Callable[[torch.Tensor], torch.Tensor]
    words: str


def why(operation: str, tensors: Tensors, result: torch.Tensor) -> str:
    """Return a clause on ``self``, ``other`` or ``result`` that tells why a result is not finite, or an empty one."""
    for rule in _RULES.get(operation, ()):
        tensor = tensors.get(rule.slot)
        if tensor is None or tensor.layout is not torch.strided or tensor.dtype.is_complex or not can_read(tensor):
            continue
        bad = torch.isnan(result.detach()) if rule is _INPUT_NEGATIVE else not_finite(result)  # it never gives Inf
        clause = _clause(rule, tensor.detach(), bad)
        if clause:
            return clause
    if torch.isnan(result.detach()).any().item():
        return _mean_of_nothing(operation, tensors)
    return _range(operation, tensors, result)


def _mean_of_nothing(operation: str, tensors: Tensors) -> str:
    """Return a clause about an input without elements, or about targets that are all the same, so all ignored."""
    given, target = tensors.get("self"), tensors.get("other") if operation in _OF_TARGETS else None
    if given is not None and not given.numel():
        return "its input has no elements"
    labels = set() if target is None or not is_readable(target) else set(target.flatten().tolist())
    return f"all its targets are {labels.pop()}" if len(labels) == 1 else ""


def _clause(rule: _Rule, tensor: torch.Tensor, bad: torch.Tensor) -> str:
    there = rule.test(tensor)
    count = int(there.sum().item())
    if not count:
        return ""
    if there.shape != bad.shape:
        return f"{rule.words} in {count} of {counted(tensor.numel(), 'element')}"
    meeting = int((there & bad).sum().item())
    return f"{rule.words} at {counted(meeting, 'of these elements', 'of these elements')}" if meeting else ""


def _range(operation: str, tensors: Tensors, result: torch.Tensor) -> str:
    """Return a clause about the largest number of the result's dtype, if the operation went beyond it."""
    if not torch.isinf(result.detach()).any().item() or result.dtype.is_complex:
        return ""
    end = torch.finfo(result.dtype).max
    given = tensors.get("self")
    largest = largest_of(given) if operation in _GROWING and given is not None else 0.0
    if largest:
        return f"its input goes up to {largest:g} in magnitude, and {dtype_text(result)} ends at {end:.3g}"
    return f"{dtype_text(result)} ends at {end:.3g}" if result.dtype in _SHORT else ""


def dtype_text(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


_OF_TARGETS = ("cross_entropy", "nll_loss")
_MEANS = "mean mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy".split()
_MEANS += ["binary_cross_entropy_with_logits", *_OF_TARGETS]
"""Functions that turn finite numbers into NaN only where they take the mean of nothing."""
_GROWING = "exp exp2 expm1 sinh cosh pow square mse_loss mul mm matmul linear bmm conv2d".split()
_SHORT = (torch.float16, torch.bfloat16)


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a mask of sorted values that are equal to one beside them."""
    same = tensor.diff(dim=-1) == 0
    return torch.nn.functional.pad(same, (1, 0)) | torch.nn.functional.pad(same, (0, 1))


_INPUT_ZERO = _Rule("self", lambda tensor: tensor == 0, "its input is 0")
_INPUT_NEGATIVE = _Rule("self", lambda tensor: tensor < 0, "its input is negative")
_RESULT_ZERO = _Rule("result", lambda tensor: tensor == 0, "its result is 0 (no finite slope there)")
_LOG = (_INPUT_ZERO, _INPUT_NEGATIVE)
_ARC = (
    _Rule("self", lambda tensor: tensor.abs() == 1, "its input is 1 or -1"),
    _Rule("self", lambda tensor: tensor.abs() > 1, "its input is beyond 1 or -1"),
)
_RULES: dict[str, tuple[_Rule, ...]] = {
    "sqrt": (_RESULT_ZERO, _INPUT_NEGATIVE),
    "rsqrt": (_INPUT_ZERO, _INPUT_NEGATIVE, _Rule("result", torch.isinf, "its result is Inf")),
    "norm": (_RESULT_ZERO,),
    "std": (_RESULT_ZERO,),
    **dict.fromkeys(("log", "log2", "log10"), _LOG),
    "div": (_Rule("other", lambda tensor: tensor == 0, "its denominator is 0"),),
    "reciprocal": (_INPUT_ZERO,),
    "pow": (_INPUT_ZERO, _INPUT_NEGATIVE),
    "log1p": (_Rule("self", lambda tensor: tensor <= -1, "its input is -1 or below"),),
    "logit": (_Rule("self", lambda tensor: (tensor == 0) | (tensor == 1), "its input is 0 or 1"),),
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), _ARC),
    "kl_div": (_Rule("other", lambda tensor: tensor < 0, "its targets are negative, as logarithms are,"),),
    "linalg.eigh": (_Rule("eigenvalues", _repeated, "eigenvalues are equal to others"),),
    "linalg.svd": (_Rule("S", _repeated, "singular values are equal to others"),),
}


def remedy_for(operation: str, dtype: torch.dtype, overflow: bool, from_inf: bool = False) -> str:
    """Return advice against numbers that are not finite: all are Inf by an `overflow`, or they come `from_inf`."""
    if from_inf:
        return _REMEDIES["softmax"] if operation in ("softmax", "log_softmax", *_OF_TARGETS) else _FROM_INF
    lost = overflow and (operation in _MEANS or (operation == "pow" and dtype is torch.float16))
    known = "" if lost else _REMEDIES.get(operation, "")
    if dtype is torch.float16 and overflow and not known:
        return _HALF
    return known or (OVERFLOW if overflow else _GENERAL)


_FROM_INF = (
    "0 times Inf, Inf minus Inf and Inf / Inf are NaN: replace Inf before this operation by torch.where or "
    "masked_fill, not by a mask that multiplies"
)
_HALF = (
    "float16 ends at 65504: let torch.amp.GradScaler skip such steps and lower its scale, or compute this in bfloat16 "
    "or float32"
)
OVERFLOW = (
    "scale the numbers down before this operation, where they grow (inputs that are not normalised, a recurrence over "
    "many steps, large initial weights), or compute it in a wider dtype"
)
DIVERGING = "lower the learning rate, normalise the inputs and targets, or clip the gradients before each step"
_GENERAL = "keep its inputs away from points where the operation, or its slope, is infinite or undefined"
_LOG_REMEDY = "keep its input above 0: x.clamp_min(eps), log1p, log_softmax or logsigmoid; x.abs() of a determinant"
_LINEAR = "keep its input strictly between -1 and 1: x.clamp(-1 + eps, 1 - eps)"
_DISTINCT = (
    "its gradient divides by differences of these values: keep them distinct, as by a little random noise on the "
    "matrix, or compute the loss from the values alone (torch.linalg.eigvalsh, torch.linalg.svdvals)"
)
_NO_MEAN = (
    "the mean of nothing is NaN: leave the term out where nothing is selected, or where all targets are ignored "
    "(ignore_index); or divide a sum by max(1, the number)"
)
_REMEDIES = {
    **dict.fromkeys(_MEANS, _NO_MEAN),
    **dict.fromkeys(("linalg.eigh", "linalg.svd"), _DISTINCT),
    "ctc_loss": "a target longer than its input (a repeated label needs one step more) gives Inf: leave it out, or "
    "pass zero_infinity=True",
    "sqrt": "add a small eps inside, before the root: torch.sqrt(x + eps)",
    "rsqrt": "add a small eps inside: torch.rsqrt(x + eps)",
    "norm": "add a small eps inside the norm: (x.square().sum() + eps).sqrt()",
    **dict.fromkeys(("log", "log2", "log10"), _LOG_REMEDY),
    "div": "keep the denominator away from 0: add a small eps to it, or clamp_min(eps)",
    "reciprocal": "keep its input away from 0: add a small eps to it",
    "exp": "subtract the maximum first, as torch.softmax and torch.logsumexp do, or clamp the input",
    "pow": "keep the base above 0, or add a small eps to it, where the exponent is below 1 or not a whole number",
    "log1p": "keep its input above -1: x.clamp_min(-1 + eps); for log(1 - sigmoid(z)) write logsigmoid(-z)",
    "logit": "keep its input away from 0 and 1, torch.logit(p, eps=1e-6), or compute with the logits themselves",
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), _LINEAR),
    "atan2": "keep its two inputs from both being 0",
    "std": "a standard deviation needs two elements or more, and its slope at 0 is not finite: add a small eps, or "
    "unbiased=False",
    "var": "a variance needs two elements or more: unbiased=False, or correction=0",
    "kl_div": "its targets are probabilities, as of a softmax; for those of a log_softmax give it log_target=True",
    "softmax": "leave at least one element of each row unmasked",
}


@contextmanager
def reading_values() -> Iterator[None]:
    """Hide computations with tensors from modes, from graphs and from the classes of the tensors."""
    with DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
        yield


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor Inf; True also for one whose numbers cannot be read."""
    kind: Any = type(tensor)
    if kind not in PLAIN and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:  # of its own
        return True
    with DisableTorchFunction():
        try:
            if _is_usual(tensor) and math.isfinite(tensor.detach().sum().item()):
                return True
            return not can_read(tensor) or _outside_modes(_is_finite, tensor)
        except Exception:  # noqa: BLE001 - each backend and layout refuses different operations; nothing is claimed then
            return True


def is_zero(tensor: torch.Tensor) -> bool:
    """Return whether all numbers of a tensor are zero; False also for one whose numbers cannot be read."""
    if type(tensor) not in PLAIN:
        return False
    with DisableTorchFunction():
        try:
            return is_readable(tensor) and not _outside_modes(torch.count_nonzero, tensor.detach())
        except Exception:  # noqa: BLE001 - each backend and layout refuses different operations; nothing is claimed then
            return False


def _outside_modes(test: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> bool:
    """Return whether a test of a tensor holds, made outside of the dispatch modes of the program."""
    if torch._C._len_torch_dispatch_stack():
        with _disable_current_modes():
            return bool(test(tensor))
    return bool(test(tensor))


def _is_usual(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor can be read without further checks. Callers hold `DisableTorchFunction`."""
    return (
        tensor.dtype in _USUAL
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and not torch._C._len_torch_dispatch_stack()
    )


_USUAL = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def can_read(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a tensor can be read here and now. Callers hold `DisableTorchFunction`."""
    return (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and is_readable(tensor)


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has numbers, of any dtype, that can be read now. Callers hold `DisableTorchFunction`."""
    if tensor.is_meta or tensor.is_nested or torch._C._get_tracing_state() is not None:
        return False
    capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return not capturing and torch._C._functorch.peek_interpreter_stack() is None


def not_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return a mask of the stored numbers that are NaN or Inf. Callers hold `DisableTorchFunction`."""
    return ~torch.isfinite(_dense(tensor.detach()))


class Numbers(NamedTuple):
    """The numbers of a tensor that are NaN or Inf: which of both, how many, and of how many in all."""

    kind: str
    found: int
    of: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.found} of {self.of})"


def numbers_of(tensor: torch.Tensor) -> Numbers:
    with reading_values():
        mask = not_finite(tensor)
        return Numbers(nonfinite_kind(tensor), int(mask.sum().item()), mask.numel())


def nonfinite_kind(tensor: torch.Tensor) -> str:
    """Return ``NaN``, ``Inf`` or ``NaN and Inf``, as a tensor holds them. Callers hold `DisableTorchFunction`."""
    values = _dense(tensor.detach())
    found = {"NaN": torch.isnan(values).any().item(), "Inf": torch.isinf(values).any().item()}
    return " and ".join(word for word, there in found.items() if there)


def largest_of(tensor: torch.Tensor) -> float:
    """Return the largest absolute number of a tensor, without NaN and Inf; 0 if its numbers cannot be read."""
    if type(tensor) not in PLAIN or not can_read(tensor) or not tensor.numel() or tensor.layout is not torch.strided:
        return 0.0
    return float(torch.nan_to_num(tensor.detach().abs(), 0.0, 0.0, 0.0).max().item())


def sum_of(tensor: torch.Tensor) -> float:
    """Return the sum of all numbers of a tensor; NaN if they cannot be read."""
    with reading_values():
        return float(tensor.double().sum().item()) if can_read(tensor) else math.nan


def _is_finite(tensor: torch.Tensor) -> bool:
    values = _dense(tensor.detach())
    if values.dtype is torch.complex32:  # which has no sum
        return bool(torch.isfinite(values).all().item())
    # A finite sum proves finite parts at a quarter of the cost; a sum can overflow though its parts are finite.
    return cmath.isfinite(values.sum().item()) or bool(torch.isfinite(values).all().item())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout is not torch.strided:
        return tensor.values()
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor
