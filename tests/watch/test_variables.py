"""Every way in which a variable comes by a value is told, at the moment it does, and the value can be replaced."""

import asyncio
import functools
import gc
import threading
import traceback
import weakref

import pytest
import torch
from listening import Told, made, method, plain, told_by
from torch import nn

import byname
from byname import attach

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


def function_of(body, signature="self, x"):
    lines = "\n".join("    " + line for line in body.splitlines())
    return made(f"def f({signature}):\n{lines}\n")


@pytest.mark.filterwarnings("ignore:byname. nothing was seen at `f.i`")  # a loop over nothing
@pytest.mark.parametrize("form", FORMS)
def test_each_assignment_is_told_with_its_value(form):
    body, wanted, expected = FORMS[form]
    told, _ = told_by(function_of(body), 2, only=wanted)
    assert told == expected


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
def test_what_the_callback_returns_takes_the_place_of_the_value(form):
    f = function_of(REPLACEABLE[form] + "\nreturn h")
    told, result = told_by(f, 2, only=["h"], change=lambda name, value: value if value in ([0], 0) else 100)
    assert result == 100


def test_arguments_are_told_as_they_came_and_can_be_replaced():
    f = made("def f(self, a, /, b, *args, k=3, **kw):\n    return a, b, args, k, kw\n")
    change = lambda name, value: 0 if name == "k" else value
    told, result = told_by(f, 1, 2, 3, 4, z=5, only=["a", "b", "args", "k", "kw"], change=change)
    assert told == [("a", 1), ("b", 2), ("args", (3, 4)), ("k", 3), ("kw", {"z": 5})]
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
    assert told_by(function_of(body), 2, only=["f"]) == ([("f", value)], value)


def test_the_returned_value_can_be_replaced():
    f = made("def f(self, x):\n    def g(u): return u\n    return g(x) + 1\n")
    assert told_by(f, 2, only=["f"], change=lambda name, value: value * 10)[1] == 30


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
    told, _ = told_by(f, 7, only=["cache", "self"])
    assert told == [
        ("self", "Made"),
        ("cache", {}),
        ("cache", {"k": 7}),
        ("cache", {"k": 7, "l": [1, 2]}),
        ("cache", {"k": 7, "l": [6, 2]}),
        ("self", "Made"),
        ("cache", {"k": 7, "l": [6, 2], "m": 2}),
        ("cache", {"l": [6, 2], "m": 2}),
        ("cache", {"l": [6, 2], "m": 2, "n": 3}),
    ]


