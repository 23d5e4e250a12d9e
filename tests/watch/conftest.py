"""Most tests watch more places than their models come to: that this is warned of is the subject of `test_heard`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.name != "test_heard.py":
            item.add_marker(pytest.mark.filterwarnings("ignore::byname.errors.NothingSeenWarning"))
