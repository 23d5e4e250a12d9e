"""No graph: the likely reason why a tensor belongs to no autograd graph."""

from __future__ import annotations

import torch

from byname.reading.tensor import fact
from byname.source.location import Site
from byname.text import printable


def why_no_graph(tensor: torch.Tensor, site: Site | None) -> str:
    """Return the likely reason why a tensor has no graph, with the line that made it if a tracker saw it."""
    made = "" if site is None else f" (made at {site}: {printable(site.statement)})"
    if fact(tensor, "requires_grad") and not fact(tensor, "is_leaf"):
        return (
            f"PyTorch refuses to give the graph of this tensor{made}: it is one of several views that were made at "
            "once (split, chunk, unbind), and since then their base, or another of the views, was changed in place. "
            "Write that change out of place"
        )
    asked = f"this tensor belongs to no autograd graph: it has no grad_fn and does not require grad{made}"
    if torch._C.TensorBase.is_inference(tensor):
        return f"{asked}. It was made under torch.inference_mode(); compute it outside that context"
    tensor_type = fact(tensor, "dtype")
    if not (tensor_type.is_floating_point or tensor_type.is_complex):
        kind = str(tensor_type).removeprefix("torch.")
        return (
            f"{asked}. Its dtype is {kind}, and only floating-point and complex tensors can have gradients: argmax, "
            "comparisons and .long() cut off the graph"
        )
    base = fact(tensor, "_base")
    if base is not None and fact(base, "requires_grad"):
        return f"{asked}, though the tensor that it is a view of does: it was detached, or made under torch.no_grad()"
    if not torch.is_grad_enabled():
        return (
            f"{asked}. Gradients are switched off here (torch.no_grad() or set_grad_enabled(False)); compute it "
            "outside that context"
        )
    return (
        f"{asked}. Either nothing it was computed from requires grad, or it was made under torch.no_grad(), or it was "
        "cut off by .detach(), .data, .item() or numpy"
        + ("" if site else "; byname.track() around the computation remembers which line made it")
    )
