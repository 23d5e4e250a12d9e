"""``byname run`` against ``python``: the same program, the same arguments, the same output, errors and exit code."""

import platform
import textwrap
from importlib import metadata

import pytest
from forking import run_plainly, run_started
from programs import AT_THE_END, BYTES, COMMANDS, GIVEN, SCRIPTS, without_runpy, write

import byname


@pytest.mark.grid(fast=20)
@pytest.mark.parametrize("name", [*SCRIPTS, *(name for name in BYTES if name != "undecodable")])
def test_a_script_runs_as_under_python(name, files, forks):
    ours = forks.run(files, ["run", f"{name}.py"], GIVEN, finalized=name in AT_THE_END)
    assert ours == run_plainly(files, f"{name}.py")


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_line_means_what_it_means_to_python(name, files, forks):
    plain = run_plainly(files, *COMMANDS[name])
    ours = forks.run(files, ["run", *COMMANDS[name]], GIVEN)
    assert ours == plain._replace(err=without_runpy(plain.err))


def test_a_file_in_no_encoding_is_a_syntax_error_as_under_python(files, forks):
    plain = run_started(files, ["undecodable.py"])
    ours = forks.run(files, ["run", "undecodable.py"])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert b"SyntaxError" in ours.err.splitlines()[-1]
    assert b"Traceback" not in ours.err


@pytest.mark.slow
def test_started_anew_with_options_of_python_it_is_the_same(files):
    options = ["-W", "error", "-X", "utf8=1"]
    for name in ("warned", "interrupted"):
        plain = run_started(files, [*options, f"{name}.py"])
        assert run_started(files, [*options, "-m", "byname", "run", f"{name}.py"]) == plain


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_compiled_script_is_refused(files, forks):
    ours = forks.run(files, ["run", "compiled.pyc"])
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err == b"byname: compiled.pyc is compiled, but byname runs only source; python compiled.pyc runs it\n"


@pytest.mark.parametrize("command", [[], ["run"], ["run", "--check"], ["run", "--chec", "facts.py"], ["fly"]])
def test_a_command_line_that_means_nothing_is_refused(command, files, forks):
    ours = forks.run(files, command)
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.startswith(b"usage: byname")


@pytest.mark.parametrize(
    ("command", "closest"),
    [
        (["run", "--chekc", "facts.py", "--check"], b"--chekc; the closest option is --check\n"),
        (["run", "--chekc"], b"--chekc; the closest option is --check\n"),
        (["census", "--grwoth=3", "facts.py"], b"--grwoth=3; the closest option is --growth\n"),
        (["show", "run.h5", "--rangs"], b"--rangs; the closest option is --ranges\n"),
        (["report", "run.h5", "-x"], b"-x\n"),
    ],
)
def test_a_mistyped_option_is_told_with_the_closest_one_of_that_command(command, closest, files, forks):
    ours = forks.run(files, command)
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.startswith(b"usage: byname %s " % command[0].encode())
    assert ours.err.endswith(b"unrecognized arguments: " + closest)


@pytest.mark.parametrize(
    ("command", "closest"),
    [
        (["runn", "facts.py"], b"; the closest is run\n"),
        (["completion", "zhs"], b"; the closest is zsh\n"),
        (["fly"], b"'completion')\n"),
    ],
)
def test_a_mistyped_command_is_told_with_the_closest_one(command, closest, files, forks):
    ours = forks.run(files, command)
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.endswith(closest)


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


def test_the_versions_are_those_of_this_environment(files, forks):
    told = forks.run(files, ["--version"])
    torch, python = metadata.version("torch"), platform.python_version()
    assert (told.code, told.err) == (0, b"")
    assert told.out.decode() == f"byname {byname.__version__} (PyTorch {torch}, Python {python})\n"


SPAWNED = """
    import multiprocessing, sys

    def work(modules):
        if "torch" in modules:
            import torch
            loss = torch.ones(3, requires_grad=True).exp().sum()
            loss.backward()
            loss.backward()
        print(sorted({"torch", "byname.diagnose"} & {*sys.modules}), flush=True)

    def main(modules, method):
        process = multiprocessing.get_context(method).Process(target=work, args=(modules,))
        process.start()
        process.join()

    class Imported:
        def __reduce__(self):
            return __import__, ("torch",)

    if __name__ == "__main__":
        main([], "spawn")
        main(["torch", Imported()], "forkserver")
"""


def test_errors_in_processes_with_a_python_of_their_own_are_explained_if_they_have_imported_pytorch(tmp_path, forks):
    (tmp_path / "train.py").write_text(textwrap.dedent(SPAWNED))
    done = forks.run(tmp_path, ["run", "train.py"])
    assert done.out.decode() == "[]\n"
    assert "byname: backward-twice: this backward at train.py:9 goes through" in done.err.decode()
