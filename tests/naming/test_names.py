"""Names: an exact name, evaluated in its scope, is the tensor that was asked about."""

import enum
import functools
import gc
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import byname
from byname.errors import BadArgumentError, NotATensorError

GLOBAL = torch.ones(1)
TABLE = {"first": [torch.ones(1)]}


def check(tensor, scope, path=None, how=None):
    """The best name is exact, and evaluated where it holds it is the tensor."""
    name = next(name for name in byname.names(tensor) if not name.scope.startswith("check "))
    assert name.exact, name
    assert eval(name.path, {**globals(), **scope}) is tensor
    if path is not None:
        assert name.path == path
    if how is not None:
        assert name.how == how
    return name


class Box:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_a_local_and_a_global():
    x = torch.ones(1)
    name = check(x, locals(), "x", "local")
    assert "test_a_local_and_a_global (test_names.py:" in name.scope
    name = check(GLOBAL, {}, "GLOBAL", "global")
    assert name.scope == __name__
    check(TABLE["first"][0], {}, "TABLE['first'][0]", "item")


def test_attributes_items_and_slots():
    box = Box({"history": [torch.ones(1), {"loss": torch.ones(1)}]})
    slotted = Slotted((torch.ones(1),))
    check(box.value["history"][1]["loss"], locals(), "box.value['history'][1]['loss']", "item")
    check(slotted.value[0], locals(), "slotted.value[0]")


class SlottedLayer(nn.Module):
    __slots__ = ("mask",)


def test_a_slot_of_a_module():
    layer = SlottedLayer()
    layer.mask = torch.ones(1)
    check(layer.mask, locals(), "layer.mask", "attribute")


class Color(enum.Enum):
    RED = 1


class Text(str):
    __slots__ = ()


KEYS = {
    "a plain key": "['a plain key']",
    'it\'s "quoted"': None,
    "\x1b[31m": "['\\x1b[31m']",
    7: "[7]",
    2.5: "[2.5]",
    True: "[True]",
    None: "[None]",
    b"\x00": None,
    (1, ("a", None)): "[(1, ('a', None))]",
    float("nan"): None,
    float("inf"): None,
    Color.RED: None,
    object(): None,
    Text("subclass"): None,
    frozenset({1}): None,
}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key).partition(" at 0x")[0])
def test_any_key_of_a_dict_can_be_written(key):
    table = {"before": 1, key: torch.ones(1)}
    name = check(table[key], locals())
    if KEYS[key] is not None:
        assert name.path == "table" + KEYS[key]
    assert str(name).isprintable()


Pair = namedtuple("Pair", "left right")


@dataclass(slots=True)
class Record:
    state: object


def test_every_kind_of_container():
    pair = Pair(torch.ones(1), 0)
    queue = deque([0, torch.ones(1)])
    ordered = OrderedDict(a=torch.ones(1))
    default = defaultdict(list, {1: [torch.ones(1)]})
    space = types.SimpleNamespace(state=torch.ones(1))
    record = Record([torch.ones(1)])
    for tensor in (pair.left, queue[1], ordered["a"], default[1][0], space.state, record.state[0]):
        check(tensor, locals())


def test_a_member_of_a_set_is_named_but_not_exactly():
    members = {torch.ones(1)}
    (tensor,) = members
    holder = [members]
    del tensor, members
    name = byname.name(next(iter(holder[0])))
    assert not name.exact
    assert "holder" in name.path


class Shy:
    """Everything a person could run by looking raises."""

    def __init__(self, value):
        vars(self)["value"] = value
        vars(self)["plain"] = value

    @property
    def value(self):
        raise AssertionError("a property was run")

    def __getattr__(self, name):
        raise AssertionError("__getattr__ was run")

    def __eq__(self, other):
        raise AssertionError("__eq__ was run")

    def __hash__(self):
        raise AssertionError("__hash__ was run")

    def __repr__(self):
        raise AssertionError("__repr__ was run")

    def __len__(self):
        raise AssertionError("__len__ was run")

    @property
    def __class__(self):
        raise AssertionError("__class__ was run")


class Guarded:
    def __init__(self, value):
        object.__setattr__(self, "value", value)

    def __getattribute__(self, name):
        raise AssertionError("__getattribute__ was run")


class ShyDict(dict):
    def __getitem__(self, key):
        raise AssertionError("__getitem__ was run")

    def items(self):
        raise AssertionError("items was run")

    values = keys = __iter__ = items


class ShyTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("__torch_function__ was run")


def test_nobodys_code_is_run():
    hidden, second, third = torch.ones(1), torch.ones(1), torch.ones(1)
    shy, guarded, table = Shy([hidden]), Guarded([second]), ShyDict(a=[third])
    odd = torch.Tensor._make_subclass(ShyTensor, torch.ones(1))
    watched = [hidden, second, third]
    del hidden, second, third
    assert byname.name(watched[0]).how == "item"
    names = [str(name) for tensor in watched for name in byname.names(tensor)]
    assert "shy.plain[0]" in names
    assert "shy.__dict__['value'][0]" in names
    exact = {name.path for each in watched[1:] for name in byname.names(each, roots=[guarded, table]) if name.exact}
    assert not exact
    assert str(byname.name(odd)) == "odd"


