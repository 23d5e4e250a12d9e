"""`attach` and `torch.compile`: whatever is compiled, values are told, and compiled code is used again afterwards."""

import functools
import sys
import threading

import pytest
import torch
from processes import run_forked_file, start
from small import net, nothing_left
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry

import byname
from byname import attach
from byname.errors import BadArgumentError

dynamo = pytest.importorskip("torch._dynamo")
from torch._dynamo import eval_frame  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:Dynamo:UserWarning")

PLACES = [
    "blocks.1.qkv",
    "blocks.1",
    "forward",
    "blocks.1.softmax",
    "blocks.1.forward.scores",
    "forward.cache['h1'][0]",
    "head.weight",
    "seen",
    "blocks.1.grad",
    "blocks.1.softmax.grad",
    "blocks.1.forward.weights.grad",
    "head.weight.grad",
    "**",
]


@pytest.fixture(autouse=True)
def compiler_as_before():
    dynamo.reset()
    counters.clear()
    before = eval_frame._stance, eval_frame._callback_from_stance
    yield
    assert (eval_frame._stance, eval_frame._callback_from_stance) == before
    assert not any(type(one).__module__.startswith("byname") for one in sys.meta_path)
    assert eval_frame._stance.stance == "default"


def the_model(model, **options):
    return torch.compile(model, **options)


def in_place(model, **options):
    model.compile(**options)
    return model


def its_blocks(model, **options):
    for block in model.blocks:
        block.compile(**options)
    return model


def a_wrapped_block(model, **options):
    model.blocks[1] = torch.compile(model.blocks[1], **options)
    return model


def a_forward(model, **options):
    model.blocks[1].forward = torch.compile(model.blocks[1].forward, **options)
    return model


def a_step(model, **options):
    return torch.compile(lambda x: model(x), **options)


def without_breaks(model, **options):
    return torch.compile(model, fullgraph=True, **options)


HOWS = [the_model, in_place, its_blocks, a_wrapped_block, a_forward, a_step, without_breaks]


def graphs():
    return counters["stats"].get("unique_graphs", 0)


@functools.cache
def told_plainly(where):
    model, x = net()
    events = []
    with attach(model, where, events.append):
        y = model(x)
        y.sum().backward()
    return sorted(event.path for event in events), y.detach(), model.embed.weight.grad


@pytest.mark.parametrize("when", ["before", *(pytest.param(one, marks=pytest.mark.slow) for one in ("after", "warm"))])
@pytest.mark.parametrize("how", HOWS)
def test_every_kind_of_place_is_told_and_compiled_code_used_again(how, when):
    model, x = net()
    compiled = None if when == "after" else how(model, backend="eager")
    if when == "warm":
        compiled(x).sum().backward()
    made = graphs()
    for number, where in enumerate(PLACES):
        expected, value, gradient = told_plainly(where)
        events = []
        handle = attach(model, where, events.append)
        if compiled is None:
            compiled = how(model, backend="eager")
        model.zero_grad()
        y = compiled(x)
        y.sum().backward()
        assert sorted(event.path for event in events) == expected, where
        assert torch.equal(y, value)
        assert torch.equal(model.embed.weight.grad, gradient)
        assert any("run eagerly" in note for note in handle.notes)
        handle.remove()
        assert graphs() == made
        events.clear()
        if number in (0, 6):
            assert torch.equal(compiled(x), value)
            assert not events
            made = graphs()
            assert made
    compiled(x)
    assert graphs() == made


def test_a_replacement_takes_effect_and_ends():
    model, x = net()
    plain = model(x)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    for where in ("head", "blocks.1.softmax", "blocks.1.forward.scores", "head.weight"):
        with nothing_left(model), attach(compiled, where, lambda event: event.value * 0):
            changed = compiled(x)
        assert not torch.allclose(changed, plain)
        assert torch.equal(compiled(x), plain)
    assert graphs() == 1


def test_a_compiled_part_is_named_as_if_it_were_not_compiled():
    model, x = net()
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    for where in ("blocks.1.qkv", "blocks.1._orig_mod.qkv", "blocks.*.qkv"):
        events = []
        with attach(model, where, events.append):
            model(x)
        assert "blocks.1.qkv" in [event.path for event in events]


