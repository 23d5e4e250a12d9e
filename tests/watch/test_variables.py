"""Every way in which a variable comes by a value is told, at the moment it does, and the value can be replaced."""

import asyncio
import gc
import threading
import traceback
import weakref
from types import CodeType

import pytest
import torch
from listening import Told, listen, made, plain, told_by
from torch import nn

import byname
from byname.model.methods import method_of
from byname.model.scopes import variables_of
from byname.source.code import source_of

FORMS = {
    "plain": ("h = x + 1", ["h"], [("h", 3)]),
    "twice": ("h = x\nh = h * 5", ["h"], [("h", 2), ("h", 10)]),
    "chained": ("a = b = x + 1", ["a", "b"], [("a", 3), ("b", 3)]),
    "tuple": ("a, (b, *c) = x, (1, 2, 3)", ["a", "b", "c"], [("a", 2), ("b", 1), ("c", [2, 3])]),
    "list": ("[a, b] = x, 7", ["a", "b"], [("a", 2), ("b", 7)]),
    "swap": ("a, b = 1, 2\na, b = b, a", ["a"], [("a", 1), ("a", 2)]),
    "augmented": ("h = 1\nh += x", ["h"], [("h", 1), ("h", 3)]),
    "annotated": ("h: int = x\nk: int", ["h"], [("h", 2)]),
    "walrus": ("if (h := x) > 1: pass", ["h"], [("h", 2)]),
    "walrus in while": ("i = 3\nwhile (h := i) > 1: i -= 1", ["h"], [("h", 3), ("h", 2), ("h", 1)]),
    "walrus in comprehension": (
        "l = [(h := i) for i in range(3)]",
        ["h", "l"],
        [("h", 0), ("h", 1), ("h", 2), ("l", [0, 1, 2])],
    ),
    "walrus in walrus": ("y = (a := (b := x) + 1)", ["a", "b", "y"], [("b", 2), ("a", 3), ("y", 3)]),
    "walrus in lambda": ("g = lambda: (h := 5)\ng()\nh = 1", ["h"], [("h", 1)]),
    "walrus in default": ("def g(a=(h := 3)): return a", ["h"], [("h", 3)]),
    "for": ("for h in range(3): pass", ["h"], [("h", 0), ("h", 1), ("h", 2)]),
    "for pairs": ("for i, (a, b) in enumerate([(1, 2)]): pass", ["i", "a", "b"], [("i", 0), ("a", 1), ("b", 2)]),
    "for else": ("for i in []: pass\nelse: h = 3", ["h", "i"], [("h", 3)]),
    "one line": ("if x: h = 1; k = 2", ["h", "k"], [("h", 1), ("k", 2)]),
    "else": ("if not x: h = 1\nelif x > 5: h = 2\nelse: h = 3", ["h"], [("h", 3)]),
    "except": (
        "try: 1 / 0\nexcept ZeroDivisionError as e: h = str(e)",
        ["h", "e"],
        [("e", "ZeroDivisionError"), ("h", "division by zero")],
    ),
    "finally": ("try: h = 1\nfinally: h = 3", ["h"], [("h", 1), ("h", 3)]),
    "import": (
        "import os.path\nimport os as o\nfrom math import pi as p",
        ["os", "o", "p"],
        [("os", "module"), ("o", "module"), ("p", 3.141592653589793)],
    ),
    "match": ("match [x, 5, 6]:\n  case [a, *b]: pass", ["a", "b"], [("a", 2), ("b", [5, 6])]),
    "match as": ("match x:\n  case int() as a: pass", ["a"], [("a", 2)]),
    "match mapping": ("match {'k': x, 'l': 1}:\n  case {'k': a, **r}: pass", ["a", "r"], [("a", 2), ("r", {"l": 1})]),
    "match guard": (
        "match x:\n  case a if a > 5: h = 1\n  case a if a > 1: h = 2",
        ["a", "h"],
        [("a", 2), ("a", 2), ("h", 2)],
    ),
    "walrus in guard": ("match [x]:\n  case [a] if (h := a + 1) > 1: pass", ["a", "h"], [("a", 2), ("h", 3)]),
    "del": ("h = 1\ndel h\nh = 2", ["h"], [("h", 1), ("h", 2)]),
    "def": ("def h(): pass", ["h"], [("h", "function")]),
    "class": ("class H: k = 3\nk = H.k", ["H", "k"], [("H", "type"), ("k", 3)]),
    "nested": ("def g(u, v=1):\n  w = u + v\n  return w\ny = g(x)", ["g.w", "y"], [("g.w", 3), ("y", 3)]),
    "nonlocal": ("h = 1\ndef g():\n  nonlocal h\n  h = 5\ng()", ["h"], [("h", 1), ("h", 5)]),
    "nonlocal far": (
        "h = 1\ndef g():\n  def k():\n    nonlocal h\n    h += 5\n  k()\ng()",
        ["h"],
        [("h", 1), ("h", 6)],
    ),
    "comprehension's own": ("h = 1\nl = [h for h in range(3)]", ["h"], [("h", 1)]),
    "method of a nested class": (
        "class C:\n  def m(self):\n    u = 3\n    return u\ny = C().m()",
        ["C.m.u", "y"],
        [("C.m.u", 3), ("y", 3)],
    ),
    "with": ("with torch.no_grad() as a, torch.no_grad(): h = 1", ["a", "h"], [("a", None), ("h", 1)]),
    "semicolon": ("a = 1; b = a + 1; c = b", ["a", "b", "c"], [("a", 1), ("b", 2), ("c", 2)]),
    "global declared": ("global gg\ngg = 1\nh = gg", ["h"], [("h", 1)]),
}


