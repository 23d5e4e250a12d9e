"""Run and census commands: a program run as Python would, explained and recorded, or the tensors alive in it listed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from byname.cli.ask import add_pid, print_answer
from byname.cli.command import CommandError, cause, positive
from byname.cli.program import Program, module, run_to_end, script

if TYPE_CHECKING:
    from byname.cli.recorded import Recorded
    from byname.cli.reported import Reported
    from byname.diagnose.finding import Finding


class RunCommand:
    """Run a program, explain its errors of autograd, and record values of its model.

    The program runs as under python: the same arguments, output, exit code and traceback. An error of autograd gets
    a note that says which variables and lines it comes from. Options of Python stand before the module byname:
    python -W error -m byname run script.py

    With --record the values of these places go to an HDF5 file, from the first call of the model to the end of the
    program. The model is the first outermost module called that has parameters and that all paths fit; the name of a
    class before the path takes the first module called of that class: GPT:blocks.*.attn.forward.scores
    A path may also name a variable of a plain function: train_step.loss of the script, losses.ppo.ratio of a module.

    examples:
      byname run train.py --epochs 3
      byname run --check --non-finite train.py
      byname run --check --ignore double-softmax train.py
      byname run --census-on-signal train.py      and from elsewhere: kill -USR1 PID
      byname run --record 'blocks.*.attn.forward.scores' --to run.h5 train.py
      byname run --record head.weight.grad --record forward.x --every 10 --to run.h5 --overwrite train.py
      byname run --record train_step.loss --record ppo.update.ratio --to run.h5 train.py
      byname run --check --record 'blocks.*.attn' --to run.h5 --report run.html train.py
      byname run -m package.train --epochs 3
    """

    name = "run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="find what never learns or learns the wrong thing")
        parser.add_argument(
            "--ignore",
            action="append",
            metavar="CAUSE",
            type=cause,
            default=[],
            help="do not report this cause; may be repeated",
        )
        parser.add_argument("--non-finite", action="store_true", help="report where gradients become infinite or NaN")
        parser.add_argument("--track", action="store_true", help="record the lines that allocate, for censuses")
        parser.add_argument("--record", action="append", metavar="PATH", help="record a place; may be repeated")
        parser.add_argument("--to", metavar="FILE", help="the HDF5 file of the records")
        parser.add_argument("--every", type=positive, metavar="N", help="record every Nth iteration (1)")
        parser.add_argument("--mode", choices=("train", "eval", "both"), help="which forwards to record (both)")
        parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
        parser.add_argument("--json", metavar="FILE", help="also write the findings as lines of JSON")
        parser.add_argument("--report", metavar="HTML", help="at the end, write a page of findings and recordings")
        add_program(parser)

    def run(self, options: argparse.Namespace) -> int | BaseException:
        return run_program(options, _watchers)


def _watchers(options: argparse.Namespace) -> list[AbstractContextManager[object]]:
    from byname.cli.spawned import same_options_in_spawned
    from byname.cli.watcher import FindingsFile, PrintedFindings
    from byname.diagnose.explaining import Explaining
    from byname.diagnose.handbook import filter_ignored

    if options.ignore and not (options.check or options.non_finite):
        raise CommandError("--ignore needs --check or --non-finite", exit_code=2)
    recorded = _recorded(options)
    files: list[FindingsFile | Reported | PrintedFindings] = []
    if options.json is not None:
        files.append(FindingsFile(options.json))
    if options.report is not None:
        from byname.cli.reported import Reported

        files.append(Reported(options.report, None if recorded is None else recorded.file))

    files.append(PrintedFindings())

    def report_finding(finding: Finding) -> None:
        for kept in filter_ignored(finding, options.ignore):
            for file in files:
                file.found(kept)

    watchers: list[AbstractContextManager[object]] = [*files[::-1]]
    if options.track:
        from byname.tracking.tracker import track

        watchers.append(track(allocations=True))
    checked, non_finite = (report_finding if wanted else None for wanted in (options.check, options.non_finite))
    watchers.append(Explaining(checked=checked, non_finite=non_finite))
    given = {name: getattr(options, name) for name in ("check", "non_finite", "ignore")}
    watchers.append(same_options_in_spawned(given))
    return watchers if recorded is None else [*watchers, recorded]


def watch_spawned(given: dict[str, Any]) -> None:
    """Look for the same problems in a process that the program has started with a new Python."""
    from byname.cli.spawned import run_inside

    parser = argparse.ArgumentParser()
    RunCommand().add_arguments(parser)
    options = parser.parse_args([], argparse.Namespace(**given))
    run_inside(lambda: _watchers(options))


def _recorded(options: argparse.Namespace) -> Recorded | None:
    if options.record:
        from byname.cli.recorded import Recorded

        # where nothing is given, `record` has its own defaults
        given = {name: value for name in ("every", "mode", "overwrite") if (value := getattr(options, name))}
        return Recorded(options.record, options.to, given, options.loaded)
    for option in ("to", "every", "mode", "overwrite"):
        if getattr(options, option):
            raise CommandError(f"--{option} needs --record, which names the places", exit_code=2)
    return None


class CensusCommand:
    """Run a program, and list which tensors are alive in it, or which grow in number.

    The program runs as under python: the same arguments, output, exit code and traceback. When its last line has run,
    a census goes to the standard error; when it fails, a census of the moment of the error, with the variables of the
    functions that failed.

    examples:
      byname census train.py --epochs 3
      byname census --every 100 --top 10 train.py
      byname census --growth --every 100 -m package.train
      byname census --every 100 --json alive.jsonl train.py

    With --pid it asks a process that runs already: one that was started by `byname run --census-on-signal` or `byname
    census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

      byname census --pid 4711
      byname census --pid 4711 --json -
    """

    name = "census"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--every", type=positive, metavar="N", help="also look after every N optimizer steps")
        parser.add_argument("--top", type=positive, metavar="K", default=20, help="show the K largest (20)")
        parser.add_argument("--growth", action="store_true", help="report what grew from the first to the last step")
        parser.add_argument(
            "--json",
            metavar="FILE",
            help="also write it as lines of JSON; with --pid, - prints JSON instead of the table",
        )
        add_pid(parser)
        add_program(parser)

    def run(self, options: argparse.Namespace) -> int | BaseException:
        if options.pid is None:
            return run_program(options, _looks)
        if options.json not in (None, "-"):
            raise CommandError("with --pid the census goes to the standard output: --json -", exit_code=2)
        return print_answer(options, "census", options.top, in_json=options.json == "-")


def _looks(options: argparse.Namespace) -> list[AbstractContextManager[object]]:
    from byname.cli.step_watchers import CensusShown, GrowthShown
    from byname.cli.watcher import JsonLines

    lines = None if options.json is None else JsonLines(options.json)
    shown = (GrowthShown if options.growth else CensusShown)(options.every, options.top, lines)
    return [shown] if lines is None else [lines, shown]


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the program to the parser; all arguments after the script or the module are the program's."""
    parser.add_argument("--census-on-signal", action="store_true", help="at SIGUSR1, print which tensors are alive")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    words = "a script, a folder or zip file with a __main__.py, or with -m a module"
    parser.add_argument("program", nargs="?", help=words)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program (sys.argv)")


def run_program(
    options: argparse.Namespace, watchers_of: Callable[[argparse.Namespace], list[AbstractContextManager[object]]]
) -> int | BaseException:
    """Run the program to its end, inside the contexts that the options ask for, and return 0 or its error.

    The contexts, the outermost first, import what they need before the program runs, since that may change `sys.path`.
    """
    program = options.loaded = _program(options)
    watchers = watchers_of(options)
    if options.census_on_signal:
        from byname.cli.remote_answer import answer_signals

        answer_signals()
    program.take_place()
    return run_to_end(program, watchers) or 0


def _program(options: argparse.Namespace) -> Program:
    if options.program is None:
        options.parser.print_usage(sys.stderr)
        raise CommandError("give a program: a script, or -m and the name of a module", exit_code=2)
    if options.is_module:
        return module(options.program, options.arguments)
    try:
        return script(options.program, options.arguments)
    except OSError as error:
        advice = "Give the path of a script, or -m and the name of a module."
        text = f"can't open file {error.filename!r}: [Errno {error.errno}] {error.strerror}. {advice}"
        raise CommandError(text, exit_code=2) from None
