"""Where was every tensor made and changed?"""

import functools
import gc
import linecache
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers_elsewhere import broken, doubled
from torch import nn

import byname
from byname.errors import BadArgumentError, NotATensorError


@pytest.fixture(autouse=True, params=[False, True], ids=["calls", "allocations"])
def followed(request, monkeypatch):
    """Every test here holds in the cheap mode, and when allocations are followed as well."""
    monkeypatch.setattr(byname, "track", functools.partial(byname.track, allocations=request.param))
    return "allocations" if request.param else "calls"


def here():
    return sys._getframe(1).f_lineno


def sites(loss):
    """The site of every node by the node's name."""
    return {node.name: node.site for node in byname.graph(loss) if node.name != "AccumulateGrad"}


def leaf_named(loss, name):
    (leaf,) = [leaf for leaf in byname.leaves(loss) if leaf.name.path == name]
    return leaf


def test_a_node_knows_its_line_statement_and_variable():
    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        hidden = x * 2
        out = hidden.exp()
        total = (out + 1).sum()
    found = sites(total)
    assert found["MulBackward0"].target == "hidden"
    assert found["ExpBackward0"].target == "out"
    assert found["ExpBackward0"].statement == "out = hidden.exp()"
    assert found["SumBackward0"].line == found["ExpBackward0"].line + 1
    assert found["SumBackward0"].function == "test_a_node_knows_its_line_statement_and_variable"
    assert tracker


def test_one_of_several_results_knows_where_it_was_made():
    with byname.track() as tracker:
        x = torch.ones(4, 2, requires_grad=True)
        values, indices = x.max(1)
        first, second = x.chunk(2)
        line = here() - 1
    assert (byname.name(values).site.line, byname.name(values).site.target) == (line - 1, "values")
    for target, part in (("first", first), ("second", second)):
        assert (byname.name(part).site.line, byname.name(part).site.target) == (line, target)
    assert sites(second)["SplitBackward0"].line == line
    assert tracker and not indices.requires_grad


def test_forms_of_statements():
    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        table = {}
        table["k"] = x.sin()
        if (walrus := table["k"].cos()) is not None:
            a, b = walrus.exp(), walrus.tanh()
        a += b
        chain = a.sigmoid().relu()
        result = [part.square() for part in [chain]][0].sum()
    found = sites(result)
    assert found["SinBackward0"].target == "table['k']"
    assert found["CosBackward0"].target == "walrus"
    assert found["TanhBackward0"].target == "b"
    assert found["AddBackward0"].target == "a"
    assert found["AddBackward0"].statement == "a += b"
    assert found["ReluBackward0"].target == "chain"
    assert "part.square()" in found["PowBackward0"].statement
    assert tracker


def test_a_property_that_computes_has_a_site_too():
    with byname.track() as tracker:
        x = torch.ones(2, 3, requires_grad=True)
        turned = x.T
        loss = turned.sin().sum()
    nodes = [node for node in byname.graph(loss) if node.site is not None]
    assert [node.site.target for node in nodes] == ["loss", "loss", "turned"]
    assert tracker


def test_a_line_in_another_file():
    with byname.track() as tracker:
        loss = doubled(torch.ones(2, requires_grad=True)).sum()
    site = sites(loss)["MulBackward0"]
    assert site.file.endswith("helpers_elsewhere.py")
    assert (site.function, site.target) == ("doubled", "twice")
    assert tracker


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        weights = F.softmax(scores, dim=-1)
        return weights @ self.v(x)


def test_saved_tensors_have_the_names_of_locals_that_are_gone():
    model = nn.Sequential(Attention(), Attention())
    with byname.track() as tracker:
        loss = model(torch.ones(1, 3, 4)).sum()
    rows = [row for row in byname.saved(loss) if row.module == "model[1]"]
    assert "weights" in {str(row.name) for row in rows}
    (weights,) = [row for row in rows if row.node == "SoftmaxBackward0"]
    assert (str(weights.name), weights.name.exact) == ("weights", False)
    assert weights.name.scope.startswith("Attention.forward (test_track.py:")
    assert tracker


