"""The house: imports go down, there is no cycle, and `import byname` stays light."""

import ast
import functools
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
from torch.utils._device import _device_constructors

import byname

SOURCE = Path(byname.__file__).parent
LAYERS = [
    {"errors", "text", "extras", "place", "codec"},
    {"source"},
    {"table", "axes"},
    {"reading"},
    {"undo"},
    {"tracking"},
    {"naming"},
    {"autograd"},
    {"memory"},
    {"model"},
    {"tracing"},
    {"diagnose"},
    {"watch"},
    {"drawing"},
    {"recording", "analyse"},
    {"edits"},
    {"rewriting"},
    {"comparing"},
    {"reporting"},
    {"plug", "cli", "__main__"},
]
HEAVY = ["pandas", "h5py", "matplotlib", "xarray", "sklearn", "rich.table", "transformers", "torch._dynamo", "jinja2"]
HEAVY += ["safetensors", "lightning", "torchmetrics"]


PUBLIC = {"byname", "byname.analyse", "byname.cli", "byname.errors"}  # and what is in byname.plug
ASK_OTHERS = {
    "checking.py",  # for the tests of diagnose: nothing public reports a finding to its own process
    "diagnose/test_causes.py",  # the tables, each row of which has its programs
    "autograd/test_pause.py",  # a moment in the middle of a look
    "analyse/scenarios/test_evaluation_progress.py",
    "recording/scenarios/test_elsewhere.py",
    "gpu/test_change_gpu.py",
    "gpu/test_copies_gpu.py",
    "model/test_selectors.py",  # the laws of sets, on a flow of calls
    "test_interrupted.py",
}


def modules():
    return {
        "byname" + "".join(f".{part}" for part in path.relative_to(SOURCE).with_suffix("").parts): path
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }


@functools.cache
def imports_of(path):
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if name.startswith("byname")}


def layer_of(module):
    part = module.split(".")[1] if "." in module else "byname"
    return next(number for number, layer in enumerate(LAYERS) if part in layer)


def test_every_module_belongs_to_a_layer_and_imports_only_downwards():
    for module, path in modules().items():
        for imported in imports_of(path):
            assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}, which stands above it"


def test_a_test_imports_what_is_public_or_the_module_that_it_is_named_after():
    here = Path(__file__).parent
    asking = set()
    for path in here.rglob("*.py"):
        own = "." + path.stem.removeprefix("test_")
        inner = {name for name in imports_of(path) - PUBLIC if not name.startswith("byname.plug")}
        asking |= {path.relative_to(here).as_posix() for name in inner if not name.endswith(own)}
    assert asking == ASK_OTHERS


def test_a_tensor_that_byname_makes_names_its_device():
    """Else it is where `torch.set_default_device()` of the program says, and not where the tensors are that it meets."""
    makers = {f"torch.{one.__name__}" for one in _device_constructors()} - {"torch.as_tensor"}  # of the user's values
    assert len(makers) > 20
    for module, path in modules().items():
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        lacking = [one for one in calls if "device" not in {keyword.arg for keyword in one.keywords}]
        assert not [f"{module}:{one.lineno}" for one in lacking if ast.unparse(one.func) in makers]


def test_imports_have_no_cycle():
    known = modules()
    graph = {module: known.keys() & imports_of(path) for module, path in known.items()}
    done, passing = set(), []

    def visit(module):
        assert module not in passing, f"cycle: {passing[passing.index(module) :] + [module]}"
        if module not in done:
            passing.append(module)
            for imported in sorted(graph[module]):
                visit(imported)
            done.add(passing.pop())

    for module in graph:
        visit(module)


DESIGN = Path(__file__).parent.parent / "docs" / "design.md"


def test_folders_do_not_import_each_other_and_the_picture_of_them_is_the_code_s():
    page = DESIGN.read_text(encoding="utf-8")
    house = runpy.run_path(str(DESIGN.parent / "house.py"))
    assert house["drawn"](page) == page, "run `make house`"


def test_every_file_that_the_design_names_is_there():
    named = re.findall(r"`([\w/]+\.py)`", DESIGN.read_text(encoding="utf-8"))
    there = [path.as_posix() for path in SOURCE.parent.parent.rglob("*.py")]
    assert len(named) > 30
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in there)]


@pytest.mark.parametrize("package", [byname, byname.analyse], ids=lambda package: package.__name__)
def test_type_checkers_see_the_public_names(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    named = {
        alias.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    places = {name: getattr(package, name).__module__ for name in package.__all__ if name != "select"}
    assert {*named} - {"analyse", "plug"} == {*package.__all__}
    assert places.items() <= named.items()


def test_no_folder_bears_the_name_of_a_public_function():
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert not folders & set(byname.__all__)


def test_import_byname_loads_nothing_heavy():
    code = "import sys, torch; before = set(sys.modules); import byname; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    found = set(loaded.stdout.split())
    assert not [name for name in HEAVY if name in found]


def test_every_public_name_is_documented_with_an_example():
    for name in byname.__all__:
        thing = getattr(byname, name)
        assert thing.__doc__, name
        if callable(thing) and not isinstance(thing, type):
            assert ">>>" in thing.__doc__, f"{name} has no runnable example"


def members_of(thing):
    """Return the public methods and properties of a class, its own and those of its bases; a function alone."""
    spaces = [vars(base) for base in getattr(thing, "__mro__", ())[::-1] if base.__module__.startswith("byname")]
    kinds = FunctionType | property | classmethod | functools.cached_property
    found = {name: one for space in spaces for name, one in space.items() if name[0] != "_" and isinstance(one, kinds)}
    return found if isinstance(thing, type) else {"": thing}


def is_documented(thing, name):
    if not name:
        return thing.__doc__
    definers = [base for base in thing.__mro__ if name in vars(base)]
    public = [base for base in definers if base.__name__[0] != "_"] or definers
    return thing.__doc__ and (vars(public[0])[name].__doc__ or f" {name}: " in thing.__doc__)


def classes_returned_by(member):
    made = next(filter(None, (getattr(member, name, None) for name in ("fget", "func", "__func__"))), member)
    space, annotation = vars(sys.modules[made.__module__]), inspect.unwrap(made).__annotations__.get("return", "")
    named = [space.get(word) for word in re.findall(r"[A-Z]\w*", str(annotation))]
    return [one for one in named if isinstance(one, type) and one.__module__.startswith("byname")]


def test_what_users_reach_from_public_names_is_documented():
    reached = [getattr(package, name) for package in (byname, byname.analyse, byname.plug) for name in package.__all__]
    reached = [one if callable(one) else type(one) for one in reached]
    lacking = []
    for thing in reached:
        for name, member in members_of(thing).items():
            reached += [one for one in classes_returned_by(member) if one not in reached]
            lacking += [] if is_documented(thing, name) else [f"{thing.__qualname__}.{name}"]
    assert len(reached) > 120
    assert not lacking
