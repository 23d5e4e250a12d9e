"""Tensors that only a cache, an error, a hook, a queue, a task or a loader holds have a name that leads to them."""

import asyncio
import contextvars
import functools
import itertools
import operator
import queue
import sys
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
from processes import run_forked
from torch import nn

import byname


def named(tensor, scope, start):
    """The first name that begins with a variable of the test; evaluated, it is the tensor if it says so."""
    found = next(name for name in byname.names(tensor) if name.path.lstrip("([*").startswith(start))
    if found.exact:
        assert eval(found.path, {**globals(), **scope}) is tensor
    return found


# Caches.


def load(kept, count):
    @functools.lru_cache(maxsize=2)
    def loaded(position, scale=None):
        kept.append(weakref.ref(result := torch.full((2,), float(position))))
        return {"loss": result}

    for position in range(count):
        loaded(position)
    return loaded


@pytest.mark.parametrize("count", [1, 3])
def test_a_cached_result(count):
    kept = []
    cached = load(kept, count)
    found = named(kept[-1](), locals(), "cached")
    assert (str(found), found.exact, found.how) == ("cached (cached result)['loss']", False, "item")
    assert "cached (cached result)" in str(byname.name(kept[-1]()))


def test_a_cache_without_bound_and_what_it_was_asked_for():
    @functools.cache
    def norm(tensor, other=None):
        return [tensor.norm()]

    asked, by_keyword = torch.ones(2), Box(torch.ones(3))
    (result,) = norm(asked)
    norm(1 and asked, other=by_keyword)
    assert str(named(result, locals(), "norm")) == "norm (cached result)[0]"
    assert str(named(asked, locals(), "norm")) == "norm (cached argument)"
    assert str(named(by_keyword.value, locals(), "norm")) == "norm (cached argument).value"


class Box:
    def __init__(self, value):
        self.value = value

    @functools.cache  # noqa: B019 - the leak itself
    def doubled(self):
        return self.value * 2

    @staticmethod
    @functools.cache
    def zeros(size):
        return torch.zeros(size)


def test_a_method_with_a_cache_keeps_its_object():
    kept = weakref.ref(Box(torch.ones(1)).value)
    assert kept() is None
    box = Box(torch.ones(1))
    box.doubled()
    kept = weakref.ref(box.value)
    del box
    name = byname.name(kept())
    assert str(name) == "Box.doubled (cached argument).value"
    Box.doubled.cache_clear()
    zeros = weakref.ref(Box.zeros(3))
    assert str(byname.name(zeros())) == "Box.zeros (cached result)"
    Box.zeros.cache_clear()


def test_what_a_cached_function_holds_itself():
    inside = torch.ones(1)
    cached = functools.cache(lambda: inside.sum())
    cached.extra = [torch.ones(1)]
    found = named(inside, locals(), "cached")
    assert found.exact
    assert str(found).startswith("inside (closure of ")
    assert named(cached.extra[0], locals(), "cached").path == "cached.extra[0]"


# Errors.


class Failure(Exception):
    __slots__ = ("inputs",)


def step(box):
    activations = [torch.ones(1)]
    box.append(weakref.ref(activations[0]))
    raise ValueError("no", torch.ones(1))


def fail(box, outer=step):
    try:
        outer(box)
    except Exception as error:
        return error


def test_the_variables_that_an_error_keeps():
    refs = []
    errors = [None, fail(refs)]
    found = named(refs[0](), locals(), "errors")
    assert found.path == "errors[1].__traceback__.tb_next.tb_frame.f_locals['activations'][0]"
    assert found.exact
    assert str(found) == "activations[0] (local of step, kept by the traceback of errors[1])"
    assert found.how == "item"
    assert named(errors[1].args[1], locals(), "errors").path == "errors[1].args[1]"


def test_a_traceback_and_a_frame_alone():
    refs = []
    traceback = fail(refs).__traceback__
    frame = traceback.tb_next.tb_frame
    found = named(refs[0](), locals(), "traceback")
    assert found.path == "traceback.tb_next.tb_frame.f_locals['activations'][0]"
    assert str(found) == "activations[0] (local of step, kept by traceback)"
    found = named(refs[0](), locals(), "frame")
    assert str(found) == "activations[0] (local of step, kept by frame)"
    assert found.exact


