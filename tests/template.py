"""A Python that has imported what the tests use, and forks a process for each command line that it receives.

The runner forks it, or `processes` starts it, and sends the command lines. A fork runs one as Python does:
``-c PROGRAM``, ``-m byname ...`` or a file, after options ``-u`` and ``-W``.
"""

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import types
import warnings
from pathlib import Path

LARGEST = 200_000
SECONDS = 240


def serve(requests):
    """Forks for each request; returns it, and the streams of the new process, in the fork."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            for child in [*running]:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    os.write(running[child], b"%d\n" % status)
                    os.close(running.pop(child))
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not message:
                os._exit(0)
            *streams, answers = files
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for file in (woken, wake, answers, *running.values()):
                    os.close(file)
                return json.loads(message), streams
            running[child] = answers
            os.write(answers, b"%d\n" % child)
            for file in streams:
                os.close(file)


def connect(streams, unbuffered):
    """Makes the streams those of this process."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)
        lines = number == 2 or os.isatty(number)
        errors = "backslashreplace" if number == 2 else "strict"
        stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(case):
    """Takes over the folder, the environment and the arguments of a command line, and returns its program as code."""
    signal.alarm(SECONDS)
    os.chdir(case["folder"])
    os.environ.clear()
    os.environ.update(case["environment"])
    words = case["words"]
    while words[0] in ("-u", "-W"):
        option = words.pop(0)
        if option == "-W":
            sys.warnoptions.append(words[0])
            warnings._processoptions([words.pop(0)])
    if not case["finalized"]:
        gc.unfreeze()
    if words[0] == "-m":
        assert words[1] == "byname", words
        program, name = "import sys; from byname.cli import main; sys.exit(main(sys.argv[1:]))", "byname"
        sys.argv = words[1:]
        sys.path[0] = str(Path.cwd())
    elif words[0] == "-c":
        program, name = words[1], "<string>"
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
    else:
        sys.argv = words
        file = Path(words[0]).absolute()
        sys.path[0] = str(file.parent)
        program, name = file.read_text(encoding="utf-8"), str(file)
    sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] not in ("-c", "-m"):
        sys.modules["__main__"].__file__ = name
    return compile(program, name, "exec")


def end_of(code):
    """Runs the code, and returns the exit status as Python does; prints an error as Python does."""
    try:
        exec(code, sys.modules["__main__"].__dict__)
    except SystemExit as error:
        return status_of(error)
    except BaseException as error:
        failed = error.with_traceback(error.__traceback__.tb_next)
    else:
        return 0
    sys.last_type, sys.last_value, sys.last_traceback = told = type(failed), failed, failed.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = failed
    try:
        sys.excepthook(*told)
    except SystemExit as error:
        return status_of(error)
    except BaseException as another:
        print("Error in sys.excepthook:", file=sys.stderr)
        another = another.with_traceback(another.__traceback__.tb_next)
        sys.__excepthook__(type(another), another, another.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
    return signal.SIGINT.name if type(failed) is KeyboardInterrupt else 1


def status_of(error):
    """Returns the exit status for a `SystemExit`."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 255
    print(error.code, file=sys.stderr)
    return 1


def leave(status):
    """Ends the process as Python does, less what takes longest: it clears no modules."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:  # nobody reads any more
            status = status or 120
    if status == signal.SIGINT.name:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


def hear_ctrl_c():
    """In the background a shell has it ignored, and programs would not hear it either."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def load():
    hear_ctrl_c()
    import h5py  # noqa: F401 - as programs that record do
    import torch
    import torch._dynamo  # which every optimizer imports

    import byname

    for module in pkgutil.walk_packages(byname.__path__, "byname."):
        if not module.name.startswith("byname.plug"):
            importlib.import_module(module.name)
    byname.cli.watcher.preload()  # else every ``byname run`` takes a census of the million objects of PyTorch
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # else every fork copies the million objects of PyTorch when it collects garbage


def main(requests):
    case, streams = serve(requests)
    connect(streams, "-u" in case["words"][:2])
    code = become(case)
    if case["finalized"]:
        return code
    leave(end_of(code))


if __name__ == "__main__":
    load()
    exec(main(socket.socket(fileno=int(sys.argv[1]))), sys.modules["__main__"].__dict__)