def function_of(body, signature="x"):
    lines = "\n".join("    " + line for line in body.splitlines())
    return made(f"def f({signature}):\n{lines}\n")


@pytest.mark.parametrize("form", FORMS)
def test_each_assignment_is_told_with_its_value(form):
    body, wanted, expected = FORMS[form]
    told, _ = told_by(function_of(body), 2, only=wanted)
    assert told.of("assigned") == expected


REPLACEABLE = {
    "plain": "h = 1",
    "chained": "a = h = 1",
    "tuple": "a, h = 2, 1",
    "augmented": "h = 0\nh += 1",
    "annotated": "h: int = 1",
    "walrus": "y = (h := 1)\nif y != 100: return 'walrus itself'",
    "walrus in comprehension": "l = [(h := i) for i in range(1, 2)]\nif l != [100]: return l",
    "for": "for h in [1]: pass",
    "with": "import contextlib\nwith contextlib.nullcontext(1) as h, contextlib.nullcontext(h) as k:\n  if k != 100: return k",
    "match": "match [1]:\n  case [h]: pass",
    "match guard": "match 1:\n  case h if h == 100: pass\n  case _: return 'guard'",
    "nonlocal": "h = 0\ndef g():\n  nonlocal h\n  h = 1\ng()",
    "import": "import math as h",
    "def": "def h(): pass",
    "class": "class h: pass",
    "stored": "h = [0]\nh[0] = 1",
}


@pytest.mark.parametrize("form", REPLACEABLE)
def test_what_the_receiver_returns_takes_the_place_of_the_value(form):
    f = function_of(REPLACEABLE[form] + "\nreturn h")
    ready = (
        (lambda value, moment: moment == "stored")
        if form == "stored"
        else (lambda value, moment: value not in ([0], 0))
    )
    told, result = told_by(f, 2, only=["h"], change=lambda name, value, moment: 100 if ready(value, moment) else value)
    assert result == 100


def test_arguments_are_told_as_they_came_and_can_be_replaced():
    f = made("def f(a, /, b, *args, k=3, **kw):\n    return a, b, args, k, kw\n")
    told, result = told_by(f, 1, 2, 3, 4, z=5, change=lambda name, value, moment: 0 if name == "k" else value)
    assert told.of("entry") == [("a", 1), ("b", 2), ("args", (3, 4)), ("k", 3), ("kw", {"z": 5})]
    assert result == (1, 2, (3, 4), 0, {"z": 5})


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return x", 2),
        ("return", None),
        ("x = 1", None),
        ("if x: return 5\nelse: return 6", 5),
        ("try:\n  return 1\nfinally:\n  x = 2", 1),
    ],
)
def test_each_return_is_told_also_the_unwritten_one(body, value):
    told, result = told_by(function_of(body), 2, only=["return"])
    assert told.of("returned") == [("return", value)]
    assert result == value


