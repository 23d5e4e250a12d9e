"""Is byname silent, and without effect, on programs in which nothing is wrong?"""

import contextlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checking import checking
from processes import without_gloo

HEALTHY = Path(__file__).parent / "healthy"
PROCESSES = sorted(path.stem for path in HEALTHY.glob("ddp_two_ranks*.py"))  # they start processes of their own
PROGRAMS = sorted({path.stem for path in HEALTHY.glob("*.py")} - set(PROCESSES))
HEAVY = {  # each has a lighter relative among the others
    *("compiled_aot", "fgsm", "gan_two_backwards", "manual_sgd", "sam", "simsiam", "transformers_bert", "wgan_gp"),
    *("actor_critic", "dqn", "metrics", "ppo", "quantile_loss", "shared_buffers", "style_transfer", "swa"),
}


@pytest.fixture
def path(request):
    return HEALTHY / f"{request.param}.py"


def run(path):
    """The names of a program after it ran in this process as `python program.py` would run it."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    with as_main(module, path.parent):
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        module.RANDOM_AFTERWARDS = torch.get_rng_state()
    return module.__dict__


@contextlib.contextmanager
def as_main(module, folder):
    """Puts back what a program changes for the whole process."""
    main, modules, path = sys.modules["__main__"], set(sys.modules), list(sys.path)
    random, dtype, grad = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    sys.modules["__main__"] = module
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(random)
        sys.path[:] = path
        sys.modules["__main__"] = main
        for name in set(sys.modules) - modules:
            if is_below(folder, sys.modules[name]):
                del sys.modules[name]
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


def is_below(folder, module):
    file = getattr(module, "__file__", None)
    return file is not None and folder in Path(file).parents


def same(plain, explained):
    """Bit for bit, and the same in what autograd keeps with the tensor."""
    if plain is None or explained is None:
        return plain is explained
    return (
        type(plain) is type(explained)
        and plain.dtype == explained.dtype
        and plain.requires_grad == explained.requires_grad
        and torch.equal(plain, explained)
        and same_gradient(plain, explained)
    )


def same_gradient(plain, explained):
    return not (plain.is_leaf and explained.is_leaf) or same(plain.grad, explained.grad)


@pytest.mark.grid(fast=12)
@pytest.mark.parametrize(
    "path", [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in PROGRAMS], indirect=True
)
def test_nothing_is_reported_and_nothing_changes(path, capfd):
    if path.stem.startswith("transformers_"):
        pytest.importorskip("transformers")
    if path.stem.startswith("ddp_") and not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("needs gloo")
    plain = run(path)
    reported = []
    with checking(reported.append):
        explained = run(path)
    assert reported == []
    assert [*map(without_gloo, capfd.readouterr())] == ["", ""]
    assert [getattr(error, "__notes__", []) for error in explained.get("CAUGHT", [])] == [
        [] for _ in plain.get("CAUGHT", [])
    ]
    assert len(plain["FINAL"]) == len(explained["FINAL"]) > 0
    differing = [i for i, pair in enumerate(zip(plain["FINAL"], explained["FINAL"], strict=True)) if not same(*pair)]
    assert differing == []
    assert torch.equal(plain["RANDOM_AFTERWARDS"], explained["RANDOM_AFTERWARDS"])


def digest_of(path, digest, *options):
    """What the program wrote about its final state, when it is run as a program of its own."""
    environment = {**os.environ, "FINAL_DIGEST": str(digest), "PYTHONWARNINGS": "error"}
    command = [sys.executable, *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return digest.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
@pytest.mark.parametrize("path", PROCESSES, indirect=True)
def test_nothing_changes_in_a_program_of_several_processes(path, tmp_path):
    plain = digest_of(path, tmp_path / "plain")
    assert plain
    assert digest_of(path, tmp_path / "checked", "-m", "byname", "run", "--check") == plain