def test_a_property_that_hides_an_attribute_is_not_in_the_way():
    shy = Shy([torch.ones(1)])
    tensor = vars(shy)["plain"][0]
    scope = {"shy": shy}
    exact = [name for name in byname.names(tensor) if name.exact and name.path.startswith("shy")]
    assert exact
    assert all(eval(name.path, scope) is tensor for name in exact)


class Private:
    def __init__(self):
        self.__state = torch.ones(1)

    def state(self):
        return self.__state


def test_name_mangling_is_written_out():
    private = Private()
    check(private.state(), locals(), "private._Private__state")


class Model(nn.Module):
    shared = [torch.ones(1)]

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(OrderedDict(conv=nn.Linear(2, 2))), nn.Linear(2, 2)])
        self.table = nn.ModuleDict({"a b": nn.Linear(2, 2)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1))])
        self.named = nn.ParameterDict({"x": nn.Parameter(torch.ones(1))})
        self.register_buffer("running", torch.zeros(1))
        self.add_module("0", nn.Linear(2, 2))
        self.cache = {"k": [torch.ones(1)]}


def test_everything_a_module_owns():
    model = Model()
    expected = {
        "model.layers[0].conv.weight": "parameter",
        "model.layers[1].bias": "parameter",
        "model.table['a b'].weight": "parameter",
        "model.scales[0]": "parameter",
        "model.named['x']": "parameter",
        "model.running": "buffer",
        "getattr(model, '0').weight": "parameter",
        "model.cache['k'][0]": "item",
    }
    for path, how in expected.items():
        check(eval(path), locals(), path, how)


def test_a_class_attribute():
    check(Model.shared[0], locals(), "Model.shared[0]")


def test_gradients_and_optimizer_state():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    check(model.weight.grad, locals(), "model.weight.grad")
    state = optimizer.state[model.weight]["exp_avg"]
    name = check(
        state, {"optimizer": optimizer, "model": model}, "optimizer.state[model.weight]['exp_avg']", "optimizer"
    )
    assert str(name) == "optimizer.state[model.weight]['exp_avg']"


def make_closure():
    inside = torch.ones(1)
    return (lambda: inside), (lambda default=[torch.ones(1)]: default)


def test_closures_defaults_partials_and_methods():
    closure, defaulted = make_closure()
    part = functools.partial(print, torch.ones(1), key=[torch.ones(1)])
    method = Box(torch.ones(1)).__init__
    name = check(closure(), locals(), how="closure")
    assert str(name) == "inside (closure of make_closure.<locals>.<lambda>)"
    check(defaulted()[0], locals())
    check(part.args[0], locals())
    check(part.keywords["key"][0], locals())
    check(method.__self__.value, locals())


def count():
    state = torch.ones(1)
    yield state
    yield state


def test_a_suspended_generator():
    running = count()
    tensor = next(running)
    names = [name for name in byname.names(tensor) if "running" in name.path]
    assert names[0].exact
    assert eval(names[0].path) is tensor
    assert str(names[0]) == "state (local of the suspended count)"


def test_a_tensor_in_another_thread():
    ready, done = threading.Event(), threading.Event()
    box = []

    def work():
        only_here = torch.ones(1)
        box.append(id(only_here))
        ready.set()
        done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    (tensor,) = [o for o in gc.get_objects() if type(o) is torch.Tensor and id(o) == box[0]]
    names = [str(name) for name in byname.names(tensor)]
    done.set()
    thread.join()
    assert "only_here" in names


def test_no_loop_variable_or_underscore_beats_a_better_name():
    history = [torch.ones(1), torch.ones(1)]
    for _number, one in enumerate(history):
        pass
    _ = one
    name = byname.name(history[1])
    assert str(name) == "history[1]"
    assert {str(other) for other in byname.names(history[1])} == {"history[1]", "one", "_"}


def test_self_is_no_better_than_the_callers_variable():
    class Trainer:
        def __init__(self):
            self.state = torch.ones(1)

        def ask(self):
            return byname.name(self.state)

    trainer = Trainer()
    assert str(trainer.ask()) == "trainer.state"


def test_the_parameter_is_better_than_a_variable_that_holds_it():
    model = nn.Linear(1, 1)
    w = model.weight
    assert str(byname.name(w)) == "model.weight"


def test_aliases_of_the_main_module_are_one():
    module = types.ModuleType("__mp_main__")
    vars(module)["other"] = torch.ones(1)
    sys.modules["__mp_main__"] = module
    sys.modules["alias_of_mp_main"] = module
    try:
        assert [name.path for name in byname.names(module.other)] == ["other"]
    finally:
        del sys.modules["__mp_main__"], sys.modules["alias_of_mp_main"]


