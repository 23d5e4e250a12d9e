"""Leaves: the tensors in which the graph of a loss ends, and their names."""

import gc
import itertools
import random
import weakref

import pytest
import torch
from torch import nn

import byname
from byname.errors import NoGraphError, NotAModuleError, NotAnOptimizerError, NotATensorError


def names_of(leaves):
    return [str(leaf.name) for leaf in leaves]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("shift", torch.zeros(3, requires_grad=True))

    def forward(self, x):
        return self.fc(x) + self.shift


def test_a_leaf_says_what_it_is_whose_it_is_and_who_uses_it():
    model = Net()
    optimizer = torch.optim.SGD([{"params": [model.fc.weight]}, {"params": [model.fc.bias]}], lr=0.1)
    free = torch.ones(3, requires_grad=True)
    loss = (model(torch.ones(2, 4)) * free).sum()
    found = {str(leaf.name): leaf for leaf in byname.leaves(loss, model=model, optimizer=optimizer)}
    assert {name: (leaf.kind, leaf.in_optimizer, leaf.group) for name, leaf in found.items()} == {
        "model.fc.weight": ("parameter", True, 0),
        "model.fc.bias": ("parameter", True, 1),
        "model.shift": ("buffer", False, None),
        "free": ("free", False, None),
    }
    assert [(one.node, one.index, one.site) for one in found["free"].consumers] == [("MulBackward0", 1, None)]
    assert found["free"].tensor is free
    assert found["free"].distance == 2
    assert all(leaf.name.exact for leaf in found.values())


def test_without_an_optimizer_nothing_is_said_of_one():
    x = torch.ones(1, requires_grad=True)
    (leaf,) = byname.leaves(x * 2)
    assert leaf.in_optimizer is None
    assert leaf.group is None


def test_a_lingering_gradient_is_told():
    x = torch.ones(1, requires_grad=True)
    assert byname.leaves(x * 2)[0].grad == "none"
    (x * 2).backward()
    assert byname.leaves(x * 2)[0].grad == "set"


def test_a_leaf_that_is_itself_the_root():
    weight = torch.ones(2, requires_grad=True)
    (leaf,) = byname.leaves(weight)
    assert (str(leaf.name), leaf.distance, leaf.paths, leaf.consumers) == ("weight", 0, 1, ())


def test_several_roots_give_each_leaf_once():
    a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    found = byname.leaves([a * b, a + 1, (a * b).grad_fn])
    assert sorted(names_of(found)) == ["a", "b"]
    assert {str(leaf.name): leaf.paths for leaf in found} == {"a": 3, "b": 2}


def test_one_node_that_takes_a_leaf_twice_is_two_consumers():
    x = torch.ones(2, requires_grad=True)
    (leaf,) = byname.leaves(x * x)
    assert [(one.node, one.index) for one in leaf.consumers] == [("MulBackward0", 0), ("MulBackward0", 1)]
    assert leaf.paths == 2


def test_a_diamond_doubled_two_hundred_times():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(200):
        y = y + y
    (leaf,) = byname.leaves(y)
    assert leaf.paths == 2**200
    assert leaf.distance == 200


def test_twelve_encoder_layers_give_every_parameter_once():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    found = byname.leaves(model(torch.randn(2, 3, 16)).sum(), model=model)
    assert len(found) == len(list(model.parameters())) == len({id(leaf.tensor) for leaf in found})
    scope = {"model": model}
    assert all(eval(leaf.name.path, scope) is leaf.tensor for leaf in found)


def random_graph(seed):
    """A random little program, and the paths to each leaf counted one by one."""
    chooser = random.Random(seed)
    leaves = [torch.ones(1, requires_grad=True) for _ in range(3)]
    values = [(leaf, [[leaf]]) for leaf in leaves]
    for _ in range(chooser.randint(1, 7)):
        (one, its_paths), (other, other_paths) = chooser.choice(values), chooser.choice(values)
        result = torch.add(one, other)
        values.append((result, [[*path, result] for path in its_paths + other_paths]))
    return values[-1]


