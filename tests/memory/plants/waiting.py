"""Tensors in the variables of what is running or suspended: generators, tasks, threads, functions."""

import asyncio
import contextvars
import threading
import types

import torch
from torch import nn

from plants.ground import cleaner, plant, room, running


@plant("suspended generator")
def a_generator():
    global batches

    def produce(size):
        window = torch.ones(size)
        yield
        return window

    batches = produce(room(r"\bbatches\b|\bwindow\b"))
    next(batches)


@plant("suspended generator that another one delegates to")
def delegated():
    global outer_batches

    def inner(size):
        inside = torch.ones(size)
        yield
        return inside

    def outer(size):
        yield from inner(size)

    outer_batches = outer(room(r"\bouter_batches\b|\binside\b"))
    next(outer_batches)


@types.coroutine
def wait():
    yield


@plant("suspended coroutine")
def a_coroutine():
    global fetching

    async def fetch(size):
        fetched = torch.ones(size)
        await wait()
        return fetched

    fetching = fetch(room(r"\bfetching\b|\bfetched\b"))
    fetching.send(None)


@plant("suspended asynchronous generator")
def an_async_generator():
    global streaming

    async def stream(size):
        streamed = torch.ones(size)
        yield 1
        yield streamed

    streaming = stream(room(r"\bstreaming\b|\bstreamed\b"))
    step = streaming.asend(None)
    try:
        step.send(None)
    except StopIteration:
        return


@plant("asyncio task")
def a_task():
    global event_loop

    async def serve(size):
        received = torch.ones(size)
        await asyncio.sleep(3600)
        return received

    async def start(size):
        event_loop.background = asyncio.create_task(serve(size))
        await asyncio.sleep(0)

    event_loop = asyncio.new_event_loop()
    event_loop.run_until_complete(start(room(r"\breceived\b|\bbackground\b|\bevent_loop\b")))


@plant("queue of asyncio")
def an_async_queue():
    global inbox
    inbox = asyncio.Queue()
    inbox.put_nowait(torch.ones(room(r"\binbox\b")))


@plant("variable of another thread")
def a_thread():
    global release, worker
    release, ready = threading.Event(), threading.Event()

    def work(size):
        prefetched = torch.ones(size)
        ready.set()
        release.wait()
        return prefetched

    worker = threading.Thread(target=work, args=(room(r"\bprefetched\b"),), daemon=True)
    worker.start()
    ready.wait()


@plant("thread-local variable")
def a_thread_local():
    global local
    local = threading.local()
    local.scratch = torch.ones(room(r"\blocal\b.*scratch|\bscratch\b"))


@plant("context that was copied")
def a_copied_context():
    global saved_context
    saved_context = contextvars.copy_context()
    variable = contextvars.ContextVar("in_the_copy")
    saved_context.run(variable.set, torch.ones(room(r"\bsaved_context\b|\bin_the_copy\b")))


@running("variable of a running function")
def a_local(then):
    activations = torch.ones(room(r"\bactivations\b"))
    return then()


@running("argument of a running function")
def an_argument(then):
    return _called(torch.ones(room(r"\bgiven_rows\b")), then)


def _called(given_rows, then):
    return then()


class Asking(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.then = then

    def forward(self, forward_input):
        self.answer = self.then()
        return forward_input


@running("input of a running forward")
def a_forward(then):
    asking = Asking(then)
    asking(torch.ones(room(r"\bforward_input\b")))
    return asking.answer


@running("variable of a running generator")
def a_running_generator(then):
    def produce(size):
        produced = torch.ones(size)
        yield then()

    return next(produce(room(r"\bproduced\b")))


@running("variable of a running method, in a comprehension")
def a_comprehension(then):
    columns = [torch.ones(room(r"\bcolumns\b"))]
    return [then() for _ in columns][0]


@cleaner
def stop():
    release.set()
    worker.join()
    batches.close()
    outer_batches.close()
    fetching.close()
    event_loop.background.cancel()
    event_loop.run_until_complete(asyncio.gather(event_loop.background, return_exceptions=True))
    del event_loop.background
    event_loop.run_until_complete(streaming.aclose())
    event_loop.close()