class TestWhatIsSaid:
    def test_nothing_where_nothing_is_compiled(self):
        model, x = net()
        with attach(model, "embed", lambda event: None) as handle:
            model(x)
            assert handle.notes == ()

    @pytest.mark.parametrize("how", [the_model, in_place, its_blocks, a_wrapped_block, a_forward])
    def test_at_once_where_the_model_is_seen_to_be_compiled(self, how):
        model, x = net()
        compiled = how(model, backend="eager")
        with attach(compiled, "embed", print) as handle:
            assert "compiled functions and modules run eagerly in the whole process" in handle.notes[0]

    def test_with_the_first_call_of_a_compiled_function(self):
        model, x = net()
        step = a_step(model, backend="eager")
        with attach(model, "embed", lambda event: None) as handle:
            model(x)
            assert not handle.notes
            step(x)
            assert "run eagerly" in handle.notes[0]


class TestSeveral:
    def test_the_last_one_to_go_lets_the_compiler_go_on(self):
        model, x = net()
        compiled = torch.compile(model, backend="eager")
        compiled(x)
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            events = []
            handles = [attach(model, "blocks.1.qkv", events.append) for _ in range(3)]
            for index in order:
                compiled(x)
                assert len(events) == sum(handle.enabled for handle in handles)
                events.clear()
                handles[index].remove()
            compiled(x)
            assert not events
        assert graphs() == 1

    def test_disabled_ones_cost_nothing(self):
        model, x = net()
        compiled = torch.compile(model, backend="eager")
        events = []
        handle = attach(model, "blocks.1.qkv", events.append, enabled=False)
        for round in range(3):
            compiled(x)
            assert len(events) == round
            handle.enabled = True
            compiled(x)
            handle.enabled = False
            assert len(events) == round + 1
        assert graphs() == 1

    def test_threads_that_attach_and_call(self):
        model, x = net()
        compiled = torch.compile(model, backend="eager")
        plain = compiled(x)
        errors = []

        def run():
            try:
                for _ in range(5):
                    events = []
                    with attach(model, "blocks.1.qkv", events.append):
                        assert torch.allclose(compiled(x), plain)
                        assert events
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors

    @pytest.mark.parametrize("how", [the_model, without_breaks, a_step])
    def test_one_that_is_removed_while_a_compiled_function_runs(self, how):
        model, x = net()
        compiled = how(model, backend="eager")
        compiled(x)
        events = []
        handle = attach(model, "blocks.1.qkv", lambda event: (events.append(event.path), handle.remove())[0])
        for _ in range(2):
            compiled(x)
        assert events == ["blocks.1.qkv"]
        assert graphs() == 1


class TestStancesOfTheProgram:
    def test_one_set_meanwhile_hides_nothing(self):
        model, x = net()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        events = []
        with attach(model, "blocks.1.qkv", events.append):
            with torch.compiler.set_stance("default"):
                compiled(x)
            assert len(events) == 1
            compiled(x)
            assert len(events) == 2

    def test_one_that_lasts_longer_ends_in_the_stance_of_before(self):
        model, x = net()
        handle = attach(model, "blocks.1.qkv", print)
        with torch.compiler.set_stance("eager_on_recompile"):
            handle.remove()
            assert eval_frame._stance.stance == "eager_on_recompile"
        assert eval_frame._stance.stance == "default"
        eval_frame._stance = eval_frame.DynamoStance()
        torch.compile(model, backend="eager")(x)
        assert graphs() == 1

    def test_one_set_before_holds_again_afterwards(self):
        model, x = net()
        with torch.compiler.set_stance("fail_on_recompile"):
            with attach(model, "blocks.1.qkv", lambda event: None):
                torch.compile(model, backend="eager")(x)
            assert eval_frame._stance.stance == "fail_on_recompile"

    @pytest.fixture(autouse=True)
    def stance_as_before(self, compiler_as_before):
        before = eval_frame._stance
        yield
        eval_frame._stance = before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pickle, copy, and deepcopy support:DeprecationWarning")  # the compiler's, on 3.12
