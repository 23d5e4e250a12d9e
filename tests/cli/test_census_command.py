"""``byname census`` and ``--census-on-signal`` against ``python``: the same program, and a table on the standard error."""

import re
import signal
import subprocess
import textwrap

import pytest
from forking import run_plain, run_plainly
from processes import Fork
from programs import AT_THE_END, BYTES, COMMANDS, GIVEN, SCRIPTS, without_runpy, write

NOTHING = re.compile(
    rb"byname: census at [^\n]*\n0 storages, 0 B\n(?:gc\.freeze[^\n]*\n)?functions that held tensors[^\n]*\n"
)
NEVER_ENDS = {"killed"}
TELLING = {  # each ends in another way; of the others `byname run`, which starts programs by the same code, is asked
    *("chained", "exit_text", "facts", "forked", "interrupted", "uncaught", "unclosed", "warned"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in TELLING else pytest.param(name, marks=pytest.mark.slow)
        for name in (*SCRIPTS, *BYTES)
        if name != "undecodable"
    ],
)
def test_a_script_runs_as_under_python(name, files, forks):
    plain = run_plainly(files, f"{name}.py")
    ours = forks.run(files, ["census", f"{name}.py"], GIVEN, finalized=name in AT_THE_END)
    err, tables = NOTHING.subn(b"", ours.err)
    assert ours._replace(err=err) == plain
    assert tables == (name not in NEVER_ENDS)


@pytest.mark.grid(fast=5)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_line_means_what_it_means_to_python(name, files, forks):
    plain = run_plainly(files, *COMMANDS[name])
    ours = forks.run(files, ["census", "--growth", *COMMANDS[name]], GIVEN)
    err = re.sub(rb"byname: growth compares two looks [^\n]*\n", b"", ours.err)
    assert ours._replace(err=err) == plain._replace(err=without_runpy(plain.err))


TRAINS = """
    import sys, torch
    torch.manual_seed(0)
    history = []
    def train(steps, fails_at=None):
        model = torch.nn.Linear(64, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            batch = torch.rand(8, 64)
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss)
            if step == fails_at:
                kept = torch.zeros(1000)
                raise ValueError("no more")
        print(torch.rand(3).tolist())
    if __name__ == "__main__":
        train(int(sys.argv[1]), *map(int, sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def trains(files):
    write(files, {"trains.py": TRAINS})
    return "trains.py"


def same_as_plain(files, command, ours):
    plain = run_plain(files, command)
    assert (ours.code, ours.out) == (plain.code, plain.out)
    return plain


def tables(err):
    """The header of each table, and its first column below the head."""
    found = {}
    for part in re.split(r"^byname: ", err.decode(), flags=re.MULTILINE)[1:]:
        header, *lines = part.splitlines()
        found[header] = [line.split("  ")[0] for line in lines[3:] if line]
    return found


def test_at_the_end_is_told_what_the_program_still_holds(trains, files, forks):
    ours = forks.run(files, ["census", trains, "3"])
    same_as_plain(files, [trains, "3"], ours)
    found = tables(ours.err)
    assert list(found) == ["census at the end"]
    assert {"history[0]", "history[1]", "history[2]"} <= set(found["census at the end"])


def test_at_an_error_the_variables_of_the_functions_that_failed_are_there(trains, files, forks):
    ours = forks.run(files, ["census", trains, "5", "1"])
    plain = same_as_plain(files, [trains, "5", "1"], ours)
    assert ours.err.endswith(plain.err)
    found = tables(ours.err)["census at the ValueError"]
    assert {"kept", "model.weight", "model.weight.grad", "batch"} <= set(found)


def test_every_so_many_steps_is_told_which_step_and_what_is_alive_in_it(trains, files, forks):
    ours = forks.run(files, ["census", "--every", "2", "--top", "2", trains, "5"])
    same_as_plain(files, [trains, "5"], ours)
    found = tables(ours.err)
    assert [header for header in found if "step" in header] == [
        "census after optimizer step 2 (SGD at trains.py:12)",
        "census after optimizer step 4 (SGD at trains.py:12)",
    ]
    first = found["census after optimizer step 2 (SGD at trains.py:12)"]
    assert set(first[:2]) == {"model.weight", "model.weight.grad"}
    assert re.fullmatch(r"… and \d+ rows more; .rows\(\) has them all", first[2])


@pytest.mark.parametrize(("every", "looks"), [pytest.param([], 4, marks=pytest.mark.slow), (["--every", "3"], 3)])
def test_growth_is_told_from_the_first_look_to_the_last(every, looks, trains, files):
    ours = run_plain(files, ["-W", "error", "-m", "byname", "census", "--growth", *every, trains, "9"])
    same_as_plain(files, [trains, "9"], ours)
    ((header, found),) = tables(ours.err).items()
    assert re.fullmatch(rf"growth from optimizer step \d .* to optimizer step \d .*, {looks} looks", header)
    assert found[0] == "history[*]"
    assert b"stored-graph: store loss.item()" in ours.err


def test_growth_without_steps_says_that_there_was_nothing_to_compare(files, forks):
    ours = forks.run(files, ["census", "--growth", "nothing.py"])
    assert ours == (
        0,
        b"",
        b"byname: growth compares two looks after optimizer steps, but there was time for 0 looks\n",
    )


SERVES = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    kept = {}
    @torch.no_grad()
    def serve(number):
        kept[number] = model(torch.ones(2, 8))
    for number in range(20):
        serve(number)
    if sys.argv[1:]:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(4):
            parameter.sum().backward()
            optimizer.step()
"""


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize(("every", "calls"), [([], "8 16"), (["--every", "5"], "5 20")])
def test_growth_looks_at_calls_of_modules_in_a_program_without_steps(every, calls, files, forks):
    (files / "serves.py").write_text(textwrap.dedent(SERVES))
    ours = forks.run(files, ["census", "--growth", *every, "serves.py"])
    ((header, found),) = tables(ours.err).items()
    first, last = calls.split()
    assert f"from call {first} of a module (Sequential at serves.py:7) to call {last} of a module" in header
    assert found[0] == "kept[*]"
    assert b"growing-cache: bound it" in ours.err


