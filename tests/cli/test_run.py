"""``byname run`` against ``python``: the same program, the same arguments, the same output, errors and exit code."""

import textwrap

import pytest
from forking import Forks, run_started

FACTS = """
    '''The doc.'''
    import __main__, builtins, inspect, sys
    count: int = 3
    print(sys.argv, sys.path[0], __name__, __file__, __doc__, __package__, __annotations__)
    print(sorted(vars(__main__)), __builtins__ is builtins, type(__loader__).__name__)
    print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent), __cached__)
    print(sys.modules["__main__"] is __main__, sorted(globals()) == sorted(vars(__main__)))
    print(sys.stdin.read(), end="")
    def here(): pass
    print(inspect.getsource(here))
"""

SCRIPTS = {
    "facts": FACTS,
    "nothing": "",
    "exit_code": "import sys; sys.exit(3)",
    "exit_none": "import sys; sys.exit()",
    "exit_text": "import sys; print('before'); sys.exit('a text')",
    "exit_odd": "raise SystemExit([1, 2])",
    "uncaught": """
        def deep(n):
            if n == 0:
                raise ValueError("no")
            deep(n - 1)
        print("out", flush=False)
        deep(2)
    """,
    "chained": """
        def first():
            {}["key"]
        try:
            try:
                first()
            except KeyError as error:
                raise TypeError("second") from error
        except TypeError:
            raise OSError("third")
    """,
    "grouped": "raise ExceptionGroup('many', [ValueError(1), ExceptionGroup('in', [KeyError(2)])])",
    "noted": "error = ValueError('x'); error.add_note('a note of its own'); raise error",
    "runtime_error_inside": "try:\n    raise RuntimeError('caught')\nexcept RuntimeError as e:\n    print(e)",
    "hook": """
        import sys, traceback
        def hook(kind, error, trace):
            print("hook", kind, error, [one.name for one in traceback.extract_tb(trace)], sys.exc_info())
            print(error.__traceback__ is trace is sys.last_traceback, sys.last_value is error, sys.last_type)
        sys.excepthook = hook
        1 / 0
    """,
    "hook_fails": """
        import sys
        def hook(*_):
            {}["in the hook"]
        sys.excepthook = hook
        1 / 0
    """,
    "hook_exits": "import sys; sys.excepthook = lambda *_: sys.exit(7); 1 / 0",
    "hook_missing": "import sys; del sys.excepthook; 1 / 0",
    "interrupted": """
        import atexit, os, signal, sys
        atexit.register(lambda: print("at exit", sys.excepthook is sys.__excepthook__, sys.last_traceback.tb_next))
        os.kill(os.getpid(), signal.SIGINT)
    """,
    "interrupt_of_its_own": "class Mine(KeyboardInterrupt): pass\nraise Mine('x')",
    "interrupt_in_hook": "import sys; sys.excepthook = lambda *_: print('hook'); raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "syntax": "print('never')\nx = = 1\n",
    "indentation": "if True:\nx = 1\n",
    "unclosed": "x = (1,\n",
    "return_outside": "x = 1\nreturn x\n",
    "future": "from __future__ import annotations\ndef f(x: Nothing): return f.__annotations__\nprint(f(1))",
    "no_future": "def f(x: int): return f.__annotations__\nprint(f(1))",
    "pickled": """
        import pickle
        class Point:
            def __init__(self, x): self.x = x
        print(pickle.loads(pickle.dumps(Point(3))).x, Point.__module__, pickle.dumps(Point))
    """,
    "spawned": """
        import multiprocessing, os, sys
        class Point:
            x = 4
        def work(point):
            return point.x, __name__, sys.argv, os.path.basename(__file__), "torch" in sys.modules
        if __name__ == "__main__":
            for way in "spawn", "forkserver":
                with multiprocessing.get_context(way).Pool(1) as pool:
                    print(way, pool.map(work, [Point()]))
    """,
    "forked": """
        import multiprocessing, os, sys
        def work(queue): queue.put((__name__, sys.argv))
        def fail(): 1 / 0
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,)); child.start(); print(queue.get()); child.join()
        child = context.Process(target=fail, name="child"); child.start(); child.join(); print(child.exitcode)
        sys.stdout.flush()
        if os.fork() == 0:
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "afterwards": """
        import atexit, threading, time
        value = "still there"
        class Last:
            def __del__(self): print("deleted", value, __name__, len([1]))
        last = Last()
        def late():
            threading.main_thread().join()
            print("thread", value)
        threading.Thread(target=late).start()
        atexit.register(lambda: print("at exit", value, __name__))
        print("end")
    """,
    "afterwards_failed": "import atexit\nvalue = 1\natexit.register(lambda: print('at exit', value))\nraise ValueError",
    "thread_exits": """
        import sys, threading
        for work in (lambda: sys.exit(4)), (lambda: 1 / 0):
            thread = threading.Thread(target=work, name="worker"); thread.start(); thread.join()
        print("main goes on")
    """,
    "broken_pipe": """
        import os
        reader, writer = os.pipe()
        os.close(reader); os.dup2(writer, 1)
        print("nobody reads this")
    """,
    "warned": "import warnings\nwarnings.warn('look')\nprint(__import__('sys').warnoptions)",
    "streams": """
        import sys
        sys.stdout.buffer.write(b"\\xff\\x00raw"); sys.stderr.write("err"); print(sys.stdin.buffer.readline())
        print(input()); sys.stdout = None; 1 / 0
    """,
    "asynchronous": """
        import asyncio
        async def fail(): raise LookupError("async")
        asyncio.run(fail())
    """,
}

BYTES = {
    "latin": "# -*- coding: latin-1 -*-\nprint(ascii('é'))\nraise ValueError('ü')\n".encode("latin-1"),
    "marked": b"\xef\xbb\xbfprint('marked')\n",
    "dos": b"print('one')\r\nprint('two')\r\n1/0\r\n",
    "undecodable": b"print('never')\nx = '\xe9'\n",
}

COMMANDS = {
    "arguments": ["facts.py", "--check", "-m", "x", "--", "--help", "-x=1", "two words", ""],
    "dotted": ["./facts.py"],
    "above": ["../files/facts.py"],
    "elsewhere": ["folder/../facts.py"],
    "linked": ["folder/link.py"],
    "folder": ["folder", "a"],
    "slash": ["./folder/", "a"],
    "zip": ["packed.zip", "a"],
    "compiled": ["compiled.pyc"],
    "module": ["-m", "package.facts", "--check", "-m", "y"],
    "package": ["-m", "package"],
    "relative": ["-m", "package.inner.relative"],
    "module_fails": ["-m", "package.fails"],
    "module_exits": ["-m", "exit_code"],
    "module_missing": ["-m", "no_such_module"],
    "module_has_none": ["-m", "package.inner"],
    "folder_without": ["package/inner"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs") / "files"
    write(folder, {f"{name}.py": text for name, text in SCRIPTS.items()})
    facts = FACTS.replace("inspect.getsource(here)", "'source'")
    write(folder / "folder", {"__main__.py": facts})
    write(folder / "package", {"__init__.py": "", "facts.py": facts, "__main__.py": facts})
    write(folder / "package", {"fails.py": "def f():\n    1 / 0\nf()\n"})
    write(folder / "package/inner", {"__init__.py": "VALUE = 5", "relative.py": "from . import VALUE\nprint(VALUE)"})
    (folder / "folder/link.py").symlink_to("../facts.py")
    for name, content in BYTES.items():
        (folder / f"{name}.py").write_bytes(content)
    build = """
        import py_compile, zipfile
        py_compile.compile("exit_text.py", "compiled.pyc", doraise=True)
        with zipfile.ZipFile("packed.zip", "w") as packed:
            packed.writestr("__main__.py", "import sys, other; print(sys.argv, sys.path[0], __file__, __package__); 1/0")
            packed.writestr("other.py", "")
    """
    assert run_started(folder, ["-c", textwrap.dedent(build)]).code == 0
    return folder


def write(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


@pytest.fixture(scope="module")
def forks():
    server = Forks()
    yield server
    server.close()


def without_runpy(err):
    """What Python writes, less its own frames, which ``byname run`` leaves out."""
    lines = err.splitlines(keepends=True)
    return b"".join(line for line in lines if b'"<frozen runpy>"' not in line)


GIVEN = b"first line\nsecond line\n"


@pytest.mark.parametrize("name", [*SCRIPTS, *(name for name in BYTES if name != "undecodable")])
def test_a_script_runs_as_under_python(name, files, forks):
    command = [f"{name}.py"]
    assert forks.run(files, ["run", *command], GIVEN) == run_started(files, command, GIVEN)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_line_means_what_it_means_to_python(name, files, forks):
    plain = run_started(files, COMMANDS[name], GIVEN)
    ours = forks.run(files, ["run", *COMMANDS[name]], GIVEN)
    assert ours == plain._replace(err=without_runpy(plain.err))


def test_a_file_in_no_encoding_is_a_syntax_error_as_under_python(files, forks):
    plain = run_started(files, ["undecodable.py"])
    ours = forks.run(files, ["run", "undecodable.py"])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert b"SyntaxError" in ours.err.splitlines()[-1]
    assert b"Traceback" not in ours.err


def test_started_anew_with_options_of_python_it_is_the_same(files):
    options = ["-W", "error", "-X", "utf8=1"]
    for name in ("warned", "interrupted"):
        plain = run_started(files, [*options, f"{name}.py"])
        assert run_started(files, [*options, "-m", "byname", "run", f"{name}.py"]) == plain


def test_under_safe_path_the_folder_of_the_script_is_not_searched(files):
    plain = run_started(files, ["-P", "facts.py"])
    assert str(files) not in plain.out.decode().split()[1]
    assert run_started(files, ["-P", "-m", "byname", "run", "facts.py"]) == plain


BACKWARD_TWICE = """
    import torch
    def step(x):
        return x.exp().sum()
    loss = step(torch.ones(3, requires_grad=True))
    loss.backward()
    loss.backward()
"""


def test_a_note_comes_after_the_traceback_of_python(files, forks):
    write(files, {"fails.py": BACKWARD_TWICE})
    plain = run_started(files, ["fails.py"])
    ours = forks.run(files, ["run", "fails.py"])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert ours.err.startswith(plain.err)
    assert b"byname" in ours.err[len(plain.err) :].splitlines()[0]


def test_the_loader_of_pytorch_works_with_workers_by_fork_and_by_spawn(files, forks):
    write(files, {"loads.py": LOADS})
    ours = forks.run(files, ["run", "loads.py"])
    assert ours == (0, b"fork [0, 1, 4, 9]\nspawn [0, 1, 4, 9]\n", b"")


LOADS = """
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Squares(Dataset):
        def __len__(self): return 4
        def __getitem__(self, place): return place ** 2
    if __name__ == "__main__":
        for way in "fork", "spawn":
            loader = DataLoader(Squares(), num_workers=1, multiprocessing_context=way)
            print(way, [int(one) for one in loader])
"""


def test_a_missing_script_is_said_with_the_exit_code_of_python(files, forks):
    ours = forks.run(files, ["run", "no_such.py"])
    assert ours.code == run_started(files, ["no_such.py"]).code == 2
    assert ours.err.startswith(b"byname: can't open file '%s'" % str(files / "no_such.py").encode())
    assert b"Traceback" not in ours.err


@pytest.mark.parametrize("command", [[], ["run"], ["run", "--check"], ["run", "--chec", "facts.py"], ["fly"]])
def test_a_command_line_that_means_nothing_is_refused(command, files, forks):
    ours = forks.run(files, command)
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.startswith(b"usage: byname")


def test_help_tells_the_commands_and_shows_examples(files, forks):
    assert b"Run a program" in forks.run(files, ["--help"]).out
    shown = forks.run(files, ["run", "--help"])
    assert shown.code == 0
    assert b"byname run --check" in shown.out


FORGOTTEN = """
    import torch
    model = torch.nn.Linear(2, 2)
    forgotten = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters())
    loss = (model(torch.ones(1, 2)) * forgotten).sum()
    loss.backward()
    optimizer.step()
"""


def test_findings_are_told_on_the_standard_error(files, forks):
    write(files, {"forgets.py": FORGOTTEN})
    ours = forks.run(files, ["run", "--check", "forgets.py"])
    assert (ours.code, ours.out) == (0, b"")
    assert ours.err.startswith(b"byname: ")


def test_the_commands_themselves_load_no_pytorch(files):
    bare = """
        import importlib.util, sys, types
        package = types.ModuleType("byname")
        package.__path__ = importlib.util.find_spec("byname").submodule_search_locations
        sys.modules["byname"] = package
        import byname.cli
        print("torch" in sys.modules)
    """
    assert run_started(files, ["-c", textwrap.dedent(bare)]) == (0, b"False\n", b"")