def test_attaching_inside_of_a_compiled_function_says_what_to_do():
    model, x = net()

    @torch.compile(backend="eager")
    def step(x):
        handle = attach(model, "blocks.1.qkv", print)
        y = model(x)
        handle.remove()
        return y

    torch.compile(net()[0], backend="eager")(x)  # the compiler puts code of its own into nn.Module for good
    with nothing_left(model), pytest.raises(BadArgumentError, match="attach before it is called"):
        step(x)


def test_an_error_while_attaching_leaves_the_compiler_as_it_was():
    model, x = net()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(LookupError):
        attach(compiled, "blocks.1.nothing", print, example=x)
    with attach(compiled, "blocks.1.qkv", lambda event: 1 / 0), pytest.raises(ZeroDivisionError):
        compiled(x)
    assert compiled(x).shape == (2, 5, 2)
    assert graphs() == 1


@pytest.mark.slow
def test_attaching_does_not_import_the_compiler_and_notices_when_the_program_does(tmp_path):
    program = """
        import sys
        import torch
        from torch import nn
        from byname.watch.attach import attach

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(2, 2)

            def forward(self, x):
                h = self.first(x)
                return h.relu()

        model, x, events, before = Model(), torch.ones(1, 2), [], [*sys.meta_path]
        handle = attach(model, ["first", "relu", "forward.h"], lambda event: events.append(event.path))
        model(x)
        assert "torch._dynamo" not in sys.modules
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert "torch._dynamo" in sys.modules
        compiled(x)
        assert "run eagerly" in handle.notes[-1]
        handle.remove()
        assert sys.meta_path == before
        compiled(x)
        print(*events)
        print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """
    assert run_forked_file(tmp_path, program, run=start) == ["first forward.h relu first forward.h relu", "1"]


def test_control_flow_that_pytorch_compiles_itself_still_works():
    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.seen = 0

        def forward(self, x):
            h = self.first(x)
            return torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,))

    model, x = Conditional(), torch.randn(2, 4)
    plain = model(x)
    plain.sum().backward()
    gradient = model.first.weight.grad.clone()
    for where in ("first", "forward.h", "first.weight", "first.grad", "forward"):
        model.zero_grad()
        events = []
        with nothing_left(model), attach(model, where, events.append):
            y = model(x)
            y.sum().backward()
        assert events
        assert torch.equal(y, plain)
        assert torch.equal(model.first.weight.grad, gradient)
    with attach(model, "sum", events.append):
        with pytest.raises(BadArgumentError, match="watch modules or local variables"):
            model(x)
        with torch.no_grad():
            assert torch.equal(model(x), plain)
    assert torch.equal(model(x), plain)