def test_the_returned_value_can_be_replaced():
    f = made("def f(x):\n    def g(u): return u\n    return g(x) + 1\n")
    _, result = told_by(f, 2, only=["return", "g.return"], change=lambda name, value, moment: value * 10)
    assert result == 210


def test_items_and_attributes_stored_into_a_variable_are_told():
    f = made(
        """
        def f(self, x):
            cache = {}
            cache['k'] = x
            cache['l'] = [1, 2]
            cache['l'][0] += 5
            self.h, cache['m'] = 1, 2
            del cache['k']
            def g():
                cache['n'] = 3
            g()
            other.k = 1
        """,
        other=nn.Identity(),
    )
    told, _ = told_by(f, nn.Identity(), 7, only=["cache", "self"])
    assert told.of("stored") == [
        ("cache", {"k": 7}),
        ("cache", {"k": 7, "l": [1, 2]}),
        ("cache", {"k": 7, "l": [6, 2]}),
        ("self", "Identity"),
        ("cache", {"k": 7, "l": [6, 2], "m": 2}),
        ("cache", {"l": [6, 2], "m": 2}),
        ("cache", {"l": [6, 2], "m": 2, "n": 3}),
    ]


def test_changes_in_place_are_told_after_the_statement_that_made_them():
    f = made("""
        def f(x):
            h = x + 1
            h.add_(1)
            h = h * 1
            v = h.view(-1)
            v[0] = 9
            if h.mul_(2) is h: k = 1
            h += 1
            torch.relu_(v)
            return h.neg_()
        """)
    told, result = told_by(f, torch.zeros(1), only=["h", "k"])
    assert told.of("assigned", "changed", "returned") == [
        ("h", [1.0]),
        ("h", [2.0]),
        ("h", [2.0]),
        ("h", [9.0]),
        ("h", [18.0]),
        ("k", 1),
        ("h", [19.0]),
        ("h", [19.0]),
        ("h", [-19.0]),
    ]
    assert [moment for moment, name, value in told.events if moment == "changed"] == ["changed"] * 5


def test_a_change_can_be_replaced_also_the_one_that_is_returned():
    f = made("def f(x):\n    h = x + 1\n    h.add_(1)\n    y = h * 1\n    return y, h\n")
    g = made("def f(x):\n    h = x + 1\n    return h.add_(1)\n")
    change = lambda name, value, moment: value * 10 if moment == "changed" else value
    assert plain(told_by(f, torch.zeros(1), only=["h"], change=change)[1]) == ([20.0], [20.0])
    assert plain(told_by(g, torch.zeros(1), only=["h"], change=change)[1]) == [20.0]


def test_an_inference_tensor_has_no_changes_to_tell():
    f = made("def f(x):\n    h = x + 1\n    h.add_(1)\n    return h\n")
    with torch.inference_mode():
        told, _ = told_by(f, torch.zeros(1), only=["h"])
    assert [moment for moment, *_ in told.events] == ["assigned", "exit"]


def test_the_last_values_are_told_before_leaving_and_unbound_ones_are_not():
    f = made("""
        def f(x):
            if x > 5: a = 1
            b = [1]
            c = 3
            del c
            try: 1 / 0
            except ZeroDivisionError as e: pass
            b.append(2)
            return b
        """)
    told, _ = told_by(f, 2, only=["a", "b", "c", "e", "x"])
    assert told.of("exit") == [("x", 2), ("b", [1, 2])]


class Base(nn.Module):
    def forward(self, x):
        h = x + 1
        return h


class Derived(Base):
    def forward(self, x):
        u = super().forward(x)
        self.__kept = u
        __private = self.__kept * 2
        return __private + (__class__ is Derived)


