"""The table of what can be watched: without running, with an example, and filtered."""

import pytest
import torch
from small import net
from torch import nn

import byname
from byname import attach, points, select
from byname.errors import BadArgumentError, BadExampleError, BadPathError, NoMatchError, NotAModuleError

torch.set_num_threads(1)


def listed(found, *kinds):
    return [point.path for point in found if point.kind in kinds]


def test_without_an_example_nothing_runs():
    class Model(nn.Module):
        def forward(self, x):
            raise AssertionError("it ran")

        @property
        def trap(self):
            raise AssertionError("it was read")

    assert points(Model()).paths == ("forward", "forward.x")


def test_modules_state_and_variables_are_listed_without_an_example():
    model, _ = net()
    found = points(model)
    assert listed(found, "module")[:4] == ["forward", "embed", "blocks.0", "blocks.0.qkv"]
    assert listed(found, "buffer") == ["seen"]
    assert set(listed(found, "parameter")) == dict(model.named_parameters()).keys()
    assert listed(found, "argument") == ["forward.x", *(f"blocks.{i}.forward.x" for i in range(3))]
    assert listed(found, "variable")[:4] == ["forward.h", "forward.cache", "forward.i", "forward.block"]
    assert not listed(found, "operation")
    assert {point.calls for point in found} == {None}
    assert "blocks" not in found.paths
    assert "example=" in str(found)


def test_with_an_example_operations_shapes_and_calls_come_in_the_order_of_the_run():
    model, x = net()
    found = points(model, example=x)
    calls = [point for point in found if point.kind in ("module", "operation") and point.path.startswith("blocks.1")]
    assert [(point.path, point.operation, point.shape, point.calls) for point in calls] == [
        ("blocks.1", "Attention", (2, 5, 8), 1),
        ("blocks.1.qkv", "Linear", (2, 5, 24), 1),
        ("blocks.1.chunk", "chunk", (2, 5, 8), 1),
        ("blocks.1.transpose", "transpose", (2, 8, 5), 1),
        ("blocks.1.matmul", "matmul", (2, 5, 5), 1),
        ("blocks.1.softmax", "softmax", (2, 5, 5), 1),
        ("blocks.1.softmax_1", "softmax", (2, 5, 5), 1),
        ("blocks.1.matmul_1", "matmul", (2, 5, 8), 1),
        ("blocks.1.proj", "Linear", (2, 5, 8), 1),
        ("blocks.1.spare", "Linear", None, 0),
    ]
    assert found[found.paths.index("blocks.1.chunk")].shapes == ((2, 5, 8),) * 3
    assert found.paths.index("add") < found.paths.index("blocks.1")


def test_a_shared_module_is_one_row_that_counts_its_calls():
    act = nn.ReLU()
    found = points(nn.Sequential(act, act, nn.Tanh()), example=torch.ones(2))
    assert [(point.path, point.calls) for point in found if point.kind == "module"] == [
        ("forward", 1),
        ("0", 2),
        ("2", 1),
    ]


def test_every_path_that_is_listed_can_be_watched():
    model, x = net()
    found = points(model, example=x)
    ran = [point for point in found if point.calls != 0 and not point.path.endswith(("spare.weight", "spare.bias"))]
    heard = []
    with attach(model, [point.path for point in ran], lambda event: heard.append(event.path)):
        model(x)
    assert {point.path for point in ran} - set(heard) == set()


def test_an_operation_of_the_name_of_a_method_that_every_module_has_is_the_operation():
    class Casting(nn.Module):
        def forward(self, x):
            return x.to(torch.float64).half().float().type(torch.float64)

    found = points(Casting(), example=torch.ones(2))
    assert listed(found, "operation") == ["to", "half", "float", "type"]
    heard = []
    model = Casting()
    with attach(model, ["to", "half", "float", "type"], lambda event: heard.append((event.path, event.value.dtype))):
        model(torch.ones(2))
    assert heard == [("to", torch.float64), ("half", torch.half), ("float", torch.float), ("type", torch.float64)]


def test_a_function_of_pytorch_kept_in_an_attribute_is_an_operation_under_its_own_name():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.softmax, self.tanh = torch.nn.functional.softmax, torch.tanh

        def forward(self, x):
            return self.tanh(self.softmax(x, -1))

    model, heard = Keeping(), []
    assert listed(points(model, example=torch.ones(2)), "operation") == ["softmax", "tanh"]
    with attach(model, ["softmax", "tanh"], lambda event: heard.append(event.path)):
        model(torch.ones(2))
    assert heard == ["softmax", "tanh"]


def test_methods_that_forward_calls_are_listed_with_their_variables():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.scale(self.inner.encode(x.float()))

        def scale(self, x, by=2):
            result = x * by
            return result

        def float(self):
            kept = super().float()
            return kept

        def save(self, path):
            target = path
            return target

    class Inner(nn.Module):
        def encode(self, x, *rest, **options):
            code = x + 1
            return code

    found = points(Model())
    assert listed(found, "method") == ["scale", "inner.encode"]
    assert listed(found, "argument") == [
        "forward.x", "scale.x", "scale.by", "inner.encode.x", "inner.encode.rest", "inner.encode.options",
    ]  # fmt: skip
    assert listed(found, "variable") == ["scale.result", "inner.encode.code"]
    assert "save.target" in points(Model(), "save.*").paths


