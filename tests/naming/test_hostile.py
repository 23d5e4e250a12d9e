"""Programs that were once broken, misnamed or run by being looked at. Each is the smallest that showed it."""

import functools
import sys
import threading
from collections import OrderedDict

import pytest
import torch
from processes import run_forked, run_forked_file
from torch import nn
from torch.overrides import TorchFunctionMode

import byname
from byname.errors import BadArgumentError, BynameError


def exact_names(tensor, start):
    return [name for name in byname.names(tensor) if name.exact and name.path.startswith(start)]


# Looking leaves the program as it was.


def victim():
    a, b, c = 1, torch.ones(2), "x"
    z = 0
    return a, b, c


def test_a_traced_frame_keeps_its_variables():
    def tracer(frame, event, argument):
        if event == "line" and frame.f_code is victim.__code__ and "c" in frame.f_locals:
            byname.name(torch.ones(1))
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        a, _, c = victim()
    finally:
        sys.settrace(before)
    assert (a, c) == (1, "x")


def tracked():
    with byname.track():
        yield


def test_a_generator_left_in_another_thread_leaves_nothing():
    original = torch.from_numpy
    suspended = tracked()
    next(suspended)
    failures = []

    def close():
        try:
            suspended.close()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert not failures
    assert torch.from_numpy is original
    loss = torch.ones(1, requires_grad=True).add(1)
    assert loss.item() == 2
    assert byname.graph(loss).nodes[0].site is None
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counting.count += 1
        return func(*args, **(kwargs or {}))


def test_a_tracker_left_out_of_order_takes_only_itself_off_the_stack():
    suspended = tracked()
    next(suspended)
    with Counting():
        suspended.close()
        torch.ones(1)
    assert Counting.count > 0
    assert torch._C._len_torch_function_stack() == 0


def test_a_patch_that_the_user_makes_meanwhile_stays():
    original = torch.from_numpy
    try:
        with byname.track():
            torch.from_numpy = mine = functools.partial(original)
        assert torch.from_numpy is mine
    finally:
        torch.from_numpy = original


