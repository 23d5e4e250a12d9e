"""Drawings show what ran, where it is, and nothing else: compared as boxes and lines, not as text."""

import gc
import importlib.util
import re
import weakref
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import byname


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        scores = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width=16, heads=4, hidden=64, act=F.gelu):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.act = act

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, blocks=12, make=lambda number: Block()):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.places = nn.Parameter(torch.zeros(32, 16))
        self.blocks = nn.ModuleList([make(number) for number in range(blocks)])
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(before, after, 1, stride) if stride > 1 else None

    def forward(self, x):
        inner = self.conv2(self.relu(self.conv1(x)))
        inner += x if self.shortcut is None else self.shortcut(x)
        return self.relu(inner)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 8, 3, 1, 1)])
        self.middle = nn.Conv2d(8, 8, 3, 1, 1)
        self.up = nn.ModuleList([nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)])
        self.merge = nn.ModuleList([nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(8, 4, 3, 1, 1)])

    def forward(self, x):
        skips = []
        for conv in self.down:
            skips.append(F.relu_(conv(x)))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        state, states = x.new_zeros(x.shape[0], 16), []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            states.append(state)
        return self.out(torch.stack(states, 1))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, y):
        return {"sum": self.layer(x) * self.scale + self.layer(y), "same": x}


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 16, 2), nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Branches(nn.Module):
    def forward(self, x):
        return torch.exp(x) + torch.sin(x) + torch.cos(x)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 2)), torch.rand(4, 8)),
    "one layer": lambda: (nn.Linear(8, 4), torch.rand(2, 8)),
    "residual": lambda: (nn.Sequential(Residual(3, 4, 2), Residual(4, 4, 1)), torch.rand(1, 3, 8, 8)),
    "unet": lambda: (UNet(), torch.rand(1, 3, 8, 8)),
    "gpt": lambda: (GPT(), torch.randint(50, (1, 6))),
    "gpt in eval": lambda: (GPT(3).eval(), torch.randint(50, (1, 6))),
    "encoder": lambda: (encoder(), torch.rand(2, 5, 16)),
    "lstm": lambda: (LanguageModel(), torch.randint(20, (5, 2))),
    "recurrent": lambda: (Recurrent(), torch.rand(2, 9, 8)),
    "branches": lambda: (Branches(), torch.rand(100, 10, 10, 10, 10)),
    "shared": lambda: (Shared(), (torch.rand(2, 8), torch.rand(2, 8))),
}


@pytest.fixture(params=[*MODELS], scope="module")
def drawn(request):
    """A model and its example, its calls, and the drawings with and without folding, and without a run."""
    torch.manual_seed(0)
    model, example = MODELS[request.param]()
    drawings = [
        byname.draw(model, example=example),
        byname.draw(model, example=example, detail=True),
        byname.draw(model),
    ]
    numbers = sorted(number for box in drawings[1].scene.boxes for number in box.calls)
    calls = dict(zip(numbers, worth_drawing(model, example), strict=True))
    return (model, example), calls, drawings


def worth_drawing(model, example):
    """All calls but those inside a single layer."""
    calls = []
    byname.points(model, byname.select.where(lambda call: calls.append(call) or True), example=example)
    return calls


def steps_and_edges(calls):
    """Worked out anew: the calls with nothing drawn in them, and (maker, user) for each tensor between two of these."""
    open_calls = {call.parent for call in calls.values()}
    steps = [number for number in calls if number not in open_calls]
    maker, edges = {}, set()
    for number in steps:
        edges |= {(maker[taken], number) for taken in calls[number].inputs if taken in maker}
        maker |= dict.fromkeys(calls[number].outputs, number)
    return steps, edges


def overlap(one, other):
    across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    return across > 0.2 and down > 0.2


def test_the_svg_is_well_formed_and_loads_nothing(drawn):
    for drawing in drawn[2]:
        svg = drawing.svg
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox").startswith("0 0 ")
        assert {element.tag.partition("}")[2] for element in root.iter()} <= {
            "svg", "title", "desc", "g", "rect", "path", "text", "circle",
        }  # fmt: skip
        assert not re.search(r"href|url\(|style=|on\w+=", svg.replace(root.findtext("{*}desc"), ""))