def test_parameters_know_the_line_that_made_their_module():
    with byname.track() as tracker:
        model = Attention()
        loss = model(torch.ones(1, 2, 4)).sum()
    leaf = leaf_named(loss, "model.q.weight")
    assert leaf.site.function.startswith("Attention.__init__")
    assert tracker


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            inner = x.detach().requires_grad_() * 3
        return inner.detach() * x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_custom_functions_and_the_makers_a_mode_does_not_see():
    with byname.track() as tracker:
        parameter = nn.Parameter(torch.ones(2))
        array = torch.from_numpy(np.ones(2, dtype=np.float32))
        array.requires_grad_()
        old = torch.FloatTensor([1.0, 2.0])
        old.requires_grad = True
        cubed = Cube.apply(parameter)
        loss = (cubed * array + old).sum()
    assert sites(loss)["CubeBackward"].target == "cubed"
    for name in ("parameter", "array", "old"):
        leaf = leaf_named(loss, name)
        assert leaf.site.target == name
    assert leaf_named(loss, "old").site.statement == "old = torch.FloatTensor([1.0, 2.0])"
    assert leaf_named(loss, "array").site.statement.startswith("array = torch.from_numpy")
    assert tracker


def overwritten_by_setting():
    delta = torch.FloatTensor([-1.4])
    delta.requires_grad = True
    made = here() - 2
    y = torch.ones(3) * 2
    delta = delta / y
    return delta.sum(), made, here() - 1


def overwritten_by_method():
    delta = torch.zeros(1).requires_grad_()
    made = here() - 1
    delta = torch.exp(delta)
    return delta.sum(), made, here() - 1


def overwritten_by_operator():
    delta = nn.Parameter(torch.zeros(1))
    made = here() - 1
    delta = 1 - delta
    return delta.sum(), made, here() - 1


@pytest.mark.parametrize("make", [overwritten_by_setting, overwritten_by_method, overwritten_by_operator])
def test_an_overwritten_leaf_is_named_exactly_under_track(make):
    with byname.track():
        loss, made, rebound = make()
        (leaf,) = byname.leaves(loss)
    name = leaf.name
    assert (name.path, name.exact, name.distance) == ("delta", True, 0)
    assert name.rebound_at.line == rebound
    assert leaf.site.line == made
    assert leaf.held == "graph"
    assert str(name) == f"delta (before test_track.py:{rebound})"


def test_an_overwritten_leaf_without_track_is_a_labelled_guess():
    delta = torch.ones(1, requires_grad=True)
    y = torch.ones(3) * 2
    delta = delta / y
    rebound = here() - 1
    loss = (delta + y).sum()
    (leaf,) = byname.leaves(loss)
    name = leaf.name
    assert (name.path, name.how, name.exact, name.distance) == ("delta", "graph", False, 1)
    assert name.rebound_at.line == rebound
    assert str(name) == f"perhaps delta (before test_track.py:{rebound}, 1 step away)"
    assert leaf.held == "graph"


def test_two_statements_that_could_have_rebound_it_are_not_chosen_from():
    delta = torch.ones(1, requires_grad=True)
    delta = delta * 2
    delta = delta * 3
    (leaf,) = byname.leaves(delta.sum())
    assert leaf.name.rebound_at is None
    assert leaf.name.distance == 2
    assert not leaf.name.exact


def test_in_place_changes_are_listed_with_their_versions():
    with byname.track() as tracker:
        h = torch.zeros(3)
        other = torch.zeros(3)
        h[0] = 1
        h += 1
        h.view(3).mul_(2)
        torch.add(h, 1, out=h)
        torch._foreach_add_([other, h], 1)
        F.relu(h, inplace=True)
        h.data.add_(1)
        h.detach().neg_()
    changes = list(tracker.mutations(h))
    assert [change.operation for change in changes] == [
        "__setitem__", "add_", "mul_", "add", "_foreach_add_", "relu", "add_", "neg_",
    ]  # fmt: skip
    assert all(change.after == change.before + 1 for change in changes)
    through_data = changes.pop(6)
    assert (through_data.before, through_data.site.statement) == (0, "h.data.add_(1)")
    assert [change.after for change in changes] == list(range(1, 8))
    assert changes[1].site.statement == "h += 1"
    assert [change.operation for change in tracker.mutations(other)] == ["_foreach_add_"]
    with pytest.raises(NotATensorError):
        tracker.mutations("h")


def test_an_optimizer_step_is_a_change_of_every_parameter():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with byname.track() as tracker:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert tracker.mutations(model.weight)
    assert {change.site.statement for change in tracker.mutations(model.weight)} == {"optimizer.step()"}