def test_a_function_that_holds_a_tensor_is_not_kept_by_the_log(no_collection):
    import weakref

    def make():
        held = torch.ones(1)

        def mine(x):
            if torch.overrides.has_torch_function_unary(x):
                return torch.overrides.handle_torch_function(mine, (x,), x)
            return x * held

        return mine, weakref.ref(held)

    with byname.track() as tracker:
        function, watched = make()
        function(torch.ones(1, requires_grad=True))
        del function
        import gc

        gc.collect()
        assert watched() is None
    assert tracker


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiling_inside_track_gives_the_right_result_and_no_second_compilation():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    x = torch.ones(2, requires_grad=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = torch.compile(lambda x: x.sin() * 2, backend=counter)
    before(x)
    with byname.track():
        fresh = torch.compile(lambda x: (x.sin() * 2).cos(), backend=counter, fullgraph=True)
        module = torch.compile(model, backend=counter, fullgraph=True)
        assert torch.equal(fresh(x), (x.sin() * 2).cos())
        assert torch.equal(module(x), model(x))
        before(x)
    before(x)
    fresh(x)
    module(x)
    assert counter.frame_count == 3


# Nobody's code is run.


class Lazy:
    def __getattribute__(self, name):
        raise AssertionError(f"{name} was read")


class Meta(type):
    def __getattribute__(cls, name):
        raise AssertionError(f"{name} of the class was read")


class Odd(metaclass=Meta):
    pass


class Subclass(torch.Tensor):
    def refuse(self):
        raise AssertionError("a property was run")

    is_leaf = retains_grad = _version = device = dtype = grad_fn = nbytes = requires_grad = shape = property(refuse)

    def is_inference(self):
        raise AssertionError("a method was run")


class Part(functools.partial):
    @property
    def func(self):
        raise AssertionError("a property was run")


class Key:
    def __repr__(self):
        raise AssertionError("__repr__ was run")


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.cache = {Key(): x * 2}
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_objects_that_refuse_to_be_looked_at():
    class Holder:
        pass

    holder = Holder()
    holder.lazy, holder.odd, holder.part = Lazy(), object.__new__(Odd), Part(print, 1)
    holder.tensor = torch.ones(2).as_subclass(Subclass)
    wanted = [torch.ones(1)]
    assert str(byname.name(wanted[0])) == "wanted[0]"
    assert str(byname.name(holder.tensor)) == "holder.tensor"
    loss = Keeps.apply(torch.ones(1, requires_grad=True))
    assert [row.slot for row in byname.saved(loss)] == ["ctx.cache['…']"]


def deep_key(depth):
    return functools.reduce(lambda inner, _: (inner,), range(depth), 1)


def test_keys_too_long_to_write():
    table = {10**5000: torch.ones(2), deep_key(900): torch.ones(2), "x" * 10_000: torch.ones(2)}
    module = nn.Linear(1, 1)
    vars(module)[1, 2] = torch.ones(1)
    scope = {"table": table}
    for one in list(table.values()):
        assert [eval(name.path, scope) is one for name in exact_names(one, "[*table")] == [True]
    assert byname.name(module.weight).path == "module.weight"


class Diverting(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was run")


def test_no_operation_is_run_in_order_to_look():
    weight = torch.ones(2, requires_grad=True)
    loss = (weight * 2).sum()
    sparse = torch.ones(2, 2).to_sparse()
    with Diverting():
        assert str(byname.leaves(loss)[0].name) == "weight"
        assert byname.path(loss, weight)[-1].node == "AccumulateGrad"
        assert str(byname.name(sparse)) == "sparse"
    with torch.inference_mode():
        assert byname.leaves(weight)[0].tensor is weight
        assert byname.path(loss, weight)


# An exact name is the tensor.


class Heads(nn.ModuleDict):
    def __init__(self):
        super().__init__({"a": nn.Linear(1, 1)})
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.ones(1))


class WithProperty(type):
    w = property(lambda cls: None)


class Shadowed(metaclass=WithProperty):
    w = torch.ones(1)


def test_containers_that_count_or_look_up():
    modules = nn.ModuleList()
    modules.add_module("1", nn.Linear(1, 1))
    modules.add_module("0", nn.Linear(1, 1))
    values = nn.ParameterList(["a", torch.ones(2)])
    heads = Heads()
    first, second = object(), object()
    ordered = OrderedDict([(first, torch.ones(1)), (second, torch.ones(1))])
    ordered.move_to_end(first)
    scope = {"modules": modules, "values": values, "heads": heads, "ordered": ordered}
    tensors = {
        "modules": [modules[0].weight, modules[1].weight],
        "values": [values[1]],
        "heads": [heads.scale, heads.shift, heads["a"].weight],
        "ordered": [ordered[first]],
    }
    for holder, held in tensors.items():
        for one in held:
            names = [name for name in byname.names(one, roots=[scope[holder]]) if name.exact and holder in name.path]
            assert any(eval(name.path, {holder: scope[holder]}) is one for name in names if "scope" not in name.path)
    assert not [name for name in byname.names(vars(Shadowed)["w"]) if name.exact and name.path == "Shadowed.w"]


def test_names_that_python_reads_in_another_form():
    class Space:
        pass

    space = Space()
    setattr(space, "ﬁ", torch.ones(1))
    globals()["my tensor"] = torch.ones(1)
    globals()["class"] = torch.ones(1)
    try:
        ligature = exact_names(vars(space)["ﬁ"], "getattr(space")
        assert eval(ligature[0].path) is vars(space)["ﬁ"]
        for key in ("my tensor", "class"):
            (name,) = exact_names(globals()[key], "globals()")
            assert eval(name.path) is globals()[key]
    finally:
        del globals()["my tensor"], globals()["class"]


def test_code_run_in_a_namespace_that_is_no_modules():
    scope = {"__name__": "__main__", "byname": byname, "torch": torch, "hidden_here": [torch.ones(1)]}
    exec("name = byname.name(hidden_here[0])", scope)
    assert not scope["name"].exact or "hidden_here" not in scope["name"].path


def test_roots_are_what_was_given():
    def ask(stack):
        return [str(name) for name in byname.names(stack[1].weight, roots=stack)]

    assert "stack[1].weight" in ask(nn.Sequential(nn.ReLU(), nn.Linear(1, 1)))

    class Walked:
        def __iter__(self):
            raise AssertionError("__iter__ was run")

    assert byname.name(torch.ones(1), roots=Walked()).how == "unnamed"
    for wrong in (3, b"x", [], None and 0):
        if wrong is not None:
            with pytest.raises(BadArgumentError, match="roots="):
                byname.name(torch.ones(1), roots=wrong)


# Overwritten leaves and sites: right, or not said.


def test_a_variable_of_the_same_name_elsewhere_is_not_the_leafs():
    def make():
        x = torch.ones(1, requires_grad=True)
        return x

    def use(w):
        x = torch.zeros(1)
        x = x * w
        w = None
        return x

    with byname.track():
        (leaf,) = byname.leaves(use(make()))
    assert leaf.name.rebound_at is None
    assert not leaf.name.exact


def test_of_two_leaves_in_one_statement_each_has_its_own_variable():
    with byname.track():
        p = torch.ones(1, requires_grad=True)
        q = p
        p = torch.zeros(1, requires_grad=True)
        p = q * p
        q = None
        ones, zeros = sorted(byname.leaves(p), key=lambda leaf: -leaf.tensor.item())
    assert (zeros.name.path, zeros.name.exact) == ("p", True)
    assert not ones.name.exact


def test_the_scope_of_a_leaf_overwritten_in_an_imported_module(tmp_path):
    (tmp_path / "foomod.py").write_text(
        "import torch\ndelta = torch.ones(1, requires_grad=True)\ny = torch.ones(2)\ndelta = delta / y\n"
    )
    lines = run_forked_file(
        tmp_path,
        """
        import byname
        with byname.track():
            import foomod
            name = byname.leaves(foomod.delta)[0].name
        print(name.scope, name.exact, name.rebound_at.line)
    """,
    )
    assert lines == ["foomod True 4"]


def test_nodes_of_an_unwatched_thread_have_no_site():
    x = torch.ones(1, requires_grad=True)
    found = {}
    with byname.track() as tracker:
        b = x
        for _ in range(20):
            b = b.exp()

    def work():
        h = x
        for _ in range(60):
            h = h * 1.5
        found["h"] = h

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for root in (found["h"], found["h"].grad_fn, (b + found["h"]).sum()):
        graph = byname.graph(root)
        assert all(node.site is None for node in graph if node.name == "MulBackward0")
    mixed = byname.graph((b + found["h"]).sum())
    assert any(node.site for node in mixed if node.name == "ExpBackward0")
    assert tracker


def test_an_argument_is_not_made_by_a_statement_that_never_ran():
    def run(delta=None, make=False):
        if make:
            delta = torch.FloatTensor([0.0])
        delta.requires_grad_()
        return delta

    with byname.track() as tracker:
        loss = run(torch.FloatTensor([7.0])) * 2
    assert byname.leaves(loss)[0].site is None
    assert tracker


def test_an_edited_file_is_not_believed(tmp_path):
    lines = run_forked_file(
        tmp_path,
        """
        import pathlib, sys, torch, byname
        file = pathlib.Path(__file__).with_name("edited.py")
        file.write_text("def run(x):\\n    aa = x * 2\\n    return aa\\n")
        import edited
        file.write_text("def run(x):\\n    zz = y + 9\\n    return zz\\n")
        with byname.track() as tracker:
            loss = edited.run(torch.ones(1, requires_grad=True))
        site = byname.graph(loss).nodes[0].site
        print(site.line, site.statement, site.target)
    """,
    )
    assert lines == ["2  None"]


def test_a_file_that_python_warns_about_warns_only_once(tmp_path):
    file = tmp_path / "warns.py"
    file.write_text('def run(x):\n    pattern = "\\d"\n    doubled = x * 2\n    return doubled\n')
    scope = {}
    with pytest.warns(Warning, match="invalid escape"):
        exec(compile(file.read_text(), str(file), "exec"), scope)
    with byname.track() as tracker:
        loss = scope["run"](torch.ones(1, requires_grad=True))
    assert byname.graph(loss).nodes[0].site.target == "doubled"
    assert tracker


def test_targets_that_are_not_this_calls():
    with byname.track() as tracker:
        a = torch.ones(1, requires_grad=True)
        run = lambda q: q.exp()
        y = run(a)
        (r, s), t = (a.sin(), a.cos()), a.tan()
        loss = (y + r + s + t).sum()
    sites = {node.name: node.site for node in byname.graph(loss)}
    assert sites["ExpBackward0"].target is None
    assert sites["TanBackward0"].target == "t"
    assert tracker


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_only_the_changed_tensor_of_a_custom_function_is_modified():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    with torch.no_grad():
        a.add_(1).add_(1)
    loss = Two.apply(a, b).sum()
    b.add_(1)
    assert [row.state for row in byname.saved(loss)] == ["live", "modified"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda thing: byname.name(thing),
        lambda thing: byname.leaves(thing),
        lambda thing: byname.leaves(torch.ones(1, requires_grad=True), model=thing),
        lambda thing: byname.track(limit=thing),
        lambda thing: byname.tag(torch.ones(1), thing),
        lambda thing: byname.leaves(torch.ones(1, requires_grad=True)).by(thing),
    ],
)
def test_bad_input_is_refused_by_an_error_of_byname(ask):
    for thing in (Key(), {}, object()):
        with pytest.raises(BynameError):
            ask(thing)


def test_a_long_log_answers_in_time():
    out = run_forked("""
        import time, torch, byname
        y = torch.ones(1, requires_grad=True)
        with byname.track():
            for _ in range(30_000):
                y = y * 1.0
            assert byname.graph(y).nodes[15_000].site.line
        print("done")
    """)
    assert out == ["done"]