def test_every_box_lies_in_the_box_around_it_and_over_no_sibling(drawn):
    for scene in (one.scene for one in drawn[2]):
        for box in scene.boxes:
            assert 0 <= box.x and box.x + box.width <= scene.width and 0 <= box.y and box.y + box.height <= scene.height
            if box.parent is not None:
                around = scene.boxes[box.parent]
                assert around.open and around.number < box.number
                assert around.x <= box.x and box.x + box.width <= around.x + around.width
                assert around.y <= box.y and box.y + box.height <= around.y + around.height
        for one in scene.boxes:
            for other in scene.boxes[one.number + 1 :]:
                assert one.parent != other.parent or not overlap(one, other), (one.path, other.path)


def test_lines_begin_and_end_on_their_boxes_and_go_down(drawn):
    for scene in (one.scene for one in drawn[2]):
        for line in scene.lines:
            source, target = scene.boxes[line.source], scene.boxes[line.target]
            (x, y), (end_x, end_y) = line.points[0], line.points[-1]
            assert source.x <= x <= source.x + source.width and abs(y - source.y - source.height) < 0.3
            assert target.x <= end_x <= target.x + target.width and abs(end_y - target.y) < 0.3
            assert [down for _, down in line.points] == sorted(down for _, down in line.points)


def test_no_line_crosses_a_closed_box(drawn):
    for scene in (one.scene for one in drawn[2]):
        for line in scene.lines:
            for (x, y), (across, down) in zip(line.points, line.points[1:]):
                for box in scene.boxes:
                    if not box.open and box.number not in (line.source, line.target):
                        beside = max(x, across) <= box.x or min(x, across) >= box.x + box.width
                        assert beside or down <= box.y + 0.3 or y >= box.y + box.height - 0.3, box.path


def test_the_shapes_under_boxes_lie_beside_each_other(drawn):
    for drawing in drawn[2]:
        texts = [
            one for one in ElementTree.fromstring(drawing.svg).iter() if re.fullmatch("[0-9×, …]+", one.text or "")
        ]
        places = []
        for one in texts:
            size = float(one.get("font-size"))
            width = size * sum({"×": 0.92, "…": 0.92, ",": 0.36, " ": 0.36}.get(letter, 0.61) for letter in one.text)
            x = float(one.get("x")) - (width if one.get("text-anchor") == "end" else 0)
            places.append(SimpleNamespace(x=x, y=float(one.get("y")), width=width, height=size))
        for number, one in enumerate(places):
            assert not any(overlap(one, other) for other in places[:number])


def test_every_call_has_its_box_with_nothing_folded(drawn):
    _, calls, (_, drawing, tree) = drawn
    scene = drawing.scene
    for box in scene.boxes:
        for number in box.calls:
            assert calls[number].operation == box.operation and calls[number].kind == box.kind
            assert calls[number].path == box.path or box.repeats > 1 or _repeated(scene, box)
    assert not tree.scene.lines


def _repeated(scene, box):
    while box is not None:
        if box.repeats > 1:
            return True
        box = None if box.parent is None else scene.boxes[box.parent]
    return False


def test_lines_are_the_tensors_that_went_from_call_to_call(drawn):
    _, calls, (_, drawing, _) = drawn
    scene = drawing.scene
    steps, edges = steps_and_edges(calls)
    box_of = {number: box.number for box in scene.boxes for number in box.calls}
    lines = {(line.source, line.target) for line in scene.lines}
    between = {(box_of[maker], box_of[user]) for maker, user in edges}
    between_calls = {line for line in lines if scene.boxes[line[0]].calls and scene.boxes[line[1]].calls}
    assert between_calls <= between
    for maker, user in edges:
        drawn_line = (box_of[maker], box_of[user]) in lines
        assert drawn_line or _repeated(scene, scene.boxes[box_of[user]])
    if not any(box.repeats > 1 for box in scene.boxes):
        assert between_calls == between