@pytest.mark.parametrize("seed", range(40))
def test_paths_and_distances_equal_those_counted_one_by_one(seed):
    root, paths = random_graph(seed)
    for leaf in byname.leaves(root):
        mine = [path for path in paths if path[0] is leaf.tensor]
        assert leaf.paths == len(mine)
        assert leaf.distance == min(map(len, mine)) - 1


def test_tied_weights_have_all_their_names():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    (leaf,) = byname.leaves(model["head"](model["embed"](torch.tensor([1]))).sum(), model=model)
    assert {name.path for name in leaf.names} >= {"model['embed'].weight", "model['head'].weight"}


def test_a_parametrized_weight_is_named_by_its_weight():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    found = {str(leaf.name): leaf for leaf in byname.leaves(model(torch.ones(1, 3)).sum(), model=model)}
    assert set(found) == {"model[0].bias", "model[0].weight (original0)", "model[0].weight (original1)"}
    leaf = found["model[0].weight (original0)"]
    assert leaf.name.path == "model[0].parametrizations.weight.original0"
    assert leaf.name.exact
    assert eval(leaf.name.path) is leaf.tensor


def test_a_compiled_wrapper_is_seen_through_and_the_path_still_evaluates():
    inner = nn.Linear(3, 2)
    model = torch.compile(inner, backend="eager")
    loss = inner(torch.ones(1, 3)).sum()
    del inner
    for leaf in byname.leaves(loss, model=model):
        assert "_orig_mod" not in leaf.name.path
        assert leaf.name.exact
        assert eval(leaf.name.path) is leaf.tensor


def test_an_item_of_a_compiled_wrapper_is_not_called_exact_for_the_wrapper_has_no_items():
    model = torch.compile(nn.Sequential(nn.Linear(3, 2)), backend="eager")
    name = byname.name(model._orig_mod[0].weight)

    assert (name.path, name.exact) == ("model[0].weight", False)
    with pytest.raises(TypeError, match="not subscriptable"):
        eval(name.path)


@pytest.mark.slow
def test_compiled_code_is_one_opaque_node():
    def run(weight, x):
        return (weight * x).sin().sum()

    weight = torch.ones(3, requires_grad=True)
    loss = torch.compile(run, backend="aot_eager")(weight, torch.ones(3))
    found = byname.leaves(loss)
    assert names_of(found) == ["weight"]
    assert any("CompiledFunctionBackward" in note and "opaque" in note for note in found.opaque)
    assert [node.name for node in byname.graph(loss).opaque] == ["CompiledFunctionBackward"]


def test_a_model_that_no_variable_holds_still_names_its_parameters():
    def loss_of(net):
        return net(torch.ones(1, 2)).sum()

    holder = [nn.Linear(2, 1)]
    loss = loss_of(holder[0])
    assert sorted(names_of(byname.leaves(loss, model=holder.pop()))) == ["model.bias", "model.weight"]


def test_results_keep_no_leaf_alive(no_collection):
    x = torch.ones(2, requires_grad=True)
    found = byname.leaves((x * 2).sum())
    assert found[0].tensor is x
    del x
    assert found[0].tensor is None
    with pytest.raises(byname.BynameError, match="no longer alive"):
        found[0].card.alive()


@pytest.mark.parametrize("thing", [3, None, "loss", nn.Linear(1, 1), {"loss": 1}])
def test_a_root_that_is_no_tensor_is_refused(thing):
    with pytest.raises(NotATensorError, match="tensor"):
        byname.leaves(thing)


def test_a_tensor_outside_any_graph_is_refused_with_the_reason():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        cut = x[:1]
    with torch.inference_mode():
        inferred = x * 2
    cases = {"argmax": (x * 2).argmax(), "no_grad": cut, "inference_mode": inferred, "detach": (x * 2).detach()}
    for reason, tensor in cases.items():
        with pytest.raises(NoGraphError, match=reason):
            byname.leaves(tensor)
    with torch.no_grad(), pytest.raises(NoGraphError, match="switched off here"):
        byname.leaves(x * 2)
    with pytest.raises(NoGraphError, match="empty"):
        byname.leaves([])