def test_the_frame_above_one_that_is_kept():
    def outer(box):
        above = torch.ones(1)
        box.append(weakref.ref(above))
        step(box)

    refs = []
    frame = fail(refs, outer).__traceback__.tb_next.tb_next.tb_frame
    found = named(refs[0](), locals(), "frame")
    assert found.path == "frame.f_back.f_locals['above']"
    assert found.exact


def test_running_frames_are_not_searched_through_an_error():
    here = torch.ones(1)
    try:
        raise ValueError
    except ValueError as error:
        kept = error
        assert [name.path for name in byname.names(here)] == ["here"]
    assert [name.path for name in byname.names(here)] == ["here"]
    assert kept.__traceback__ is not None


def test_causes_contexts_groups_and_fields():
    class Custom(Failure):
        pass

    cause, context = ValueError(torch.ones(1)), ValueError(torch.ones(1))
    error = Custom("text")
    error.__cause__, error.__context__ = cause, context
    error.inputs = torch.ones(1)
    error.state = [torch.ones(1)]
    stop = StopIteration(torch.ones(1))
    group = ExceptionGroup("several", [ValueError(torch.ones(1))])
    assert named(cause.args[0], locals(), "error").path == "error.__cause__.args[0]"
    assert named(context.args[0], locals(), "error").path == "error.__context__.args[0]"
    assert named(error.inputs, locals(), "error").path == "error.inputs"
    error.inputs = {"x": torch.ones(1)}
    assert named(error.inputs["x"], locals(), "error").path == "error.inputs['x']"
    assert named(error.state[0], locals(), "error").path == "error.state[0]"
    assert named(stop.value, locals(), "stop").exact
    assert named(group.exceptions[0].args[0], locals(), "group").path == "group.exceptions[0].args[0]"


def test_the_error_being_handled_and_the_last_one():
    refs = []
    try:
        step(refs)
    except ValueError:
        found = byname.name(refs[0]())
        assert str(found) == "activations[0] (local of step, kept by the traceback of sys.exc_info()[1])"
    assert refs[0]() is None


def test_the_error_that_an_interactive_session_keeps():
    program = """
        import sys, weakref, torch, byname
        refs = []
        def step():
            x = torch.ones(1)
            refs.append(weakref.ref(x))
            raise ValueError
        try:
            step()
        except ValueError as error:
            sys.last_value = error
        name = byname.name(refs[0]())
        assert eval(name.path) is refs[0]()
        assert name.exact
        print(name)
    """
    assert " ".join(run_forked(program)) == "x (local of step, kept by the traceback of sys.last_value)"


def test_an_error_without_attributes_gets_no_dict_by_being_looked_at():
    import gc

    error = ValueError(torch.ones(1))
    byname.name(torch.ones(1))
    assert not any(type(held) is dict for held in gc.get_referents(error))


# Hooks.


def recorder():
    seen = [torch.ones(1)]

    def hook(*_):
        return seen[-1] if False else None

    return hook, weakref.ref(seen[0])


@pytest.mark.parametrize(
    ("register", "registry"),
    [
        ("register_forward_hook", "_forward_hooks"),
        ("register_forward_pre_hook", "_forward_pre_hooks"),
        ("register_full_backward_hook", "_backward_hooks"),
        ("register_full_backward_pre_hook", "_backward_pre_hooks"),
        ("register_state_dict_pre_hook", "_state_dict_pre_hooks"),
        ("register_load_state_dict_post_hook", "_load_state_dict_post_hooks"),
    ],
)
def test_hooks_of_a_module(register, registry):
    model = nn.Sequential(nn.Linear(1, 1))
    hook, ref = recorder()
    handle = getattr(model[0], register)(hook)
    del hook
    found = named(ref(), locals(), "model")
    assert found.path == f"model[0].{registry}[{handle.id}].__closure__[0].cell_contents[0]"
    assert found.exact
    assert str(found).startswith("seen[0] (closure of recorder.<locals>.hook, ")


def test_hooks_of_tensors_and_optimizers():
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for start, register in (
        ("weight._backward_hooks", weight.register_hook),
        ("weight._post_accumulate_grad_hooks", weight.register_post_accumulate_grad_hook),
        ("optimizer._optimizer_step_post_hooks", optimizer.register_step_post_hook),
    ):
        hook, ref = recorder()
        handle = register(hook)
        del hook
        found = named(ref(), locals(), start)
        assert found.path.startswith(f"{start}[{handle.id}].__closure__")
        assert found.exact


