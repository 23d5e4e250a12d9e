"""attention="explicit": the scores and the pattern of scaled_dot_product_attention are seen and changed."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import byname
from byname import select
from byname.errors import BadArgumentError, NoMatchError

PLACE = "scaled_dot_product_attention"


class Calls(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, *tensors):
        return F.scaled_dot_product_attention(*tensors, **self.options)


def in_steps(*tensors, **options):
    """The result of a call of attention whose pattern is observed."""
    model = Calls(options)
    with byname.attach(model, f"{PLACE}.pattern", lambda event: None, attention="explicit"):
        return model(*tensors)


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.options = options

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, **self.options)


class Model(nn.Module):
    def __init__(self, *options):
        super().__init__()
        self.layers = nn.ModuleList([Attention(**one) for one in options])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).transpose(1, 2).flatten(-2)
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model({"is_causal": True}, {})


X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


def pattern_of(layer, x):
    q, k, _ = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in layer.qkv(x).chunk(3, -1))
    scores = q @ k.mT / 2
    if layer.options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -math.inf)
    return scores.softmax(-1)


def shapes(queries, keys, heads=4, groups=4):
    return (
        torch.randn(2, heads, queries, 8),
        torch.randn(2, groups, keys, 8),
        torch.randn(2, groups, keys, 6),
    )


MASKS = {
    "none": lambda q, k: None,
    "bool": lambda q, k: torch.rand(q, k) > 0.3,
    "no key": lambda q, k: torch.zeros(q, k, dtype=torch.bool),
    "added": lambda q, k: torch.randn(2, 1, q, k),
}


@settings(max_examples=60)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from(sorted(MASKS)),
    st.sampled_from([None, 0.3]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_result_is_that_of_pytorch_up_to_rounding(queries, keys, mask, scale, grouped, dtype):
    tensors = [one.to(dtype) for one in shapes(queries, keys, groups=2 if grouped else 4)]
    options = {"attn_mask": MASKS[mask](queries, keys), "scale": scale, "enable_gqa": grouped}
    if mask == "added":
        options["attn_mask"] = options["attn_mask"].to(dtype)
    expected = F.scaled_dot_product_attention(*tensors, **options)
    found = in_steps(*tensors, **options)
    assert found.dtype == dtype
    tolerance = 0.03 if dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (2, 5), (5, 2)])
def test_a_causal_mask_is_that_of_pytorch(queries, keys):
    tensors = shapes(queries, keys)
    expected = F.scaled_dot_product_attention(*tensors, is_causal=True)
    found = in_steps(*tensors, is_causal=True)
    assert torch.allclose(found, expected, atol=1e-6)


def test_pattern_and_scores_are_seen(model):
    expected = model(X)
    paths = [f"layers.0.{PLACE}.{part}" for part in ("scores", "pattern")]
    cap = byname.capture(model, [*paths, f"layers.0.{PLACE}"], attention="explicit")(X)
    assert list(cap) == [*paths, f"layers.0.{PLACE}"]
    assert torch.allclose(cap[paths[1]], pattern_of(model.layers[0], X), atol=1e-6)
    assert torch.equal(cap[paths[0]].softmax(-1), cap[paths[1]])
    assert torch.allclose(cap.output, expected, atol=1e-6)


def test_without_it_nothing_changes_and_the_error_says_what_to_pass(model):
    for where in (f"layers.0.{PLACE}.pattern", select.attention.pattern, select.attention.scores.first):
        with pytest.raises(BadArgumentError, match='pass attention="explicit"'):
            byname.attach(model, where, print)
    with pytest.raises(BadArgumentError, match="computes in Python runs as before"):
        byname.attach(model, select.attention.pattern, print)
    with pytest.raises(BadArgumentError, match='attention= takes "explicit"'):
        byname.attach(model, "layers.0", print, attention="eager")


class Kernels(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_calls_of_which_no_step_is_wanted_keep_their_kernel(model):
    where = [f"layers.1.{PLACE}.pattern", f"layers.0.{PLACE}"]
    with byname.attach(model, where, lambda event: None, attention="explicit"), Kernels() as ran:
        model(X)
    assert [name[: len("_scaled_dot_product")] for name in ran.names if "scaled" in name or "softmax" in name] == [
        "_scaled_dot_product",
        "_softmax",
    ]


def test_selectors_mean_every_call(model):
    told = []
    with byname.attach(model, select.attention.pattern, lambda event: told.append(event.path), attention="explicit"):
        model(X)
    assert told == [f"layers.{i}.{PLACE}.pattern" for i in range(2)]
    assert repr(select.attention.pattern | select.attention) == "select.attention.pattern | select.attention"


def test_selectors_of_attention_alone_are_as_before(model):
    told = []
    with byname.attach(model, select.attention, lambda event: told.append(event.path), attention="explicit"):
        model(X)
    assert told == [f"layers.{i}.{PLACE}" for i in range(2)]


def test_a_changed_pattern_is_what_is_computed_with(model):
    even = torch.full((5, 5), 0.2)
    with byname.patch(
        model, f"layers.1.{PLACE}.pattern", lambda pattern: even.expand_as(pattern), attention="explicit"
    ):
        cap = byname.capture(model, [f"layers.1.{PLACE}", "layers.1.qkv"])(X)
    v = cap["layers.1.qkv"].chunk(3, -1)[2].unflatten(-1, (2, 4)).transpose(1, 2)
    assert torch.allclose(cap[f"layers.1.{PLACE}"], even @ v, atol=1e-6)


def test_one_head_is_ablated(model):
    with byname.interject(
        model,
        f"layers.0.{PLACE}.pattern",
        lambda name, module, value: value.index_fill(1, torch.tensor([1]), 0.0),
        attention="explicit",
    ):
        cap = byname.capture(model, f"layers.0.{PLACE}")(X)
    clean = byname.capture(model, f"layers.0.{PLACE}")(X)
    (path,) = cap
    assert torch.allclose(cap[path][:, 0], clean[path][:, 0], atol=1e-6)
    assert not cap[path][:, 1].any()


def test_gradients_of_the_pattern(model):
    grads = []
    with byname.attach(
        model, f"layers.1.{PLACE}.pattern.grad", lambda event: grads.append(event.value), attention="explicit"
    ):
        model(X).sum().backward()
    assert [one.shape for one in grads] == [(3, 2, 5, 5)]


def test_parameters_get_the_same_gradients(model):
    model(X).sum().backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    with byname.attach(model, select.attention.scores, lambda event: None, attention="explicit"):
        model(X).sum().backward()
    assert all(torch.allclose(one.grad, two, atol=1e-5) for one, two in zip(model.parameters(), expected, strict=True))


def test_recorded_and_observed(model):
    place = f"layers.0.{PLACE}.pattern"
    with byname.record(model, place, attention="explicit") as recorder:
        model(X)
    assert torch.allclose(recorder.results[place].values[0], pattern_of(model.layers[0], X), atol=1e-6)
    outliers = byname.analyse.Outliers()
    with byname.observe(model, place, outliers, attention="explicit"):
        model(X)
    assert list(outliers.result()) == [place]


def test_dropout_is_applied_after_the_pattern():
    torch.manual_seed(0)
    model = Model({"dropout_p": 0.5})
    cap = byname.capture(model, [f"layers.0.{PLACE}.pattern", f"layers.0.{PLACE}"], attention="explicit")(X)
    pattern, out = cap.values()
    assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-6)
    v = model.layers[0].qkv(X).chunk(3, -1)[2].unflatten(-1, (2, 4)).transpose(1, 2)
    assert not torch.allclose(out, pattern @ v, atol=1e-3)


def test_the_second_call_in_a_module():
    class Twice(nn.Module):
        def forward(self, x):
            first = F.scaled_dot_product_attention(x, x, x)
            return F.scaled_dot_product_attention(first, x, x, is_causal=True)

    cap = byname.capture(Twice(), f"{PLACE}_1.pattern", attention="explicit")(X)
    assert torch.equal(cap[f"{PLACE}_1.pattern"], cap[f"{PLACE}_1.pattern"].tril())


def test_a_model_without_such_a_call_says_so():
    class Eager(nn.Module):
        def forward(self, x):
            pattern = (x @ x.mT).softmax(-1)
            return pattern @ x

    with pytest.raises(NoMatchError, match="no scaled_dot_product_attention ran"):
        byname.capture(Eager(), f"{PLACE}.pattern", attention="explicit")(X)


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_the_pattern_is_that_of_eager_attention_in_transformers(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "Llama": {
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
    }[kind]  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, attn_implementation="sdpa", **sizes)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    tokens = torch.arange(5)[None]
    cap = byname.capture(model, select.attention.pattern, attention="explicit")(tokens)
    model.set_attn_implementation("eager")
    expected = model(tokens, output_attentions=True).attentions
    assert len(cap) == 2
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(cap.values(), expected, strict=True))


def test_an_earlier_attachment_sees_the_call_as_one(model):
    clean = byname.capture(model, f"layers.0.{PLACE}")(X)
    where = [f"layers.0.{PLACE}", f"layers.1.{PLACE}"]
    with (
        byname.capture(model, where) as cap,
        byname.track(),
        byname.patch(model, f"layers.0.{PLACE}.pattern", torch.tensor(0.0), attention="explicit"),
    ):
        model(X)
    assert list(cap) == where
    assert clean[where[0]].any()
    assert not cap[where[0]].any()


def test_two_attachments_change_the_same_pattern_in_the_order_in_which_they_were_made(model):
    path, seen = f"layers.0.{PLACE}.pattern", []
    with (
        byname.patch(model, path, lambda part: part * 0 + 1, attention="explicit"),
        byname.patch(model, path, lambda part: seen.append(part) or part * 3, attention="explicit"),
        byname.capture(model, path, attention="explicit") as cap,
    ):
        model(X)
    assert torch.equal(seen[0], torch.ones(3, 2, 5, 5))
    assert torch.equal(cap[path], torch.full((3, 2, 5, 5), 3.0))


def test_selectors_of_steps_that_need_an_example(model):
    after = select.attention.pattern.after(select.linear, within=8)
    for selector, layers in [(select.attention.pattern.last, [1]), (select.attention.pattern, [0, 1]), (after, [0, 1])]:
        told = []
        with byname.attach(model, selector, lambda event, t=told: t.append(event), attention="explicit", example=X):
            model(X)
        assert [event.path for event in told] == [f"layers.{i}.{PLACE}.pattern" for i in layers]
        assert all(torch.allclose(event.value.sum(-1), torch.ones(())) for event in told)


def test_a_head_of_a_pattern_is_ablated_by_its_mean_in_a_reference(model):
    path = f"layers.1.{PLACE}.pattern"
    batches = [torch.randn(2, 5, 8), torch.randn(4, 5, 8)]
    with byname.capture(model, path, attention="explicit") as reference:
        for batch in batches:
            model(batch)
    mean = (
        torch.cat([value[:, 1].mean((0, 1), keepdim=True) * len(value) for value in reference.calls(path)]).sum(0) / 6
    )
    clean = byname.capture(model, path, attention="explicit")(X)[path]
    with byname.ablate(model, path, "mean", heads=1, reference=batches, attention="explicit"):
        found = byname.capture(model, path, attention="explicit")(X)[path]
    assert torch.allclose(found[:, 1], mean.expand(3, 5, 5), atol=1e-6)
    assert torch.equal(found[:, 0], clean[:, 0])


@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"padded": True}, {}], ids=str)
def test_in_generate_the_pattern_has_all_heads_where_several_share_their_keys(options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    without = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, **without, num_key_value_heads=2, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(1, 20, (2, 5))
    if "padded" in options:
        options = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1] * 5])}
    settings = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def logits():
        return torch.stack(model.generate(ids, **settings, **options).logits)

    with byname.capture(model, select.attention.pattern, attention="explicit") as cap:
        seen = logits()
    assert torch.allclose(seen, logits(), atol=1e-5)
    (path,) = cap
    assert [value.shape[:3] for value in cap.calls(path)] == [(2, 4, 5), (2, 4, 1), (2, 4, 1)]
    with byname.ablate(model, "model.layers.0.self_attn.o_proj.input", heads=[1, 2]):
        expected = logits()
    with byname.ablate(model, select.attention.pattern, heads=[1, 2], attention="explicit"):
        assert torch.allclose(logits(), expected, atol=1e-5)
    assert not torch.allclose(seen, expected, atol=1e-4)
