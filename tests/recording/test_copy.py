"""What is recorded of a value: the same numbers, plain, and nothing shared with the program."""

import collections
import dataclasses
import enum
import typing

import numpy as np
import pytest
import torch
from stored_runs import kept as copy
from torch import nn

import byname
from byname.errors import NotStorableError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def is_plain(tensor):
    return type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.requires_grad and tensor.is_leaf


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_copied_bit_by_bit(dtype):
    value = torch.arange(8 * 16, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.ones(3).bool()
    made = copy(value)
    assert is_plain(made) and made.dtype == dtype and torch.equal(bits(made), bits(value))
    assert made.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).t(),
        torch.randn(8)[::3],
        torch.randn(3, 1).expand(3, 5),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(2, 0, 3),
        torch.tensor(3.5),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch.randn(10)[4:6],
        torch._efficientzerotensor((3,)),
    ],
    ids="transposed strided expanded channels_last empty scalar conj neg part zero".split(),
)
def test_whatever_the_layout_the_copy_is_whole_and_has_memory_of_its_own(value):
    made = copy(value)
    assert is_plain(made) and not made.is_conj() and not made.is_neg()
    assert torch.equal(made, value) and made.untyped_storage().nbytes() == value.numel() * value.element_size()


def test_a_copy_has_no_history_and_no_gradient():
    weight = nn.Parameter(torch.randn(3))
    for value in (weight, weight * 2, (weight * 2)[1:]):
        made = copy(value)
        assert is_plain(made) and made.grad_fn is None and torch.equal(made, value)


def test_a_copy_has_no_tangent():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.full((2,), 3.0))
        assert torch.autograd.forward_ad.unpack_dual(copy(dual)).tangent is None


def test_what_is_recorded_does_not_follow_the_program():
    value = {"x": [torch.ones(2)], "n": [1]}
    made = copy(value)
    value["x"][0].add_(1), value["n"].append(2)
    assert made["x"][0].tolist() == [1, 1] and made["n"] == [1]


def test_random_state_and_autograd_are_left_as_they_were():
    value = torch.randn(3, requires_grad=True) * 2
    before, version = torch.get_rng_state(), value._version
    copy([value, value.detach()])
    assert torch.equal(before, torch.get_rng_state()) and value._version == version and value.requires_grad


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("the class's own code has run")


class LoudDispatch(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("the class's own code has run")


@pytest.mark.parametrize("kind", [Loud, LoudDispatch])
def test_a_subclass_of_tensor_is_copied_as_a_tensor_without_running_its_code(kind):
    value = torch.Tensor._make_subclass(kind, torch.arange(3.0))
    made = copy(value)
    assert type(made) is torch.Tensor and made.tolist() == [0, 1, 2]


def test_a_subclass_without_memory_of_its_own_is_refused():
    wrapper = torch.Tensor._make_wrapper_subclass(LoudDispatch, (3,))
    with pytest.raises(NotStorableError, match="LoudDispatch, which wraps other tensors"):
        copy(wrapper)


def test_a_result_on_its_way_from_other_ranks_is_waited_for():
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    made = copy(AsyncCollectiveTensor(torch.arange(3.0)))
    assert is_plain(made) and made.tolist() == [0, 1, 2]


def test_modes_of_the_program_do_not_see_the_copy():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    value, model = torch.ones(2), nn.Identity()
    with byname.record(model, "forward") as recorder:
        with Functions(), Operators():
            seen.clear()
            model(value), model([value, {"k": value}])
            assert seen == []
    first, (second, _) = recorder.results["forward"].values
    assert all(type(one) is torch.Tensor and one.tolist() == [1, 1] for one in (first, second))


def test_it_copies_under_inference_mode_autocast_and_no_grad():
    with torch.inference_mode():
        inside = copy(torch.ones(2))
        value = torch.full((2,), 2.0)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        narrow = copy(torch.ones(2))
    assert not inside.is_inference() and inside.tolist() == [1, 1]
    assert copy(value).tolist() == [2, 2] and narrow.dtype == torch.float32


def test_under_fake_tensors_only_real_ones_are_copied():
    from torch._subclasses import FakeTensorMode

    real = torch.ones(2)
    with FakeTensorMode():
        assert copy(real).tolist() == [1, 1] and type(copy(real)) is torch.Tensor
        with pytest.raises(
            NotStorableError, match=r"`forward` cannot be recorded: it is a FakeTensor tensor of shape \[3\]"
        ):
            copy(torch.zeros(3))
    with pytest.raises(NotStorableError, match="meta tensor .* no values"):
        copy(torch.zeros(3, device="meta"))


def test_inside_vmap_a_batched_value_is_refused_and_any_other_copied():
    outside, made = torch.arange(2.0), []

    def refused(x):
        made.append(copy(outside))
        with pytest.raises(NotStorableError, match="BatchedTensor"):
            copy(x)
        return x

    torch.vmap(refused)(torch.ones(3, 2))
    assert made[0].tolist() == [0, 1] and not torch._C._functorch.is_functorch_wrapped_tensor(made[0])


def test_inside_a_gradient_transform_the_value_is_unwrapped():
    made = []

    def loss(x):
        made.append(copy(x * 2))
        return (x * x).sum()

    torch.func.grad(torch.func.grad(lambda x: loss(x)))(torch.tensor(3.0))
    assert made[0].item() == 6 and not torch._C._functorch.is_functorch_wrapped_tensor(made[0])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_keep_their_parts():
    coo = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=False)
    csr = torch.eye(2).to_sparse_csr()
    made = copy(coo)
    assert made["layout"] == "sparse_coo" and made["shape"] == (4,)
    assert made["indices"].tolist() == [[0, 2, 2]] and made["values"].tolist() == [1, 2, 3]
    assert made["values"].data_ptr() != coo._values().data_ptr()
    assert set(copy(csr)) == {"layout", "shape", "crow_indices", "col_indices", "values"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_become_lists(layout):
    made = copy(torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=layout))
    assert [one.shape for one in made] == [(2, 3), (4, 3)] and all(map(is_plain, made))


