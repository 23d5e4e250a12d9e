# cause: prefetch
# name: batches.queue[*]
# count: 8
# bytes: 8 * (28 * 100 * 4)
# mended 1: [batches.get() for _ in range(2)]
# A producer that makes two batches while the training takes one, and a queue without a limit.
import queue
import threading

import torch

batches = queue.Queue()
turns = queue.Queue()


def produce():
    while turns.get():
        for _ in range(2):
            batches.put(torch.randn(28, 100))
        turns.task_done()


producer = threading.Thread(target=produce, daemon=True)
producer.start()


def step(i):
    turns.put(True)
    turns.join()
    batches.get()  #: 1


def stop():
    turns.put(False)
    producer.join()
