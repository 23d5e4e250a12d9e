"""Functions in another file than the test's own."""


def doubled(x):
    twice = x * 2
    return twice


def broken(x):
    raise ValueError("in the middle")