def test_folded_lines_lead_where_data_flowed(drawn):
    _, calls, (drawing, _, _) = drawn
    scene = drawing.scene
    _, edges = steps_and_edges(calls)
    below = {}
    for maker, user in edges:
        below.setdefault(maker, set()).add(user)
    for line in scene.lines:
        sources, targets = scene.boxes[line.source].calls, set(scene.boxes[line.target].calls)
        reached, waiting = set(), list(sources)
        while waiting:
            fresh = below.get(waiting.pop(), set()) - reached
            reached |= fresh
            waiting += fresh
        assert not sources or not targets or reached & targets


def test_the_same_model_gives_the_same_picture(drawn):
    (model, example), _, (drawing, _, tree) = drawn
    again = byname.draw(model, example=example)
    assert (again.scene, byname.draw(model).scene, again.svg) == (drawing.scene, tree.scene, drawing.svg)


def test_dot_declares_every_node_that_it_links(drawn):
    for drawing in drawn[2]:
        scene, dot = drawing.scene, drawing.dot
        declared = re.findall(r"^ *(n\d+) \[", dot, re.M)
        assert len(declared) == len(set(declared)) == sum(not box.open for box in scene.boxes)
        assert {end for pair in re.findall(r"^ *(n\d+) -> (n\d+)", dot, re.M) for end in pair} <= set(declared)
        assert dot.count("{") == dot.count("}") == 1 + sum(box.open for box in scene.boxes)
        assert len(re.findall(" -> ", dot)) == len(scene.lines)


@pytest.mark.skipif(importlib.util.find_spec("pydot") is None, reason="pydot is not installed")
def test_dot_is_read_by_pydot(drawn):
    import pydot

    (graph,) = pydot.graph_from_dot_data(drawn[2][0].dot)
    assert len(graph.get_edges()) == len(drawn[2][0].scene.lines)


def boxes(drawing, **wanted):
    return [box for box in drawing.scene.boxes if all(getattr(box, key) == value for key, value in wanted.items())]


def linked(drawing):
    scene = drawing.scene
    return {(scene.boxes[line.source].path, scene.boxes[line.target].path) for line in scene.lines}


def test_twelve_blocks_are_one_box_drawn_open():
    drawing = byname.draw(GPT(), example=torch.randint(50, (1, 6)))
    (block,) = boxes(drawing, operation="Block")
    assert (block.path, block.repeats, block.open, block.title) == ("blocks.0", 12, True, "blocks.0 … 11")
    assert "12 of the same shape, in a row" in block.subtitle
    assert len(block.calls) == 12
    assert len(boxes(drawing, operation="Attention")) == 1
    assert ("add", "blocks.0.norm1") in linked(drawing)
    assert ("blocks.0.add_1", "norm") in linked(drawing)


def test_blocks_that_differ_in_shape_are_drawn_apart():
    drawing = byname.draw(
        GPT(12, lambda number: Block(hidden=64 if number != 5 else 48)), example=torch.ones(1, 6).long()
    )
    assert [(box.path, box.repeats) for box in boxes(drawing, operation="Block")] == [
        ("blocks.0", 5), ("blocks.5", 1), ("blocks.6", 6),
    ]  # fmt: skip


def test_blocks_that_differ_in_what_they_call_are_drawn_apart():
    drawing = byname.draw(
        GPT(12, lambda number: Block(act=F.relu if number == 11 else F.gelu)), example=torch.ones(1, 6).long()
    )
    assert [box.repeats for box in boxes(drawing, operation="Block")] == [11, 1]


def test_blocks_that_differ_in_settings_without_a_shape_are_drawn_apart():
    layers = [nn.Sequential(*[nn.Dropout(0.5 if k == 2 else 0.1) for _ in range(4)]) for k in range(6)]
    drawing = byname.draw(nn.Sequential(*layers), example=torch.rand(2, 3))
    assert [box.repeats for box in drawing.scene.boxes if box.parent == 0] == [1, 1, 1, 3]


class Swapped(nn.Module):
    """Two layers, in either order of wiring but in the same order of calls."""

    def __init__(self, crossed):
        super().__init__()
        self.crossed = crossed
        self.one, self.other, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        one = self.one(x)
        other = self.other(one if self.crossed else x)
        return self.third(one + other)


