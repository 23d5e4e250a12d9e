"""Words: the texts in the boxes of a drawing, and in their tooltips."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import nn

from byname.drawing.plan import DrawnItem, Plan, elements, settings
from byname.drawing.view import Wires
from byname.text import shape_text, shortened

NARROW, WIDE = set("iljtfrI.,:;'|!()[]{} /"), set("mwMWQGO@%×→…—")


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper estimate of the width of a text in pixels, for the fonts of a picture."""
    units = sum(
        0.36 if letter in NARROW else 0.92 if letter in WIDE or ord(letter) > 0x2E80 else 0.61 for letter in text
    )
    return units * size * (1.12 if bold else 1.0)


def item_title(plan: Plan, item: DrawnItem) -> str:
    """Return the name of an item within the module around it; for repetitions, the names of the first and the last."""
    if item.kind == "module" and not item.path:
        return item.operation
    if item.kind == "input":
        return shortened(item.path.removeprefix("input "))
    if item.run is None:
        return shortened(plan.local(item))
    last = [plan.items[number] for number in item.run.groups[-1]]
    first = [plan.items[number] for number in item.run.groups[0]]
    ends = plan.local(first[0]), plan.local(last[-1])
    times = len(item.run.groups)
    if item.kind == "repeat":
        return f"{times} × {shortened(f'{ends[0]} … {plan.local(first[-1])}')}"
    return shortened(f"{ends[0]} … {_rest(*ends)}" if ends[0] != ends[1] else ends[0])


def subtitle(plan: Plan, item: DrawnItem) -> str:
    """Return the second line of a box: class and sizes of a module, the shapes of other items, and repetitions."""
    parts = []
    if item.kind == "module":
        sizes = _sizes(item.module)
        parts += [f"{item.operation} {sizes}".strip()] if item.path else []
        if plan.flowing and item.run is None and plan.calls[item.path] > 1:
            parts.append(f"call {item.call + 1} of {plan.calls[item.path]}")
        if item.same is not None:
            parts.append(f"the same as {item.same or 'the model'}")
        elif not plan.flowing and item.module is not None and (count := elements(item.module)):
            parts.append(f"{count:,}")
    elif item.kind in ("input", "output", "parameter", "constant"):
        parts += [", ".join(shape_text(shape) for shape in item.shapes[:3]) + (" …" if len(item.shapes) > 3 else "")]
    if item.run is not None:
        parts.append(_repeats(plan, item))
    return " · ".join(part for part in parts if part)


def _repeats(plan: Plan, item: DrawnItem) -> str:
    """Return in words how many repetitions there are, and how they are connected."""
    assert item.run is not None
    times = len(item.run.groups)
    paths = {plan.items[group[0]].path for group in item.run.groups}
    what = f"{times} calls" if len(paths) == 1 else f"{times} of the same shape"
    if not plan.flowing:
        return what
    return f"{what}, {'in a row' if item.run.wires else 'side by side'}"


def _rest(first: str, last: str) -> str:
    """Return the last path without the leading names that it shares with the first."""
    names = [*itertools.zip_longest(first.split("."), last.split("."))]
    rest = [other for _, other in itertools.dropwhile(lambda pair: pair[0] == pair[1], names) if other]
    return ".".join(rest) or last


def tooltip(plan: Plan, item: DrawnItem) -> str:
    """Return all known facts about an item, in lines."""
    lines = [f"{item.path or item.operation}: {item.operation}" if item.kind != "repeat" else item_title(plan, item)]
    if item.kind == "module" and item.module is not None:
        known = settings(item.module)
        lines += [known] if known else []
        lines.append(f"parameters: {elements(item.module):,}")
    if item.call:
        lines.append(f"call {item.call + 1} of this place")
    if item.shapes:
        lines.append("gives " + ", ".join(shape_text(shape) for shape in item.shapes))
    if item.run is not None:
        lines.append(_repeats(plan, item))
        lines += [f"{plan.items[group[0]].path} … {plan.items[group[-1]].path}" for group in item.run.groups[:40]]
    lines += [f"attached: {mark}" for mark in item.marks]
    return "\n".join(lines)


def repeated(plan: Plan, link: Wires) -> Iterator[str]:
    """Yield in words the repetitions at which a link begins and ends."""
    for word, ends in (("from", link.leaves), ("to", link.enters)):
        run = plan.items[min(ends)[0]].run if ends else None
        if run is not None:
            total, times = len(run.groups), {time for _, time in ends}
            which = "the first" if times == {0} else "the last" if times == {total - 1} else str(len(times))
            yield f"{word} {'each' if len(times) == total else which} of {total}"


def _sizes(module: nn.Module | None) -> str:
    """Return the sizes of a layer of ``torch.nn``, such as ``64 → 256`` of an ``nn.Linear``; empty for others."""
    if module is None or not type(module).__module__.startswith("torch.nn."):
        return ""
    known = vars(module)
    sizes = (("in_features", "out_features"), ("num_embeddings", "embedding_dim"), ("input_size", "hidden_size"))
    for before, after in sizes:
        if before in known and after in known:
            return f"{known[before]} → {known[after]}"
    if "in_channels" not in known:
        return ""
    words = [f"{known['in_channels']} → {known['out_channels']}", "×".join(map(str, known["kernel_size"]))]
    strides = set(known["stride"])
    if strides != {1}:
        words.append("stride " + "×".join(map(str, strides if len(strides) == 1 else known["stride"])))
    return ", ".join(words)
