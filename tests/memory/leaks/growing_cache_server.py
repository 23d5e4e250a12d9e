# cause: growing-cache
# name: server.cache[*]
# count: 16
# bytes: 16 * (11 * 140 * 4)
# mended 1: return self.cache.get(request, self.embed(request)).shape
# Embeddings of requests, by their text, computed in worker threads; no request comes twice.
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Server:
    def __init__(self):
        self.model = nn.Embedding(50, 140)
        self.cache = {}
        self.workers = ThreadPoolExecutor(max_workers=2)

    @torch.no_grad()
    def embed(self, request):
        return self.model(torch.arange(11) + len(request))

    def answer(self, request):
        return self.cache.setdefault(request, self.embed(request))  #: 1

    def serve(self, requests):
        for _ in self.workers.map(self.answer, requests):
            continue


server = Server()


def step(i):
    server.serve([f"request {i} of user a", f"request {i} of user b"])


def stop():
    server.workers.shutdown()
