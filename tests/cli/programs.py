"""Programs and command lines that behave in every way a program can, for comparison with plain Python."""

import textwrap

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

AT_THE_END = {"afterwards", "afterwards_failed", "broken_pipe", "killed", "nothing", "streams", "thread_exits"}
"""Scripts of which something runs, is said or is freed while Python ends."""

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
    "module": ["-m", "package.facts", "--check", "-m", "y"],
    "package": ["-m", "package"],
    "relative": ["-m", "package.inner.relative"],
    "module_fails": ["-m", "package.fails"],
    "module_exits": ["-m", "exit_code"],
    "module_missing": ["-m", "no_such_module"],
    "module_has_none": ["-m", "package.inner"],
    "folder_without": ["package/inner"],
}


def write(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def without_runpy(err):
    """What Python writes, less its own frames, which ``byname run`` leaves out."""
    lines = err.splitlines(keepends=True)
    return b"".join(line for line in lines if b'"<frozen runpy>"' not in line)


GIVEN = b"first line\nsecond line\n"