def test_super_and_private_names_work_in_rewritten_code():
    module = Derived()
    plain_result = module(torch.zeros(1))
    told, _ = told_by(Derived.forward, module, torch.zeros(1), only=["u", "__private", "self"])
    with listen(Derived.forward, module, ["u"], Told()):
        assert torch.equal(module(torch.zeros(1)), plain_result)
    assert told.of("assigned", "stored") == [("u", [1.0]), ("self", "Derived"), ("__private", [2.0])]


def test_only_the_instance_listened_to_is_told_of():
    one, other = Base(), Base()
    told = Told()
    with listen(Base.forward, one, ["h"], told):
        other(torch.zeros(1))
        assert told.events == []
        one(torch.zeros(1))
        Derived()(torch.zeros(1))
    assert told.of("assigned") == [("h", [1.0])]


def test_the_first_argument_may_have_any_name_and_be_rebound_or_deleted():
    f = made("def f(me, x):\n    me = 3\n    h = x\n    del me\n    return h\n")
    g = made("def f(*args):\n    h = args[1]\n    return h\n")
    assert told_by(f, nn.Identity(), 5, only=["h"])[0].of("assigned") == [("h", 5)]
    assert told_by(g, nn.Identity(), 5, only=["h"])[0].of("assigned") == [("h", 5)]


def test_each_run_of_a_recursive_function_has_its_own_activation():
    f = made("def f(self, n):\n    h = n\n    return 0 if n == 0 else f(self, n - 1) + h\n")
    runs = []

    def receive(activation, name, value, moment):
        activation.memory.setdefault("seen", []).append((moment, value))
        runs.append(activation)
        return value

    owner = nn.Identity()
    with listen(f, owner, ["h"], receive):
        assert f(owner, 2) == 3
    seen = {id(run): run.memory["seen"] for run in runs}
    assert sorted(seen.values()) == [[("assigned", n), ("exit", n)] for n in range(3)]


def test_closures_defaults_annotations_and_signature_stay():
    f = made("""
        def make():
            k = 10
            def inner(self, x: int = 3, *, z: str = "q") -> int:
                "What it does."
                h = x + k
                return h
            return inner
        f = make()
        """)
    facts = (f.__defaults__, f.__kwdefaults__, f.__annotations__, f.__doc__, f.__qualname__, f.__closure__)
    owner = nn.Identity()
    with listen(f, owner, ["h"], lambda activation, name, value, moment: value + 1):
        assert f(owner) == 14
        assert facts == (f.__defaults__, f.__kwdefaults__, f.__annotations__, f.__doc__, f.__qualname__, f.__closure__)
        assert f.__code__.co_qualname == "make.<locals>.inner"
    assert f(owner) == 13


def test_future_flags_of_the_file_hold_in_the_rewritten_code():
    f = made("""
        from __future__ import annotations
        def f(x):
            def g(u: NotThere) -> AlsoNot: return u
            h = g(x)
            return g.__annotations__
        """)
    assert told_by(f, 2, only=["h", "g.u"])[1] == {"u": "NotThere", "return": "AlsoNot"}


def test_generators_coroutines_and_async_generators_tell():
    f = made("""
        def f(x):
            for i in range(x):
                h = i * 2
                got = yield h
            return 'end'
        """)
    told = Told()
    with listen(f, 2, ["h", "got", "return"], told):
        one, other = f(2), f(3)
        assert next(one) == 0 and one.send("a") == 2
        assert list(other) == [0, 2, 4] and len(told.events) == 3
        assert list(one) == []
    assert told.events == [
        ("assigned", "h", 0),
        ("assigned", "got", "a"),
        ("assigned", "h", 2),
        ("assigned", "got", None),
        ("exit", "h", 2),
        ("exit", "got", None),
        ("returned", "return", "end"),
    ]
    g = made(
        """
        import asyncio
        async def numbers(x):
            for i in range(x):
                await asyncio.sleep(0)
                yield i
            if x: return
        async def f(x):
            total = 0
            async for n in numbers(x): total += n
            return total
        """,
        "f",
    )
    numbers = g.__globals__["numbers"]
    told = Told()
    with listen(g, 3, ["n", "total", "return"], told), listen(numbers, 3, ["i", "return"], told):
        assert asyncio.run(g(3)) == 3
    assert told.of("assigned") == [
        ("total", 0),
        ("i", 0),
        ("n", 0),
        ("total", 0),
        ("i", 1),
        ("n", 1),
        ("total", 1),
        ("i", 2),
        ("n", 2),
        ("total", 3),
    ]
    assert told.of("returned") == [("return", None), ("return", 3)]


