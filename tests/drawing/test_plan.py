"""The plan of a drawing has an item for each call of a run, and for each tensor that comes from somewhere else."""

from types import SimpleNamespace

from torch import nn

from byname.drawing.plan import read_flow


def call(path, kind, parent, inputs, outputs, elementary):
    return SimpleNamespace(
        path=path, operation=path or "Model", kind=kind, module=nn.Identity(), parent=parent, call=0, inputs=inputs,
        outputs=outputs, shapes=tuple((2,) for _ in outputs), elementary=elementary,
    )  # fmt: skip


def test_a_tensor_that_nobody_saw_being_made_is_drawn_as_such_or_said():
    calls = (
        call("", "module", None, (1,), (5,), False),
        call("add", "operation", 0, (1, 9), (2,), True),
        call("mul", "operation", 0, (3,), (4,), True),
    )
    plan = read_flow(SimpleNamespace(calls=calls, sources={1: "input x"}, unseen={3: (2,)}), ())
    paths = [(plan.items[wire.source].path, plan.items[wire.target].path) for wire in plan.wires]
    assert ("add", "a tensor") in paths and ("a tensor", "mul") in paths
    assert len([item for item in plan.items if item.kind == "unseen"]) == 2 and ("mul", "output") not in paths
    assert plan.notes == ["1 tensor came from code that was not traced; no line shows what uses them"]
