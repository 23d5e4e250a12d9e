"""The last error is kept, with its traceback and all it holds, and the next one takes its place."""

import torch


class Runner:
    def __init__(self):
        self.last_error = None

    def run(self, number):
        try:
            self.attempt(torch.randn(30, 55))
        except ValueError as error:
            self.last_error = error

    def attempt(self, batch):
        scores = batch.softmax(1)
        raise ValueError(f"no score of {scores.numel()} is good enough")


runner = Runner()


def step(i):
    runner.run(i)