def test_a_generator_made_while_listening_runs_on_after_removal():
    f = made("def f(x):\n    h = x\n    yield h\n    h = 3\n    yield h\n")
    told = Told()
    listening = listen(f, 2, ["h"], told)
    begun, waiting = f(2), f(2)
    next(begun)
    listening.remove()
    assert list(begun) == [3] and list(waiting) == [2, 3]
    assert told.events == [("assigned", "h", 2)]


def test_several_listen_in_the_order_in_which_they_came_and_leave_in_any():
    owner = Base()
    original = Base.forward.__code__
    first = listen(Base.forward, owner, ["h"], lambda activation, name, value, moment: value * 2)
    second = listen(Base.forward, owner, ["h", "x"], lambda activation, name, value, moment: value + 1)
    assert owner(torch.zeros(1)).item() == 5.0
    first.remove()
    assert owner(torch.zeros(1)).item() == 3.0
    assert Base.forward.__code__ is not original
    second.remove()
    second.remove()
    assert Base.forward.__code__ is original
    assert owner(torch.zeros(1)).item() == 1.0


def test_code_that_somebody_else_put_in_stays_and_is_said():
    f = made("def f(x):\n    h = x\n    return h\n")
    g = made("def f(x):\n    return 'theirs'\n")
    listening = listen(f, 2, ["h"], Told())
    f.__code__ = g.__code__
    listening.remove()
    assert f(2) == "theirs"
    assert "other code replaced" in listening.notes[0]


def test_an_exception_of_the_receiver_reaches_the_caller_and_the_function_stays_usable():
    def receive(activation, name, value, moment):
        raise KeyError("mine")

    owner = Base()
    with listen(Base.forward, owner, ["h"], receive):
        with pytest.raises(KeyError, match="mine"):
            owner(torch.zeros(1))
    assert owner(torch.zeros(1)).item() == 1.0


