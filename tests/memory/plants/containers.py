"""Tensors in Python's own containers, objects, functions and caches."""

import collections
import contextlib
import contextvars
import functools
import heapq
import itertools
import logging.handlers
import queue
import types
import weakref
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from plants.ground import cleaner, plant, room


@plant("global variable")
def a_global():
    global baseline
    baseline = torch.ones(room(r"\bbaseline\b"))


@plant("list of dicts")
def a_list_of_dicts():
    global history
    history = [{"loss": 0.0}, {"loss": torch.ones(room(r"history\[1\]\['loss'\]"))}]


@plant("nested tuples")
def nested_tuples():
    global nested
    nested = (0, (1, (2, torch.ones(room(r"nested\[1\]\[1\]\[1\]")))))


@plant("queue.Queue")
def a_queue():
    global jobs
    jobs = queue.Queue()
    jobs.put(torch.ones(room(r"\bjobs\b")))


@plant("queue.SimpleQueue")
def a_simple_queue():
    global mailbox
    mailbox = queue.SimpleQueue()
    mailbox.put(torch.ones(room(r"\bmailbox\b|C\+\+")))


@plant("queue.PriorityQueue")
def a_priority_queue():
    global urgent
    urgent = queue.PriorityQueue()
    urgent.put((1, torch.ones(room(r"\burgent\b"))))


@plant("heap")
def a_heap():
    global candidates
    candidates = []
    heapq.heappush(candidates, (0.5, 0, torch.ones(room(r"candidates\[0\]"))))


@plant("deque")
def a_deque():
    global replay
    replay = collections.deque([torch.ones(room(r"\breplay\b"))], maxlen=10)


@plant("set and frozenset")
def a_set():
    global unique, frozen
    unique = {torch.ones(room(r"\bunique\b"))}
    frozen = frozenset([torch.ones(room(r"\bfrozen\b"))])


@plant("key of a dict")
def a_key():
    global ranks
    ranks = {torch.ones(room(r"\branks\b")): 1}


@plant("value under a key that cannot be written")
def an_odd_key():
    global by_object
    by_object = {object(): torch.ones(room(r"\bby_object\b"))}


@plant("OrderedDict, defaultdict, ChainMap, UserDict")
def dicts():
    global ordered, grouped, layered, wrapped
    ordered = collections.OrderedDict(a=torch.ones(room(r"ordered\['a'\]")))
    grouped = collections.defaultdict(list)
    grouped["b"].append(torch.ones(room(r"grouped\['b'\]\[0\]")))
    layered = collections.ChainMap({}, {"c": torch.ones(room(r"\blayered\b"))})
    wrapped = collections.UserDict(d=torch.ones(room(r"\bwrapped\b")))


@plant("mapping proxy")
def a_proxy():
    global settings
    settings = types.MappingProxyType({"mean": torch.ones(room(r"\bsettings\b"))})


@plant("value of a WeakKeyDictionary")
def weak_keys():
    global owner, annotations
    owner = types.SimpleNamespace()
    owner = queue.Queue()
    annotations = weakref.WeakKeyDictionary({owner: torch.ones(room(r"\bannotations\b"))})


Sample = collections.namedtuple("Sample", "pixels label")


@dataclass
class Batch:
    inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Point:
    place: torch.Tensor


class Box:
    def __init__(self, content):
        self.content = content


class Slotted:
    __slots__ = ("content",)


class Lazy:
    @functools.cached_property
    def table(self):
        return torch.ones(room(r"lazy\.table", sited=False))


@plant("namedtuple, dataclass, slots, SimpleNamespace, cached property")
def objects():
    global sample, batch, point, slotted, space, lazy
    sample = Sample(torch.ones(room(r"sample(\.pixels|\[0\])")), 1)
    batch = Batch(torch.ones(room(r"batch\.inputs")))
    point = Point(torch.ones(room(r"point\.place")))
    slotted = Slotted()
    slotted.content = torch.ones(room(r"slotted\.content"))
    space = types.SimpleNamespace(origin=torch.ones(room(r"\bspace\b.*origin")))
    lazy = Lazy()
    lazy.table


@plant("twelve steps down")
def deep():
    global experiment
    experiment = torch.ones(room(r"\bexperiment\b"))
    for _ in range(4):
        experiment = Box([{"deeper": experiment}])


@plant("class attribute")
def class_attribute():
    global Registry

    class Registry:
        shared = torch.ones(room(r"Registry\.shared"))


@plant("closure, default, keyword default and attribute of a function")
def functions():
    global closing, defaulting, annotated
    enclosed = torch.ones(room(r"closing|enclosed"))
    closing = lambda: enclosed

    def defaulting(x=torch.ones(room(r"\bdefaulting\b")), *, y=torch.ones(room(r"\bdefaulting\b"))):
        return x, y

    def annotated():
        return 1

    annotated.cache = torch.ones(room(r"annotated\.cache"))


@plant("partial and bound method")
def callables():
    global scaled, bound
    scaled = functools.partial(torch.mul, torch.ones(room(r"\bscaled\b")), other=torch.ones(room(r"\bscaled\b")))
    bound = torch.ones(room(r"\bbound\b")).add


@plant("lru_cache")
def lru():
    global embed

    @functools.lru_cache
    def embed(size):
        return torch.ones(size)

    embed(room(r"\bembed\b"))


@plant("lru_cache of a method")
def lru_method():
    global Model

    class Model:
        @functools.lru_cache
        def mask(self, size):
            return torch.ones(size)

    Model().mask(room(r"Model\.mask|\bmask\b"))


@plant("iterators")
def iterators():
    global cycled, teed, listed, mapped
    cycled = itertools.cycle([torch.ones(room(r"\bcycled\b"))])
    next(cycled)
    teed = itertools.tee(iter([torch.ones(room(r"\bteed\b"))]))
    next(teed[0])
    listed = iter([torch.ones(room(r"\blisted\b"))])
    mapped = map(torch.sin, [torch.ones(room(r"\bmapped\b"))])


@plant("traceback of a stored exception")
def an_exception():
    global failure

    def fails():
        huge = torch.ones(room(r"\bfailure\b|\bhuge\b"))
        raise ValueError("out of range")

    try:
        fails()
    except ValueError as error:
        failure = error


@plant("argument of a stored exception")
def an_exception_argument():
    global report
    report = ValueError("bad values", torch.ones(room(r"\breport\b")))


@plant("context variable")
def a_context_variable():
    global request_state
    request_state = contextvars.ContextVar("request_state")
    request_state.set(torch.ones(room(r"\brequest_state\b")))


@plant("buffer of a logging handler")
def a_log():
    global collected
    collected = logging.handlers.MemoryHandler(1000, flushLevel=100)
    logger = logging.getLogger("planted")
    logger.propagate = False
    logger.addHandler(collected)
    logger.warning("loss %s", torch.ones(room(r"\bcollected\b|MemoryHandler")))


@plant("exit stack")
def an_exit_stack():
    global stack
    stack = contextlib.ExitStack()
    stack.callback(print, torch.ones(room(r"\bstack\b")))


@plant("future")
def a_future():
    global promised
    promised = Future()
    promised.set_result(torch.ones(room(r"\bpromised\b")))


@plant("argument of a finalizer")
def a_finalizer():
    global watched_object, finalizer
    watched_object = Box(1)
    finalizer = weakref.finalize(watched_object, print, torch.ones(room(r"\bfinalizer\b|finalize")))
    finalizer.atexit = False


@cleaner
def forget():
    request_state.set(None)
    logging.getLogger("planted").removeHandler(collected)
    collected.buffer.clear()
    finalizer.detach()
