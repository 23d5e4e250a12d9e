"""``byname run --record``: which model is recorded, from which call on, and that the program is what it is without."""

import functools
import re

import pytest
from forking import run_plain, run_plainly, run_started
from processes import run_forked_ranks
from programs import AT_THE_END, COMMANDS, GIVEN, SCRIPTS, without_runpy, write

import byname

MODEL = """
    import sys, torch
    from torch import nn
    torch.manual_seed(0)
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.mT
            return scores.softmax(-1) @ v
    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Attention(), Attention())
            self.norm = nn.BatchNorm1d(4)
        def forward(self, x, *, scale=1.0):
            return self.norm(self.blocks(x * scale).mean(1))
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(3, 2, 4), scale=2.0).square().mean()
        loss.backward()
        optimizer.step()
        return loss
"""
TRAINS = f"""{MODEL}
    for _ in range(int(sys.argv[1])):
        loss = step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(3, 2, 4))
    print(loss.item())
"""
SCORES = "blocks.*.forward.scores"


@pytest.fixture(scope="module")
def programs(files):
    write(files, {"trains.py": TRAINS})
    return files


def recorded(files, forks, program, paths, *options, arguments=("3",), to="run.h5"):
    """How the program ended with these places recorded, and how without."""
    words = [word for path in paths for word in ("--record", path)]
    command = ["run", *words, "--to", to, "--overwrite", *options, program, *arguments]
    ours = forks.run(files, command, finalized=program.partition(".")[0] in AT_THE_END)
    return ours, ended_plainly(files, program, (files / program).read_bytes(), arguments)


@functools.cache
def ended_plainly(files, program, text, arguments):
    """Run once: a program ends the same each time. Without PyTorch a Python starts faster than it forks."""
    return (run_plain if b"torch" in text else run_started)(files, [program, *arguments])


def said(ours):
    return re.findall(r"^byname: (.*)$", ours.err.decode(), re.MULTILINE)


def test_all_is_recorded_from_the_first_forward_on_and_the_program_computes_the_same(programs, forks):
    paths = [SCORES, "norm.running_mean", "blocks.1.qkv.weight.grad", "forward.scale"]
    ours, plain = recorded(programs, forks, "trains.py", paths)
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert said(ours)[0] == "records GPT at trains.py:23 to run.h5"
    with byname.open(programs / "run.h5") as recording:
        assert recording.complete
        scores = recording["blocks.0.forward.scores"]
        assert list(scores.iterations) == [0, 1, 2, 0]
        assert list(scores.modes) == ["train", "train", "train", "eval"]
        assert list(recording["blocks.1.qkv.weight.grad"].iterations) == [0, 1, 2]
        assert list(recording["forward.scale"].values) == [2.0, 1.0]
        assert recording.run["arguments"] == ["trains.py", "3"]


@pytest.mark.parametrize(
    ("options", "iterations"),
    [(["--every", "2"], [0, 2, 4, 0]), (["--mode", "train"], [0, 1, 2, 3, 4]), (["--mode", "eval"], [0])],
)
def test_a_schedule_is_kept(options, iterations, programs, forks):
    recorded(programs, forks, "trains.py", [SCORES], *options, arguments=("5",))
    with byname.open(programs / "run.h5") as recording:
        assert list(recording["blocks.1.forward.scores"].iterations) == iterations