def test_blocks_that_differ_in_inner_wiring_are_drawn_apart():
    model = nn.Sequential(*[Swapped(crossed=number == 4) for number in range(8)])
    drawing = byname.draw(model, example=torch.rand(2, 4))
    assert [box.repeats for box in boxes(drawing, operation="Swapped")] == [4, 1, 3]


class Reaching(nn.Module):
    """Blocks in a row, of which one also hands its result to the end."""

    def __init__(self, reaching):
        super().__init__()
        self.reaching = reaching
        self.blocks = nn.ModuleList([Swapped(False) for _ in range(8)])

    def forward(self, x):
        kept = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in self.reaching:
                kept.append(x)
        return torch.stack([x, *kept])


def test_a_block_with_another_user_is_drawn_apart():
    assert [box.repeats for box in boxes(byname.draw(Reaching([]), example=torch.rand(2, 4)), operation="Swapped")] == [
        8
    ]
    drawing = byname.draw(Reaching([3]), example=torch.rand(2, 4))
    repeats = [box.repeats for box in boxes(drawing, operation="Swapped")]
    assert sum(repeats) == 8 and len(repeats) > 1
    ends = [
        drawing.scene.boxes[line.source] for line in drawing.scene.lines if _box(drawing, line.target).path == "stack"
    ]
    calls = [(end.path.split(".")[1], _around(drawing, end).repeats) for end in ends]
    assert len(calls) == 2


def _box(drawing, number):
    return drawing.scene.boxes[number]


def _around(drawing, box):
    return drawing.scene.boxes[box.parent]


def test_lines_say_when_they_come_from_every_repetition():
    drawing = byname.draw(Reaching(range(8)), example=torch.rand(2, 4))
    (line,) = [line for line in drawing.scene.lines if _box(drawing, line.target).path == "stack"]
    assert line.repeated == "from each of 8"


def test_a_loop_over_one_cell_is_one_box_fed_by_the_first_state():
    drawing = byname.draw(Recurrent(), example=torch.rand(2, 20, 8))
    (cell,) = boxes(drawing, path="cell")
    assert (cell.repeats, len(cell.calls), cell.open) == (20, 20, False)
    assert "20 calls, in a row" in cell.subtitle
    said = {
        _box(drawing, line.source).kind: line.repeated for line in drawing.scene.lines if line.target == cell.number
    }
    assert said == {"input": "to each of 20", "operation": "to the first of 20"}
    (out,) = [line.repeated for line in drawing.scene.lines if line.source == cell.number]
    assert out == "from each of 20"


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(6)])

    def forward(self, x):
        return torch.stack([expert(x) for expert in self.experts]).mean(0)


def test_alike_modules_side_by_side_say_so():
    drawing = byname.draw(Experts(), example=torch.rand(2, 4))
    (expert,) = boxes(drawing, operation="Sequential")
    assert (expert.repeats, expert.subtitle) == (6, "Sequential · 6 of the same shape, side by side")


class Interleaved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(10)])

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def test_a_row_of_several_items_repeats_as_a_whole():
    drawing = byname.draw(Interleaved(), example=torch.rand(2, 4))
    (row,) = boxes(drawing, kind="repeat")
    assert row.repeats == 10 and row.title == "10 × layers.0 … add"
    inner = [box for box in drawing.scene.boxes if box.parent == row.number]
    assert [(box.operation, len(box.calls)) for box in inner] == [("Linear", 10), ("tanh", 10), ("add", 10)]


def test_skip_connections_are_lines_to_their_users():
    links = linked(byname.draw(UNet(), example=torch.rand(1, 3, 8, 8)))
    assert {("relu_", "cat_1"), ("relu__1", "cat")} <= links
    assert ("relu_", "cat") not in links


def test_plumbing_is_folded_into_lines_and_drawn_on_demand():
    model, example = Attention(16, 4), torch.rand(1, 3, 16)
    folded, whole = byname.draw(model, example=example), byname.draw(model, example=example, detail=True)
    assert not boxes(folded, operation="transpose") and boxes(whole, operation="transpose")
    (line,) = [line for line in folded.scene.lines if _box(folded, line.target).path == "matmul"]
    assert _box(folded, line.source).path == "qkv"
    assert line.via == ("chunk", "view", "transpose")
    assert line.shapes == ((1, 4, 3, 4), (1, 4, 4, 3))


