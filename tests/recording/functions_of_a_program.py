"""Functions of every kind, whose variables are recorded without a model."""

import functools

import torch


def step(model, x, optimizer=None, times=1):
    total = 0.0
    for turn in range(times):
        out = model(x)
        loss = out.pow(2).mean()
        total = total + loss.item()
        loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    return total


class Trainer:
    def __init__(self):
        self.number = 0

    def train_step(self, x):
        loss = x + self.number
        self.number += 1
        return loss

    @staticmethod
    def norm(x):
        loss = x * 2
        return loss

    @classmethod
    def make(cls, x):
        loss = x * 2
        return cls()

    class Inner:
        def run(self, x):
            loss = x * 2
            return loss


def passed_on(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def passed_on_unnamed(function):
    return lambda *args: function(*args)


@passed_on
def decorated(x):
    loss = x * 2
    return loss


@passed_on_unnamed
def unnamed(x):
    loss = x * 2
    return loss


@torch.no_grad()
def quiet(x):
    loss = x * 2
    return loss


@functools.lru_cache
def cached(x):
    loss = x * 2
    return loss


@torch.compile(backend="eager")
def compiled(x):
    loss = x * 2
    return loss


async def later(x):
    loss = x * 2
    return loss


def generated(x):
    for number in range(3):
        loss = x * number
        yield loss


def fibonacci(number):
    result = number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)
    return result


def around(x):
    def inside(y):
        loss = y * 2
        return loss

    return inside(x)


def made(x):
    def inside(y):
        loss = y * 2 + x
        return loss

    return inside


closure = made(1.0)


def cache(x):
    held = {}
    held["k"] = [x, x * 2]
    return held


def three(x):
    loss = x * 5
    loss = x * 2
    loss = loss + 0
    return loss


twice = lambda x: x * 2  # noqa: E731 - a lambda is what is tested


def ambiguous():
    word = "of the functions"
    return word
