# cause: retained-graph
# name: memory
# count: 8
# bytes: 8 * (22 * 44 * 4)
# mended 1: memory = torch.sigmoid(memory.detach() + bias + seen)
# An actor in a thread of its own carries its memory, a local variable, without an end.
import queue
import threading

import torch

bias = torch.zeros(44, requires_grad=True)
observations = queue.Queue()


def act():
    memory = torch.zeros(22, 44) + bias
    while (seen := observations.get()) is not None:
        memory = torch.sigmoid(memory + seen)  #: 1
        memory.sum().backward(retain_graph=True)
        observations.task_done()


actor = threading.Thread(target=act, daemon=True)
actor.start()


def step(i):
    observations.put(torch.randn(22, 44))
    observations.join()


def stop():
    observations.put(None)
    actor.join()