@pytest.mark.filterwarnings("ignore:.*quantize.*deprecated")
def test_quantized_tensors_are_refused_with_what_to_do():
    with pytest.raises(NotStorableError, match="int_repr"):
        copy(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


# containers

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: float | None = None


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    kind: typing.ClassVar[int] = 0


class Lying(dict):
    def items(self):
        raise AssertionError("the class's own code has run")

    __iter__ = __len__ = __getitem__ = __contains__ = keys = values = items


class LyingList(list):
    def __iter__(self):
        raise AssertionError("the class's own code has run")

    __len__ = __getitem__ = __iter__


@pytest.mark.parametrize("value", [True, 3, 2**80, 1.5, 1j, "text", b"raw", None, torch.float16, torch.device("cpu")])
def test_plain_values_stay_what_they_are(value):
    assert copy(value) is value or copy(value) == value
    assert type(copy(value)) is type(value)


class Colour(enum.IntEnum):
    RED = 3


class Text(str):
    def __str__(self):
        return "another"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, k=[1]), {"k": [1]}),
        (Lying(k=1), {"k": 1}),
        (LyingList([1, 2]), [1, 2]),
        (Point(1, "y"), (1, "y")),
        (torch.Size([2, 3]), (2, 3)),
        (Output(logits=None), {"logits": None, "loss": None}),
        (Slotted(4), {"a": 4}),
        ({1: 5, None: 2, (1, "k"): 3, 1.5: 4, False: 0}, {1: 5, None: 2, (1, "k"): 3, 1.5: 4, False: 0}),
        ([[], (), {}], [[], (), {}]),
        (Colour.RED, 3),
        (Text("text"), "text"),
        (np.float64(1.5), 1.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        ({np.int64(3): 1}, {3: 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_and_subclasses_become_plain_ones(value, plain):
    def kinds(one):
        inside = one.values() if type(one) is dict else one if type(one) in (list, tuple) else ()
        return type(one), [kinds(each) for each in inside]

    assert copy(value) == plain and kinds(copy(value)) == kinds(plain)


def test_the_output_of_a_transformers_model_is_a_dict():
    from transformers.modeling_outputs import BaseModelOutput

    made = copy(BaseModelOutput(last_hidden_state=torch.ones(2), hidden_states=(torch.zeros(1),)))
    assert type(made) is dict and list(made) == ["last_hidden_state", "hidden_states"]
    assert type(made["hidden_states"]) is tuple and is_plain(made["hidden_states"][0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(4)[::-1],
        np.arange(3, dtype=">f4"),
        np.array([True, False]),
        np.array(2.5),
        np.zeros((0, 2), dtype="uint16"),
        np.broadcast_to(np.ones(1), (3,)),
    ],
    ids="transposed reversed big_endian bool scalar empty readonly".split(),
)
def test_numpy_arrays_become_tensors(array):
    made = copy(array)
    assert is_plain(made) and np.array_equal(made.numpy(), array) and made.shape == array.shape


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        (object(), "it is of type object", "by the part's path"),
        ({"k": [1, {2}]}, r"in it, `\['k'\]\[1\]` is of type set", "sorted"),
        ([1, (frozenset(),)], r"in it, `\[1\]\[0\]` is of type frozenset", "sorted"),
        ({"k": {object(): 1}}, r"in it, `\['k'\]` has a key of type object", "Keys are strings"),
        (nn.Linear(1, 1), "it is of type torch.nn.modules.linear.Linear", "on_value"),
        (np.array(["a"]), "it is a numpy array of dtype <U1", "list"),
        (np.ma.array([1.0], mask=[True]), "it is a masked array", "filled"),
        (np.datetime64("2020-01-01"), "it is a datetime64", "number or a string"),
        (bytearray(b"x"), "it is of type bytearray", "bytes"),
        (Output, "it is of type type", "by the part's path"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_cannot_be_recorded_is_named_with_its_place_type_and_what_to_do(value, where, why):
    with pytest.raises(NotStorableError, match=rf"^`forward` cannot be recorded: {where}.*{why}"):
        copy(value)


def test_a_field_behind_a_property_is_not_read():
    @dataclasses.dataclass
    class Guarded:
        x: int = dataclasses.field(init=False)

    Guarded.x = property(lambda self: pytest.fail("the class's own code has run"))
    with pytest.raises(NotStorableError, match="Guarded whose field 'x' is not a plain attribute"):
        copy(Guarded())


def test_a_container_that_contains_itself_is_refused():
    value = {"k": [1]}
    value["k"].append(value)
    with pytest.raises(NotStorableError, match=r"`\['k'\]\[1\]` contains itself"):
        copy(value)


def test_too_deep_a_value_is_refused_and_one_hundred_levels_are_not():
    value = []
    for _ in range(99):
        value = [value]
    assert copy(value) == value
    with pytest.raises(NotStorableError, match="100 containers deep"):
        copy([value])


def test_a_value_that_holds_one_part_many_times_is_copied_once():
    value = [torch.ones(1)]
    for _ in range(60):
        value = [value, value]
    made = copy(value)
    assert made[0] is made[1] and made is not value


def test_a_long_list_is_copied():
    assert copy(list(range(100_000))) == list(range(100_000))
