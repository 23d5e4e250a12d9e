"""What is recorded of a tensor instead of the tensor: equal to numpy in float64, and gentle to the program."""

import math

import numpy as np
import pytest
import torch
from stored_runs import kept
from torch import nn

import byname
from byname.errors import BadArgumentError, NotStorableError, RecordingWarning

FIGURES = ["mean", "std", "norm", "min", "max", "histogram"]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
WHOLE = [torch.int64, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]


def taken(reduce, value):
    return kept(value, reduce=reduce)


def truth(name, array):
    return {
        "mean": lambda: array.mean(),
        "std": lambda: array.std(ddof=1),
        "norm": lambda: np.sqrt((np.abs(array) ** 2).sum()),
        "min": lambda: array.min(),
        "max": lambda: array.max(),
    }[name]()


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
@pytest.mark.parametrize("name", ["mean", "std", "norm", "min", "max"])
def test_figures_equal_those_of_numpy_in_float64(name, dtype):
    value = (torch.randn(1000) * 3 + 4).abs().to(dtype)
    array = (value.to(torch.float32) if dtype in FLOATS[2:] else value).numpy().astype("float64")
    got = taken(name, value)
    assert got.dim() == 0 and math.isclose(float(got), truth(name, array), rel_tol=2e-6)
    if name in ("min", "max"):
        assert got.dtype == (torch.float32 if dtype is torch.float8_e4m3fn else dtype)
    else:
        assert got.dtype == (torch.float64 if dtype in (torch.float64, *WHOLE) else torch.float32)


def test_extremes_of_whole_numbers_are_exact():
    value = torch.tensor([2**63 + 1, 2**63, 5], dtype=torch.uint64)
    assert taken("max", value).numpy() == 2**63 + 1 and taken("min", value).numpy() == 5
    assert int(taken("max", torch.tensor([2**53 + 1]))) == 2**53 + 1


def test_the_deviation_holds_far_from_zero_and_does_not_overflow_in_half_precision():
    far = torch.randn(10_000) * 0.01 + 1e4
    assert math.isclose(float(taken("std", far)), far.numpy().astype("float64").std(ddof=1), rel_tol=1e-5)
    large = torch.full((1000,), 60000.0, dtype=torch.float16)
    assert float(taken("mean", large)) == 60000 and math.isclose(
        float(taken("norm", large)), 60000 * 1000**0.5, rel_tol=1e-6
    )


@pytest.mark.parametrize("name", ["mean", "std", "norm"])
def test_complex_numbers_have_a_mean_a_deviation_and_a_norm(name):
    value = torch.randn(500, dtype=torch.complex128)
    assert np.isclose(complex(taken(name, value)), truth(name, value.numpy()))


@pytest.mark.parametrize("name", ["min", "max", "histogram"])
def test_complex_numbers_have_no_order(name):
    with pytest.raises(
        BadArgumentError, match=rf"reduce='{name}' of `forward`, a torch.complex64 tensor of shape \[2\].*no order"
    ):
        taken(name, torch.ones(2, dtype=torch.complex64))


def test_of_nothing_there_is_no_mean_but_a_norm():
    got = taken(["mean", "std", "norm", "min", "max"], torch.zeros(0, 3))
    assert got["norm"] == 0 and all(got[name].isnan() for name in ("mean", "std", "min", "max"))
    assert taken("std", torch.ones(1)).isnan() and float(taken("std", torch.ones(2))) == 0


@pytest.mark.parametrize("name", ["mean", "std", "norm", "min", "max"])
def test_nan_is_not_hidden(name):
    assert taken(name, torch.tensor([1.0, math.nan, 2.0])).isnan()


