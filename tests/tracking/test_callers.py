"""A line in a helper is told with the line of the program that called the helper."""

import runpy
import sys
import textwrap

import pytest
import torch

from byname import Site


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Runs train.py beside some other files, and returns its variables."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(train, **others):
        for name, text in {"train": train, **others}.items():
            tmp_path.joinpath(f"{name}.py").write_text(textwrap.dedent(text))
        try:
            return runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
        finally:
            for name in others:
                sys.modules.pop(name, None)

    return run


HELPER = """
def update_params(params, lr):
    return [p - lr * p.abs() for p in params]
"""
TRAIN = """
import torch, byname, helper
w = torch.ones(3, requires_grad=True)
with byname.track():
    fast = helper.update_params([w], 0.1)
    loss = fast[0].sum()
    leaves, saved, graph, census = byname.leaves(loss), byname.saved(loss), byname.graph(loss), byname.census()
"""


def test_the_line_in_a_helper_and_the_line_that_called_it(program):
    found = program(TRAIN, helper=HELPER)
    site = found["leaves"][0].consumers[0].site
    assert (str(site), str(site.caller)) == ("helper.py:3", "train.py:5")
    assert site.with_caller == "helper.py:3 in update_params, called at train.py:5"


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("what", ["leaves", "saved", "census", "graph"])
def test_tables_tell_the_caller(program, what):
    found = program(TRAIN, helper=HELPER)
    assert "update_params, called at train.py:5" in found[what].head(width=600)


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("what", ["saved", "census", "graph"])
def test_rows_have_the_caller_in_a_column_of_its_own(program, what):
    rows = program(TRAIN, helper=HELPER)[what].rows()
    callers = {str(row.get("site") or row.get("made_at") or row.get("saved_at")): row["caller"] for row in rows}
    assert callers["helper.py:3"] == "update_params, called at train.py:5"
    assert set(callers.values()) <= {"update_params, called at train.py:5", None}


def test_the_nodes_of_a_graph_tell_the_caller(program):
    nodes = {node.name: node for node in program(TRAIN, helper=HELPER)["graph"].nodes}
    assert str(nodes["SubBackward0"].site.caller) == "train.py:5"
    assert nodes["SumBackward0"].site.caller is None, "the line is the program's own, at its top level"


def test_a_name_that_was_rebound_in_a_helper(program):
    found = program(
        """
        import torch, byname, helper
        with byname.track():
            loss = helper.perturbed(torch.ones(3))
            leaf = byname.leaves(loss)[0]
        """,
        helper="""
        def perturbed(x):
            delta = x.clone().requires_grad_()
            delta = delta * 2
            return delta.sum()
        """,
    )
    assert str(found["leaf"].name) == "delta (before helper.py:4, called at train.py:4)"


def test_a_finding_tells_who_called_the_helper(program):
    with pytest.raises(RuntimeError) as raised:
        program(
            """
            import torch, byname, helper
            w = torch.ones(3, requires_grad=True)
            with byname.explaining():
                h = w.exp()
                helper.normalize(h)
                h.sum().backward()
            """,
            helper="""
            def normalize(x):
                x.div_(2)
            """,
        )
    note = raised.value.__notes__[0]
    assert "helper.py:3" in note and "called at train.py:6" in note


def test_the_line_of_a_library_is_told_with_the_innermost_line_of_the_program(program, tmp_path, monkeypatch):
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    libraries.joinpath("installed.py").write_text(
        "def outer(x):\n    return inner(x)\n\ndef inner(x):\n    return x * 2\n"
    )
    monkeypatch.syspath_prepend(libraries)
    found = program(
        """
        import torch, byname, installed
        w = torch.ones(3, requires_grad=True)
        def step():
            return installed.outer(w).sum()
        with byname.track():
            site = byname.leaves(step())[0].consumers[0].site
        """
    )
    monkeypatch.delitem(sys.modules, "installed")
    assert (str(found["site"]), str(found["site"].caller)) == ("installed.py:5", "train.py:5")


def test_a_forward_is_no_helper(program):
    found = program(
        """
        import torch, byname
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.ones(3))
            def forward(self, x):
                return self.w * x
        model = Net()
        with byname.track():
            site = byname.leaves(model(torch.ones(3)).sum())[0].consumers[0].site
        """
    )
    assert str(found["site"]) == "train.py:8" and found["site"].caller is None


def test_a_helper_below_no_grad_is_still_a_helper(program):
    found = program(
        """
        import torch, byname
        @torch.no_grad()
        def shrink(x):
            return x * 0.5
        with byname.track():
            kept = shrink(torch.ones(3))
            site = byname.name(kept).site
        """
    )
    assert (str(found["site"]), str(found["site"].caller)) == ("train.py:5", "train.py:7")


def test_places_that_differ_only_in_the_caller_are_one_place():
    one, other = Site("a.py", 3, caller=Site("b.py", 4)), Site("a.py", 3)
    assert one == other and len({one, other}) == 1


def test_callers_keep_no_tensor_alive(program, no_collection):
    found = program(
        """
        import torch, byname, weakref
        def made():
            x = torch.ones(3, requires_grad=True)
            ref = weakref.ref(x)
            y = helper(x)
            return y.detach(), ref
        def helper(x):
            return x * 2
        with byname.track():
            y, ref = made()
            gone = ref() is None
        """
    )
    assert found["gone"]
    assert torch.equal(found["y"], torch.full((3,), 2.0))


def test_a_helper_called_twice_is_told_with_each_caller(program):
    found = program(
        """
        import torch, byname, helper
        w = torch.ones(3, requires_grad=True)
        with byname.track():
            first = helper.update_params([w], 0.1)
            second = helper.update_params(first, 0.1)
            nodes = [node for node in byname.graph(second[0].sum()).nodes if node.name == "SubBackward0"]
        """,
        helper=HELPER,
    )
    assert {str(node.site.caller) for node in found["nodes"]} == {"train.py:5", "train.py:6"}