def test_calls_before_the_first_step_are_not_compared_with_steps(files, forks):
    (files / "serves.py").write_text(textwrap.dedent(SERVES))
    ours = forks.run(files, ["census", "--growth", "serves.py", "trains"])
    assert b"growth from optimizer step 1 " in ours.err
    assert b"kept" not in ours.err


@pytest.mark.parametrize("option", [["--every", "0"], ["--top", "x"], ["--every"], ["--grow"]])
def test_options_that_mean_nothing_are_refused(option, files, forks):
    ours = forks.run(files, ["census", *option, "nothing.py"])
    assert (ours.code, ours.out) == (2, b"")
    assert ours.err.startswith(b"usage: byname")


SIGNALLED = """
    import os, random, signal, sys, torch, warnings
    torch.manual_seed(0); random.seed(0)
    def train():
        weight = torch.ones(1000, requires_grad=True)
        with torch.no_grad():
            os.kill(os.getpid(), signal.SIGUSR1)
        loss = weight.exp().sum()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
        loss.backward()
        print(weight.grad.sum().item(), torch.rand(2).tolist(), random.random(), torch.is_grad_enabled())
    train()
"""


def signalled(program, files, forks, command="run"):
    """How a program ends that is asked for a census while it runs."""
    write(files, {"signalled.py": program})
    return forks.run(files, [command, "--census-on-signal", "signalled.py"])


def answers(ours):
    return ours.err.count(b"byname: census of process")


PREPARED = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"


@pytest.mark.parametrize("command", [pytest.param("run", marks=pytest.mark.slow), "census"])
def test_a_signal_is_answered_with_a_census_and_changes_nothing(command, files, forks):
    ours = signalled(SIGNALLED, files, forks, command)
    (files / "ignores.py").write_text(PREPARED + (files / "signalled.py").read_text())
    same_as_plain(files, ["-W", "error", "ignores.py"], ours)
    headers = re.findall(rb"^byname: census of process \d+ at signalled.py:(\d+)$", ours.err, re.MULTILINE)
    assert len(headers) == 4
    assert len(re.findall(rb"^weight +", ours.err, re.MULTILINE)) == 4
    assert b"could not" not in ours.err


DURING_OUTPUT = """
    import os, signal, sys, threading
    class Stream:
        def write(self, words):
            os.kill(os.getpid(), signal.SIGUSR1)
            sys.__stderr__.write(words)
        def flush(self): sys.__stderr__.flush()
    sys.stderr = Stream()
    print("its own", file=sys.stderr)
    del sys.stderr
    os.kill(os.getpid(), signal.SIGUSR1)
    print("goes on")
"""


def test_a_signal_is_answered_while_the_program_writes_and_without_its_stream(files, forks):
    ours = signalled(DURING_OUTPUT, files, forks)
    assert (ours.code, ours.out) == (0, b"goes on\n")
    assert answers(ours) >= 2
    assert b"could not" not in ours.err
    assert b"its own" in ours.err