OTHERS_FIRST = f"""{MODEL}
    class Normalize(nn.Module):
        def forward(self, x):
            return x - x.mean()
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
        def forward(self, x):
            return self.inner(x)
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = model
        def forward(self, x):
            return self.gpt(x)
    Normalize()(torch.ones(3))
    Teacher()(torch.ones(1, 4))
    Wrapped()(torch.ones(2, 3, 4))
    print(step().item())
"""


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (SCORES, "GPT"),
        (f"gpt.{SCORES}", "Wrapped"),
        ("inner", "Teacher"),
        ("forward", "Teacher"),
        (f"GPT:{SCORES}", "GPT"),
        ("Normalize:forward", "Normalize"),
        ("Wrapped:forward.x", "Wrapped"),
        ("Attention:forward.scores", "Attention"),
    ],
)
def test_the_model_is_the_first_outermost_one_with_parameters_that_fits_or_the_first_of_its_class(
    path, model, files, forks
):
    write(files, {"others.py": OTHERS_FIRST})
    ours, plain = recorded(files, forks, "others.py", [path], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    first = said(ours)[-2]
    assert re.fullmatch(rf"records {model} at others.py:\d+ to run.h5", first)
    with byname.open(files / "run.h5") as recording:
        assert recording.run["model"] == model


@pytest.mark.slow
def test_of_wrapped_and_compiled_models_the_model_inside_is_recorded(files, forks):
    write(
        files, {"compiles.py": f"{MODEL}\n    model = torch.compile(model, backend='eager')\n    print(step().item())"}
    )
    ours, plain = recorded(files, forks, "compiles.py", [SCORES], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    with byname.open(files / "run.h5") as recording:
        assert [len(one) for one in recording[SCORES].values()] == [1, 1]


ENDS = {
    "raises": "raise ValueError('no more')",
    "exits": "sys.exit(3)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "in_a_forward": "model(torch.ones(3))",
}


@pytest.mark.parametrize("end", ENDS)
def test_however_the_program_ends_the_file_is_closed_and_the_end_is_its_own(end, files, forks):
    write(files, {f"end_{end}.py": f"{MODEL}\n    print(step().item())\n    {ENDS[end]}\n"})
    ours, plain = recorded(files, forks, f"end_{end}.py", [SCORES], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    if end != "in_a_forward":  # a module that has hooks is called in two more frames of PyTorch
        assert plain.err in ours.err
    assert ours.err.splitlines()[-1] == plain.err.splitlines()[-1] if plain.err else True
    with byname.open(files / "run.h5") as recording:
        assert list(recording["blocks.0.forward.scores"].iterations) == [0]
        assert recording.complete == (end == "exits")
        assert any("ValueError" in sentence for sentence in recording.missing) == (end == "raises")


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        (
            ["blocks.*.forward.scors"],
            "not recorded: `blocks.*.forward.scors` matches nothing in this GPT; close to it: ",
        ),
        (["GPT:nothing.here"], "not recorded: `nothing.here` matches nothing in this GPT"),
        (
            ["Transformer:forward"],
            "nothing was recorded: no Transformer that was called has these paths; called were GPT",
        ),
        (
            ["blocks.0.softmx"],
            "not recorded: `blocks.0.softmx` matches nothing in this GPT; close to it: `blocks.0.softmax`",
        ),
    ],
)
def test_a_path_that_fits_nothing_is_told_with_the_closest_ones_and_the_program_runs_on(
    paths, sentence, programs, forks
):
    (programs / "none.h5").unlink(missing_ok=True)
    ours, plain = recorded(programs, forks, "trains.py", paths, to="none.h5")
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert any(line.startswith(sentence) for line in said(ours))
    assert said(ours)[-1].startswith("nothing was recorded")
    assert not (programs / "none.h5").exists()


def test_an_operation_that_no_call_was_is_told_and_the_program_runs_on(programs, forks):
    ours, plain = recorded(programs, forks, "trains.py", ["blocks.0.relu"])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert any("`blocks.0.relu` matches no operation that ran" in line for line in said(ours))


def test_a_value_that_cannot_be_stored_is_told_and_the_program_runs_on(programs, forks):
    ours, plain = recorded(programs, forks, "trains.py", ["forward.self", SCORES])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert any("forward.self" in line for line in said(ours))
    with byname.open(programs / "run.h5") as recording:
        assert len(recording["blocks.0.forward.scores"]) == 4


def test_a_program_that_calls_no_module_is_told_so_and_keeps_its_exit_code(files, forks):
    ours, plain = recorded(files, forks, "exit_code.py", ["forward"], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert said(ours) == [
        "nothing was recorded: the program called no module in this process; new processes that it starts run plain Python"
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--record", "forward"], "--record needs a file"),
        (["--to", "run.h5"], "--to needs --record"),
        (["--every", "10"], "--every needs --record"),
        (["--mode", "both"], "--mode needs --record"),
        (["--overwrite"], "--overwrite needs --record"),
        (["--record", "a..b", "--to", "x.h5"], "--record: not a path: 'a..b'"),
        (["--record", "A:x", "--record", "B:x", "--to", "x.h5"], "one file records one model"),
        (
            ["--record", "forward", "--to", "missing/run.h5"],
            "--to: there is no directory FILES/missing to write to; the closest that exists: FILES;",
        ),
        (["--record", "forward", "--to", "folder"], "--to: folder is a directory"),
        (
            ["--record", "forward", "--to", "facts.py"],
            "--to: facts.py exists already and was not changed; --overwrite replaces it",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_program_starts(options, sentence, files, forks):
    ours = forks.run(files, ["run", *options, "facts.py"])
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.decode().startswith(f"byname: {sentence.replace('FILES', str(files))}")


TELLING = {"chained", "exit_text", "hook", "interrupted"}  # each ends in another way


@pytest.mark.parametrize(
    "name", [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS]
)
def test_a_script_runs_as_under_python(name, files, forks):
    ours, plain = recorded(files, forks, f"{name}.py", ["forward"], arguments=())
    assert ours.err.count(b"byname: nothing was recorded") == (name != "killed")
    assert (ours.code, ours.out, plain_of(ours.err)) == (plain.code, plain.out, plain.err)


def plain_of(err):
    return re.sub(rb"byname: nothing was recorded[^\n]*\n", b"", err)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "arguments"])
def test_a_command_line_means_what_it_means_to_python(name, files, forks):
    plain = run_plainly(files, *COMMANDS[name])
    ours = forks.run(files, ["run", "--record", "forward", "--to", "run.h5", "--overwrite", *COMMANDS[name]], GIVEN)
    assert ours._replace(err=plain_of(ours.err)) == plain._replace(err=without_runpy(plain.err))


FORKS = f"""{MODEL}
    import os
    torch.set_num_threads(1)  # a fork has none of PyTorch's threads, and would wait for them
    for _ in range(2):
        step()
    sys.stdout.flush()
    child = os.fork()
    with torch.no_grad():
        model(torch.randn(3, 2, 4))
    if child:
        print(os.waitpid(child, 0)[1])
    else:
        print("child", flush=True)
"""


@pytest.mark.slow
def test_a_process_that_the_program_forks_leaves_the_file_alone(files, forks):
    write(files, {"forks_too.py": FORKS})
    ours, plain = recorded(files, forks, "forks_too.py", [SCORES], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    with byname.open(files / "run.h5") as recording:
        assert recording.complete
        assert list(recording["blocks.0.forward.scores"].iterations) == [0, 1, 2]


def test_the_file_is_where_the_command_line_says_wherever_the_program_goes(files, forks):
    write(files, {"moves.py": f"{MODEL}\n    import os; os.chdir('/')\n    print(step().item())\n"})
    recorded(files, forks, "moves.py", [SCORES], arguments=(), to="moved.h5")
    with byname.open(files / "moved.h5") as recording:
        assert len(recording["blocks.0.forward.scores"]) == 1


WORKERS = f"""{MODEL}
    from torch.utils.data import DataLoader, Dataset
    class Encoded(Dataset):
        encoder = nn.Linear(4, 4)
        def __len__(self): return 4
        def __getitem__(self, place):
            with torch.no_grad(): return self.encoder(torch.full((2, 4), float(place)))
    for batch in DataLoader(Encoded(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
        print(model(batch).sum().item())
"""


@pytest.mark.slow
def test_what_the_workers_of_a_loader_call_is_not_the_model(files, forks):
    write(files, {"workers.py": WORKERS})
    ours, plain = recorded(files, forks, "workers.py", ["forward"], arguments=())
    assert (ours.code, ours.out) == (plain.code, plain.out)
    with byname.open(files / "run.h5") as recording:
        assert recording.run["model"] == "GPT"


@pytest.mark.slow
def test_started_anew_with_warnings_as_errors_it_is_the_same(programs):
    (programs / "anew.h5").unlink(missing_ok=True)
    options = ["run", "--record", SCORES, "--to", "anew.h5", "trains.py", "2"]
    ours = run_started(programs, ["-W", "error", "-m", "byname", *options])
    plain = run_started(programs, ["trains.py", "2"])
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert len(said(ours)) == 2


DISTRIBUTED = f"""{MODEL}
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    for _ in range(2):
        step()
    dist.destroy_process_group()
"""
EACH = f"""
    import sys
    from byname.cli import main
    sys.exit(main(["run", "--record", "{SCORES}", "--to", "ranks.h5", "distributed.py"]))
"""


def test_of_several_processes_each_records_to_a_file_of_its_own(tmp_path):
    write(tmp_path, {"distributed.py": DISTRIBUTED})
    run_forked_ranks(tmp_path, EACH)
    with byname.open(tmp_path / "ranks.h5") as recording:
        assert recording.complete
        scores = recording["blocks.0.forward.scores"]
        assert list(zip(scores.iterations, scores.ranks, strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


FUNCTIONS = """
    import sys, torch
    import its_losses, its.own
    class Trainer:
        def step(self, x):
            value = x * 2
            return value
    def passed_on(function):
        return lambda *args: function(*args)
    @passed_on
    def step(x):
        loss = its_losses.double(x)
        its.own.double(x)
        return loss
    def main(number):
        for turn in range(number):
            x = step(torch.tensor(float(turn)))
            Trainer().step(x)
            def inner(y):
                more = y + 1
                return more
            inner(turn)
        print(x.item(), sorted(vars()), step.__code__.co_name)
    if __name__ == "__main__":
        main(int(sys.argv[1]))
"""
LOSSES = """
    def double(x):
        ratio = x * 2
        return ratio
"""


def test_variables_of_functions_are_recorded_from_the_first_call_on(programs, forks):
    write(programs, {"functions.py": FUNCTIONS, "its_losses.py": LOSSES})
    write(programs / "its", {"own.py": LOSSES})
    paths = [
        "step.loss",
        "its_losses.double.ratio",
        "functions.Trainer.step.value",
        "main.turn",
        "main.inner.more",
        "its.own.double.ratio",
    ]
    ours, plain = recorded(programs, forks, "functions.py", paths)
    assert (ours.code, ours.out) == (plain.code, plain.out)
    told = ["records variables of functions to run.h5", "recorded 18 records of 6 places: byname show run.h5"]
    assert said(ours) == told
    with byname.open(programs / "run.h5") as recording:
        found = {path: [float(one) for one in recording[path].values] for path in paths}
        assert recording["step.loss"].iterations == [0, 1, 2] and recording.complete and "model" not in recording.run
    assert [*found.values()] == [[0, 2, 4], [0, 2, 4], [0, 4, 8], [0, 1, 2], [1, 2, 3], [0, 2, 4]]


def test_functions_and_places_of_a_model_do_not_share_a_file(programs, forks):
    write(programs, {"functions.py": FUNCTIONS, "its_losses.py": LOSSES})
    ours, _ = recorded(programs, forks, "functions.py", ["step.loss", "fc1"])
    assert ours.code == 2 and "fc1 is not a variable of a function" in ours.err.decode()


def test_a_path_that_begins_with_a_wildcard_is_of_the_model_whatever_the_functions_are_called(programs, forks):
    write(programs, {"model.py": f"{MODEL}    for turn in range(2):\n        step()\n"})
    ours, _ = recorded(programs, forks, "model.py", ["*", "norm.weight"])
    assert said(ours)[-1] == "recorded 6 records of 3 places: byname show run.h5"
    with byname.open(programs / "run.h5") as recording:
        assert [*recording] == ["blocks", "norm", "norm.weight"]


def test_a_misspelt_variable_of_a_function_is_told_with_the_closest(programs, forks):
    write(programs, {"functions.py": FUNCTIONS, "its_losses.py": LOSSES})
    ours, plain = recorded(programs, forks, "functions.py", ["step.los"])
    assert ours.out == plain.out
    assert "`step.los` matches no variable of a function of this program; close to it: `step.loss`" in said(ours)[-1]
