"""What a callback or a predicate calls itself is no part of the forward; and what it puts in is named when it fails."""

import gc
import importlib
import sys
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import byname
from byname import select
from byname.errors import InterjectionError

x = torch.ones(1, 4)


def keep(name, module, value):
    return None


@pytest.mark.parametrize("where", ["0", "forward", "0.weight", "0.linear", select.all, "forward.input"])
def test_a_model_that_its_callback_calls_is_not_told_of(where):
    model, plain, told = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), [], []
    with byname.interject(model, where, lambda name, module, value: plain.append(name)):
        model(x)

    def compare(name, module, value):
        told.append(name)
        assert len(told) < 20
        model(torch.zeros(1, 4))

    with byname.interject(model, where, compare):
        model(x)
        assert told == plain
        model(x)
    assert told == plain * 2


@pytest.mark.sees_nothing
def test_other_attachments_of_the_model_do_not_take_the_calls_of_a_callback_for_its_forward():
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []
    with (
        byname.watch.attach(model, ["2", "2.linear"], lambda event: seen.append((event.path, event.call))),
        byname.interject(model, "0", lambda name, module, value: model[2](model(torch.zeros(1, 4)) @ torch.ones(2, 4))),
        pytest.raises(InterjectionError),
    ):
        model(x)
    assert seen == []
    with (
        byname.watch.attach(model, ["2", "2.linear"], lambda event: seen.append((event.path, event.call))),
        byname.interject(model, "0", lambda name, module, value: print(model(torch.zeros(1, 4)))),
    ):
        for _ in range(2):
            model(x)
    assert seen == [("2.linear", 0), ("2", 0)] * 2


def test_a_model_run_in_the_backward_by_a_callback_is_no_iteration():
    model, iterations = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []

    def again(event):
        iterations.append((event.path, event.iteration))
        model(torch.zeros(1, 4))

    with byname.watch.attach(model, ["0", "0.grad"], again):
        for _ in range(2):
            model(x).sum().backward()
    assert iterations == [("0", 0), ("0.grad", 0), ("0", 1), ("0.grad", 1)]


def test_another_model_that_a_callback_calls_is_told_of():
    student, teacher = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    told = []
    with (
        byname.interject(teacher, ["1", "forward", "1.relu"], lambda name, module, value: told.append(name)),
        byname.interject(student, ["0", "0.grad"], lambda name, module, value: print(teacher(torch.ones(1, 4)))),
    ):
        student(x).sum().backward()
    assert told == ["1.relu", "1", "forward"] * 2


def test_all_is_heard_again_after_a_callback_that_raised():
    model, told = nn.Sequential(nn.Linear(4, 4)), []

    def once(name, module, value):
        told.append(name)
        if len(told) == 1:
            raise KeyError(name)

    with byname.interject(model, "0", once):
        with pytest.raises(KeyError):
            model(x)
        model(x)
    assert told == ["0", "0"]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).norm()


