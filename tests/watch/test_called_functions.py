"""Functions that a module calls have places: what they return, their variables, and the operations in them."""

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname.errors import NoMatchError, NothingSeenWarning


def scaled(scores, factor):
    scores = scores * factor
    return scores.softmax(-1)


def attend(module, q, k, v, *, dropout=0.0):
    scores = q @ k.mT
    pattern = scaled(scores, 0.5)
    return pattern @ v, pattern


def other(module, q, k, v):
    pattern = torch.ones(q.shape[0], k.shape[0]) / k.shape[0]
    return pattern @ v, pattern


KINDS = {"plain": attend, "even": other}


@functools.cache
def offset(size):
    base = torch.arange(size)
    return base


def logged(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


@logged
def halved(value):
    half = value / 2
    return half


class Attention(nn.Module):
    def __init__(self, kind="plain"):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.kind = kind

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        function = attend if self.kind == "default" else KINDS[self.kind]
        out, _ = function(self, q, k, v)
        return halved(out) + offset(4)


class Model(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.layers = nn.ModuleList([Attention(kind) for kind in kinds])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def by_hand(layer, x):
    """Scores, pattern and output of one layer."""
    q, k, v = layer.qkv(x).chunk(3, -1)
    scores = q @ k.mT
    pattern = (scores * 0.5).softmax(-1)
    return scores, pattern, pattern @ v / 2 + torch.arange(4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model("plain", "default")


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def seen(model, where, x):
    told = []
    with byname.attach(model, where, lambda event: told.append((event.path, event.module, event.value))):
        model(x)
    return told


def test_a_variable_of_a_function_belongs_to_the_module_that_calls_it(model, x):
    told = seen(model, "layers.*.attend.scores", x)
    first, _, out = by_hand(model.layers[0], x)
    second, _, _ = by_hand(model.layers[1], x + out)
    assert [path for path, _, _ in told] == ["layers.0.attend.scores", "layers.1.attend.scores"]
    assert told[0][1] is model.layers[0] and told[1][1] is model.layers[1]
    assert torch.equal(told[0][2], first) and torch.equal(told[1][2], second)


def test_one_layer_alone_is_told_of(model, x):
    (told,) = seen(model, "layers.1.attend.pattern", x)
    assert told[1] is model.layers[1]


def test_a_function_at_any_depth_goes_by_its_own_name(model, x):
    told = seen(model, "layers.0.scaled.scores", x)
    scores, _, _ = by_hand(model.layers[0], x)
    assert [path for path, _, _ in told] == ["layers.0.scaled.scores"] * 2  # as it came in, and as it was assigned
    assert torch.equal(told[0][2], scores) and torch.equal(told[1][2], scores * 0.5)


def test_what_a_function_returns_and_items_of_it(model, x):
    (whole,) = seen(model, "layers.0.attend", x)
    assert isinstance(whole[2], tuple)
    (pattern,) = seen(model, "layers.0.attend[1]", x)
    assert torch.equal(pattern[2], whole[2][1])


def test_an_operation_is_counted_while_the_function_runs(model, x):
    """The first `mul` of the layer is the one in `scaled`; `matmul_1` of `attend` is the second in it."""
    scores, pattern, _ = by_hand(model.layers[0], x)
    told = seen(model, ["layers.0.scaled.mul", "layers.0.attend.softmax", "layers.0.attend.matmul_1"], x)
    assert [path for path, _, _ in told] == [
        "layers.0.scaled.mul",
        "layers.0.attend.softmax",
        "layers.0.attend.matmul_1",
    ]
    assert torch.equal(told[0][2], scores * 0.5) and torch.equal(told[1][2], pattern)


def test_an_operation_in_a_function_and_the_same_one_of_the_module(model, x):
    told = seen(model, ["layers.0.softmax", "layers.0.scaled.softmax"], x)
    assert [path for path, _, _ in told] == ["layers.0.softmax", "layers.0.scaled.softmax"]
    assert told[0][2] is told[1][2]


def test_a_selector_sees_an_operation_once(model, x):
    told = seen(model, [byname.select.softmax, "layers.0.attend.softmax"], x)
    assert [path for path, _, _ in told] == ["layers.0.softmax", "layers.0.attend.softmax", "layers.1.softmax"]


def test_values_in_a_function_can_be_changed(model, x):
    q, k, v = model.layers[0].qkv(x).chunk(3, -1)
    even = torch.full((3, 3), 1 / 3)
    for where in ("layers.0.attend.pattern", "layers.0.scaled", "layers.0.scaled.softmax"):
        with byname.interject(model, where, lambda name, module, value: even):
            captured = byname.capture(model, "layers.0")(x)
        assert torch.equal(captured["layers.0"], even @ v / 2 + torch.arange(4)), where


def test_gradients_of_values_in_a_function(model, x):
    grads = []
    with byname.attach(model, "layers.0.attend.pattern.grad", lambda event: grads.append(event.value)):
        model(x).sum().backward()
    q, k, v = model.layers[0].qkv(x).chunk(3, -1)
    assert len(grads) == 1 and grads[0].shape == (3, 3)


def test_recorded_over_a_run(model, x):
    with byname.record(model, "layers.0.attend.pattern") as recorder:
        for _ in range(3):
            model(x)
    series = recorder.results["layers.0.attend.pattern"]
    assert [*series.iterations] == [0, 1, 2]
    assert torch.equal(series.values[0], by_hand(model.layers[0], x)[1])


def test_a_function_in_a_table_is_found_by_its_own_name(x):
    model = Model("even")
    (told,) = seen(model, "layers.0.other.pattern", x)
    assert torch.equal(told[2], torch.ones(3, 3) / 3)


def test_a_function_that_this_run_does_not_call_tells_nothing(model, x):
    with pytest.warns(NothingSeenWarning, match="other"):
        assert seen(model, "layers.0.other.pattern", x) == []


def test_called_outside_of_the_module_it_tells_nothing(model, x):
    told = []
    with byname.attach(model, "layers.0.attend.scores", lambda event: told.append(event.path)):
        attend(model.layers[0], x, x, x)
        assert told == []
        model(x)
    assert told == ["layers.0.attend.scores"]


def test_a_module_in_between_is_another_caller():
    """The inner module's call of the function is not the outer module's."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention()

        def forward(self, x):
            return self.inner(x) + attend(self, x, x, x)[0]

    outer, x = Outer(), torch.ones(2, 4)
    (told,) = seen(outer, "attend.scores", x)
    assert torch.equal(told[2], x @ x.mT)
    assert [path for path, _, _ in seen(outer, "**.attend.scores", x)] == ["inner.attend.scores", "attend.scores"]


def test_code_is_put_back(model, x):
    before = attend.__code__, scaled.__code__
    with byname.attach(model, ["layers.*.attend.scores", "layers.0.scaled.softmax"], lambda event: None):
        assert attend.__code__ is not before[0]
        model(x)
    assert (attend.__code__, scaled.__code__) == before
    assert attend.__code__ is before[0]


def test_a_function_behind_a_decorator(model, x):
    (told,) = seen(model, "layers.0.halved.half", x)
    assert torch.allclose(told[2], by_hand(model.layers[0], x)[2] - torch.arange(4))


def test_pytorchs_own_function(x):
    model, told = nn.MultiheadAttention(4, 1), []
    where = "multi_head_attention_forward.attn_output_weights"
    with byname.attach(model, where, lambda event: told.append(event.value.reshape(3, 3))):
        _, weights = model(x, x, x)
    assert any(torch.equal(one, weights) for one in told)


def test_nothing_is_found_by_running_anything(monkeypatch):
    """A table of the program's with methods of its own is read past them."""
    from collections.abc import Mapping

    class Table(Mapping):
        kinds = {"even": other}

        def __getitem__(self, key):
            raise AssertionError("it was asked")

        __iter__ = __len__ = __getitem__

        def __getattr__(self, name):
            raise AssertionError("it was asked")

    monkeypatch.setitem(globals(), "KINDS", Table())
    where = ["layers.0.attend.scores", "layers.0.other.pattern"]
    assert [*byname.attach(Model("default"), where, print, enabled=False).paths] == where


def test_points_lists_functions_that_the_code_names(model):
    points = byname.points(model, "layers.0.**")
    kinds = {point.path: point.kind for point in points}
    assert kinds["layers.0.attend"] == "function" and kinds["layers.0.attend.scores"] == "variable"
    assert kinds["layers.0.scaled.factor"] == kinds["layers.0.attend.dropout"] == "argument"
    assert "layers.0.other" not in kinds  # in a table, where most entries are not called
    functions = [path.removeprefix("layers.0.") for path, kind in kinds.items() if kind == "function"]
    assert functions == ["attend", "halved", "offset", "scaled"]


def test_an_unknown_variable_of_a_function_is_an_error_with_those_there_are(model, x):
    with pytest.raises(NoMatchError, match=r"close to it: .*`layers.0.attend.scores`"):
        byname.attach(model, "layers.0.attend.scors", print)
    with (
        pytest.raises(NoMatchError, match=r"close to it: .*`layers.0.attend.softmax`"),
        byname.attach(model, "layers.0.attend.softmin", print),
    ):
        model(x)


def test_with_an_example_operations_of_functions_are_found_in_the_first_forward(model, x):
    told = []
    with byname.watch.attach(model, "layers.0.attend.softmax", lambda event: told.append(event.path), example=x):
        model(x)
    assert told == ["layers.0.attend.softmax"]


def test_many_layers_and_threads_keep_their_callers_apart(x):
    """Each thread's calls are told of under the module that this thread runs."""
    from concurrent.futures import ThreadPoolExecutor

    model = Model(*["plain"] * 4)
    told = []
    with byname.attach(model, "layers.*.attend.scores", lambda event: told.append((event.path, event.module))):
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(lambda _: model(x), range(8))]
    assert len(told) == 32
    assert all(module is model.layers[int(path.split(".")[1])] for path, module in told)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Bert"])
def test_eager_attention_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "Llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
        "Bert": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{kind}Config")(vocab_size=20, attn_implementation="eager", **sizes)
        model = getattr(transformers, f"{kind}Model")(config).eval()
    tokens = torch.arange(5)[None]
    expected = model(tokens, output_attentions=True).attentions
    captured = byname.capture(model, "**.eager_attention_forward.attn_weights")(tokens)
    last = [captured.calls(path)[-1] for path in captured]
    assert len(last) == 2
    assert all(torch.equal(one, two) for one, two in zip(last, expected, strict=True))


def test_functional_names_that_are_operations_stay_operations(x):
    """`softmax` of a module that calls a function of its own by that name is an operation; its variables are reached."""

    class Named(nn.Module):
        def forward(self, x):
            return softmax(x)

    def softmax(x):
        high = x.max()
        return F.softmax(x - high, -1)

    model = Named()
    (told,) = seen(model, "softmax", x)
    assert torch.equal(told[2], F.softmax(x - x.max(), -1))
    (high,) = seen(model, "softmax.high", x)
    assert high[2] == x.max()


def gelu(x):
    inner = x * (1 + x.tanh())
    return inner / 2


def test_a_function_that_has_the_name_of_an_operation_and_calls_no_such_is_the_programs(x):
    """As language models have a `gelu` of their own."""

    class Ours(nn.Module):
        def forward(self, x):
            return gelu(x) + 1

    class Theirs(nn.Module):
        def forward(self, x):
            return F.gelu(x) + 1

    for model, plain in ((Ours(), gelu(x)), (Theirs(), F.gelu(x))):
        for where in ("0.gelu", "*.gelu"):
            (one,) = seen(nn.Sequential(model), where, x)
            assert one[0] == "0.gelu" and torch.equal(one[2], plain)
        with byname.interject(model, "gelu", lambda name, module, value: value * 0):
            assert torch.equal(model(x), torch.ones_like(x))


def in_its_place(module, x):
    doubled = x * 2
    return module.linear(doubled)


IN_ITS_PLACE = {"quick": in_its_place}


def dispatched(forward):
    @functools.wraps(forward)
    def wrapper(self, x):
        return IN_ITS_PLACE.get(self.kind, forward)(self, x)

    return wrapper


def replaced(forward):
    @functools.wraps(forward)
    def wrapper(self, x):
        return in_its_place(self, x)

    return wrapper


class Experts(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(2, 2), kind

    @dispatched
    def forward(self, x):
        own = x + 1
        return self.linear(own)


class AlwaysReplaced(Experts):
    @replaced
    def forward(self, x):
        own = x + 1
        return own


@pytest.mark.parametrize("model", [Experts("quick"), AlwaysReplaced("")])
def test_a_function_that_a_decorator_runs_in_the_place_of_the_forward_has_places(model):
    x = torch.randn(1, 2)
    rows = {row["path"]: row for row in byname.points(model, example=x).rows()}
    assert rows["in_its_place.doubled"]["shape"] == (1, 2) and not rows["forward.own"]["calls"]
    assert torch.equal(byname.capture(model, "in_its_place.doubled")(x)["in_its_place.doubled"], x * 2)
    with byname.record(model, "in_its_place") as rec:
        result = model(x)
    assert torch.equal(rec.results["in_its_place"].values[0], result)
    with byname.patch(model, "in_its_place.doubled", lambda doubled: doubled * 0):
        assert torch.equal(model(x), model.linear(x * 0))


def test_where_a_decorator_runs_the_forward_its_other_functions_are_not_in_the_map():
    paths = [row["path"] for row in byname.points(Experts("own"), example=torch.randn(1, 2)).rows()]
    assert "forward.own" in paths and not [path for path in paths if path.startswith("in_its_place")]