def test_sites_stay_while_the_tracker_is_held_and_go_with_it():
    with byname.track() as tracker:
        loss = (torch.ones(2, requires_grad=True) * 2).sum()
    assert sites(loss)["MulBackward0"] is not None
    del tracker
    gc.collect()
    assert sites(loss)["MulBackward0"] is None


def test_the_log_is_bounded():
    x = torch.ones(1, requires_grad=True)
    with byname.track(limit=10) as tracker:
        for _ in range(100):
            x.mul(2)
        loss = x * 3
    assert loss.grad_fn is not None
    assert sum(len(log.calls) for log in tracker.logs) == 10
    assert sites(loss)["MulBackward0"].target == "loss"
    for wrong in (0, -1, 1.5, None, "many"):
        with pytest.raises(BadArgumentError, match="limit"):
            byname.track(limit=wrong)


def state_of_torch():
    from torch.nn.modules import module
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    return (
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        threading.Thread.start,
        len(module._global_forward_hooks),
        len(module._global_forward_pre_hooks),
        vars(torch.autograd.Function)["apply"],
        vars(nn.Parameter)["__new__"],
        torch.from_numpy,
        *(vars(torch.autograd.profiler.record_function)[name] for name in ("__enter__", "__exit__")),
        dict(_global_optimizer_pre_hooks),
        dict(_global_optimizer_post_hooks),
    )


def test_nothing_is_left_behind_even_by_an_error():
    before = state_of_torch()
    model = nn.Linear(2, 2)
    attributes = set(vars(model))
    with pytest.raises(ValueError, match="in the middle"), byname.track():
        broken(model(torch.ones(1, 2)))
    with pytest.raises(KeyboardInterrupt), byname.track(), byname.track():
        model(torch.ones(1, 2))
        raise KeyboardInterrupt
    assert state_of_torch() == before
    assert set(vars(model)) == attributes


def test_nothing_is_kept_alive(no_collection):
    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.detach().add_(1)
        watched = [weakref.ref(x), weakref.ref(y)]
        del x, y
        assert [one() for one in watched] == [None, None]
    assert tracker


def test_training_under_track_is_bitwise_the_same():
    def train(tracked):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean()
            if tracked:
                byname.leaves(loss, model=model, optimizer=optimizer)
                byname.saved(loss)
            loss.backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = train(False)
    with byname.track():
        tracked = train(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, tracked, strict=True))