def test_what_a_predicate_calls_is_no_operation_of_the_model():
    model, told, asked = Normed(), [], []

    def wanted(call):
        asked.append(call.path)
        weight = getattr(call.module, "weight", torch.zeros(1))
        if call.kind == "module" and call.module is model.fc:
            model.fc(torch.zeros(1, 4)).norm()
        return call.kind == "operation" or bool(weight.norm() > 0)

    with byname.interject(model, select.where(wanted), lambda name, module, value: told.append(name)):
        model(x)
        model(x)
    assert told == ["fc", "norm"] * 2
    assert asked == ["", "fc", "norm"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return h.relu()


def data_parallel(module):
    wrapper = nn.DataParallel(module).cpu()
    wrapper.device_ids = []  # runs its module where it is, also beside a GPU
    return wrapper


@pytest.mark.sees_nothing
@pytest.mark.parametrize(
    "wrapper", [checkpoint_wrapper, data_parallel, lambda one: torch.compile(one, backend="eager")]
)
def test_the_module_inside_a_wrapped_child_is_given(wrapper):
    model, told = nn.Sequential(wrapper(Block()), Block()), {}
    where = ["0", "0.fc", "0.relu", "0.forward.h", "0.fc.weight", "1", "1.fc", "0.fc.grad", "0[0]"]
    with byname.interject(model, where, lambda name, module, value: told.update({name: type(module).__name__})):
        model(x.requires_grad_()).sum().backward()
    given = {"0": "Block", "0.fc": "Linear", "1": "Block", "1.fc": "Linear", "0.fc.grad": "Linear"}
    assert told == {**given, "0.relu": "NoneType", "0.forward.h": "NoneType", "0.fc.weight": "NoneType"}


def test_an_event_tells_the_kind_of_its_place():
    model, kinds = Block(), {}
    model.register_buffer("count", torch.zeros(1))
    where = ["fc", "relu", "forward.h", "fc.weight", "count", "fc.grad", "fc.weight.grad", "forward.h.grad"]
    with byname.watch.attach(model, where, lambda event: kinds.update({event.path: event.kind})):
        model(x).sum().backward()
    assert kinds == {
        "fc": "module", "relu": "operation", "forward.h": "variable", "fc.weight": "parameter", "count": "buffer",
        "fc.grad": "module", "fc.weight.grad": "parameter", "forward.h.grad": "variable",
    }  # fmt: skip


@pytest.mark.parametrize("example", [None, x])
def test_the_drawing_of_a_compiled_model_has_the_paths_of_the_model(example):
    model = nn.Sequential(Block(), checkpoint_wrapper(Block()))
    with byname.interject(model, ["0.fc", "1.fc"], keep):
        plain = byname.draw(model, example=example)
        compiled = byname.draw(torch.compile(model, backend="eager"), example=example)
    assert compiled.svg == plain.svg
    assert {"0.fc", "1.fc"} <= {box.path for box in plain.scene.boxes}
    assert "_orig_mod" not in compiled.svg
    assert "_checkpoint_wrapped_module" not in compiled.svg


class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        pair = (self.first(x), x)
        return self.second(pair[0])


CONVERTED = "a tensor of torch.float32 on cpu replaces one of torch.bfloat16 on cpu"


@pytest.mark.parametrize("where", ["first", "first.linear", "forward.pair[0]"])
def test_another_dtype_that_makes_a_later_layer_fail_is_named(where):
    model = Item().to(torch.bfloat16)
    vector, given = torch.ones(4), torch.ones(1, 4, dtype=torch.bfloat16)
    with byname.interject(model, where, lambda name, module, value: value + vector) as handle:
        with pytest.raises(RuntimeError) as raised:
            model(given)
        assert raised.value.__notes__ == [f"byname: at `{where}` {CONVERTED}"]
        assert handle.notes == (f"`{where}`: {CONVERTED}",)
        with pytest.raises(RuntimeError) as again:
            model(torch.ones(1, 3, dtype=torch.bfloat16))
        assert not hasattr(again.value, "__notes__")


def test_another_dtype_in_a_tuple_is_named_with_its_item():
    model = nn.Sequential(nn.LSTM(4, 4), nn.Identity())
    with byname.interject(model, "0", lambda name, module, value: (value[0].double(), value[1])) as handle:
        assert model(x)[0].dtype is torch.float64
        assert handle.notes == ("`0`: in [0] a tensor of torch.float64 on cpu replaces one of torch.float32 on cpu",)


def test_another_dtype_is_allowed_under_autocast_and_at_the_end():
    model = Item()
    with torch.autocast("cpu"), byname.interject(model, "first", lambda name, module, value: value + torch.ones(4)):
        assert model(x).dtype is torch.bfloat16
    with byname.interject(model, "second", lambda name, module, value: value.double()):
        assert model(x).dtype is torch.float64


FAST = "on its fast path"


@pytest.mark.parametrize(
    "where",
    [
        "linear1", nn.Linear, select.linear, select.module(nn.Linear), select.module(nn.Linear)[0], select.parametrized,
        select.module(nn.Linear) & select.path("linear1"), "forward.src", "linear1.weight", "forward",
    ],
)  # fmt: skip
def test_a_fast_path_that_is_left_is_noted(where):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0).eval()
    given = torch.randn(1, 3, 4)
    for example in (None, given):
        with byname.interject(layer, where, keep, example=example) as handle:
            assert sum(FAST in note and note.startswith("`forward`") for note in handle.notes) == 1