def test_hooks_for_every_module():
    hook, ref = recorder()
    handle = nn.modules.module.register_module_forward_hook(hook)
    del hook
    found = named(ref(), locals(), "torch.nn.modules.module._global_forward_hooks")
    assert found.exact
    assert str(found).startswith("seen[0] (closure of recorder.<locals>.hook, ")
    handle.remove()
    del handle
    assert ref() is None


def test_a_variable_is_a_better_name_than_a_hook():
    model = nn.Linear(1, 1)
    seen = {"input": torch.ones(1)}
    model.register_forward_hook(lambda *_: seen and None)
    assert str(byname.name(seen["input"])) == "seen['input']"
    deep = {"a": {"b": {"c": [[[seen["input"]]]]}}}
    del seen["input"]
    model.register_forward_hook(functools.partial(lambda *_: None, deep["a"]["b"]["c"][0][0][0]))
    assert str(byname.name(deep["a"]["b"]["c"][0][0][0])) == "deep['a']['b']['c'][0][0][0]"


# What is written in C.


def test_queues():
    jobs, plain, simple = queue.Queue(), queue.SimpleQueue(), queue.LifoQueue()
    for one in (jobs, plain, simple):
        one.put(("job", torch.ones(1)))
    ref = weakref.ref(jobs.queue[0][1])
    assert named(ref(), locals(), "jobs").path == "jobs.queue[0][1]"
    assert named(simple.queue[0][1], locals(), "simple").exact
    in_simple = torch.ones(1)
    plain.put([in_simple])
    found = named(in_simple, locals(), "held by plain")
    assert (str(found), found.exact) == ("(held by plain)[0]", False)


def test_iterators_views_and_getters():
    one = torch.ones(1)
    table = {"x": one}
    holders = {
        "chained": itertools.chain([one], []),
        "listed": iter([one]),
        "mapped": map(abs, [one]),
        "zipped": zip([one], [one], strict=True),
        "cycle": itertools.cycle([one]),
        "getter": operator.methodcaller("f", one),
        "generated": (held for held in [one]),
    }
    for name in holders:
        assert any(
            f"held by holders['{name}']" in found.path or "gi_frame" in found.path for found in byname.names(one)
        )
    proxy, values = types.MappingProxyType(table), table.values()
    assert named(one, locals(), "held by proxy").path == "(held by proxy)['x']"
    assert named(one, locals(), "held by values").path == "(held by values)['x']"
    assert not named(one, locals(), "held by proxy").exact
    assert byname.name(one).path == "one"


VARIABLE = contextvars.ContextVar("request")
DEFAULT = contextvars.ContextVar("default", default=[torch.ones(1)])


def test_context_variables():
    one = torch.ones(1)
    token = VARIABLE.set({"batch": one})
    context = contextvars.copy_context()
    assert named(one, locals(), "VARIABLE").path == "VARIABLE.get()['batch']"
    assert named(one, locals(), "VARIABLE").exact
    assert "('request' in context)['batch']" in [name.path for name in byname.names(one)]
    VARIABLE.reset(token)
    ref = weakref.ref(DEFAULT.get()[0])
    assert named(ref(), locals(), "DEFAULT").path == "DEFAULT.get()[0]"
    assert context[VARIABLE]["batch"] is one


def test_arrays_that_share_a_tensors_memory():
    array = torch.ones(4).numpy()
    part = array[1:][::2]
    base = weakref.ref(array.base)
    objects = numpy.empty(3, dtype=object)
    objects[2] = torch.ones(1)
    table = numpy.empty((2, 2), dtype=object)
    table[1, 0] = objects[2]
    assert named(base(), locals(), "array").path == "array.base"
    assert named(base(), locals(), "part").path == "part.base.base"
    assert named(base(), locals(), "part").exact
    assert named(objects[2], locals(), "objects").path == "objects[2]"
    assert named(table[1, 0], locals(), "table").path == "table.flat[2]"
    assert named(table[1, 0], locals(), "table").exact


# Threads, tasks, loaders, weak dictionaries.


