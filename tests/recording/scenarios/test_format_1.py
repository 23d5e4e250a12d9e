"""Files of formats 1 and 2 are refused in one sentence; that in `format_1/` was written by the last byname that did."""

from pathlib import Path

import pytest

import byname
from byname.errors import RecordingError

FOLDER = Path(__file__).parent / "format_1"


def test_a_file_of_an_older_format_says_what_reads_it():
    with pytest.raises(RecordingError, match=r"plain\.h5 was written by an older byname.*: .* reads it"):
        byname.open(FOLDER / "plain.h5")
    with pytest.raises(RecordingError, match="was written by an older byname"):
        byname.repair(FOLDER / "plain.h5")