class Reshape(nn.Module):
    def forward(self, x):
        return x.view(-1, 4)


def test_a_module_that_only_reshapes_shows_it():
    drawing = byname.draw(nn.Sequential(nn.Linear(8, 8), Reshape(), nn.Linear(4, 2)), example=torch.rand(2, 8))
    assert ("0", "1.view") in linked(drawing) and ("1.view", "2") in linked(drawing)


def test_both_calls_of_a_shared_module_are_drawn_and_numbered():
    drawing = byname.draw(Shared(), example=(torch.rand(2, 8), torch.rand(2, 8)))
    assert [box.subtitle for box in boxes(drawing, path="layer")] == [
        "Linear 8 → 8 · call 1 of 2", "Linear 8 → 8 · call 2 of 2",
    ]  # fmt: skip
    (scale,) = boxes(drawing, kind="parameter")
    assert (scale.path, scale.shapes, scale.title) == ("scale", ((8,),), "scale")
    assert [box.shapes for box in boxes(drawing, kind="input")] == [((2, 8),), ((2, 8),)]
    assert len(boxes(drawing, kind="output")) == 1


def test_without_an_example_there_are_modules_and_no_lines():
    drawing = byname.draw(GPT())
    assert not drawing.scene.lines
    assert [box.path for box in drawing.scene.boxes][:5] == ["", "tokens", "blocks", "blocks.0", "blocks.0.norm1"]
    (block,) = boxes(drawing, operation="Block")
    assert block.repeats == 12 and "12 of the same shape" in block.subtitle
    assert "example= shows" in str(drawing) and "example= shows" in drawing.svg
    (tokens,) = boxes(drawing, path="tokens")
    assert tokens.subtitle == "Embedding 50 → 16 · 800"


def test_a_convolution_says_its_stride_where_it_has_one():
    layers = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2), nn.Conv1d(8, 4, 5), nn.Conv2d(8, 4, (3, 5), (1, 2))]
    words = [box.subtitle.split(" · ")[0] for box in boxes(byname.draw(nn.ModuleList(layers)), kind="module")[1:]]
    assert words == [
        "Conv2d 3 → 8, 3×3", "Conv2d 8 → 8, 3×3, stride 2", "Conv1d 8 → 4, 5", "Conv2d 8 → 4, 3×5, stride 1×2",
    ]  # fmt: skip


def test_without_an_example_a_module_registered_twice_says_whose_it_is():
    layer = nn.Linear(4, 4)
    drawing = byname.draw(nn.Sequential(nn.Linear(4, 4), layer, nn.ReLU(), layer))
    assert [box.subtitle for box in boxes(drawing, operation="Linear")] == [
        "Linear 4 → 4 · 20", "Linear 4 → 4 · 20", "Linear 4 → 4 · the same as 1",
    ]  # fmt: skip


def test_depth_closes_boxes_and_keeps_the_lines_between_them():
    model, example = GPT(), torch.randint(50, (1, 6))
    assert [box.kind for box in byname.draw(model, example=example, depth=0).scene.boxes] == [
        "module",
        "input",
        "output",
    ]
    shallow = byname.draw(model, example=example, depth=1)
    (block,) = boxes(shallow, operation="Block")
    assert not block.open and block.repeats == 12
    assert {("add", "blocks.0"), ("blocks.0", "norm")} <= linked(shallow)
    assert sorted(call for box in shallow.scene.boxes for call in box.calls)[0] == 0


