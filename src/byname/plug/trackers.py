"""Trackers: the tools in which people keep the numbers of their experiments, behind one small protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, Self

from byname.errors import BadArgumentError
from byname.extras import needs


class ExperimentTracker(Protocol):
    """What `byname.plug.send` and `byname.plug.live` need; anything with this method will do."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep numbers under their names, for a step (an iteration)."""


class _Closing:
    """A tracker of ours, which can be closed and is closed by a ``with`` block."""

    def close(self) -> None:
        """Write what is not written yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def tensorboard(log_dir: Any = None, *, writer: Any = None) -> TensorBoardTracker:
    """Return a tracker that writes event files for TensorBoard.

    Args:
        log_dir: the folder; ``runs/...`` if None, as `torch.utils.tensorboard.SummaryWriter` has it.
        writer: a ``SummaryWriter`` that there is; it stays open.

    Raises:
        NotInstalledError: if tensorboard is not installed; it is also an ImportError.
        BadArgumentError: both were given.
    """
    if writer is not None and log_dir is not None:
        raise BadArgumentError("tensorboard takes a log_dir or a writer, and was given both")
    if writer is not None:
        return TensorBoardTracker(writer, ours=False)
    return TensorBoardTracker(_needed("torch.utils.tensorboard", "tensorboard").SummaryWriter(log_dir), ours=True)


class TensorBoardTracker(_Closing):
    """What `tensorboard` returns; ``with tensorboard(...) as tracker`` closes the files."""

    def __init__(self, writer: Any, *, ours: bool) -> None:
        self._writer, self._ours = writer, ours

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each number as a scalar."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def note(self, title: str, text: str, step: int) -> None:
        """Write a text, such as a finding."""
        self._writer.add_text(title, text, step)

    def close(self) -> None:
        """Write what is not written yet; files that were opened here are closed."""
        self._writer.close() if self._ours else self._writer.flush()


def wandb(run: Any = None) -> WandbTracker:
    """Return a tracker for a run of Weights & Biases: the one given, or the one that ``wandb.init`` has begun.

    The steps are those of byname: ``byname/iteration`` is the x-axis of its numbers, and the steps of the run itself go
    on as they did.

    Raises:
        NotInstalledError: if wandb is not installed; it is also an ImportError.
        BadArgumentError: no run was given, and none has begun.
    """
    run = _needed("wandb", "wandb").run if run is None else run
    if run is None:
        raise BadArgumentError("no run of wandb has begun: call wandb.init(...) before, or give a run")
    return WandbTracker(run)


class WandbTracker(_Closing):
    """What `wandb` returns. It does not end the run, which is the program's."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()
        run.define_metric(_ITERATION, hidden=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers together with their iteration."""
        for name in values.keys() - self._defined:
            self._run.define_metric(_escaped_glob(name), step_metric=_ITERATION)
            self._defined.add(name)
        self._run.log({**values, _ITERATION: step})


_ITERATION = "byname/iteration"


def _escaped_glob(name: str) -> str:
    return name.replace("*", r"\*")


def mlflow(run_id: str | None = None) -> MlflowTracker:
    """Return a tracker for a run of MLflow: the one of this id, or the active one, which ``log_metrics`` may begin.

    In names MLflow has no brackets and quotes: ``blocks[0]['x']`` becomes ``blocks_0___x__``.

    Raises:
        NotInstalledError: if mlflow is not installed; it is also an ImportError.
    """
    return MlflowTracker(_needed("mlflow", "mlflow"), run_id)


class MlflowTracker(_Closing):
    """What `mlflow` returns. It does not end the run, which is the program's."""

    def __init__(self, module: Any, run_id: str | None) -> None:
        self._module, self._run_id = module, run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers as metrics."""
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        self._module.log_metrics(named, step=step, run_id=self._run_id)


def trackio(run: Any = None) -> TrackioTracker:
    """Return a tracker for a run of Trackio: the one given, or the one that ``trackio.init`` has begun.

    Raises:
        NotInstalledError: if trackio is not installed; it is also an ImportError.
    """
    return TrackioTracker(_needed("trackio", "trackio") if run is None else run)


class TrackioTracker(_Closing):
    """What `trackio` returns. It does not end the run, which is the program's."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self._run.log(dict(values), step=step)


def _needed(module: str, package: str) -> Any:
    with needs(f"byname.plug.{package}", package):
        found = import_module(module)
        if hasattr(found, "__path__") and found.__file__ is None:  # a folder here, in which a tracker keeps its runs
            raise ModuleNotFoundError(f"No module named {module!r}", name=package)
        return found
