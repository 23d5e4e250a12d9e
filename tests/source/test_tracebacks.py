"""A traceback without byname is the one that the program would have had on its own."""

import os
import sys
import traceback
from pathlib import Path

import pytest
import torch
from failing import backward_twice, operator, wrong_shape, wrong_target

import byname
from byname.source.tracebacks import frames, is_byname, strip_byname_frames, without_byname


def in_a_function_of_its_own():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise LookupError("in backward")

    Twice.apply(torch.ones(2, requires_grad=True)).sum().backward()


PROGRAMS = [backward_twice, wrong_target, wrong_shape, operator, in_a_function_of_its_own]


def failure(call):
    try:
        call()
    except Exception as error:
        return error


def places(error):
    return [(entry.code, entry.instruction) for entry in frames(error)][1:]  # the first is of failure()


def test_cleaned_tracebacks_are_those_of_the_program_alone():
    for program in PROGRAMS:
        plain = failure(program)
        with byname.track():
            tracked = failure(program)
        assert places(tracked) != places(plain)
        strip_byname_frames(tracked)
        assert places(tracked) == places(plain), program.__name__


def test_an_error_that_passed_nowhere_has_no_frames():
    error = ValueError()
    strip_byname_frames(error)
    assert frames(error) == []
    assert without_byname(None) is None


def test_frames_of_byname_alone_leave_nothing():
    error = failure(lambda: byname.leaves(3))
    inner = error.__traceback__.tb_next.tb_next  # past failure() and the lambda
    assert without_byname(inner) is None
    assert byname.leaves.__code__ is inner.tb_frame.f_code


def tracked_failure():
    with byname.track():
        return failure(operator)


def shows_byname(error):
    return f"tracking{os.sep}mode.py" in "".join(traceback.format_exception(error))


def test_causes_contexts_and_groups_are_cleaned():
    for relate in (
        lambda error, other: setattr(error, "__cause__", other),
        lambda error, other: setattr(error, "__context__", other),
    ):
        error = ValueError()
        relate(error, tracked_failure())
        assert shows_byname(error)
        strip_byname_frames(error)
        assert not shows_byname(error)
    group = ExceptionGroup("both", [tracked_failure(), ExceptionGroup("inner", [tracked_failure()])])
    assert shows_byname(group)
    strip_byname_frames(group)
    assert not shows_byname(group)


def test_errors_that_are_each_others_context_end():
    one, other = tracked_failure(), tracked_failure()
    one.__context__, other.__context__ = other, one
    strip_byname_frames(one)
    assert not shows_byname(one)


def test_a_chain_as_long_as_recursion_allows_is_cleaned():
    error = ValueError()
    for _ in range(5 * sys.getrecursionlimit()):
        another = ValueError()
        another.__cause__, error = error, another
    strip_byname_frames(error)


def test_what_is_byname_is_told_by_the_folder_that_holds_it():
    files = [*Path(byname.__file__).parent.rglob("*.py")]
    assert len(files) > 100
    assert all(is_byname(str(file)) for file in files)
    assert not is_byname(torch.__file__)
    for other in (__file__, pytest.__file__, str(Path(byname.__file__).parent) + "_of_somebody/else.py"):
        assert not is_byname(other)
