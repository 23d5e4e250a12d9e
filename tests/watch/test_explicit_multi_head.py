"""attention="explicit" in nn.MultiheadAttention: both of its ways, masks, the fast path, and the encoders around it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import byname
from byname import select
from byname.errors import NoMatchError

PLACE = "multi_head_attention_forward"
PATTERN, SCORES = (f"attn.{PLACE}.{part}" for part in ("pattern", "scores"))


class Attends(nn.Module):
    def __init__(self, *, need_weights=True, batch_first=True, **options):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)
        self.need_weights = need_weights

    def forward(self, query, key, **options):
        return self.attn(query, key, key, need_weights=self.need_weights, average_attn_weights=False, **options)


def by_hand(attn, query, key, mask=None, padding=None):
    """Return the scores and the pattern of inputs whose first dimension is the batch."""
    wq, wk, _ = attn.in_proj_weight.chunk(3)
    bq, bk, _ = attn.in_proj_bias.chunk(3)
    q, k = ((x @ w.T + b).unflatten(-1, (2, 4)).transpose(1, 2) for x, w, b in ((query, wq, bq), (key, wk, bk)))
    scores = q @ k.mT / math.sqrt(4)
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None], -math.inf)
    return scores, scores.softmax(-1)


@settings(max_examples=80)
@given(
    need_weights=st.booleans(),
    batch_first=st.booleans(),
    training=st.booleans(),
    grad=st.booleans(),
    itself=st.booleans(),
    mask=st.sampled_from(["none", "bool", "float", "causal"]),
    padded=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    seed=st.integers(0, 1000),
)
def test_the_result_is_that_of_pytorch_and_the_pattern_that_by_hand(
    need_weights, batch_first, training, grad, itself, mask, padded, dtype, sizes, seed
):
    torch.manual_seed(seed)
    batch, queries, keys = sizes
    keys = queries if itself or mask == "causal" else keys
    model = Attends(need_weights=need_weights, batch_first=batch_first, dropout=0.0).to(dtype).train(training)
    query = torch.randn(batch, queries, 8, dtype=dtype)
    key = query if itself else torch.randn(batch, keys, 8, dtype=dtype)
    hidden = {
        "none": None,
        "bool": torch.rand(queries, keys) > 0.6,
        "float": torch.randn(queries, keys, dtype=dtype),
        "causal": torch.ones(queries, keys, dtype=torch.bool).triu(1),
    }[mask]
    padding = torch.arange(keys) >= torch.randint(1, keys + 1, (batch, 1)) if padded else None
    if hidden is not None and hidden.dtype is torch.bool:
        hidden[:, 0] = False  # PyTorch's two ways differ where a query sees nothing
    added = torch.zeros(batch, keys, dtype=dtype)  # PyTorch wants both masks of one type
    given_padding = added.masked_fill(padding, -math.inf) if padded and mask == "float" else padding
    options = {"attn_mask": hidden, "key_padding_mask": given_padding, "is_causal": mask == "causal"}
    first = query if batch_first else query.transpose(0, 1)
    second = first if itself else key if batch_first else key.transpose(0, 1)
    with torch.set_grad_enabled(grad):
        expected = model(first, second, **options)
        cap = byname.capture(model, select.attention.pattern | select.attention.scores, attention="explicit")
        cap(first, second, **options)
        scores, pattern = by_hand(model.attn, query, key, hidden, padding)
    close = {"atol": 0.05, "rtol": 0.05} if dtype is torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    assert list(cap) == [SCORES, PATTERN]
    assert cap[PATTERN].dtype == cap.output[0].dtype == dtype
    assert torch.allclose(cap.output[0], expected[0], **close)
    if need_weights:
        assert torch.allclose(cap.output[1], expected[1], **close)
        assert torch.equal(cap[PATTERN], cap.output[1])
    assert torch.allclose(cap[SCORES], scores, **close)
    assert torch.allclose(cap[PATTERN], pattern, **close)


X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[True, False], ids=["weights", "kernel"])
def model(request):
    torch.manual_seed(0)
    return Attends(need_weights=request.param).eval()


def result_with(attn, pattern, x):
    weight, bias = attn.in_proj_weight.chunk(3)[2], attn.in_proj_bias.chunk(3)[2]
    values = (x @ weight.T + bias).unflatten(-1, (2, 4)).transpose(1, 2)
    return attn.out_proj((pattern @ values).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("grad", [True, False])
def test_a_changed_pattern_is_what_is_computed_with(model, grad):
    even = torch.full((5, 5), 0.2)
    with torch.set_grad_enabled(grad), byname.patch(model, PATTERN, even, heads=1, attention="explicit"):
        found = model(X, X)[0]
    pattern = by_hand(model.attn, X, X)[1].clone()
    pattern[:, 1] = even
    assert torch.allclose(found, result_with(model.attn, pattern, X), atol=1e-6)


def test_changed_scores_are_what_is_computed_with(model):
    shift = torch.randn(5, 5)
    with byname.patch(model, SCORES, lambda part: part + shift, attention="explicit"):
        found = model(X, X)[0]
    pattern = (by_hand(model.attn, X, X)[0] + shift).softmax(-1)
    assert torch.allclose(found, result_with(model.attn, pattern, X), atol=1e-6)


def test_a_gradient_flows_to_a_pattern_that_is_put_in(model):
    pattern = torch.rand(3, 2, 5, 5, requires_grad=True)
    with byname.patch(model, PATTERN, pattern, attention="explicit"):
        model(X, X)[0].square().sum().backward()
    expected = torch.autograd.grad(result_with(model.attn, pattern, X).square().sum(), pattern)[0]
    assert torch.allclose(pattern.grad, expected, atol=1e-5)


def test_dropout_is_applied_after_the_pattern():
    model = Attends(dropout=0.5).train()
    cap = byname.capture(model, PATTERN, attention="explicit")(X, X)
    assert torch.allclose(cap[PATTERN].sum(-1), torch.ones(()), atol=1e-6)
    kept = cap.output[1] != 0
    assert torch.allclose(cap.output[1][kept], 2 * cap[PATTERN][kept], atol=1e-6)
    assert not kept.all()


def test_other_attachments_see_the_call_as_one(model):
    with (
        byname.capture(model, f"attn.{PLACE}") as before,
        byname.patch(model, PATTERN, torch.tensor(0.0), attention="explicit"),
        byname.capture(model, [f"attn.{PLACE}", "attn"]) as after,
    ):
        model(X, X)
    (first,), (second, third) = before.values(), after.values()
    nothing = result_with(model.attn, torch.zeros(3, 2, 5, 5), X)
    assert torch.equal(first[0], second[0])
    assert torch.allclose(third[0], nothing, atol=1e-6)


def test_inputs_without_a_batch(model):
    cap = byname.capture(model, PATTERN, attention="explicit")(X[0], X[0])
    assert torch.allclose(cap[PATTERN], by_hand(model.attn, X[:1], X[:1])[1], atol=1e-6)
    assert torch.allclose(cap.output[0], model(X[0], X[0])[0], atol=1e-6)


def test_a_path_of_the_other_function_names_this_one(model):
    with pytest.raises(NoMatchError, match=rf"close to it: `attn.{PLACE}.pattern`"):
        byname.capture(model, "attn.scaled_dot_product_attention.pattern", attention="explicit")(X, X)


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, **options).eval()
    for inner in model.layers:
        nn.init.xavier_uniform_(inner.linear1.weight)
    return model


PLACES = [f"layers.{i}.self_attn.{PLACE}.pattern" for i in range(2)]


@pytest.mark.parametrize("grad", [True, False])
def test_the_layers_of_an_encoder_leave_their_fast_path(grad):
    model = encoder()
    with torch.set_grad_enabled(grad):
        expected = model(X)
        with byname.capture(model, select.attention.pattern, attention="explicit") as cap:
            outputs = [model(X) for _ in range(2)]
        assert list(cap) == PLACES
        assert all(torch.allclose(one, expected, atol=1e-5) for one in outputs)
        first = cap.calls(PLACES[0])
        assert len(first) == 2
        assert torch.allclose(first[1], by_hand(model.layers[0].self_attn, X, X)[1], atol=1e-6)
        assert torch.allclose(model(X), expected, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("where", [select.attention.pattern, PLACES, select.attention.pattern[1]])
def test_a_padded_batch_is_not_made_a_nested_tensor(where):
    model, hidden = encoder(), torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [0] * 5]).bool()
    with torch.no_grad():
        expected = model(X, src_key_padding_mask=hidden)
        with byname.capture(model, where, attention="explicit") as cap:
            for _ in range(3):  # the first forward finds what matches, and the later ones are hooked for that alone
                found = model(X, src_key_padding_mask=hidden)
                assert torch.allclose(found[~hidden], expected[~hidden], atol=1e-5)
        assert all(value.shape == (3, 2, 5, 5) for path in cap for value in cap.calls(path))
        if PLACES[0] in cap:
            pattern = by_hand(model.layers[0].self_attn, X, X, padding=hidden)[1]
            assert all(torch.allclose(one, pattern, atol=1e-6) for one in cap.calls(PLACES[0]))
        assert torch.equal(model(X, src_key_padding_mask=hidden), expected)
    notes = byname.attach(model, PLACES[0], print, attention="explicit", enabled=False).notes
    assert any("src_key_padding_mask= hides" in note for note in notes)


def test_steps_follow_and_lead_the_flow_of_data():
    model = encoder()
    told = []
    wanted = select.norm.next_after(select.attention.pattern[0]) | select.attention.pattern.after(
        select.path("layers.0")
    )
    with byname.attach(model, wanted, lambda event: told.append(event.path), attention="explicit", example=X):
        model(X)
    assert told == ["layers.0.norm1", PLACES[1]]


def test_a_decoder_has_two_in_each_layer():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1).eval()
    memory = torch.randn(3, 4, 8)
    cap = byname.capture(model, select.attention.pattern, attention="explicit")(X, memory)
    assert [value.shape for value in cap.values()] == [(3, 2, 5, 5), (3, 2, 5, 4)]
    assert torch.allclose(cap.output, model(X, memory), atol=1e-5)


def test_functional_attention_in_a_module_of_the_users():
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2)

        def forward(self, x):
            one = self.inner
            weights = (one.in_proj_weight, one.in_proj_bias, None, None, False, 0.0)
            last = (one.out_proj.weight, one.out_proj.bias)
            return nn.functional.multi_head_attention_forward(x, x, x, 8, 2, *weights, *last)[0]

    model = Pools()
    x = X.transpose(0, 1)
    cap = byname.capture(model, f"{PLACE}.pattern", attention="explicit")(x)
    assert torch.allclose(cap[f"{PLACE}.pattern"], by_hand(model.inner, X, X)[1], atol=1e-6)
    assert torch.allclose(cap.output, model(x), atol=1e-6)
