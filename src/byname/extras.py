"""Extras: packages that only parts of byname need, and the line that installs each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from byname.errors import NotInstalledError

INSTALLED_BY = {
    "dask": '"byname[lazy]"',
    "h5py": '"byname[record]"',
    "jinja2": '"byname[report]"',
    "lightning": "lightning",
    "matplotlib": '"byname[plot]"',
    "mlflow": "mlflow",
    "pandas": '"byname[frames]"',
    "shtab": '"byname[completion]"',
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "transformers": "transformers accelerate",
    "wandb": "wandb",
    "xarray": '"byname[frames]"',
}
"""Packages, and what to give to ``pip install``: in double quotes, which every shell understands."""


@contextmanager
def needs(what: str, package: str) -> Iterator[None]:
    """Raise a `NotInstalledError` that says how to install a package, a key of `INSTALLED_BY`, if importing it fails.

    >>> from byname.extras import needs
    >>> with needs("plot()", "matplotlib"):
    ...     raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    Traceback (most recent call last):
    ...
    byname.errors.NotInstalledError: plot() needs matplotlib: pip install "byname[plot]"
    """
    try:
        yield
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or package).split(".")[0] == package
        reason = "" if absent else f", which is installed but cannot be imported ({error})"
        raise NotInstalledError(f"{what} needs {package}{reason}: pip install {INSTALLED_BY[package]}") from error