class Attending(nn.Module):
    """A tiny GPT with the fused attention of PyTorch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens):
        h = self.embed(tokens)
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(h).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, 2)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        out, (h, c) = self.lstm(x)
        return self.head(out) + h.sum()


def models():
    tokens = torch.randint(0, 11, (2, 5))
    yield (
        "mlp",
        nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
        torch.randn(3, 4),
        ["1", "0.linear", "2.weight", "1.grad"],
    )
    yield (
        "gpt",
        Attending(),
        tokens,
        ["qkv", "scaled_dot_product_attention", "forward.mixed", "head.weight", "forward.h.grad"],
    )
    yield (
        "lstm",
        Recurrent(),
        torch.randn(5, 3, 4),
        ["lstm[0]", "forward.h", "sum", "head.weight.grad", "lstm[1][0].grad"],
    )
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    yield (
        "encoder",
        encoder,
        torch.randn(2, 5, 8),
        ["layers.1.linear1", "layers.0.self_attn[0]", "layers.*.forward.x", "layers.0.norm1.weight", "layers.1.grad"],
    )


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    places = [
        "transformer.h.1.attn.c_attn",
        "transformer.h.*.mlp.forward.hidden_states",
        "transformer.h.0.mlp.act.pow",
        "lm_head.grad",
        "transformer.wte.weight.grad",
    ]
    return "gpt2", model, torch.randint(0, 11, (2, 5)), places


def check(backend, model, x, places):
    def run(call):
        model.zero_grad()
        y = call(x)
        y = y if torch.is_tensor(y) else y.logits
        y.square().sum().backward()
        return y.detach(), [one.grad.clone() for one in model.parameters() if one.grad is not None]

    def same(one, other):
        return torch.allclose(one[0], other[0], atol=1e-5) and all(
            torch.allclose(a, b, atol=1e-4) for a, b in zip(one[1], other[1], strict=True)
        )

    plain = run(model)
    compiled = torch.compile(model, backend=backend)
    assert same(run(compiled), plain)
    made = graphs()
    for where in [*places, places]:
        events = []
        with nothing_left(model), attach(compiled, where, lambda event: events.append(event.path)):
            assert same(run(compiled), plain), where
        assert events, where
        assert same(run(compiled), plain), where
    assert graphs() == made


@pytest.mark.parametrize(
    "backend",
    ["eager", pytest.param("aot_eager", marks=pytest.mark.slow), pytest.param("inductor", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm", "encoder", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_models_compiled_and_watched_give_what_they_give_plainly(name, backend):
    found = gpt2() if name == "gpt2" else next(one for one in models() if one[0] == name)
    check(backend, *found[1:])


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return flex_attention(q, k, v)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention_is_watched_as_the_function_that_it_is():
    model, x = Flexible().requires_grad_(False).eval(), torch.randn(1, 3, 8)
    plain = model(x)
    seen = byname.capture(model, "flex_attention")(x)
    assert torch.equal(seen["flex_attention"], plain) and torch.equal(seen.output, plain)
    with byname.interject(model, "flex_attention", lambda name, module, value: value * 2):
        assert torch.equal(model(x), plain * 2)
    with pytest.raises(byname.BynameError, match=r"or flex_attention itself, as in `layers.0.flex_attention`"):
        byname.capture(model, byname.select.attention)(x)
    assert torch.equal(model(x), plain)


@pytest.fixture
def flexible():
    torch.manual_seed(0)
    with torch.no_grad():
        yield torch.nn.Sequential(Flexible(), nn.Flatten(2)).eval(), torch.randn(2, 3, 8)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("example", [True, False])
def test_selectors_of_attention_mean_flex_attention(flexible, example):
    model, x = flexible
    plain, inner = model(x), model[0](x)
    options = {"example": x} if example else {}
    cap = byname.capture(model, byname.select.attention, **options)(x)
    assert list(cap) == ["0.flex_attention"]
    assert torch.allclose(cap["0.flex_attention"], inner, atol=1e-6)
    with byname.patch(model, byname.select.attention, lambda part: part * 2, heads=1, **options):
        changed = model(x).view(2, 2, 3, 4)
    assert torch.allclose(changed[:, 0], inner[:, 0], atol=1e-6)
    assert torch.allclose(changed[:, 1], 2 * inner[:, 1], atol=1e-6)
    assert torch.equal(model(x), plain)
    with pytest.raises(byname.BynameError, match="write it with scaled_dot_product_attention to see its steps"):
        byname.capture(model, byname.select.attention.pattern, attention="explicit")(x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_with_flex_attention_is_listed_drawn_and_counted(flexible):
    model, x = flexible
    plain = model(x)
    rows = {row["path"]: row for row in byname.points(model, example=x).rows()}
    assert tuple(rows["0.flex_attention"]["shape"]) == (2, 2, 3, 4)
    assert "flex_attention" in byname.draw(model, example=x).dot
    linear, attention = 2 * 6 * 8 * 24, 2 * (2 * 2 * 2 * 3 * 3 * 4)  # queries with keys, and the pattern with values
    counted = torch.ops.higher_order.flex_attention in flop_registry  # not in PyTorch 2.10
    assert byname.summary(model, x).totals["flops"] == linear + attention * counted
    assert torch.equal(model(x), plain)


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.other(x), (x,)).relu()


def test_a_model_that_pytorch_compiles_in_part_is_listed_without_gradients():
    model, x = Chooses(), torch.ones(2, 4)
    with pytest.raises(byname.BynameError, match=r"or run it under torch.no_grad\(\)"):
        byname.points(model, example=x)
    with torch.no_grad():
        found = {row["path"]: row["calls"] for row in byname.points(model, example=x).rows()}
        assert (found["one"], found["other"], found["relu"]) == (1, 0, 1)
        assert [row["output"] for row in byname.summary(model, x).rows()] == [(2, 4)] * 3
