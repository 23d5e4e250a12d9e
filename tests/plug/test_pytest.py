"""The pytest plugin, in runs of pytest of its own."""

import fnmatch
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import processes
import pytest

HEAD = """
    import pytest, torch
    kept = []
"""
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
MARKED = "    @pytest.mark.no_tensor_growth\n"


@pytest.fixture(autouse=True)
def only_what_is_named(monkeypatch):
    """An installed byname would register the plugin a second time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


class Result:
    """What a run of pytest printed."""

    def __init__(self, output):
        self.lines = output.splitlines()

    def assert_outcomes(self, **wanted):
        found = re.findall(r"(\d+) (passed|failed|error|xfailed|skipped)", self.lines[-1])
        assert {("errors" if what == "error" else what): int(count) for count, what in found} == wanted, self.lines

    def shows(self, *patterns):
        """Each pattern fits a line, in this order."""
        rest = iter(self.lines)
        for pattern in patterns:
            assert any(fnmatch.fnmatchcase(line, pattern) for line in rest), (pattern, self.lines)

    def shows_nowhere(self, pattern):
        assert not fnmatch.filter(self.lines, pattern)


@pytest.fixture
def run(tmp_path):
    """Runs pytest on a test file with the plugin, in a process of its own; when told, in one that has no PyTorch yet."""

    def run(text, *options, head=HEAD, without_pytorch=False):
        (tmp_path / "test_it.py").write_text(textwrap.dedent(head + text))
        plugin = ("-p", "byname.plug.pytest", "-p", "no:cacheprovider", "-W", "error", "--strict-markers")
        if without_pytorch:
            command = [sys.executable, "-m", "pytest", *plugin, *options]
            return Result(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout)
        words = ["-c", PYTEST, *plugin, *options]
        return Result(processes.run(words, cwd=tmp_path, capture_output=True, text=True).stdout)

    return run


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"byname": "byname.plug.pytest"}


def test_the_plugin_brings_no_pytorch_until_a_test_asks():
    code = "import sys, byname.plug.pytest; print('torch' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_test_that_leaves_nothing_passes_and_one_that_leaves_a_tensor_fails_with_the_table(run):
    result = run(
        MARKED
        + """
    def test_clean():
        torch.ones(1000).sum()
    @pytest.mark.no_tensor_growth
    def test_leaks():
        kept.append(torch.ones(1000))
    def test_unmarked():
        kept.append(torch.ones(1000))
    """
    )
    result.assert_outcomes(passed=3, errors=1)
    result.shows(
        "*ERROR at teardown of test_leaks*", "tensors stay alive after the test: 3.9 KiB more, in 1 place", "*kept*"
    )
    result.shows_nowhere("*Traceback*")
    result.shows_nowhere("*plug/pytest.py*")


@pytest.mark.slow
def test_what_fixtures_of_the_test_hold_goes_with_them_and_wider_ones_are_no_growth(run):
    result = run(
        """
    import logging
    @pytest.fixture(scope="session")
    def model():
        return torch.nn.Linear(20, 20)
    @pytest.fixture(scope="module")
    def late():
        return [torch.ones(500)]
    @pytest.fixture(scope="class", autouse=True)
    def of_class():
        kept.append(torch.ones(300)); yield; kept.clear()
    @pytest.fixture
    def history():
        kept_here = [torch.ones(40)]
        yield kept_here
        assert len(kept_here) > 1
    @pytest.mark.no_tensor_growth
    class TestAll:
        @pytest.mark.parametrize("size", [10, 1000])
        def test_it(self, size, history, model, request, caplog):
            history.append(model(torch.ones(size, 20)))
            self.kept = torch.ones(77)
            request.getfixturevalue("late")
            logging.getLogger("own").warning("a tensor: %s", torch.ones(3))
        def setup_method(self):
            self.prepared = torch.ones(99)
        def test_replaced(self, model):
            model(torch.ones(1, 20)).sum().backward()
            model.zero_grad()
    """
    )
    result.assert_outcomes(passed=3)


@pytest.mark.slow
def test_what_a_wider_fixture_is_given_to_keep_is_growth_also_in_the_last_test(run):
    result = run(
        """
    @pytest.fixture(scope="module")
    def history():
        return []
    @pytest.mark.no_tensor_growth
    def test_first(history):
        history.append(torch.ones(1000))
    @pytest.mark.no_tensor_growth(bytes=4000)
    def test_allowed(history):
        history.append(torch.ones(1000))
    @pytest.mark.no_tensor_growth(bytes=3999)
    def test_last(history):
        history.append(torch.ones(1000))
    """
    )
    result.assert_outcomes(passed=3, errors=2)
    result.shows("*more than 3999 bytes of tensors stay alive after the test: 3.9 KiB more*")


@pytest.mark.slow
def test_in_a_unittest_case_the_attributes_of_the_case_are_no_growth(run):
    result = run(
        """
    import unittest
    @pytest.mark.no_tensor_growth
    class Case(unittest.TestCase):
        @classmethod
        def setUpClass(cls): cls.shared = torch.ones(5000)
        def setUp(self): self.before = torch.ones(10)
        def test_own(self): self.x = torch.ones(1000)
        def test_shared(self): type(self).more = torch.ones(1000)
    """
    )
    result.assert_outcomes(passed=2, errors=1)
    result.shows("*ERROR at teardown of Case.test_shared*")


@pytest.mark.slow
def test_a_test_that_fails_is_reported_as_such_and_its_error_is_not_growth_of_the_next(run):
    result = run(
        """
    @pytest.mark.no_tensor_growth
    def test_fails():
        big = torch.ones(10000)
        kept.append(big)
        assert big.sum() == 1
    @pytest.mark.no_tensor_growth
    def test_next_is_clean():
        pass
    @pytest.mark.no_tensor_growth
    def test_next_leaks():
        kept.append(torch.ones(10))
    @pytest.mark.no_tensor_growth
    @pytest.mark.xfail
    def test_expected(): raise ValueError(kept)
    @pytest.mark.no_tensor_growth
    def test_skipped(): pytest.skip("now")
    """
    )
    result.assert_outcomes(passed=2, failed=1, errors=1, xfailed=1, skipped=1)
    result.shows("*ERROR at teardown of test_next_leaks*")


@pytest.mark.slow
def test_cycles_that_the_collector_frees_are_no_growth(run):
    result = run(
        MARKED
        + """
    def test_cycle():
        one = [torch.ones(1000)]
        one.append(one)
    """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_fixture_tells_the_growth_so_far(run):
    result = run(
        """
    @pytest.fixture
    def model():
        return torch.nn.Linear(30, 30)
    def test_own(model, tensor_growth):
        assert tensor_growth.rows() == []
        history = []
        for _ in range(3):
            history.append(model(torch.ones(1, 30)).sum())
            tensor_growth.mark()
        row, = tensor_growth.rows()
        assert (row["name"], row["count"], row["cause"]) == ("history[*]", 3, "stored-graph")
    """
    )
    result.assert_outcomes(passed=1)


def test_arguments_that_mean_nothing_are_refused(run):
    given = ["5", "bytes=-1", "bytes=True", "size=3"]
    marked = (f"    @pytest.mark.no_tensor_growth({one})\n    def test_{at}(): pass\n" for at, one in enumerate(given))
    result = run("".join(marked))
    result.assert_outcomes(errors=len(given))
    result.shows(*(f"*no_tensor_growth(*{one}*): it takes bytes=, an integer of at least 0*" for one in given))


def test_a_run_that_does_not_ask_imports_nothing(run):
    run("import sys\ndef test_it(): assert 'torch' not in sys.modules", head="", without_pytorch=True).assert_outcomes(
        passed=1
    )


def test_it_works_in_the_workers_of_xdist(run):
    pytest.importorskip("xdist")
    text = MARKED + "    def test_leaks(): kept.append(torch.ones(1000))\n    def test_other(): pass"
    result = run(text, "-p", "xdist", "-n", "1", without_pytorch=True)
    result.assert_outcomes(passed=2, errors=1)
    result.shows("tensors stay alive after the test: 3.9 KiB more*")