OWN_HANDLER = """
    import os, signal
    before = signal.getsignal(signal.SIGUSR1)
    def mine(number, frame):
        print("mine", callable(before))
        before(number, frame)
    signal.signal(signal.SIGUSR1, mine)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(signal.getsignal(signal.SIGUSR1) is mine)
"""


def test_a_handler_of_the_program_replaces_the_answer_and_may_call_it(files, forks):
    ours = signalled(OWN_HANDLER, files, forks)
    assert (ours.code, ours.out) == (0, b"mine True\nTrue\n")
    assert answers(ours) == 1


WAITS = """
    import os, signal, socket, threading, time
    reader, writer = os.pipe()
    def later():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        os.write(writer, b"whole")
    threading.Thread(target=later).start()
    print(os.read(reader, 5), signal.set_wakeup_fd(-1))
"""


def test_a_system_call_that_a_signal_comes_into_ends_as_it_should(files, forks):
    ours = signalled(WAITS, files, forks)
    assert (ours.code, ours.out) == (0, b"b'whole' -1\n")
    assert answers(ours) == 1


FORKS = """
    import os, signal, torch
    kept = torch.ones(10)
    child = os.fork()
    os.kill(os.getpid(), signal.SIGUSR1)
    if child:
        print(os.waitpid(child, 0)[1], flush=True)
"""


def test_a_process_that_the_program_forks_answers_for_itself(files, forks):
    ours = signalled(FORKS, files, forks, "census")
    assert (ours.code, ours.out) == (0, b"0\n")
    processes = re.findall(rb"^byname: census of process (\d+)", ours.err, re.MULTILINE)
    assert len(set(processes)) == 2
    assert ours.err.count(b"byname: census at the end") == 1


TIMES_OUT = """
    import os, signal
    def too_late(number, frame): raise TimeoutError("too late")
    signal.signal(signal.SIGALRM, too_late)
    import byname.cli.remote_answer as signals
    def census(): os.kill(os.getpid(), signal.{signal}); return signals.__dict__["missing"]
    signals.census = census
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        print("not reached" if "{signal}" == "SIGALRM" else "goes on")
    except TimeoutError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("meanwhile", "out", "err"),
    [("SIGALRM", b"too late\n", b""), ("SIGCONT", b"goes on\n", b"byname: could not look at the program: KeyError")],
)
def test_errors_of_a_look_are_told_and_those_of_the_program_are_raised(meanwhile, out, err, files, forks):
    ours = signalled(TIMES_OUT.replace("{signal}", meanwhile), files, forks)
    assert (ours.code, ours.out) == (0, out)
    assert ours.err.startswith(err)
    assert bool(ours.err) == bool(err)


PREDECESSOR = """
    import os, signal, sys, threading
    from byname.cli.command import CommandError
    from byname.cli.remote_answer import answer_signals
    def earlier(number, frame): print("earlier", number == signal.SIGUSR1)
    if sys.argv[1] == "chained":
        signal.signal(signal.SIGUSR1, earlier)
        answer_signals()
        os.kill(os.getpid(), signal.SIGUSR1)
    else:
        def refused():
            try:
                answer_signals()
            except CommandError as error:
                print(error)
        if sys.argv[1] == "thread":
            thread = threading.Thread(target=refused); thread.start(); thread.join()
        if sys.argv[1] == "missing":
            del signal.SIGUSR1
            refused()
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("chained", b"earlier True\n"),
        ("thread", b"--census-on-signal works only in the main thread"),
        ("missing", b"this platform has no SIGUSR1"),
    ],
)
def test_an_earlier_handler_is_called_and_what_cannot_be_answered_is_refused(case, said, files):
    write(files, {"before.py": PREDECESSOR})
    done = run_plain(files, ["before.py", case])
    assert done.code == 0
    assert done.out.startswith(said)
    assert answers(done) == (case == "chained")


LIVES = """
    import sys, torch
    history = [torch.ones(5) for _ in range(3)]
    print("ready", flush=True)
    while not sys.stdin.readline(): pass
    print("done")
"""


def test_a_living_process_answers_from_outside(files):
    write(files, {"lives.py": LIVES})
    command = ["-W", "error", "-m", "byname", "run", "--census-on-signal", "lives.py"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Fork(command, cwd=files, **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(b"go\n", timeout=60)
    assert (process.returncode, out) == (0, b"done\n")
    assert err.startswith(b"byname: census of process %d at lives.py:" % process.pid)
    assert b"history[2]" in err