@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_two_threads_build_graphs_and_every_site_is_right(rounds):
    barrier = threading.Barrier(2)
    failures = []

    def first(x):
        alpha = x * 2
        return (alpha.sin() * alpha).sum()

    def second(x):
        beta = x * 3
        return (beta.cos() * beta).sum()

    def work(build, variable):
        try:
            with byname.track():
                for _ in range(rounds):
                    barrier.wait(10)
                    own = torch.ones(2, requires_grad=True)
                    loss = build(own)
                    nodes = [node for node in byname.graph(loss) if node.name != "AccumulateGrad"]
                    assert all(node.site.function.endswith(build.__name__) for node in nodes), nodes
                    assert nodes[-1].site.target == variable
                    (leaf,) = byname.leaves(loss)
                    assert leaf.name.path == "own"
                    assert eval(leaf.name.path) is own
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=pair) for pair in ((first, "alpha"), (second, "beta"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert state_of_torch()[0] == 0


@pytest.mark.parametrize("followed", [False], indirect=True)
def test_a_graph_of_an_unwatched_thread_gets_no_site():
    box = []

    def work():
        for _ in range(5):
            box.append((torch.ones(2, requires_grad=True) * 2).sum())

    def elsewhere():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    fresh = []

    def watched():
        with byname.track() as tracker:
            fresh.append([(torch.ones(2, requires_grad=True) * 2).sum() for _ in range(5)])
            elsewhere()
            assert all(node.site is None for loss in box for node in byname.graph(loss))
        assert tracker

    thread = threading.Thread(target=watched)
    thread.start()
    thread.join()
    assert box


def test_a_model_made_before_is_not_made_where_something_was_set_on_it():
    model = nn.Linear(2, 1)
    with byname.track() as tracker:
        model.requires_grad_(True)
        weight = model.weight.requires_grad_()
        (model(torch.ones(1, 2)) * weight).sum().backward()
        model.zero_grad()
        for parameter in model.parameters():
            parameter.grad = None
        loss = (model(torch.ones(1, 2)) * weight).sum()
    assert [leaf.site for leaf in byname.leaves(loss)] == [None, None]
    assert tracker


def test_results_of_modules_and_unpacked_results_have_their_variable():
    project, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(2, 2)

    def run(x):
        hidden = project(x)
        left, middle, right = hidden.chunk(3, dim=-1)
        logits = head(left)
        return (logits * middle * right.exp()).sum()

    with byname.track() as tracker:
        loss = run(torch.ones(1, 4))
    found = {(row.node, row.slot): str(row.name) for row in byname.saved(loss)}
    assert found["TanhBackward0", "result"] == "hidden"
    assert found["MulBackward0", "self"] == "logits"
    names = {str(row.name) for row in byname.saved(loss)}
    assert {"logits", "middle"} <= names
    assert tracker


class NamedAttention(Attention):
    def forward(self, x):
        query, key, value = self.q(x), self.k(x), self.v(x)
        weights = (query @ key.transpose(-2, -1)).softmax(-1)
        return weights @ value


def test_saved_views_of_results_of_modules_are_named_too():
    model = NamedAttention()
    with byname.track() as tracker:
        loss = model(torch.ones(2, 3, 4)).sum()
    names = {str(row.name) for row in byname.saved(loss) if row.node == "BmmBackward0"}
    assert names == {"view of query", "view of key", "view of value", "view of weights"}
    assert tracker


def test_saved_views_are_called_views_of_the_variable():
    model = Attention()
    with byname.track() as tracker:
        loss = model(torch.ones(2, 3, 4)).sum()
    assert "view of weights" in {str(row.name) for row in byname.saved(loss) if row.node == "BmmBackward0"}
    assert tracker


def test_a_tensor_is_not_made_where_it_was_changed_in_place():
    with byname.track() as tracker:
        x = torch.ones(2, 2, requires_grad=True)

        def run():
            hidden = x.sigmoid()
            out = hidden @ x
            hidden.mul_(0.5)
            return out.sum()

        loss = run()
    (row,) = [row for row in byname.saved(loss) if row.state == "modified" and row.node == "MmBackward0"]
    assert row.name.site is None
    assert "made at" not in str(row.name)
    assert tracker


def test_code_without_source_has_a_line_and_no_statement():
    scope = {"torch": torch}
    with byname.track() as tracker:
        exec(compile("x = torch.ones(2, requires_grad=True)\ny = (x * 2).sum()", "<made up>", "exec"), scope)
    site = sites(scope["y"])["MulBackward0"]
    assert (site.line, site.statement, site.target) == (2, "", None)
    assert tracker


def test_a_file_changed_since_it_was_loaded_gives_no_wrong_statement(tmp_path):
    file = tmp_path / "edited.py"
    file.write_text("def run(x):\n    hidden = x * 2\n    return hidden.sum()\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    file.write_text("# a line more\ndef run(x):\n    renamed = x.cos() + 2\n    return renamed\n")
    linecache.checkcache()
    with byname.track() as tracker:
        loss = scope["run"](torch.ones(2, requires_grad=True))
    site = sites(loss)["MulBackward0"]
    assert (site.line, site.statement, site.target) == (2, "", None)
    assert tracker


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_functions_run_and_are_not_compiled_again():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    layer = nn.Linear(3, 3)
    run = torch.compile(lambda x: torch.relu(layer(x)).sum(), backend=counter)
    x = torch.randn(2, 3)
    expected = run(x)
    with byname.track():
        assert torch.equal(run(x), expected)
        assert torch.equal(run(x), expected)
    run(x)
    assert counter.frame_count == 1


def line_of(record):
    return record.line.site.statement


def read_at(sight):
    """The line of an instruction in code."""
    code, instruction, *_ = sight
    line = [*code.co_positions()][instruction // 2][0]
    return linecache.getline(code.co_filename, line).strip()


def cuts_in(tracker):
    return [(cut.name, cut.reason, line_of(cut)) for log in tracker.logs for cut in log.detaches]


def names_of_cuts(tracker, tensor):
    return [cut.name for log in tracker.logs for cut in log.detaches_of(tensor)]


@pytest.mark.filterwarnings("ignore")  # torch.tensor(x) warns that x.detach().clone() is recommended
def test_calls_that_leave_the_graph_are_cuts():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.ones(3, 4)
    with byname.track() as tracker:
        out = model(x)
        loose = out.detach()
        old = out.data
        best = out.argmax(1)
        positive = out > 0
        value = out.sum().item()
        array = loose.numpy()
        copied = torch.tensor(out[0, 0])
    assert [(name, line) for name, reason, line in cuts_in(tracker) if not reason] == [
        ("detach", "loose = out.detach()"),
        ("data", "old = out.data"),
        ("argmax", "best = out.argmax(1)"),
        ("gt", "positive = out > 0"),
        ("item", "value = out.sum().item()"),
        ("numpy", "array = loose.numpy()"),
        ("tensor", "copied = torch.tensor(out[0, 0])"),
    ]
    (log,) = tracker.logs
    (cut,) = log.detaches_of(loose)
    ((origin, number),) = cut.inputs
    assert (origin() is out, number) == (True, out.grad_fn._sequence_nr())
    assert (cut.result() is loose, cut.number, cut.module) == (True, number + 1, None)
    assert names_of_cuts(tracker, out) == names_of_cuts(tracker, x) == []


def test_a_cut_says_under_what_it_was_made_and_in_which_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.ones(3, 4)
    with byname.track() as tracker:
        with torch.no_grad():
            scores = model(x)
        with torch.inference_mode():
            guess = model[0](x)
    assert set(cuts_in(tracker)) == {
        ("linear", "no_grad", "scores = model(x)"),
        ("linear", "inference", "guess = model[0](x)"),
    }
    first = next(iter(tracker.logs[0].detaches))
    assert first.module() is model[0]
    assert {reference() for reference, _ in first.inputs} == set(model[0].parameters())
    assert names_of_cuts(tracker, scores) == ["linear"]
    assert names_of_cuts(tracker, guess) == ["linear"]


def test_cuts_are_inherited_and_do_not_pile_up():
    x = torch.ones(4, requires_grad=True)
    with byname.track() as tracker:
        average = torch.zeros(4)
        for _ in range(100):
            average = average * 0.9 + x.detach() * 0.1
        left, right = (average + x.data).chunk(2)
        values, indices = (x * 2).topk(2)
        accuracy = (indices == 1).float().mean()
        several = sum([x.detach(), x.data, x.argmax(), x.ceil().detach(), x.sign() > 0, x.long()])
    assert names_of_cuts(tracker, average) == ["detach"]
    assert sorted(names_of_cuts(tracker, left)) == sorted(names_of_cuts(tracker, right)) == ["data", "detach"]
    assert names_of_cuts(tracker, accuracy) == ["topk"]
    assert names_of_cuts(tracker, values) == []
    assert len(names_of_cuts(tracker, several)) == 4
    (cut,) = tracker.logs[0].detaches_of(average)
    assert cut is not None
    assert cut.number == max(one.number for one in tracker.logs[0].detaches if line_of(one).startswith("average ="))


def test_what_is_no_cut():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with byname.track() as tracker:
        x = torch.ones(1, 2, requires_grad=True)
        loss = model(x).sum()
        assert (x.shape, x.size(), x.dim(), x.is_leaf, x.dtype) is not None
        assert repr(loss) != str(x)
        torch.zeros_like(x).add_(x.new_ones(2))
        x.register_hook(lambda gradient: gradient * x.detach())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        nn.init.orthogonal_(model.weight)
    assert cuts_in(tracker) == []


def test_a_cut_holds_no_tensor(no_collection):
    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        y = (x * 2).detach()
        with torch.no_grad():
            z = x * y
        watched = [weakref.ref(x), weakref.ref(y), weakref.ref(z)]
        del x, y, z
        assert [one() for one in watched] == [None, None, None]
    (log,) = tracker.logs
    assert all(made() is None for made in [*log.tensor_records.values()])
    assert [cut.name for cut in log.detaches] == ["detach", "mul"]


def test_gradients_that_are_not_kept_and_tensors_that_were_frozen():
    model = nn.Linear(2, 2)
    with byname.track() as tracker:
        y = model(torch.ones(1, 2))
        y.sum().backward()
        with pytest.warns(UserWarning, match="not a leaf"):
            gradient = y.grad
        assert model.weight.grad is not None
        model.bias.requires_grad = False
        model.weight.requires_grad_(False)
        model.requires_grad_(True)
        model.requires_grad_(False)
    (log,) = tracker.logs
    (read,) = log.grad_reads
    assert (read_at(read), read[2]() is y) == ("gradient = y.grad", True)
    assert [read_at(frozen) for frozen in log.frozen] == [
        "model.bias.requires_grad = False",
        "model.weight.requires_grad_(False)",
        "model.requires_grad_(False)",
        "model.requires_grad_(False)",
    ]
    assert log.frozen[0][2]() is model.bias


class Plain(torch.optim.Optimizer):
    def __init__(self, params, broken=False):
        super().__init__(params, {"lr": 0.1})
        self.broken = broken

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
                if self.broken:
                    raise RuntimeError("the optimizer is broken")


def trained(make):
    """A model, its optimizer, and a tracker that saw a step of it."""
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    with byname.track() as tracker:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        after = model(torch.ones(1, 2)).sum()
    assert sites(after)["AddmmBackward0"] is not None
    return model, optimizer, tracker


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False),
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        Plain,
    ],
)
def test_a_step_is_one_change_and_is_known_as_a_step(make):
    model, optimizer, tracker = trained(make)
    name = f"{type(optimizer).__name__}.step"
    (step,) = tracker.logs[0].steps
    assert (step.name, step.optimizer() is optimizer, line_of(step)) == (name, True, "optimizer.step()")
    for parameter in model.parameters():
        (change,) = tracker.mutations(parameter)
        assert (change.operation, change.site.statement) == (name, "optimizer.step()")
        assert change.after == parameter._version
    assert len(tracker.logs[0].changes) == 1


def test_a_fused_step_is_known_though_it_counts_no_version():
    model, _, tracker = trained(lambda parameters: torch.optim.Adam(parameters, fused=True))
    assert [step.name for step in tracker.logs[0].steps] == ["Adam.step"]
    assert tracker.mutations(model.weight) == ()
    assert model.weight._version == nn.Linear(2, 1).weight._version


def test_a_step_with_a_closure_is_watched_inside():
    model, x = nn.Linear(2, 1), torch.ones(1, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(model(x).square().sum())
        losses[-1].backward()
        return losses[-1]

    with byname.track() as tracker:
        optimizer.step(closure)
    assert sites(losses[0])["PowBackward0"].statement == "losses.append(model(x).square().sum())"
    assert {change.operation for change in tracker.mutations(model.weight)} == {"LBFGS.step"}
    assert [step.name for step in tracker.logs[0].steps] == ["LBFGS.step"]


class Weight(nn.Parameter):
    """A parameter that notes how many function modes are on the stack as its gradient is read, and may fail then."""

    depths, fails = (), False

    @property
    def grad(self):
        Weight.depths += (torch._C._len_torch_function_stack(),)
        if self.fails:
            raise RuntimeError("no gradient")

    @grad.setter
    def grad(self, value):
        Weight.depths += (torch._C._len_torch_function_stack(),)


def test_gradients_are_dropped_with_the_modes_off_and_set_to_zero_with_them_on(monkeypatch):
    monkeypatch.setattr(Weight, "depths", ())
    weight = Weight(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with byname.track() as tracker:
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=False)
        assert Weight.depths == (0, 1)
        weight.fails = True
        with pytest.raises(RuntimeError, match="no gradient"):
            optimizer.zero_grad()
        loss = (weight * 3).sum()
    assert sites(loss)["MulBackward0"].target == "loss"
    assert not tracker.logs[0].changes


def test_a_scaler_and_a_schedule_step_on_the_users_line():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with byname.track() as tracker:
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        schedule.step()
    (step,) = tracker.logs[0].steps
    assert (step.name, line_of(step)) == ("SGD.step", "scaler.step(optimizer)")


def test_a_step_that_raises_leaves_the_thread_watched_and_nothing_behind():
    before = state_of_torch()
    model = nn.Linear(2, 1)
    optimizer = Plain(model.parameters(), broken=True)
    with byname.track() as outer, byname.track() as inner:
        depth = torch._C._len_torch_function_stack()
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="broken"):
            optimizer.step()
        assert torch._C._len_torch_function_stack() == depth == 2
        loss = model(torch.ones(1, 2)).sum()
    assert sites(loss)["AddmmBackward0"].statement == "loss = model(torch.ones(1, 2)).sum()"
    assert [change.operation for change in inner.mutations(model.weight)] == ["Plain.step"]
    assert [change.operation for change in outer.mutations(model.weight)] == ["Plain.step"]
    assert state_of_torch() == before
    with pytest.raises(RuntimeError, match="broken"), byname.track():
        optimizer.step()
    assert state_of_torch() == before


@pytest.mark.grid(fast=1)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("compiled_before", [True, False])
def test_compiled_functions_run_compiled_and_the_thread_is_watched_after_each(compiled_before):
    from torch._dynamo import eval_frame
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    switch = eval_frame._maybe_set_eval_frame
    layer = nn.Linear(3, 3)

    def broken_up(x):
        halfway = layer(x).sin()
        torch._dynamo.graph_break()
        return halfway.cos()

    def raising(x):
        halfway = x.exp()
        torch._dynamo.graph_break()
        raise ValueError(halfway.shape)

    inner = torch.compile(lambda x: x.sigmoid() * 2, backend=counter)
    functions = [torch.compile(one, backend=counter) for one in (broken_up, raising, layer, lambda x: inner(x).exp())]
    x = torch.randn(2, 3, requires_grad=True)

    def run_all():
        for function in [*functions, inner]:
            try:
                function(x)
            except ValueError:
                continue
            finally:
                depths.append(torch._C._len_torch_function_stack())

    depths = []
    if compiled_before:
        run_all()
        depths.clear()
    compiled = counter.frame_count
    with byname.track():
        run_all()
        assert depths == [1] * 5
        assert counter.frame_count == (compiled if compiled_before else 6)
        once = counter.frame_count
        run_all()
    run_all()
    assert counter.frame_count == once
    assert eval_frame._maybe_set_eval_frame is switch


@pytest.mark.grid(fast=1)
@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 does not compile requires_grad_()")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiled_call_is_one_call():
    def run(x):
        return Cube.apply(x * 2).sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    with byname.track() as tracker:
        loss = compiled(x)
        loss.backward()
        after = x * 2
    assert sites(loss)["CompiledFunctionBackward"].statement == "loss = compiled(x)"
    assert sites(after)["MulBackward0"].target == "after"
    assert tracker


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_functions_run_eagerly_while_two_threads_are_watched():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    run = torch.compile(lambda x: x.sin() * 2, backend=counter)
    x = torch.ones(3, requires_grad=True)
    run(x)
    entered, done = threading.Event(), threading.Event()

    def work():
        with byname.track():
            entered.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    with byname.track() as tracker:
        thread.start()
        entered.wait(10)
        found = sites(run(x))
        done.set()
        thread.join()
    run(x)
    assert set(found) == {"SinBackward0", "MulBackward0"}
    assert counter.frame_count == 1
    assert tracker


def test_the_notes_of_dead_tensors_are_dropped():
    with byname.track() as tracker:
        for _ in range(1000):
            torch.zeros(1)
    (log,) = tracker.logs
    assert len(log.tensor_records) <= 2


def test_an_interrupt_cannot_be_lost_in_the_callback_of_a_weak_reference():
    """Python ignores what a callback raises; only one that runs no Python code cannot meet an interrupt."""
    with byname.track() as tracker:
        kept = torch.zeros(1)
    (log,) = tracker.logs
    (made,) = log.tensor_records.values()
    assert made() is kept
    assert isinstance(made.__callback__, types.BuiltinMethodType)


def line_in(record):
    """The statement that called the function of a record's line; None where there is no caller."""
    return caller_at(record.line.site)


def caller_at(site):
    return None if site.caller is None else site.caller.statement


def callers(*tensors):
    """Each operation behind some tensors, with the statement that called the function in which it is."""
    operations = [node for node in byname.graph([*tensors]).nodes if node.name != "AccumulateGrad"]
    return [(node.name.removesuffix("Backward0"), caller_at(node.site)) for node in operations]


def test_a_helper_is_noted_with_what_called_it():
    def shifted(x):
        values = [(x + number).sum() for number in range(1)]
        return values[0] + F.dropout(x, 0.5).sum()

    @torch.no_grad()
    def counted(x):
        return x.detach().clone().add_(1)

    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        loss = shifted(x) * 2
        count = counted(x)
        far = doubled(x)
    (log,) = tracker.logs
    (last, caller), *before = callers(loss)
    assert (last, caller, [caller for _, caller in before]) == ("Mul", None, ["loss = shifted(x) * 2"] * 5)
    assert callers(far) == [("Mul", "far = doubled(x)")]
    assert {line_in(cut) for cut in log.detaches} == {"count = counted(x)"}
    assert [line_in(change) for change in log.changes] == ["count = counted(x)"]
    assert line_in(log.tensor_records[id(count)]) == "count = counted(x)"
    assert (loss.requires_grad, far.requires_grad) == (True, True)


class Helped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.scaled(self.inner(x) + 1)

    def scaled(self, x):
        return x * 3


class Quiet(Helped):
    @torch.enable_grad()
    def forward(self, x):
        return super().forward(x).exp()


@pytest.mark.parametrize("hooked", [False, True])
def test_a_forward_is_no_helper_and_what_it_calls_is(hooked):
    model = Quiet()
    if hooked:
        model.register_forward_hook(lambda module, args, output: output.abs())
    with byname.track() as tracker:
        out = model(torch.ones(3))
    (log,) = tracker.logs
    found = dict(callers(out))
    wanted = {"Exp": None, "Mul": "return self.scaled(self.inner(x) + 1)", "Add": "return super().forward(x).exp()"}
    assert found.items() >= wanted.items()
    assert found.get("Abs") is None
    assert ("Abs" in found) == hooked


def test_the_body_of_a_module_has_no_caller_and_its_functions_have():
    text = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x * 2\ndef tripled(x):\n    return x - 3\nz = tripled(x)\n"
    linecache.cache["body.py"] = (len(text), None, text.splitlines(True), "body.py")
    with byname.track() as tracker:
        exec(compile(text, "body.py", "exec"), names := {"__name__": "body"})
    assert callers(names["y"], names["z"]) == [("Mul", None), ("Sub", "z = tripled(x)")]


def test_the_caller_of_a_library_is_the_programs_line(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "installed_for_callers.py").write_text(
        "def outer(x, then=None):\n    return inner(x) if then is None else then(x)\n\ndef inner(x):\n    return x * 2\n"
    )
    monkeypatch.syspath_prepend(packages)
    import installed_for_callers  # made just now

    def minus(x):
        return x - 1

    with byname.track() as tracker:
        x = torch.ones(3, requires_grad=True)
        twice = installed_for_callers.outer(x)
        less = installed_for_callers.outer(x, minus)
    assert callers(twice, less) == [("Mul", "twice = installed_for_callers.outer(x)"), ("Sub", None)]


def test_a_step_in_a_helper_is_noted_with_what_called_it():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def update():
        weight.sum().backward()
        optimizer.step()

    with byname.track() as tracker:
        update()
    (log,) = tracker.logs
    assert [line_in(step) for step in log.steps] == ["update()"]
    assert {line_in(change) for change in log.changes} == {"update()"}


def test_what_is_known_of_callers_holds_no_frame(no_collection):
    def made(x):
        big = torch.ones(1000)
        gone.append(weakref.ref(big))
        return x * 2 + big.sum()

    gone = []
    with byname.track() as tracker:
        loss = made(torch.ones(3, requires_grad=True))
        assert gone[0]() is None
    assert loss.requires_grad
    assert tracker


def test_a_patch_of_the_program_does_not_live_on_when_tracking_has_ended(no_collection, monkeypatch):
    kept = torch.ones(3)
    gone = weakref.ref(kept)

    def patch(original, held):
        @functools.wraps(original)
        def compile_(*args, **kwargs):
            assert held is not None
            return original(*args, **kwargs)

        return compile_

    with monkeypatch.context() as patched:
        patched.setattr(torch, "compile", patch(torch.compile, kept))
        with byname.track():
            pass
    del kept
    gc.collect()
    assert gone() is None


def test_the_checks_of_a_distribution_are_no_cuts():
    logits = torch.zeros(2, 3, requires_grad=True)
    with byname.track() as tracker:
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        policy.log_prob(action)
    assert {cut.name for cut in tracker.logs[0].detaches} == {"multinomial", "broadcast_tensors"}
    with byname.track() as tracker:
        in_use = torch.distributions.constraints.positive.check(logits)
    assert [cut.name for cut in tracker.logs[0].detaches_of(in_use)] == ["gt"]


def test_calls_with_keywords_know_their_lines():
    x = torch.ones(2, 3, requires_grad=True)
    with byname.track() as tracker:
        total = x.sum(dim=1).sum()
        largest, where = torch.max(input=x, dim=1)
        halted = torch.clone(input=x.detach())
        torch.add(x.detach(), 1.0, out=halted)
    (log,) = tracker.logs
    assert [node.site.target for node in byname.graph(total).nodes if node.site] == ["total", "total"]
    assert [call[2].__name__ for call in log.calls] == ["sum", "sum", "max"]
    assert [cut.name for cut in log.detaches_of(where)] == ["max"]
    assert [change.operation for change in tracker.mutations(halted)] == ["add"]
    assert largest.requires_grad