def test_a_fast_path_stays_where_only_other_modules_are_selected():
    model = nn.Sequential(nn.Conv1d(3, 3, 1), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)).eval()
    ran = []
    with byname.interject(model, select.module(nn.Conv1d), keep) as handle, torch.no_grad():
        model[1].linear1.forward = lambda value: (
            ran.append("module") or nn.functional.linear(value, model[1].linear1.weight, model[1].linear1.bias)
        )
        model(torch.randn(1, 3, 4))
        assert (ran, handle.notes) == ([], ())


class Tagged(torch.Tensor):
    pass


class Held:
    pass


class Overrides(nn.Module):
    """Gives `torch.overrides.handle_torch_function` what it makes in each forward.

    Args:
        make: makes a function that holds an object.
    """

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.alive = []

    def forward(self, x):
        held = Held()
        self.alive.append(weakref.ref(held))
        return torch.overrides.handle_torch_function(self.make(held), (x,), x)


def closure(held):
    def add(x):
        return x + 1 if held else x

    return add


def of_torch_by_name(held):
    function = closure(held)
    function.__module__ = "torch.nn.functional"
    return function


class Unhashable:
    __hash__ = None

    def __init__(self, held):
        self.held = held

    def __call__(self, x):
        return x + 1


@pytest.mark.parametrize("make", [closure, of_torch_by_name, Unhashable])
@pytest.mark.parametrize("options", [{}, {"example": torch.ones(1)}])
def test_a_function_that_a_forward_makes_is_not_kept(make, options):
    model = Overrides(make)
    where = select.all if options == {} else select.where(lambda call: True)
    with byname.interject(model, where, keep, **options):
        for _ in range(3):
            model(torch.ones(1).as_subclass(Tagged))
        gc.collect()
        assert [one() for one in model.alive] == [None] * len(model.alive)


@pytest.mark.sees_nothing
def test_attachments_are_looked_up_once_a_forward_not_once_a_parameter():
    here, counts = str(Path(byname.__file__).parent), []
    for size in (5, 25):
        model, calls = nn.Sequential(*[nn.Linear(2, 2) for _ in range(size)]), Counter()

        def profile(frame, event, argument, calls=calls):
            if event == "call" and frame.f_code.co_filename.startswith(here):
                calls[frame.f_code.co_qualname] += 1

        with byname.watch.attach(model, "*.weight.grad", lambda event: None):
            model(torch.ones(1, 2))
            sys.setprofile(profile)
            model(torch.ones(1, 2))
            sys.setprofile(None)
        counts.append(calls["attachments_of"])
    assert counts == [1, 1]


SOURCE = """
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        h = x * 2
        return h
"""


def other(self, x):
    return x * 3


@pytest.fixture
def written(tmp_path, monkeypatch):
    (tmp_path / "model_that_is_patched.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("model_that_is_patched").Model
    del sys.modules["model_that_is_patched"]


def test_code_that_somebody_else_puts_in_is_noted_by_each_handle_and_left(written):
    model, told = written(), []
    handles = [byname.interject(model, "forward.h", lambda name, module, value: told.append(name)) for _ in range(2)]
    model(torch.ones(1))
    written.forward.__code__ = other.__code__
    model(torch.ones(1))
    note = "other code replaced the code of Model.forward; its variables are no longer reported, and the new code stays"
    assert [handle.notes for handle in handles] == [(note,), (note,)]
    for handle in handles:
        handle.remove()
        assert handle.notes == (note,)
    assert told == ["forward.h"] * 2
    assert written.forward.__code__ is other.__code__


def test_a_method_that_somebody_else_puts_in_is_noted(written):
    model = written()
    with byname.interject(model, "forward.h", keep) as handle:
        model(torch.ones(1))
        written.forward = other
        model(torch.ones(1))
    assert handle.notes == ("other code replaced `forward` of Model; its variables are no longer reported",)
