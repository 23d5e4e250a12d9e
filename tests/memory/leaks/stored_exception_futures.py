# cause: stored-exception
# name: table (local of embed, kept by the traceback of server.futures[*]._exception)
# count: 8
# bytes: 8 * (7 * 333 * 4)
# mended 1: return table[rows].tolist() if rows < len(table) else None
# Requests that fail in a worker: the futures keep the error, and the error keeps the request's tensor.
from concurrent.futures import ThreadPoolExecutor, wait

import torch


def embed(rows):
    table = torch.randn(rows, 333)
    return table[rows].tolist()  #: 1


class Server:
    def __init__(self):
        self.workers = ThreadPoolExecutor(max_workers=1)
        self.futures = []

    def request(self, rows):
        future = self.workers.submit(embed, rows)
        wait([future])
        self.futures.append(future)


server = Server()


def step(i):
    server.request(7)


def stop():
    server.workers.shutdown()