def by_formula(array):
    low, high = array.min(), array.max()
    place = np.floor((array / 2 - low / 2) / (high / 2 - low / 2) * 64).clip(0, 63).astype(int)
    return np.bincount(place, minlength=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_histograms_equal_those_of_numpy(dtype):
    value = (torch.randn(5000) * 20 + 50).abs().to(dtype)
    array = value.to(torch.float64).numpy()
    got = taken("histogram", value)
    assert got["counts"].dtype == torch.int64 and int(got["non_finite"]) == 0
    assert np.array_equal(got["counts"].numpy(), by_formula(array))
    assert np.allclose(got["edges"].numpy(), np.histogram_bin_edges(array, 64), rtol=1e-14)
    assert np.abs(got["counts"].numpy() - np.histogram(array, 64)[0]).sum() <= 0.01 * 5000  # but for those on an edge


def test_a_histogram_counts_what_is_not_finite_apart():
    got = taken("histogram", torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1.0, 1.0]))
    assert int(got["non_finite"]) == 3 and got["counts"][0] == 1 and got["counts"][63] == 2
    assert got["edges"][0] == 0 and got["edges"][64] == 1


@pytest.mark.parametrize("value", [torch.zeros(0), torch.tensor([math.nan, math.inf])])
def test_a_histogram_of_nothing_is_empty(value):
    got = taken("histogram", value)
    assert int(got["counts"].sum()) == 0 and got["edges"].isnan().all() and int(got["non_finite"]) == value.numel()


def test_a_histogram_of_one_value_has_it_in_the_middle():
    got = taken("histogram", torch.full((5,), 3.0))
    assert got["counts"][32] == 5 and got["edges"][0] == 2.5 and got["edges"][64] == 3.5


def test_a_histogram_reaches_over_all_of_float64():
    got = taken("histogram", torch.tensor([-1.7e308, 0.0, 1.7e308], dtype=torch.float64))
    assert got["counts"][0] == got["counts"][32] == got["counts"][63] == 1 and got["edges"].isfinite().all()


def test_bools_count_as_zero_and_one():
    got = taken("histogram", torch.tensor([True, True, False]))
    assert got["counts"][0] == 1 and got["counts"][63] == 2 and float(taken("mean", torch.tensor([True, False]))) == 0.5


def test_several_reductions_make_a_dict_by_their_names():
    def spread(x):
        return x.max() - x.min()

    got = taken(("min", "max", spread), torch.tensor([1.0, 4.0]))
    assert {name: float(one) for name, one in got.items()} == {"min": 1, "max": 4, "spread": 3}


def test_each_tensor_of_a_container_is_reduced_and_other_values_stay():
    value = {"h": torch.tensor([1.0, 3.0]), "rest": (torch.zeros(2), 5, "text"), "n": None}
    got = taken("mean", value)
    assert got["h"] == 2 and got["rest"][0] == 0 and got["rest"][1:] == (5, "text") and got["n"] is None
    assert taken("mean", 7.5) == 7.5


def test_what_cannot_be_recorded_is_left_for_the_copy_to_name():
    value = [torch.ones(1)]
    value.append(value)
    with pytest.raises(NotStorableError, match="contains itself"):
        taken("mean", value)


def test_a_part_that_a_value_holds_many_times_is_reduced_once():
    value, asked = [torch.ones(3)], []
    for _ in range(60):
        value = [value, value]
    made = taken(lambda x: asked.append(1) or x.sum(), value)
    assert asked == [1] and made[0] is made[1]


def test_nothing_reaches_autograd_or_random_state():
    weight = nn.Parameter(torch.randn(4))
    state = torch.get_rng_state()
    for name in FIGURES:
        got = taken(name, weight * 1)
        got = got["counts"] if name == "histogram" else got
        assert not got.requires_grad
    assert torch.equal(state, torch.get_rng_state()) and weight.grad is None


def test_strided_expanded_and_single_values_are_reduced_too():
    value = torch.arange(12.0).reshape(3, 4)
    assert taken("mean", value.t()[::2]) == value[:, ::2].mean() and taken("norm", torch.ones(1).expand(4)) == 2
    assert taken("max", torch.tensor(3.0)) == 3 and int(taken("histogram", torch.tensor(3.0))["counts"].sum()) == 1


