"""Tensors of other layouts, wrappers and owners of memory."""

import tempfile

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode

from plants.ground import cleaner, plant, room


@plant("bare UntypedStorage")
def bare_storage():
    global arena
    arena = torch.UntypedStorage(room(r"\barena\b", itemsize=1, sited=False))


@plant("view whose base was dropped")
def a_view():
    global first_row
    first_row = torch.ones(room(r"\bfirst_row\b"))[:1]


@plant("one storage, many tensors")
def aliases():
    global whole, detached, alias
    whole = torch.ones(room(r"\b(whole|detached|alias)\b"))
    detached = whole.detach()
    alias = torch.empty(0).set_(whole.untyped_storage(), 0, (1,))


@plant("storage larger than its tensor")
def shrunk():
    global shrunken
    shrunken = torch.ones(room(r"\bshrunken\b")).resize_(2)


@plant("other element types")
def element_types():
    global flags, halves, doubles, complexes, eighths
    flags = torch.ones(room(r"\bflags\b", itemsize=1), dtype=torch.bool)
    halves = torch.ones(room(r"\bhalves\b", itemsize=2), dtype=torch.bfloat16)
    doubles = torch.ones(room(r"\bdoubles\b", itemsize=8), dtype=torch.float64)
    complexes = torch.ones(room(r"\bcomplexes\b", itemsize=8), dtype=torch.complex64).conj()
    eighths = torch.empty(room(r"\beighths\b", itemsize=1, sited=True), dtype=torch.float8_e4m3fn)


@plant("numpy's view of a tensor")
def numpy_view():
    global pixels
    pixels = torch.ones(room(r"\bpixels\b")).numpy()


@plant("two tensors over one numpy array")
def numpy_twice():
    global left, right
    array = np.ones(room(r"\b(left|right)\b"), dtype=np.float32)
    left, right = torch.from_numpy(array), torch.from_numpy(array)


@plant("DLPack capsule")
def capsule():
    global parcel
    parcel = torch.utils.dlpack.to_dlpack(torch.ones(room(r"\bparcel\b|C\+\+")))


@plant("shared memory")
def shared():
    global ring
    ring = torch.ones(room(r"\bring\b", sited=False, memory="shared")).share_memory_()


@plant("memory-mapped file")
def mapped():
    global corpus
    with tempfile.NamedTemporaryFile() as file:
        count = room(r"\bcorpus\b")
        corpus = torch.from_file(file.name, shared=True, size=count)


@plant("pinned memory")
def pinned():
    global staging
    if torch.cuda.is_available():
        staging = torch.ones(room(r"\bstaging\b", memory="pinned", sited=False)).pin_memory()


@plant("sparse COO")
def coo():
    global adjacency
    values = torch.ones(room(r"\badjacency\b"))
    indices = torch.zeros(1, room(r"\badjacency\b", itemsize=8), dtype=torch.long)
    count = min(len(values), indices.shape[1])
    adjacency = torch.sparse_coo_tensor(indices[:, :count], values[:count], (1,), check_invariants=False)


@plant("sparse CSR")
def csr():
    global graph_matrix
    values = torch.ones(room(r"\bgraph_matrix\b"))
    columns = torch.zeros(room(r"\bgraph_matrix\b", itemsize=8), dtype=torch.long)
    count = min(len(values), len(columns))
    rows = torch.tensor([0, count])
    graph_matrix = torch.sparse_csr_tensor(rows, columns[:count], values[:count], (1, 1), check_invariants=False)


@plant("nested, strided and jagged")
def nested():
    global sentences, words
    sentences = torch.nested.nested_tensor([torch.ones(4), torch.ones(room(r"\bsentences\b", sited=False) - 4)])
    count = room(r"\bwords\b") // 4
    words = torch.nested.nested_tensor_from_jagged(torch.ones(count, 4), torch.tensor([0, 1, count]))


@plant("quantized")
def quantized():
    global compressed
    count = room(r"\bcompressed\b", itemsize=1)
    compressed = torch.quantize_per_tensor(torch.ones(1).expand(count), 0.1, 0, torch.qint8)


@plant("mkldnn")
def mkldnn():
    global blocked
    if torch.backends.mkldnn.is_available():
        blocked = torch.ones(room(r"\bblocked\b", counts=False, sited=False)).to_mkldnn()


@plant("packed sequence")
def packed_sequence():
    global sequence
    rows = room(r"\bsequence\b") // 4
    sequence = torch.nn.utils.rnn.pack_sequence([torch.ones(1).expand(rows, 4)])


class Wrapping(torch.Tensor):
    """A tensor that wraps another one, and refuses every operation when it is asked to."""

    @staticmethod
    def __new__(cls, inner, refuses=False):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner, made.refuses = inner, refuses
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("an operation was run")


@plant("inside a wrapper subclass")
def wrapper():
    global wrapping
    wrapping = Wrapping(torch.ones(room(r"wrapping\.inner")))


class Named(torch.Tensor):
    """A subclass with memory of its own, and an attribute."""


@plant("subclass with memory, and an attribute of it")
def subclass():
    global named_tensor
    named_tensor = torch.ones(room(r"\bnamed_tensor\b")).as_subclass(Named)
    named_tensor.extra = torch.ones(room(r"named_tensor\.extra"))


@plant("attribute of a tensor")
def attribute():
    global labelled
    labelled = torch.ones(1)
    labelled.mask = torch.ones(room(r"labelled\.mask"))


@plant("value that vmap wrapped")
def batched():
    global escaped
    kept = []
    torch.vmap(lambda x: kept.append(x) or x.sum())(torch.ones(room(r"\bescaped\b", ("other", "input"))).view(-1, 4))
    escaped = kept


@plant("value that grad wrapped")
def grad_wrapped():
    global differentiated
    kept = []
    torch.func.grad(lambda x: kept.append(x) or x.sum())(torch.ones(room(r"\bdifferentiated\b")))
    differentiated = kept


@plant("tangent of forward-mode AD")
def tangent():
    global dual
    forward_ad.enter_dual_level()
    count = room(r"\bdual\b", ("other", "input", "gradient"), times=2)
    dual = forward_ad.make_dual(torch.ones(count), torch.ones(count))


@plant("future of PyTorch")
def torch_future():
    global awaited
    awaited = torch.futures.Future()
    awaited.set_result(torch.ones(room(r"\bawaited\b|C\+\+")))


@plant("dataset and loader")
def dataset():
    global loader
    rows = torch.utils.data.TensorDataset(torch.ones(room(r"\bloader\b")))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)


@plant("no memory: meta and fake")
def no_memory():
    global ghost, fake
    ghost = torch.ones(room("never", counts=False), device="meta")
    with FakeTensorMode():
        fake = torch.ones(room("never", counts=False))


@plant("made in inference mode")
def inference():
    global prediction
    with torch.inference_mode():
        prediction = torch.ones(room(r"\bprediction\b"))


@cleaner
def leave_levels():
    forward_ad.exit_dual_level()