def test_unnamed_is_said_and_never_raises():
    name = byname.name(torch.ones(2))
    assert (name.how, name.path, name.exact, str(name)) == ("unnamed", "", False, "unnamed")


def test_a_view_is_not_passed_off_as_the_tensor():
    x = torch.ones(4)
    name = byname.name(x[1:])
    assert not name.exact
    assert str(name) == "view of x"
    assert not byname.name(x.detach()).exact


@pytest.mark.parametrize("thing", [1, "x", None, nn.Linear(1, 1), [torch.ones(1)]])
def test_what_is_no_tensor_is_refused(thing):
    with pytest.raises(NotATensorError, match=type(thing).__name__):
        byname.name(thing)


def test_roots_restrict_the_search():
    x = torch.ones(1)
    left, right = Box([x]), Box({"a": x})
    assert [str(name) for name in byname.names(x, roots=right)] == ["right.value['a']"]
    assert {str(name) for name in byname.names(x, roots=[left, right])} == {"left.value[0]", "right.value['a']"}
    assert byname.name(x, roots=types.ModuleType("empty")).how == "unnamed"


def test_a_text_as_root_means_the_modules_that_define_it():
    module = types.ModuleType("package_of_the_user")
    vars(module).update(MyTestVar=1, kept=torch.ones(1))
    other = types.ModuleType("another_package")
    vars(other).update(kept=module.kept)
    sys.modules.update({module.__name__: module, other.__name__: other})
    try:
        found = byname.names(module.kept, roots="MyTestVar")
        assert [(name.path, name.scope, name.how) for name in found] == [("kept", "package_of_the_user", "global")]
        with pytest.raises(BadArgumentError, match="no loaded module defines"):
            byname.names(module.kept, roots="no_such_variable_anywhere")
    finally:
        del sys.modules[module.__name__], sys.modules[other.__name__]


@pytest.mark.parametrize("leaves", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_no_stale_name_after_many_leaves(leaves):
    for _ in range(leaves):
        gone = torch.ones(1, requires_grad=True)
        byname.name(gone)
    del gone
    fresh = [torch.ones(1, requires_grad=True) for _ in range(100)]
    assert [str(byname.name(fresh[number])) for number in range(100)] == [f"fresh[{number}]" for number in range(100)]
    assert byname.name(torch.ones(1)).how == "unnamed"


def test_what_only_the_heap_knows_is_found():
    deep = torch.ones(1)
    nest = [deep]
    for _ in range(14):
        nest = [nest]
    holder = Box(nest)
    del nest
    name = byname.name(deep, roots=None)
    assert str(name) == "deep"
    watched = [deep]
    del deep
    assert byname.name(watched[0]).exact
    assert holder


def test_asking_keeps_nothing_alive_and_writes_nothing(no_collection):
    import weakref

    x = torch.ones(1)
    watched = weakref.ref(x)
    name = byname.name(x)
    byname.names(x)
    assert dict not in map(type, gc.get_referents(x))
    del x
    assert watched() is None
    assert name.path == "x"


def test_locals_kept_by_the_program_stay_whole():
    x = torch.ones(1)
    kept = locals()
    byname.name(x)
    assert kept["x"] is x


def test_a_deleted_local_is_not_kept_by_the_frame(no_collection):
    import weakref

    x = torch.ones(1)
    watched = weakref.ref(x)
    byname.name(torch.ones(1))
    del x
    assert watched() is None


# A hypothesis test builds nested programs, each with the tensors in it, and goes from every name back to its object.

keys = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.floats(), st.binary(max_size=3))
leaf = st.just(1).map(torch.ones).map(lambda tensor: (tensor, [tensor]))


def merged(make):
    """Makes a container of several programs, and gathers their tensors."""
    return lambda parts: (make([value for value, _ in parts]), [one for _, tensors in parts for one in tensors])


def keyed(make):
    return lambda parts: (
        make({key: part[0] for key, part in parts.items()}),
        [t for _, ts in parts.values() for t in ts],
    )


def containers(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    mapping = st.dictionaries(keys, inner, min_size=1, max_size=3)
    single = [Box, Slotted, Record, lambda value: types.SimpleNamespace(a=value), lambda value: lambda: value]
    single += [lambda value: functools.partial(print, value, key=value), lambda value: {value_key: value}]
    return st.one_of(
        *(several.map(merged(make)) for make in (list, tuple, deque)),
        *(mapping.map(keyed(make)) for make in (dict, OrderedDict)),
        *(inner.map(lambda part, make=make: (make(part[0]), part[1])) for make in single),
    )


value_key = object()
programs = st.recursive(leaf, containers, max_leaves=6)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(programs)
def test_from_the_name_back_to_the_same_object(pair):
    program, tensors = pair
    for one in tensors:
        exact = [name for name in byname.names(one, roots=[program]) if name.exact and name.path.count("program")]
        assert exact
        for name in exact:
            assert eval(name.path, {"program": program}) is one