FILTERS = [
    ("blocks.*.qkv", ["blocks.0.qkv", "blocks.1.qkv", "blocks.2.qkv"]),
    ("blocks[1]", ["blocks.1"]),
    ("blocks.1.forward", ["blocks.1.forward"]),
    ("forward", ["forward"]),
    ("head.*", ["head.weight", "head.bias", "head.linear"]),
    ("head.linear", ["head.linear"]),
    ("head.**", ["head", "head.weight", "head.bias"]),
    ("blocks.0.softmax*", ["blocks.0.softmax", "blocks.0.softmax_1"]),
    ("blocks.0.forward.s*", ["blocks.0.forward.scores"]),
    ("head.weight.grad", ["head.weight.grad"]),
    ("forward.cache['h1'][0]", ["forward.cache['h1'][0]"]),
    (select.softmax[1:3], ["blocks.0.softmax_1", "blocks.1.softmax"]),
    (select.relu, ["relu_"]),
    (select.linear.last, ["head"]),
    (nn.Linear, ["embed", *(f"blocks.{i}.{name}" for i in range(3) for name in ("qkv", "proj")), "head"]),
    (["head", "embed", select.relu], ["embed", "relu_", "head"]),
    (["head", "head", "hea?"], ["head"]),
]


@pytest.mark.parametrize(("where", "expected"), FILTERS, ids=lambda one: str(one)[:30])
def test_where_keeps_what_it_means(where, expected):
    model, x = net()
    found = [path for path in points(model, where, example=x).paths if not path.endswith("spare")]
    assert found == expected


def test_where_is_answered_without_an_example_as_far_as_modules_go():
    model, _ = net()
    assert points(model, model.blocks[1]).paths == ("blocks.1",)
    assert points(model, select.linear & select.path("blocks.0.*")).paths == tuple(
        f"blocks.0.{name}" for name in ("qkv", "proj", "spare")
    )
    assert points(model, "blocks.0.softmax").paths == ("blocks.0.softmax",)


BAD = [
    ({"where": "blocks.9"}, NoMatchError, "blocks.2"),
    ({"where": "blocks.0.sofmax"}, NoMatchError, "blocks.0.softmax"),
    ({"where": "blocks.0.tanh", "example": torch.ones(1, 2, 4)}, NoMatchError, "not an operation that ran"),
    ({"where": select.conv, "example": torch.ones(1, 2, 4)}, NoMatchError, "select.conv matches nothing"),
    ({"where": select.relu}, NoMatchError, "Pass example= to find functions"),
    ({"where": select.linear[0]}, BadArgumentError, "order of the run"),
    ({"where": select.linear.last}, BadArgumentError, "example="),
    ({"where": select.linear.after(select.conv)}, BadArgumentError, "example="),
    ({"where": nn.GRU}, NoMatchError, "Attention"),
    ({"where": nn.Linear(2, 2)}, NoMatchError, "Linear"),
    ({"where": 3}, BadArgumentError, "where= takes a path"),
    ({"where": []}, BadArgumentError, "where= takes a path"),
    ({"where": [3]}, BadArgumentError, "where= takes a path"),
    ({"where": "a..b"}, BadPathError, "not a path"),
    ({"example": [1]}, BadExampleError, "example= takes"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), BAD, ids=range(len(BAD)))
def test_bad_input_says_what_to_do(arguments, error, text):
    model, _ = net()
    with pytest.raises(error, match=text):
        points(model, **arguments)


def test_no_model_is_refused():
    with pytest.raises(NotAModuleError):
        points(torch.relu)


def test_operations_inside_torch_nn_are_left_out_and_said_to_be():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    found = points(model, example=torch.ones(1, 2))
    assert not listed(found, "operation")
    assert "left out: 2 operations inside modules of torch.nn; ask for them by their paths, such as '0.linear'" in str(
        found
    )
    assert points(model, "0.linear", example=torch.ones(1, 2)).paths == ("0.linear",)
    assert points(model, "*.*", example=torch.ones(1, 2)).paths == ("0.weight", "0.bias", "0.linear", "1.relu")


def test_the_result_is_a_table():
    model, x = net()
    found = points(model, example=x)
    assert found.rows()[0] == {
        "path": "forward", "kind": "module", "operation": "Net", "module": "Net", "shape": (2, 5, 2), "calls": 1,
        "site": None, "source": None,
    }  # fmt: skip
    assert str(found).startswith("Net: 15 modules, 1 buffer")
    assert "<table" in found._repr_html_()
    assert len(found.to_pandas()) == len(found) == len(found.rows())
    assert byname.points is points


def test_a_model_in_a_wrapper_is_listed_from_the_inside():
    model = nn.DataParallel(nn.Sequential(nn.ReLU()))
    assert points(model).paths == ("forward", "0")


def test_names_with_dots_are_escaped_so_that_the_path_means_the_module():
    model = nn.Module()
    model.layers = nn.ModuleDict({"a-b": nn.ReLU(), "1": nn.Linear(2, 2)})
    model.forward = lambda x: model.layers["a-b"](model.layers["1"](x))
    found = points(model, example=torch.ones(2))
    for path in listed(found, "module"):
        assert points(model, path).paths == (path,)
