"""Runs all tests, in forks of one Python that has imported what they use, three at a time: some wait.

To import PyTorch takes longer than most files do; and a look at the whole heap goes through all that other tests have
left, so each file of those, but for the smallest, has a heap of its own. It prints the CPU seconds of each fork, less
those of the programs that the template runs for it.

python tests/runner.py -m "not slow"           # options are those of pytest
python tests/runner.py -m slow tests/memory    # a folder or a file of them
"""

import gc
import importlib
import os
import re
import signal
import socket
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import hypothesis  # noqa: F401 - conftest.py imports it
import processes
import pytest
import template

AT_A_TIME = 3
PROJECT = Path(__file__).parents[1]
SMALL_HEAP = {
    *("autograd", "diagnose", "memory", "naming", "reading", "reporting", "tracking"),
    *("test_magics.py", "test_terminal.py", "test_trackers.py"),
}
"""The folders and files of tests that look at the whole heap: they run first, before the libraries are imported."""
TOGETHER = 90_000
"""Of the other folders some files run in one fork, of as many bytes at the most."""
FEW = 8_000
"""So do the smallest of those: to begin takes longer than their tests."""
LIBRARIES = (
    "transformers.modeling_utils",
    "transformers.generation",
    "lightning",
    "matplotlib.pyplot",
    "xarray",
    "functorch.compile",
)
FIXED = ("-p", "no:cacheprovider", "-W", "ignore:Module already imported so cannot be rewritten")


class Fork:
    """A fork of this process in which pytest runs some files."""

    def __init__(self, files, options):
        self.files = [str(file.relative_to(PROJECT)) for file in files]
        self.written = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.pid = os.fork()
        if not self.pid:
            for stream in (1, 2):
                os.dup2(self.written.fileno(), stream)
            template.leave(pytest.main([*FIXED, *options, *self.files]))

    def ended(self, status, used):
        """Tell how it ended, all of it if anything failed; return its last line, and those that name what failed."""
        code = os.waitstatus_to_exitcode(status)
        with self.written:
            self.written.seek(0)
            text = self.written.read()
        last = text.splitlines()[-1] if text else ""
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            print(f"{' '.join(self.files)}: {last}, {used.ru_utime + used.ru_stime:.1f} s of CPU", flush=True)
            return last, []
        print(text, flush=True)
        named = re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE)
        return last, named or [f"FAILED {' '.join(self.files)} ended with {code}"]


def in_order(words):
    """The files of tests that run in each fork: those that want a small heap, None, the others.

    Each the largest first, so that no fork is left to run alone at the end; but of the first ones the largest is the last,
    as it runs while the libraries are imported, and of the others scenarios and those of the command line, of recipes and
    of no folder are the first, as they take longer than they look.
    """
    paths = [PROJECT / word for word in words] or [PROJECT / "tests"]
    found = sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py")))
    alone = grouped([file for file in found if not SMALL_HEAP.isdisjoint(file.parts)], FEW)
    together = grouped([file for file in found if SMALL_HEAP.isdisjoint(file.parts)], TOGETHER)
    together.sort(
        key=lambda files: (files[0].parent.name in ("cli", "tests", "recipes", "scenarios"), size(files)), reverse=True
    )
    alone.sort(key=size, reverse=True)
    return [*alone[1:], *alone[:1], None, *together]


def grouped(files, most):
    """The files in groups of a folder, of so many bytes at the most; larger files are alone."""
    groups = []
    for file in files:
        beside = groups and groups[-1][0].parent == file.parent != PROJECT / "tests"  # the pages alone take minutes
        if not beside or size([*groups[-1], file]) > most:
            groups.append([])
        groups[-1].append(file)
    return groups


def size(files):
    return sum(file.stat().st_size for file in files)


def import_libraries():
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:  # their tests are skipped
            continue
    gc.collect()
    gc.freeze()


def run(words, options):
    """Run the files; return how many tests ended in which way, and the lines that name what failed."""
    waiting, running, counts, failed = in_order(words), {}, {"passed": 0, "skipped": 0}, []
    try:
        while waiting or running:
            if waiting and waiting[0] is None:
                import_libraries()
                waiting.pop(0)
            elif waiting and len(running) < AT_A_TIME:
                fork = Fork(waiting.pop(0), options)
                running[fork.pid] = fork
            else:
                pid, status, used = os.wait4(-1, 0)
                if pid in running:  # and not the template's
                    last, named = running.pop(pid).ended(status, used)
                    failed += named
                    for number, kind in re.findall(r"(\d+) (passed|skipped)", last):
                        counts[kind] += int(number)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
    return counts, failed


def forked_template():
    """Fork the Python that `processes` talks to; return in the fork where its requests come from, else None."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        os.setsid()
        ours.close()
        return theirs
    theirs.close()
    processes.template = lambda: ours


def main(given):
    """Run pytest over the files, or those in the folders that are named; return the exit status."""
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    words = [word for word in given if word.startswith("tests")]
    counts, failed = run(words, [word for word in given if word not in words])
    print(*failed, f"{counts['passed']} passed, {len(failed)} failed, {counts['skipped']} skipped", sep="\n")
    return bool(failed) or not counts["passed"]


if __name__ == "__main__":
    os.chdir(PROJECT)
    template.load()
    if requests := forked_template():
        exec(template.main(requests), sys.modules["__main__"].__dict__)
    else:
        sys.exit(main(sys.argv[1:]))
