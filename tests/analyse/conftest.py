"""Many tests observe what their models do not come to: that this is warned of is the subject of `test_silence`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.filterwarnings("ignore::byname.errors.NothingSeenWarning"))