def test_a_picture_that_would_be_too_large_is_cut_at_a_depth_and_says_so():
    layers = [
        nn.Sequential(*[nn.Sequential(nn.Linear(4, 9 * j + k), nn.Linear(9 * j + k, 4)) for k in range(1, 9)])
        for j in range(30)
    ]
    model, example = nn.Sequential(*layers), torch.rand(1, 4)
    drawing = byname.draw(model, example=example)
    assert len(drawing.scene.boxes) == 3 + 30 + 240
    assert "drawn to depth 2; all levels have" in str(drawing)
    numbers = {number for box in drawing.scene.boxes for number in box.calls}
    assert len(numbers) == sum(len(box.calls) for box in drawing.scene.boxes) == len(worth_drawing(model, example))
    whole = byname.draw(model, example=example, depth=3)
    assert len(whole.scene.boxes) == 3 + 30 + 240 + 480 and "drawn to" not in str(whole)


@pytest.mark.slow
def test_a_thousand_layers_are_one_box():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(1000)])
    drawing = byname.draw(model, example=torch.rand(1, 2))
    assert len(drawing.scene.boxes) == 6
    (layer,) = [box for box in drawing.scene.boxes if box.repeats > 1]
    assert len(layer.calls) == 1000


def watch(model, marks, example):
    """Attaches functions of these names."""
    for where, names in marks.items():
        for name in names:
            function = lambda event: None
            function.__name__ = function.__qualname__ = name
            byname.watch.attach(model, where, function, example=example)


def test_marks_stand_on_their_box_or_on_the_box_around_and_in_no_other():
    model, example = GPT(), torch.randint(50, (1, 6))
    marks = {"blocks.3.attn.softmax": ["double"], "norm": ["look", "twice"], "blocks.0.attn.forward.scores": ["probe"]}
    watch(model, marks, example)
    drawing = byname.draw(model, example=example)
    scene = drawing.scene
    marked = {box.path: box.marks for box in scene.boxes if box.marks}
    assert marked == {
        "blocks.0.attn": ("forward.scores: probe",), "blocks.3.attn.softmax": ("double",), "norm": ("look", "twice"),
    }  # fmt: skip
    assert [box.repeats for box in scene.boxes if box.operation == "Block"] == [1, 1, 1, 1, 8]
    closed = byname.draw(model, example=example, depth=1).scene
    assert {box.path: box.marks for box in closed.boxes if box.marks} == {
        "blocks.0": ("attn: forward.scores: probe",), "blocks.3": ("attn.softmax: double",), "norm": ("look", "twice"),
    }  # fmt: skip
    assert all(word in drawing.svg for word in (">double<", ">look<", ">twice<"))


def test_a_marked_view_is_not_folded():
    model = Attention(16, 4)
    example = torch.rand(1, 3, 16)
    watch(model, {"transpose": ["here"]}, example)
    scene = byname.draw(model, example=example).scene
    assert [box.marks for box in scene.boxes if box.operation == "transpose"] == [("here",)]


def test_names_from_the_program_cannot_become_markup():
    evil = '<script>alert("1")</script>&\x00]]>'
    cls = type("<img src=x onerror=alert(1)>", (nn.Sequential,), {})
    model = cls()
    model.add_module(evil.replace(".", ""), nn.Linear(2, 2))
    model.add_module('"; } evil [label="', nn.ReLU())
    for example in (None, torch.rand(1, 2)):
        drawing = byname.draw(model, example=example)
        root = ElementTree.fromstring(drawing.svg)
        assert not [element for element in root.iter() if element.tag.endswith(("script", "img"))]
        assert '<script>alert("1")</script>&' in "".join(root.itertext())
        labels = re.findall(r'label=("(?:[^"\\]|\\.)*")', drawing.dot)
        assert len(labels) == len(boxes(drawing)) + sum(bool(line.shapes[0]) for line in drawing.scene.lines)


def test_a_drawing_keeps_no_module_and_no_tensor():
    model, example = GPT(2), torch.randint(50, (1, 6))
    drawing = byname.draw(model, example=example)
    kept = weakref.ref(model), weakref.ref(model.tokens.weight), weakref.ref(example)
    del model, example
    gc.collect()
    assert [reference() for reference in kept] == [None, None, None]
    assert drawing.svg


