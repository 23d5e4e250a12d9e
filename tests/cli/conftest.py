"""A folder of programs, and a Python that runs command lines of byname there."""

import textwrap

import pytest
from forking import Forks, run_started
from programs import BYTES, FACTS, SCRIPTS, write


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def forks():
    return Forks()