def test_changes_in_place_are_told_after_the_statement_that_made_them():
    f = made("""
        def f(self, x):
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
    told, _ = told_by(f, torch.zeros(1), only=["h", "k"])
    values = [1, 2, 2, 9, 18, "k", 19, 19, -19]
    assert told == [("k", 1) if value == "k" else ("h", [value]) for value in values]


def test_a_change_can_be_replaced_also_the_one_that_is_returned():
    f = made("def f(self, x):\n    h = x + 1\n    h.add_(1)\n    y = h * 1\n    return y, h\n")
    g = made("def f(self, x):\n    h = x + 1\n    return h.add_(1)\n")
    change = lambda name, value: value * 10 if value == 2 else value
    assert plain(told_by(f, torch.zeros(1), only=["h"], change=change)[1]) == ([20.0], [20.0])
    assert plain(told_by(g, torch.zeros(1), only=["h"], change=change)[1]) == [20.0]


def test_an_inference_tensor_has_no_changes_to_tell():
    f = made("def f(self, x):\n    h = x + 1\n    h.add_(1)\n    return h\n")
    with torch.inference_mode():
        assert told_by(f, torch.zeros(1), only=["h"]) == ([("h", [1.0])], torch.full((1,), 2.0))


def test_the_last_values_are_told_before_leaving_and_unbound_ones_are_not():
    f = made("""
        def f(self, x):
            if x > 5: a = 1
            b = [1]
            c = 3
            del c
            try: 1 / 0
            except ZeroDivisionError as e: pass
            b.append(2)
            return b
        """)
    told = told_by(f, 2, only=["{a,b,c,e,x}@-1"])[0]
    assert told == [("x@-1", 2), ("b@-1", [1, 2])]


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
    module, told = Derived(), Told()
    plain_result = module(torch.zeros(1))
    with attach(module, ["forward.u", "forward.__private", "forward.self"], told):
        assert torch.equal(module(torch.zeros(1)), plain_result)
    names = [name.removeprefix("forward.") for name, _ in told]
    assert [*zip(names, [value for _, value in told])] == [
        ("self", "Derived"), ("u", [1.0]), ("self", "Derived"), ("__private", [2.0]),
    ]  # fmt: skip


def test_only_the_instance_listened_to_is_told_of():
    one, other, told = Base(), Base(), Told()
    with attach(one, "forward.h", told):
        other(torch.zeros(1))
        assert told == []
        one(torch.zeros(1))
        Derived()(torch.zeros(1))
    assert told == [("forward.h", [1.0])]


def test_the_first_argument_may_have_any_name_and_be_rebound_or_deleted():
    f = made("def f(me, x):\n    me = 3\n    h = x\n    del me\n    return h\n")
    g = made("def f(*args):\n    h = args[1]\n    return h\n")
    assert told_by(f, 5, only=["h"]) == ([("h", 5)], 5)
    assert told_by(g, 5, only=["h"]) == ([("h", 5)], 5)


def test_each_run_of_a_recursive_function_counts_its_own_assignments():
    f = made("def f(self, n):\n    h = n\n    return 0 if n == 0 else self.f(n - 1) + h\n")
    assert told_by(f, 2, only=["h@0"]) == ([("h@0", 2), ("h@0", 1), ("h@0", 0)], 3)


def test_closures_defaults_annotations_and_signature_stay():
    f = made("""
        def make():
            k = 10
            def f(self, x: int = 3, *, z: str = "q") -> int:
                "What it does."
                h = x + k
                return h
            return f
        f = make()
        """)
    facts = (f.__defaults__, f.__kwdefaults__, f.__annotations__, f.__doc__, f.__qualname__, f.__closure__)
    module = method(f)
    with attach(module, "f.h", lambda event: event.value + 1):
        assert module.f() == 14
        assert facts == (f.__defaults__, f.__kwdefaults__, f.__annotations__, f.__doc__, f.__qualname__, f.__closure__)
        assert f.__code__.co_qualname == "make.<locals>.f"
    assert module.f() == 13


def test_future_flags_of_the_file_hold_in_the_rewritten_code():
    f = made("""
        from __future__ import annotations
        def f(self, x):
            def g(u: NotThere) -> AlsoNot: return u
            h = g(x)
            return g.__annotations__
        """)
    assert told_by(f, 2, only=["h", "g.u"])[1] == {"u": "NotThere", "return": "AlsoNot"}


def test_generators_coroutines_and_async_generators_tell():
    f = made("""
        def f(self, x):
            for i in range(x):
                h = i * 2
                got = yield h
            return 'end'
        """)
    module, told = method(f), Told()
    with attach(module, ["f.h", "f.got", "f"], told):
        one, other = module.f(2), method(f).f(3)
        assert next(one) == 0 and one.send("a") == 2
        assert list(other) == [0, 2, 4] and len(told) == 3
        assert list(one) == []
    assert told == [("h", 0), ("got", "a"), ("h", 2), ("got", None), ("f", "end")]
    Counting = made(
        """
        import asyncio
        class Counting(nn.Module):
            async def numbers(self, x):
                for i in range(x):
                    await asyncio.sleep(0)
                    yield i
                if x: return
            async def f(self, x):
                total = 0
                async for n in self.numbers(x): total += n
                return total
        """,
        "Counting",
    )
    module, told = Counting(), Told()
    with attach(module, ["f.n", "f.total", "f", "numbers.i", "numbers"], told):
        assert asyncio.run(module.f(3)) == 3
    rounds = [[("numbers.i", i), ("n", i), ("total", total)] for i, total in enumerate((0, 1, 3))]
    assert told == [("total", 0), *(one for each in rounds for one in each), ("numbers", None), ("f", 3)]


def test_a_generator_made_while_listening_runs_on_after_removal():
    module, told = method(made("def f(self, x):\n    h = x\n    yield h\n    h = 3\n    yield h\n")), Told()
    handle = attach(module, "f.h", told)
    begun, waiting = module.f(2), module.f(2)
    next(begun)
    handle.remove()
    assert list(begun) == [3] and list(waiting) == [2, 3]
    assert told == [("h", 2)]


def test_several_listen_in_the_order_in_which_they_came_and_leave_in_any():
    owner = Base()
    original = Base.forward.__code__
    first = attach(owner, "forward.h", lambda event: event.value * 2)
    second = attach(owner, "forward.{h,x}", lambda event: event.value + 1)
    assert owner(torch.zeros(1)).item() == 5.0
    first.remove()
    assert owner(torch.zeros(1)).item() == 3.0
    assert Base.forward.__code__ is not original
    second.remove()
    second.remove()
    assert Base.forward.__code__ is original
    assert owner(torch.zeros(1)).item() == 1.0


def test_code_that_somebody_else_put_in_stays_and_is_said():
    f = made("def f(self, x):\n    h = x\n    return h\n")
    g = made("def f(self, x):\n    return 'theirs'\n")
    module = method(f)
    handle = attach(module, "f.h", Told())
    f.__code__ = g.__code__
    handle.remove()
    assert module.f(2) == "theirs"
    assert "other code replaced the code of f; its variables are no longer reported" in handle.notes[0]


def test_an_exception_of_the_callback_reaches_the_caller_and_the_function_stays_usable():
    def receive(event):
        raise KeyError("mine")

    owner = Base()
    with attach(owner, "forward.h", receive), pytest.raises(KeyError, match="mine"):
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
        def f(self, x):
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
    module = method(f)
    with pytest.raises(KeyError) as bare:
        module.f(value)
    with pytest.raises(KeyError) as watched, attach(module, ["f.**", "f"], Told()) as handle:
        module.f(value)
    assert len(handle.paths) == 17
    assert lines_of(watched.value) == lines_of(bare.value)


def test_locals_do_not_show_what_was_added():
    f = made("""
        def f(self, x):
            h = 1
            def g(): h; return sorted(locals())
            return sorted(locals()), sorted(vars()), dir(), g()
        """)
    bare = method(f).f(2)
    assert told_by(f, 2, only=["**"])[1] == bare


def test_no_tensor_is_kept_alive():
    f = made("def f(self, x, see):\n    h = x + 1\n    see(h)\n    h = None\n    return see()\n")
    refs = []

    def see(tensor=None):
        refs.extend([] if tensor is None else [weakref.ref(tensor)])
        return refs[0]() is None

    _, gone = told_by(f, torch.zeros(1), see, only=["h"])
    assert gone


def test_the_owner_may_die_while_listened_to():
    f = made("def f(self):\n    h = 1\n    return h\n")
    original = f.__code__
    module = method(f)
    attach(module, "f.h", Told())
    assert f.__code__ is not original
    del module
    gc.collect()
    assert f.__code__ is original


def test_threads_may_run_the_function_while_listening_comes_and_goes():
    f = made("def f(self, n):\n    h = n\n    for i in range(3):\n        h = h + i\n    return h\n")
    module, stop, failures = method(f), threading.Event(), []

    def work():
        while not stop.is_set():
            if module.f(1) != 4:
                failures.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with attach(module, "f.h", Told()), attach(module, "f.i", Told()):
            module.f(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_variables_come_in_the_order_of_the_source():
    module = made("""
        class Ordered(nn.Module):
            def forward(self, a, *args, k, **kw):
                b = [c for c in a]
                def g(u):
                    v = u
                for d in a: e = 1
                global z
                z = 1
        """, "Ordered")()  # fmt: skip
    names = "a args k kw b g d e g.u g.v".split()
    assert byname.points(module).paths == ("forward", *(f"forward.{name}" for name in names))


def test_an_unknown_variable_is_refused_with_the_closest():
    before = Base.forward.__code__
    with pytest.raises(byname.BynameError, match=r"`forward.hh`.*`forward.h`"):
        attach(Base(), "forward.hh", Told())
    assert Base.forward.__code__ is before


def test_methods_are_found_behind_decorators_properties_and_instances():
    @torch.no_grad()
    def noisy(self, x):
        h = x
        return h

    class Many(nn.Module):
        forward = torch.no_grad()(Base.forward)

        @property
        def other(self):
            h = 3
            return h

        @functools.cached_property
        def table(self):
            h = 4
            return h

        noisy_too = noisy
        partly = functools.partialmethod(lambda self, x: (h := x, 4)[0], 3)

        @staticmethod
        def static(x):
            return x

    module, told = Many(), Told()
    with attach(module, "{forward,other,table,partly,noisy_too}.h", told):
        module(1), module.other, module.table, module.partly(), module.noisy_too(7)
    assert told == [("forward.h", 2), ("other.h", 3), ("table.h", 4), ("partly.h", 3), ("noisy_too.h", 7)]
    attach(module, "table.h", told, enabled=False)  # also once it is computed
    with pytest.raises(byname.BynameError, match="missing"):
        attach(module, "missing.h", told)
    module.forward = Base.forward.__get__(module)
    with attach(module, "forward.h", told):
        module(5)
    assert told[5:] == [("forward.h", 6)]
    with pytest.raises(byname.BynameError, match="static"):
        attach(module, "static.x", told)
    module.forward = len
    with pytest.raises(byname.BynameError, match="no Python code"):
        attach(module, "forward.h", told)


def test_scripted_modules_are_refused():
    with pytest.raises(byname.BynameError, match="torch.jit"):
        attach(nn.Sequential(torch.jit.script(nn.ReLU())), "0.forward.input", Told())


def test_places_and_names_are_found_in_rewritten_code_too():
    f = made("""
        def f(self, x, see):
            h = x + 1
            def g():
                u = h * 2
                return see(u)
            return g()
        """)
    seen = []

    def see(tensor):
        seen.extend(one.path for one in byname.names(tensor))
        return tensor

    with byname.track():
        _, result = told_by(f, torch.ones(1, requires_grad=True), see, only=["h", "g.u", "f"])
        print(*byname.graph(result))
        assert [node.site.statement for node in byname.graph(result) if node.site] == ["u = h * 2", "h = x + 1"]
    assert seen and not any("_byname" in name for name in seen)


def test_a_function_put_on_an_instance_is_told_of_though_it_does_not_get_the_instance():
    module, told = nn.Identity(), Told()
    module.forward = made("def f(x):\n    h = x + 1\n    return h\n")
    with attach(module, "forward.h", told):
        assert module(1) == 2
    assert told == [("forward.h", 2)]


def test_what_a_nested_function_returns_has_a_place():
    module = made("class M(nn.Module):\n  def forward(self, x):\n    def g(y): return y + 1\n    return g(x)", "M")()
    told = Told()
    with attach(module, "forward.g.return", told):
        assert module(1) == 2
    assert told == [("forward.g.return", 2)]