def test_drawing_runs_no_code_of_the_model_to_look_at_it():
    class Loud(nn.Module):
        @property
        def secret(self):
            raise AssertionError("read")

        def extra_repr(self):
            raise AssertionError("printed")

        def __len__(self):
            raise AssertionError("counted")

        def forward(self, x):
            return x + 1

    assert len(byname.draw(nn.Sequential(Loud(), Loud()), example=torch.rand(2)).scene.boxes) == 7
    assert len(byname.draw(Loud()).scene.boxes) == 1


def test_a_drawing_is_saved_as_svg_or_dot_and_as_nothing_else(tmp_path):
    drawing = byname.draw(nn.Linear(2, 2))
    drawing.save(tmp_path / "model.svg")
    drawing.save(str(tmp_path / "model.dot"))
    assert (tmp_path / "model.svg").read_text(encoding="utf-8") == drawing.svg == drawing._repr_svg_()
    assert (tmp_path / "model.dot").read_text(encoding="utf-8") == drawing.dot
    with pytest.raises(byname.BynameError, match=r"\.svg, \.dot or \.mmd.*model\.png"):
        drawing.save(tmp_path / "model.png")
    assert not (tmp_path / "model.png").exists()


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="draw.. takes an nn.Module, not str"):
        byname.draw("model")
    for depth in (-1, "all"):
        with pytest.raises(ValueError, match=f"depth= is the number of levels.* not {depth!r}"):
            byname.draw(nn.Linear(2, 2), depth=depth)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 4)))
        self.second = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x):
        return self.second(self.first(x))


def paths(drawing):
    return [box.path for box in drawing.scene.boxes if box.kind == "module"]


def test_modules_are_opened_and_closed_by_their_places():
    model, x = Twice(), torch.randn(2, 4)
    every = ["", "first", "first.0", "first.1", "first.1.0", "first.1.1", "second", "second.0", "second.1", "second.2"]
    assert sorted(paths(byname.draw(model, example=x))) == every
    assert sorted(paths(byname.draw(model, example=x, closed="first"))) == [one for one in every if "first." not in one]
    assert sorted(paths(byname.draw(model, example=x, depth=1))) == ["", "first", "second"]
    assert sorted(paths(byname.draw(model, example=x, depth=1, open="first"))) == [
        "",
        "first",
        "first.0",
        "first.1",
        "second",
    ]
    deep = byname.draw(model, example=x, depth=0, open=["first.1"])
    assert sorted(paths(deep)) == ["", "first", "first.0", "first.1", "first.1.0", "first.1.1", "second"]
    assert sorted(paths(byname.draw(model, example=x, closed=nn.Sequential))) == ["", "first", "second"]
    closed = byname.draw(model, example=x, closed="first")
    titles = {box.number: box.path for box in closed.scene.boxes}
    assert ("first", "second.0") in {(titles[line.source], titles[line.target]) for line in closed.scene.lines}
    with pytest.raises(byname.BynameError, match="nope"):
        byname.draw(model, closed="nope")


def test_mermaid_declares_every_node_and_no_name_means_something_in_it(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleDict({'a"]<b>#': nn.Linear(4, 4)})

        def forward(self, x):
            return self.inner['a"]<b>#'](x)

    drawing = byname.draw(Twice(), example=torch.randn(2, 4))
    lines = drawing.mermaid.splitlines()
    assert lines[0] == "flowchart TD"
    declared = set(re.findall(r"^ *(?:subgraph )?(n\d+)[\[(]", drawing.mermaid, re.MULTILINE))
    linked = set(re.findall(r"\b(n\d+) -->", drawing.mermaid)) | set(
        re.findall(r"--> *(?:\|.*?\| )?(n\d+)$", drawing.mermaid, re.MULTILINE)
    )
    assert linked <= declared and len(declared) == len(drawing.scene.boxes)
    assert len([line for line in lines if "-->" in line]) == len(drawing.scene.lines)
    assert sum("subgraph" in line for line in lines) == sum(line.strip() == "end" for line in lines)
    odd = byname.draw(Odd(), example=torch.randn(2, 4)).mermaid
    assert all(line.count('"') in (0, 2) for line in odd.splitlines()) and "<b>" not in odd
    drawing.save(tmp_path / "model.mmd")
    assert (tmp_path / "model.mmd").read_text() == drawing.mermaid
