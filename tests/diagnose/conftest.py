"""What the tests of diagnose share: the programs of the failure corpus, by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "failures"))


@pytest.fixture
def program(request):
    import corpus

    return corpus.parse(corpus.HERE / f"{request.param}.py")