def lines_of(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [(one.filename, one.lineno, one.line, one.name, one.colno, one.end_colno) for one in frames][1:]


@pytest.mark.parametrize("value", ["first", "second", "nested", "loop", "with", "return", "guard"])
def test_tracebacks_show_the_users_own_lines(value):
    f = made("""
        def deco(g): return g
        @deco
        @deco
        def f(x):
            a = 1; b = {}; c = [1,
                    2, 3 if x != "first" else b["k"]]
            d = (b["k"]
                 if x == "second" else 2)
            def inner(u):
                k = u

                return b[k] if x == "nested" else 0
            y = inner(3)
            for i in range(3):
                z = b[i] if x == "loop" and i == 2 else 0
            with torch.no_grad() as n, (torch.no_grad() if x != "with" else b["n"]) as m:
                w = 1
            match [x]:
                case [q] if q != "guard" or b["g"]: pass
            return b["r"] if (v := x) == "return" else 0
        """)
    with pytest.raises(KeyError) as bare:
        f(value)
    with pytest.raises(KeyError) as watched, listen(f, value, [*variables_of(f), "return", "inner.return"], Told()):
        f(value)
    assert lines_of(watched.value) == lines_of(bare.value)


def test_locals_do_not_show_what_was_added():
    f = made(
        "def f(x):\n    h = 1\n    def g(): h; return sorted(locals())\n    return sorted(locals()), sorted(vars()), dir(), g()\n"
    )
    bare = f(2)
    assert told_by(f, 2)[1] == bare


def test_no_tensor_is_kept_alive():
    f = made("def f(x, see):\n    h = x + 1\n    see(h)\n    h = None\n    return see()\n")
    refs = []

    def see(tensor=None):
        refs.extend([] if tensor is None else [weakref.ref(tensor)])
        return refs[0]() is None

    _, gone = told_by(f, torch.zeros(1), see, only=["h"])
    assert gone


def test_the_owner_may_die_while_listened_to():
    f = made("def f(self):\n    h = 1\n    return h\n")
    original = f.__code__
    owner = nn.Identity()
    listening = listen(f, owner, ["h"], Told())
    del owner
    gc.collect()
    assert f.__code__ is original
    assert not listening.active


def test_threads_may_run_the_function_while_listening_comes_and_goes():
    f = made("def f(self, n):\n    h = n\n    for i in range(3):\n        h = h + i\n    return h\n")
    owner, stop, failures = nn.Identity(), threading.Event(), []

    def work():
        while not stop.is_set():
            if f(owner, 1) != 4:
                failures.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with listen(f, owner, ["h"], Told()), listen(f, owner, ["i"], Told()):
            f(owner, 1)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_variables_come_in_the_order_of_the_source():
    f = made(
        "def f(a, *args, k, **kw):\n    b = [c for c in a]\n    def g(u):\n        v = u\n    for d in a: e = 1\n    global z\n    z = 1\n"
    )
    assert variables_of(f) == ("a", "args", "k", "kw", "b", "g", "d", "e", "g.u", "g.v")


def test_an_unknown_variable_is_refused_with_the_closest():
    with pytest.raises(byname.BynameError, match=r"no local variable 'hh'; it has h"):
        listen(Base.forward, Base(), ["hh"], Told())
    assert Base.forward.__code__.co_consts[-1] != "hh"


def test_methods_are_found_behind_decorators_properties_and_instances():
    @torch.no_grad()
    def noisy(self, x):
        h = x
        return h

    class Many(nn.Module):
        forward = torch.no_grad()(Base.forward)
        other = property(lambda self: 3)
        noisy_too = noisy
        partly = __import__("functools").partialmethod(Base.forward, 3)

        @staticmethod
        def static(x):
            return x

    module = Many()
    assert method_of(module, "forward") is Base.forward
    assert method_of(module, "other") is Many.__dict__["other"].fget
    assert method_of(module, "partly") is Base.forward
    assert method_of(module, "noisy_too").__code__.co_name == "noisy"
    assert method_of(module, "missing") is None
    module.forward = Base.forward.__get__(module)
    assert method_of(module, "forward") is Base.forward
    with pytest.raises(byname.BynameError, match="static"):
        method_of(module, "static")
    module.forward = len
    with pytest.raises(byname.BynameError, match="no Python code"):
        method_of(module, "forward")


def test_scripted_modules_are_refused_and_cached_properties_are_found():
    class Lazy(nn.Module):
        @__import__("functools").cached_property
        def table(self):
            h = 3
            return h

    assert method_of(Lazy(), "table").__code__.co_name == "table"
    scripted = torch.jit.script(nn.ReLU())
    with pytest.raises(byname.BynameError, match="torch.jit"):
        method_of(scripted, "forward")


def test_places_and_names_are_found_in_rewritten_code_too():
    f = made("""
        def f(x, see):
            h = x + 1
            def g():
                u = h * 2
                return see(u)
            return g()
        """)
    seen = []
    see = lambda tensor: seen.append([one.path for one in byname.names(tensor)])
    with listen(f, 3, ["h", "g.u", "return", "g.return"], Told()):
        f(3, lambda value: see(torch.zeros(1)))
        inner = [one for one in f.__code__.co_consts if isinstance(one, CodeType)]
        assert source_of(f.__code__) is not None
        assert [source_of(one) is not None for one in inner] == [True]
    assert not any("_byname" in name for name in seen[0])


def test_a_function_put_on_an_instance_is_told_of_though_it_does_not_get_the_instance():
    module, told = nn.Identity(), Told()
    module.forward = made("def f(x):\n    h = x + 1\n    return h\n")
    with listen(method_of(module, "forward"), module, ["h"], told):
        assert module(1) == 2
    assert told.of("assigned") == [("h", 2)]