def test_it_reduces_under_inference_mode_and_a_default_device():
    with torch.inference_mode():
        assert taken("mean", torch.ones(2)) == 1
    value = torch.ones(2)
    with torch.device("meta"):
        got = taken(["mean", "histogram"], value)
    assert got["mean"].device.type == got["histogram"]["counts"].device.type == "cpu"


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("the class's own code has run")


def test_neither_a_subclass_nor_a_mode_of_the_program_sees_it():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    value = torch.ones(3)
    with Operators():
        got = [taken((*FIGURES,), value), taken((*FIGURES,), value.as_subclass(Loud))]
        assert not [one for one in seen if "alias" not in str(one)]
    assert got[0]["mean"] == got[1]["mean"] == 1 and type(got[1]["max"]) is torch.Tensor


def test_a_large_histogram_has_every_number():
    value = torch.randn(100_000)
    assert np.array_equal(taken("histogram", value)["counts"].numpy(), by_formula(value.double().numpy()))


def test_a_function_gets_the_tensor_without_its_history():
    seen = []
    value = nn.Parameter(torch.ones(2)) * 2
    got = taken(lambda x: seen.append((x.requires_grad, torch.is_grad_enabled())) or x.sum().item(), value)
    assert got == 4 and seen == [(False, False)]


def test_a_function_that_writes_to_the_tensor_is_an_error():
    value = torch.ones(2)
    with pytest.raises(BadArgumentError, match="reduce=careless changed the tensor at `forward` in place"):

        def careless(x):
            return x.mul_(2).sum()

        taken(careless, value)


def test_a_function_that_returns_nothing_is_an_error():
    with pytest.raises(BadArgumentError, match="returned None for `forward`. Return the value to record"):
        taken(lambda x: None, torch.ones(1))


def test_errors_of_a_function_are_its_own():
    with pytest.raises(ZeroDivisionError) as raised:
        taken(lambda x: 1 / 0, torch.ones(1))
    assert raised.value.__notes__[0] == "in reduce=<lambda> of `forward`"


def test_an_unknown_reduction_is_refused_at_once_with_the_closest():
    with pytest.raises(BadArgumentError, match="^there is no reduction 'avg_mean'; there are mean"):
        byname.record(nn.Identity(), "forward", reduce="avg_mean")
    with pytest.raises(BadArgumentError, match="'meen'.*there are mean"):
        byname.record(nn.Identity(), "forward", reduce=["min", "meen"])


@pytest.mark.parametrize("bad", [3, [], {"mean"}, [3], ["mean", "mean"]])
def test_what_is_no_reduction_is_refused_at_once(bad):
    with pytest.raises(BadArgumentError, match="^reduce=|^there is no reduction"):
        byname.record(nn.Identity(), "forward", reduce=bad)
    with pytest.raises(BadArgumentError, match="^`forward`: (reduce=|there is no reduction)[^`]*$"):
        byname.record(nn.Identity(), {"forward": {"reduce": bad}})


@pytest.mark.parametrize("value", [torch.ones(2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"])
def test_a_tensor_without_dense_numbers_is_named(value):
    with pytest.raises(BadArgumentError, match=r"reduce='mean' of `forward`, a torch.float32 tensor of shape \[2\]"):
        taken("mean", value)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, None),
        ("float16", torch.float16),
        ("torch.bfloat16", torch.bfloat16),
        (torch.int8, torch.int8),
        (np.float32, torch.float32),
        (np.dtype("int16"), torch.int16),
        (float, torch.float64),
        (bool, torch.bool),
    ],
)
def test_a_dtype_is_given_in_many_ways(asked, found):
    assert kept(torch.ones(2), dtype=asked).dtype is (found or torch.float32)


