"""Random functions: what is told is what the same function tells that was written with a report after each binding."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from listening import Told, made, method, plain

from byname import attach

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
numbers = st.integers(0, 4).map(str)


class Program:
    """Lines of a function, each both bare and with reports of what it binds (``log('a', a)``)."""

    def __init__(self, draw):
        self.draw, self.lines, self.count, self.loops = draw, [], 0, 0

    def add(self, depth, text, *bound, reported=None):
        self.lines.append(("both" if reported is None else "bare", "    " * depth + text))
        if reported is not None:
            self.lines.append(("reported", "    " * depth + reported))
        for name in bound:
            self.lines.append(("reported", "    " * depth + f"log({name!r}, {name})"))

    def value(self):
        one, other = self.draw(names), self.draw(st.one_of(names, numbers))
        return self.draw(st.sampled_from([f"{one} + {other}", f"({one} * 2) % 7", other, f"[{one}, {other}][0]"]))

    def block(self, depth, scope):
        for _ in range(self.draw(st.integers(1, 3))):
            kinds = SIMPLE if depth > 3 else SIMPLE + COMPOUND
            getattr(self, self.draw(st.sampled_from(kinds)))(depth, scope)

    def assign(self, depth, scope):
        name = self.draw(names)
        self.add(depth, f"{name} = {self.value()}", name)

    def chained(self, depth, scope):
        self.add(depth, f"a = b = {self.value()}", "a", "b")

    def unpacked(self, depth, scope):
        self.add(depth, f"a, (b, *rest) = {self.value()}, ({self.value()}, 1)", "a", "b", "rest")

    def augmented(self, depth, scope):
        name = self.draw(names)
        self.add(depth, f"{name} += {self.value()}", name)

    def walrus(self, depth, scope):
        name, value, limit = self.draw(names), self.value(), self.draw(numbers)
        told = f"({name} := keep(log, {name!r}, {value}))"
        self.add(depth, f"if ({name} := {value}) > {limit}:", reported=f"if {told} > {limit}:")
        self.block(depth + 1, scope)

    def comprehension(self, depth, scope):
        name, value = self.draw(names), self.value()
        told = f"({name} := keep(log, {name!r}, i + {value}))"
        self.add(
            depth, f"x = [({name} := i + {value}) for i in range(2)]", "x", reported=f"x = [{told} for i in range(2)]"
        )

    def returned(self, depth, scope):
        self.add(depth, f"if {self.draw(names)} > {self.draw(numbers)}: return {self.value()}")

    def loop(self, depth, scope):
        name = self.draw(names)
        self.add(depth, f"for {name}, d in [(1, 2), (3, 4)]:")
        self.lines += [("reported", "    " * (depth + 1) + f"log({one!r}, {one})") for one in (name, "d")]
        self.block(depth + 1, scope)
        self.add(depth + 1, self.draw(st.sampled_from(["continue", "break", "pass"])))
        if self.draw(st.booleans()):
            self.add(depth, "else:")
            self.block(depth + 1, scope)

    def failing(self, depth, scope):
        self.add(depth, "try:")
        self.block(depth + 1, scope)
        self.add(depth + 1, f"[][{self.draw(names)}]" if self.draw(st.booleans()) else "pass")
        self.add(depth, "except IndexError as e:")
        self.lines.append(("reported", "    " * (depth + 1) + "log('e', e)"))
        self.block(depth + 1, scope)
        self.add(depth, "finally:")
        self.block(depth + 1, scope)

    def matched(self, depth, scope):
        name, limit = self.draw(names), self.draw(numbers)
        self.add(depth, f"match [{self.value()}]:")
        self.add(
            depth + 1,
            f"case [{name}] if {name} > {limit}:",
            reported=f"case [{name}] if keep(log, {name!r}, {name}) > {limit}:",
        )
        self.block(depth + 2, scope)

    def inside(self, depth, scope):
        self.count += 1
        inner = f"g{self.count}"
        own = self.draw(st.sets(names, min_size=1))
        self.add(depth, f"def {inner}(u):")
        self.add(depth + 1, f"nonlocal {', '.join(sorted(own))}")
        for name in set(NAMES) - own:
            self.add(depth + 1, f"{name} = u")
            self.lines.append(("reported", "    " * (depth + 1) + f"log({scope + inner + '.' + name!r}, {name})"))
        self.inner_block(depth + 1, own, scope + inner + ".")
        self.add(depth + 1, "return u")
        self.add(depth, f"v = {inner}({self.draw(names)})", "v")
        self.lines.insert(-2, ("reported", "    " * depth + f"log({inner!r}, {inner})"))

    def inner_block(self, depth, own, scope):
        for name in self.draw(st.lists(names, min_size=1, max_size=3)):
            self.add(depth, f"{name} = {self.value()}")
            self.lines.append(
                ("reported", "    " * depth + f"log({(name if name in own else scope + name)!r}, {name})")
            )


SIMPLE = ["assign", "chained", "unpacked", "augmented", "comprehension", "returned"]
COMPOUND = ["walrus", "loop", "failing", "matched"]


@st.composite
def programs(draw):
    program = Program(draw)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            program.block(1, "")
        else:
            program.inside(1, "")
    head = ["def f(self, a, b, c):"]
    return tuple(
        "\n".join(head + [line for to, line in program.lines if to in ("both", kind)]) for kind in ("bare", "reported")
    )


def keep(log, name, value):
    log(name, value)
    return value


@settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs())
def test_random_functions_tell_what_they_bind_and_compute_the_same(program):
    bare, reported = program
    expected = []
    log = lambda name, value: expected.append((name, plain(value)))
    result = made(reported, log=log, keep=keep)(None, 1, 2, 3)
    module, told = method(made(bare)), Told()
    with attach(module, ["f.**", "f"], told):
        assert module.f(1, 2, 3) == result
    came_in, assigned = told[:3], [one for one in told[3:] if one[0] != "f" and not one[0].endswith(".u")]
    assert came_in == [("a", 1), ("b", 2), ("c", 3)]
    assert assigned == expected
    assert [one for one in told if one[0] == "f"][-1:] == [("f", result)]  # a finally may return instead