def test_under_track_the_reason_names_the_line():
    x = torch.ones(2, requires_grad=True)
    with byname.track():
        cut = (x * 2).detach()
        with pytest.raises(NoGraphError, match=r"made at test_leaves.py:\d+: cut = \(x \* 2\)\.detach\(\)"):
            byname.leaves(cut)


def test_a_dead_tensor_is_refused_with_the_reason():
    with pytest.raises(NotATensorError, match="let go of it"):
        byname.name(None)


def test_what_is_no_model_and_no_optimizer_is_refused_before_anything_is_looked_at():
    loss = torch.ones(1, requires_grad=True) * 2
    with pytest.raises(NotAModuleError, match="did you mean to call it"):
        byname.leaves(loss, model=Net)
    with pytest.raises(NotAModuleError, match="OrderedDict"):
        byname.leaves(loss, model=nn.Linear(1, 1).state_dict())
    with pytest.raises(NotAnOptimizerError, match="list_iterator"):
        byname.leaves(loss, optimizer=iter([]))


def test_totals_by_a_column():
    model = nn.Linear(4, 2)
    found = byname.leaves(model(torch.ones(1, 4)).sum(), model=model)
    assert found.by("kind") == [("parameter", 2, 40)]
    assert found.bytes == 40
    with pytest.raises(byname.BynameError, match="kind"):
        found.by("kinds")


def test_two_models_and_two_optimizers():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (generator, critic)]
    found = byname.leaves(critic(generator(torch.ones(1, 2))).sum(), model=[generator, critic], optimizer=optimizers)
    assert all(leaf.in_optimizer for leaf in found)
    assert {name.split(".")[0] for name in names_of(found)} == {"generator", "critic"}


def test_rows_and_table_agree():
    x = torch.ones(2, requires_grad=True)
    found = byname.leaves(x * 2)
    assert found.rows()[0]["name"] == "x"
    assert "x" in str(found)
    assert "<table>" in found._repr_html_()
    assert list(found.to_pandas()["name"]) == ["x"]
    assert list(itertools.islice(found, 1)) == [found[0]]


@pytest.mark.parametrize("look", [byname.leaves, lambda loss: byname.graph(loss).leaves])
def test_a_leaf_that_nobody_holds_costs_no_pass_over_the_heap(monkeypatch, look):
    loss = (torch.ones(2, requires_grad=True) * 2).sin().sum()
    monkeypatch.setattr("byname.naming.referrers.find_referrers", lambda _: pytest.fail("the heap was read"))
    assert [leaf.held for leaf in look(loss)] == ["graph"]


def test_a_leaf_that_only_an_iterator_holds_is_the_programs():
    leaf = torch.ones(2, requires_grad=True)
    kept = iter((leaf,))
    loss = (leaf * 2).sum()
    del leaf
    assert [one.held for one in byname.leaves(loss)] == ["program"]
    del kept
    assert [one.held for one in byname.leaves(loss)] == ["graph"]


def test_names_that_are_read_later_are_those_of_the_call_and_keep_nothing_alive():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    trainer = {"model": model}
    optimizer = torch.optim.Adam(model.parameters())
    seen = byname.graph(model(torch.ones(1, 2)).sum())
    weight = weakref.ref(model[1].weight)
    trainer["model"] = model = optimizer = None
    gc.collect()
    assert weight() is None
    names = next(leaf.names for leaf in seen.leaves if str(leaf.name) == "model[1].weight")
    assert [one.path for one in names[1:]] == ["trainer['model'][1].weight", "optimizer.param_groups[0]['params'][2]"]
    assert "view of model[1].weight" in [str(row.name) for row in seen.saved]
