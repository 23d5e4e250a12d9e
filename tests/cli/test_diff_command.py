"""``byname diff``: exit codes as those of diff(1), what is printed, and a page."""

import os

import pytest
import torch
from processes import Fork

import byname
from byname.cli import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diffs")
    model = torch.nn.Linear(2, 2)
    for name, by in (("a", 0.0), ("same", 0.0), ("b", 0.5), ("left", 0.5)):
        with byname.record(model, "forward", to=folder / f"{name}.h5", finish=name != "left"):
            for step in range(4):
                model(torch.ones(1, 2) * (step + by * (step == 2)))
    return folder


def test_equal_is_0_and_different_is_1(runs, capsys):
    assert main(["diff", str(runs / "a.h5"), str(runs / "same.h5")]) == 0
    assert "a.h5 (a) and same.h5 (b) are equal: 4 values of 1 place" in capsys.readouterr().out
    for other in ("b.h5", "left.h5", "left.h5.log"):
        assert main(["diff", str(runs / "a.h5"), str(runs / other)]) == 1
        assert "differ first in `forward`, iteration 2: error " in capsys.readouterr().out


@pytest.mark.parametrize(("tolerance", "code"), [("10", 0), ("1e-6", 1), ("dtype", 1)])
def test_a_tolerance(runs, tolerance, code):
    assert main(["diff", "--tolerance", tolerance, str(runs / "a.h5"), str(runs / "b.h5")]) == code


def test_what_cannot_be_read_is_2(runs, capsys, tmp_path):
    assert main(["diff", str(runs / "a.h5"), "no_such.h5"]) == 2
    assert "there is no file no_such.h5" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "text.h5").write_text("no recording")
    assert main(["diff", str(tmp_path / "text.h5"), str(runs / "a.h5")]) == 2
    for wrong in ("much", "-1"):
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main(["diff", f"--tolerance={wrong}", str(runs / "a.h5"), str(runs / "b.h5")]))
        assert ended.value.code == 2


def test_a_reader_that_has_read_enough_is_no_file_that_cannot_be_read(runs):
    program = (
        "import sys\nsys.stdout.reconfigure(line_buffering=True)\nfrom byname.cli import main\n"
        f"sys.exit(main(['diff', {str(runs / 'a.h5')!r}, {str(runs / 'b.h5')!r}]))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with Fork(["-c", program], stdout=writer, stderr=-1, text=True) as ended:
        os.close(writer)
        assert (ended.communicate(timeout=60)[1], ended.returncode) == ("", 1)


def test_a_page_has_the_first_difference_and_bars_by_place(runs, tmp_path):
    page = tmp_path / "diff.html"
    assert main(["diff", "--report", str(page), str(runs / "a.h5"), str(runs / "b.h5")]) == 1
    text = page.read_text()
    assert "differ first in <code>forward</code>, iteration 2" in text and "Largest error by place" in text
    assert main(["diff", "--report", str(page), str(runs / "a.h5"), str(runs / "same.h5")]) == 0
    assert "Largest error by place" not in page.read_text()


def test_ctrl_c_ends_it_with_one_line(runs):
    program = (
        "import os, signal, sys, byname.comparing.records as records\n"
        "def stopped(*_):\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
        "records.Comparison.place = stopped\n"
        "from byname.cli import main\n"
        f"sys.exit(main(['diff', {str(runs / 'a.h5')!r}, {str(runs / 'b.h5')!r}]))"
    )
    with Fork(["-c", program], stderr=-1, stdout=-1, text=True) as ended:
        out, err = ended.communicate(timeout=60)
    assert (ended.returncode, out, err) == (130, "", "byname: interrupted\n")
