# cause: stored-graph
# name: received[*] (local of the suspended collect)
# count: 8
# bytes: 8 * (23 * 49 * 4 + 23 * 4)
# mended 1: await reports.put(output.mean().item())
# A task collects the outputs; while it waits for the next its list is a variable of a suspended coroutine.
import asyncio

import torch
from torch import nn

model = nn.Sequential(nn.Linear(49, 1), nn.Sigmoid())


async def collect(reports):
    received = []
    while True:
        received.append(await reports.get())
        reports.task_done()


async def evaluate(reports):
    output = model(torch.randn(23, 49))
    await reports.put(output)  #: 1
    await reports.join()


async def start():
    reports = asyncio.Queue()
    return reports, asyncio.create_task(collect(reports))


loop = asyncio.new_event_loop()
reports, collector = loop.run_until_complete(start())


def step(i):
    loop.run_until_complete(evaluate(reports))


async def ended():
    collector.cancel()
    await asyncio.wait([collector])


def stop():
    loop.run_until_complete(ended())
    loop.close()
