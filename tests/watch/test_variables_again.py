"""Listening again uses the code that was made before, and nobody is told of another's runs by it."""

import builtins

from listening import Told, listen, made, told_by

TWINS = """
    def twin(k):
        class Twin:
            def f(self, x):
                h = x + k
                return h
        return Twin
"""


def test_listening_again_makes_no_new_code(monkeypatch):
    function = made("def f(self, x):\n  h = x + 1\n  return h")
    told_by(function, None, 1, only=["h"])
    monkeypatch.delattr(builtins, "compile")
    told, result = told_by(function, None, 2, only=["h"])
    assert (told.of("assigned"), result) == ([("h", 3)], 3)


def test_functions_that_share_their_code_are_told_apart():
    twin = made(TWINS, "twin")
    one, other = twin(10)(), twin(20)()
    assert type(one).f.__code__ is type(other).f.__code__
    mine, theirs = Told(), Told()
    with listen(type(one).f, one, ["h"], mine), listen(type(other).f, other, ["h"], theirs):
        assert (one.f(1), other.f(1)) == (11, 21)
    assert (mine.of("assigned"), theirs.of("assigned")) == ([("h", 11)], [("h", 21)])


def test_equal_code_of_two_files_keeps_its_file():
    one, other = (made("def f(self):\n  h = 1\n  return h") for _ in range(2))
    files = one.__code__.co_filename, other.__code__.co_filename
    assert one.__code__ == other.__code__ and files[0] != files[1]
    with listen(one, None, ["h"], Told()), listen(other, None, ["h"], Told()):
        assert (one.__code__.co_filename, other.__code__.co_filename) == files
        assert one.__code__ is not other.__code__


def test_a_number_of_the_program_is_not_taken_for_the_key():
    function = made("def f(self):\n  h = (0, 1, 2, 3, True, 1.0)\n  return h")
    told, result = told_by(function, None, only=["h"])
    assert repr(result) == "(0, 1, 2, 3, True, 1.0)"
    assert told.of("assigned") == [("h", (0, 1, 2, 3, True, 1.0))]


def test_who_does_not_want_the_last_values_is_not_told_them():
    function = made("def f(self, x):\n  h = x + 1\n  h += 1\n  return h")
    without, all_of_them = Told(), Told()
    with listen(function, None, ["h"], without, exits=False):
        function(None, 1)
        with listen(function, None, ["h"], all_of_them):
            function(None, 1)
    assert without.of("exit") == []
    assert all_of_them.of("exit") == [("h", 3)]
    assert without.of("assigned") == [("h", 2), ("h", 3)] * 2
