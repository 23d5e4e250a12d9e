"""Runs a little program in several processes of torch.distributed."""

import json
import signal
import textwrap

from processes import run_together

START = """
import json, os, signal, sys, threading, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)

def tell(**facts):
    print("TOLD " + json.dumps(facts), flush=True)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def announce(event):
    open(f"{folder}/{event}", "w").close()

def wait_for(event):
    while not os.path.exists(f"{folder}/{event}"):
        time.sleep(0.01)

def stop_until(event):  # another process wakes this one when some rank announces it
    stopped = os.getpid()
    waker = os.fork()
    if waker == 0:
        while os.getppid() == stopped:  # again and again, for the event may come before this one has stopped
            if os.path.exists(f"{folder}/{event}"):
                os.kill(stopped, signal.SIGCONT)
            time.sleep(0.01)
        os._exit(0)
    os.kill(stopped, signal.SIGSTOP)
    os.kill(waker, signal.SIGKILL)
    os.waitpid(waker, 0)

def leave():  # a process group that is torn down at exit may hang or crash (PyTorch 2.13, gloo)
    sys.stdout.flush()
    os._exit(0)
"""


def run_ranks(folder, program, world=2, ends=None, timeout=100):
    """What each rank told, as a list of dicts; fails when one ends otherwise than with 0, or as `ends` says by rank."""
    ends = dict.fromkeys(range(world), 0) | (ends or {})
    code = START + textwrap.dedent(program)
    file = folder / "program.py"
    file.write_text(code)
    ranks = [([file, n, world, folder], {}) for n in range(world)]
    runs = run_together(ranks, timeout=timeout)
    for number, run in enumerate(runs):
        assert run.returncode == ends[number], f"rank {number} ended with {run.returncode}\n{run.stderr[-3000:]}"
    return [[json.loads(line[5:]) for line in run.stdout.splitlines() if line.startswith("TOLD ")] for run in runs]


KILLED = -signal.SIGKILL