def test_threads_and_futures():
    thread = threading.Thread(target=print, args=(torch.ones(1),), kwargs={"x": torch.ones(1)})
    assert named(thread._args[0], locals(), "thread").path == "thread._args[0]"
    assert named(thread._kwargs["x"], locals(), "thread").path == "thread._kwargs['x']"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(torch.ones, 1)
        found = named(future.result(), locals(), "future")
    assert found.path == "future._result"
    assert found.exact


async def inner(refs):
    batch = [torch.ones(1)]
    refs.append(weakref.ref(batch[0]))
    await asyncio.sleep(60)


async def outer(refs):
    await inner(refs)


class Odd(asyncio.Task):
    asked = 0

    def get_name(self):
        raise AssertionError("asked for its name")

    def get_coro(self):
        raise AssertionError("asked for its coroutine")

    def done(self):
        Odd.asked += 1
        return super().done()

    def get_loop(self):
        Odd.asked += 1
        return super().get_loop()


async def look_at_odd():
    refs, unready = [], asyncio.Future.__new__(asyncio.Future)
    odd, slow = Odd(outer(refs)), asyncio.tasks._PyTask(outer(refs), name="slow")
    await asyncio.sleep(0)
    before = Odd.asked
    found = [byname.name(ref()) for ref in refs]
    assert Odd.asked == before
    del unready
    odd.cancel()
    slow.cancel()
    return found


def test_tasks_of_other_classes():
    odd, slow = asyncio.run(look_at_odd())
    assert str(odd) == str(slow) == "batch[0] (local of the suspended inner)"
    assert (odd.exact, slow.exact) == (False, True)  # one is written in C


async def look():
    refs = []
    asyncio.create_task(outer(refs), name="loader")  # noqa: RUF006 - held by nothing but the loop, as in the leak
    future = asyncio.get_running_loop().create_future()
    future.set_result(torch.ones(1))
    await asyncio.sleep(0)
    found = byname.name(refs[0]())
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "loader"]
    by_variable = named(refs[0](), locals(), "held by tasks")
    result = named(future._result, locals(), "held by future")
    tasks[0].cancel()
    return found, by_variable, result


def test_tasks_and_their_futures():
    found, by_variable, result = asyncio.run(look())
    assert str(found) == "batch[0] (local of the suspended inner)"
    assert found.path == "(held by task loader).cr_await.cr_frame.f_locals['batch'][0]"
    assert by_variable.path == "(held by tasks[0]).cr_await.cr_frame.f_locals['batch'][0]"
    assert str(by_variable) == str(found)
    assert result.path == "(held by future)"
    assert not any(name.exact for name in (found, by_variable, result))


def test_a_future_whose_error_nobody_read_still_complains():
    async def program():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(ValueError(torch.ones(1)))
        ref = weakref.ref(future._exception.args[0])
        before = future._log_traceback
        found = named(ref(), locals(), "held by future")
        return found.path, before, future._log_traceback, future.exception() is not None

    path, before, after, read = asyncio.run(program())
    assert path == "(held by future).args[0]"
    assert before is after is read is True


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, position):
        time.sleep(1.5 * (position == 0))
        return torch.full((2,), float(position))


def test_a_batch_that_a_loader_holds_back():
    iterator = iter(torch.utils.data.DataLoader(Slow(), batch_size=None, num_workers=2))
    next(iterator)
    waiting = weakref.ref(iterator._task_info[1][1])
    found = named(waiting(), locals(), "iterator")
    assert found.path == "iterator._task_info[1][1]"
    assert found.exact


def test_weak_dictionaries_hold_what_they_hold():
    key, value, weak = Box(1), torch.ones(1), torch.ones(1)
    by_key, by_value = weakref.WeakKeyDictionary({key: value}), weakref.WeakValueDictionary(x=weak)
    found = [name.path for name in byname.names(value)]
    assert "[*by_key.data.values()][0]" in found
    assert [name.path for name in byname.names(weak)] == ["weak"]
    assert by_value["x"] is weak


class Mine(threading.local):
    def __init__(self):
        self.state = {"x": torch.ones(1)}


def test_what_belongs_to_a_thread():
    shared, mine, ready, done = threading.local(), Mine(), threading.Event(), threading.Event()
    shared.state, refs = [torch.ones(1)], []

    def work():
        shared.state = [torch.zeros(1)]
        refs.append(weakref.ref(shared.state[0]))
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    found = [byname.name(tensor) for tensor in (refs[0](), weakref.ref(shared.state[0])(), mine.state["x"])]
    done.set()
    thread.join()
    text = "(shared.state of some thread)[0]"
    assert [str(name) for name in found] == [text, text, "(mine.state of some thread)['x']"]
    assert not any(name.exact for name in found)


