"""Codec: nested values come back from their text as they were, and texts that nobody wrote are refused."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byname.codec import bytes_of, decoded, encoded, size_of
from byname.errors import NotStorableError, RecordingError

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
keys = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda k: st.tuples(k, k), max_leaves=3)
nested = st.recursive(plain, lambda v: st.lists(v) | st.tuples(v, v) | st.dictionaries(keys, v), max_leaves=12)


def back(value):
    text, tensors = encoded(value)
    return decoded(text, b"".join(bytes_of(one).tobytes() for one in tensors))


@settings(deadline=None, max_examples=200)
@given(nested)
def test_plain_values_come_back_the_same_in_value_and_type(value):
    assert repr(back(value)) == repr(value)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.complex64,
        torch.complex32,
        torch.bool,
        torch.uint16,
        torch.int64,
    ],
)
def test_tensors_inside_come_back_bit_by_bit(dtype):
    warnings.filterwarnings("ignore", "ComplexHalf support")  # the clones below set it off
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (3, 2 * dtype.itemsize), dtype=torch.uint8)
    tensor = raw.view(dtype)
    value = back({"a": [tensor, (tensor[0, 0].clone(), tensor[:0].clone())], "n": 2})
    first, (scalar, empty) = value["a"]
    assert first.dtype == dtype and first.shape == tensor.shape and torch.equal(first.view(torch.uint8), raw)
    assert scalar.shape == () and empty.shape == (0, 2) and value["n"] == 2


def test_numbers_that_json_lacks_come_back():
    value = back(
        [
            math.inf,
            -math.inf,
            1j,
            complex(math.inf, -0.0),
            10**5000,
            -0.0,
            torch.float8_e5m2,
            torch.device("cpu"),
            "\ud800\0",
        ]
    )
    assert repr(value[:4]) == repr([math.inf, -math.inf, 1j, complex(math.inf, -0.0)])
    assert value[4] == 10**5000 and math.copysign(1, value[5]) == -1
    assert value[6:] == [torch.float8_e5m2, torch.device("cpu"), "\ud800\0"]


def test_a_conjugated_tensor_is_stored_as_what_it_is():
    tensor = torch.tensor([1 + 2j]).conj()
    assert torch.equal(back(tensor), tensor.resolve_conj())


def test_what_has_no_form_is_named():
    with pytest.raises(NotStorableError, match=r"builtins\.set"):
        encoded([{1}])
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(NotStorableError, match="200 containers"):
        encoded(deep)


@pytest.mark.parametrize("text", [
    "", "{", "{}", '{"tensor": 1}', '{"tensor": ["float32", [1000000000000], 0]}', '{"tensor": ["float32", [2], 4]}',
    '{"tensor": ["float32", [-1], 0]}', '{"tensor": ["float32", [1], -4]}', '{"tensor": ["no_such", [1], 0]}',
    '{"tensor": ["load", [1], 0]}', '{"bytes": "?"}', '{"float": "x"}', '{"dict": [[[1], 2]]}', '{"dict": 3}',
    '{"device": "nowhere"}', '{"__class__": 1}', '{"tensor": ["float32", [0, 99999999999999999999999], 0]}', "[" * 100_000,
    '{"int": "zz"}', '{"tuple": 5}', '{"complex": ["a", 1]}', "1" * 5000, "NaN x", '{"a": 1, "b": 2}',
])  # fmt: skip
def test_garbage_is_refused(text):
    with pytest.raises(RecordingError):
        decoded(text, bytes(8))


def test_a_container_that_stands_in_a_value_often_counts_once():
    value = [torch.zeros(1024)]
    for _ in range(60):
        value = [value, value]
    assert 4096 < size_of(value) < 20_000