@pytest.mark.parametrize("bad", ["float17", 3, np.str_, [], "nn"])
def test_what_is_no_dtype_is_refused_with_the_closest(bad):
    with pytest.raises(BadArgumentError, match="is not a dtype of PyTorch; there are "):
        byname.record(nn.Identity(), "forward", dtype=bad)


@pytest.mark.parametrize(
    ("value", "dtype", "lost"),
    [
        (torch.tensor([3, 299]), torch.int8, "299"),
        (torch.tensor([200], dtype=torch.uint8), torch.int8, "200"),
        (torch.tensor([-1], dtype=torch.int8), torch.uint8, "-1"),
        (torch.tensor([2**63], dtype=torch.uint64), torch.int64, str(2**63)),
        (torch.tensor([128.0]), torch.int8, "128.0"),
        (torch.tensor([1.0, math.nan]), torch.int64, "nan"),
        ({"a": [torch.tensor([[300]])]}, torch.int8, "300"),
        (torch.tensor([300]).to_sparse(), torch.int8, "300"),
    ],
    ids=str,
)
def test_a_whole_number_that_does_not_fit_is_refused(value, dtype, lost):
    with pytest.raises(NotStorableError) as raised:
        kept(value, dtype=dtype)
    assert str(raised.value) == f"`forward`: {lost} does not fit into dtype={str(dtype)[6:]!r}"


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.tensor([127.9, -128.9]), torch.int8),
        (torch.tensor([2**63 - 1]), torch.uint64),
        (torch.tensor([True]), torch.int8),
        (torch.tensor([5]), torch.bool),
        (torch.tensor([math.inf, math.nan, 65504.0, 65519.0]), torch.float16),
        (torch.tensor([1e38]), torch.bfloat16),
        (torch.zeros(0, dtype=torch.int64), torch.int8),
    ],
    ids=str,
)
def test_of_numbers_that_fit_nothing_is_said(value, dtype):
    assert kept(value, dtype=dtype).dtype is dtype


def test_of_what_has_no_numbers_the_copy_says_so():
    with pytest.raises(NotStorableError, match="is a meta tensor"):
        kept(torch.ones(2, device="meta"), dtype=torch.int8)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.tensor([65521.0]), torch.float16),
        (torch.tensor([70000]), torch.float16),
        (torch.tensor([1e39], dtype=torch.float64), torch.float32),
        (torch.tensor([1e5]), torch.float8_e4m3fn),  # which takes the largest in its place
    ],
    ids=str,
)
def test_a_number_beyond_a_floating_dtype_is_said(value, dtype):
    with pytest.warns(RecordingWarning) as warned:
        kept(value, dtype=dtype)
    assert [str(one.message).splitlines()[0] for one in warned] == [
        f"byname: `forward` has finite numbers beyond {torch.finfo(dtype).max:g}, "
        f"the largest of dtype={str(dtype)[6:]!r}"
    ]


def test_a_recording_warns_once_of_a_place_whose_numbers_became_infinite():
    model = nn.Linear(2, 2)
    with (
        pytest.warns(RecordingWarning) as warned,
        byname.record(model, "weight.grad", dtype="float16") as rec,
    ):
        for _ in range(3):
            (model(torch.ones(1, 2)) * 1e6).sum().backward()
    assert [str(one.message) for one in warned] == [
        "byname: `weight.grad` has finite numbers beyond 65504, the largest of dtype='float16'"
    ]
    assert len(rec.results["weight.grad"]) == 3 and not rec.results["weight.grad"].values[0].isfinite().any()


def test_a_recorded_token_is_that_token_or_an_error():
    model = nn.Linear(1, 300)
    options = {"reduce": lambda logits: logits.argmax(-1) * 0 + 299, "dtype": "int8"}
    with byname.record(model, {"forward": options}), pytest.raises(NotStorableError, match="`forward`: 299 does not"):
        model(torch.ones(2, 1))