def test_what_a_notebook_keeps_is_named_by_its_number():
    first, second = torch.ones(1), torch.ones(2)
    Out = {3: first, 4: second}  # noqa: N806 - the notebook's own name
    module = types.ModuleType("notebook")
    vars(module).update({"_": second, "__": first, "_3": first, "_oh": Out, "Out": Out, "x": second})
    found = [name.path for name in byname.names(first, roots=module)]
    assert found[0] == "Out[3]"
    assert set(found) == {"Out[3]", "_oh[3]", "_3", "__"}
    assert byname.name(second, roots=module).path == "x"
    assert byname.names(second, roots=module)[-1].path == "_"


def test_the_namespace_of_a_module_is_no_second_holder_of_its_variables(monkeypatch):
    module = types.ModuleType("notebook")
    vars(module).update({"x": torch.ones(1), "shell": types.SimpleNamespace(user_ns=vars(module))})
    monkeypatch.setitem(sys.modules, "notebook", module)
    assert [name.path for name in byname.names(module.x, roots=module)] == ["x"]
    assert byname.name(module.x, roots={"variables": vars(module)}).path.endswith("['variables']['x']")


def test_a_list_of_dicts_is_searched_beside_tags():
    tagged = byname.tag(torch.ones(1), "noise")
    assert byname.name(torch.ones(1), roots=[{"k": tagged}]).how == "unnamed"
    (name,) = byname.names((held := {"k": torch.ones(2)})["k"], roots=[held])
    assert name.path == "held['k']"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_parameter_of_a_scripted_module_has_the_name_of_its_attribute():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
            self.register_buffer("shift", torch.zeros(1))

        def forward(self, x):
            return self.fc(x) * self.scale + self.shift

    scripted = torch.jit.script(Scaled())
    held = {"model": scripted}
    for path, tensor in [*scripted.named_parameters(), *scripted.named_buffers()]:
        name = byname.name(tensor, roots=held)
        assert (name.path, name.how) == (f"held['model'].{path}", "buffer" if path == "shift" else "parameter")


# Nothing of the program is run.


class Bomb:
    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")

    def __eq__(self, other):
        raise AssertionError("compared")

    def __hash__(self):
        return 1

    def __bool__(self):
        raise AssertionError("asked for its truth")

    def __repr__(self):
        raise AssertionError("printed")

    def __len__(self):
        raise AssertionError("counted")

    def __iter__(self):
        raise AssertionError("iterated")


class Touchy(Exception):
    def __getattribute__(self, name):
        raise AssertionError(f"{name} was asked for")


class Array(numpy.ndarray):
    @property
    def base(self):
        raise AssertionError("a property was run")

    def __array_finalize__(self, other):
        assert type(other) is not Array

    def __getitem__(self, key):
        raise AssertionError("an item was asked for")


def test_holders_that_object_to_being_looked_at():
    one, bomb = torch.ones(1), Bomb()
    cached = functools.cache(lambda argument: [bomb, argument])
    cached(bomb)
    error, plain = Touchy(bomb, one), queue.SimpleQueue()
    plain.put(bomb)
    array = torch.ones(2).numpy().view(Array)
    objects = numpy.empty(2, dtype=object).view(Array)
    numpy.ndarray.__setitem__(objects, 0, bomb)
    variable = contextvars.ContextVar("bomb")
    variable.set(bomb)
    model = nn.Linear(1, 1)
    model._forward_hooks[3] = bomb
    base = weakref.ref(numpy.ndarray.base.__get__(numpy.ndarray.base.__get__(array)))
    assert byname.name(one).path == "one"
    names = byname.names(base())
    assert any("array" in name.path and not name.exact for name in names)
    assert len({id(held) for held in (error, plain, objects, variable)}) == 4


def test_looking_through_errors_and_queues_keeps_nothing_alive(no_collection):
    refs = []
    error = fail(refs)
    plain = queue.SimpleQueue()
    plain.put(torch.ones(1))
    byname.name(torch.ones(1))
    byname.name(refs[0]())
    kept = weakref.ref(plain.get())
    assert kept() is None
    error.__traceback__ = None
    assert refs[0]() is None
