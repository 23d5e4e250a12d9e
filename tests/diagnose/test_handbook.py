"""Does `byname explain` print what the page says of a cause, and are causes ignored where that is asked for?"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import processes
import pytest
from test_causes import EVERY

import byname
from byname.cli import main
from byname.errors import BadArgumentError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text()


def test_every_cause_is_listed_one_a_line_and_explained(capsys):
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {cause.id for cause in EVERY} <= {*listed} and len(listed) == len({*listed})
    for cause in listed:
        assert main(["explain", cause]) == 0
        assert capsys.readouterr().out.startswith("## ")


def test_a_section_of_the_page_is_printed_as_it_stands_in_a_pipe(capsys):
    assert main(["explain", "view-in-place"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## view-in-place\n\n`chunk`, `split`") and printed in PAGE.replace("\n\n## ", "\n## ")


def test_a_row_of_a_table_is_printed_with_its_remedy_and_whether_it_is_certain(capsys):
    assert main(["explain", "softmax-over-batch"]) == 0
    printed = capsys.readouterr().out
    assert "- (*suspicious*) a softmax over the first dimension" in printed
    assert "**What helps:** `dim=1` or `dim=-1`" in printed
    assert main(["explain", "equal-units"]) == 0
    assert "suspicious" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["explain", "dobule-softmax"], ["run", "--check", "--ignore", "dobule-softmax", "x.py"]]
)
def test_a_word_that_is_no_cause_is_an_error_with_the_closest(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "there is no cause 'dobule-softmax'; the closest is 'double-softmax'" in capsys.readouterr().err


def test_ignoring_without_a_check_is_an_error(tmp_path, capsys):
    (tmp_path / "x.py").write_text("")
    assert main(["run", "--ignore", "double-softmax", str(tmp_path / "x.py")]) == 2
    assert "--ignore needs --check or --non-finite" in capsys.readouterr().err


def test_a_wheel_has_the_page():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["force-include"] == {"docs/failures.md": "byname/diagnose/failures.md"}


def test_the_page_of_a_wheel_is_read_without_pytorch(tmp_path):
    code = "from byname.cli import main; import sys; sys.exit(main(['explain']) or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0


SOFTMAXES = """
import torch
from torch import nn
import torch.nn.functional as F

heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(4))
optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(3, (8,))
for _ in range(4):
    a = F.cross_entropy(heads[0](x).softmax(1), y)
    b = F.cross_entropy(heads[1](x).softmax(1), y)
    c = F.cross_entropy(
        heads[2](x).softmax(1), y
    )  # byname: ignore[broadcast-loss, double-softmax]
    d = F.cross_entropy(heads[3](x).softmax(1), y)  # byname: ignore[duoble-softmax]
    optimizer.zero_grad()
    (a + b + c + d).backward()
    optimizer.step()
"""


def checked(tmp_path, *options):
    (tmp_path / "train.py").write_text(SOFTMAXES)
    command = [*"-m byname run --check --json found.jsonl".split(), *options, "train.py"]
    done = processes.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    return done.stderr, [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]


def test_a_cause_is_told_once_with_the_number_and_lines_of_the_other_places_and_a_comment_ignores_it(tmp_path):
    said, found = checked(tmp_path)
    assert said.count("double-softmax: suspicious:") == 1
    assert "double-softmax: and 2 more places: train.py:10; train.py:11" in said
    assert [one["sites"][0]["line"] for one in found[:-1]] == [15, 10, 11]
    assert not any(one["certain"] for one in found[:-1])
    assert found[1]["facts"] | {"used": 0} == found[2]["facts"] | {"given": "train.py:10", "used": 0}
    assert found[1]["facts"]["what"] == "softmax" and found[1]["facts"]["given"] == "train.py:10"
    assert "'duoble-softmax', ignored at train.py:15, is not a cause; the closest is 'double-softmax'" in said


def test_an_option_ignores_a_cause_in_the_whole_program(tmp_path):
    assert checked(tmp_path, "--ignore", "never-learns", "--ignore", "double-softmax") == (
        "",
        [{"kind": "end", "error": None}],
    )


def test_check_ignores_causes_and_comments_tell_it_where(tmp_path):
    names, file = {}, tmp_path / "checked.py"
    file.write_text(CHECKED)
    exec(compile(CHECKED, str(file), "exec"), names)
    assert [one.cause for one in names["found"]] == ["detached-parameter"] and names["found"][0].certain
    assert names["nothing"] == names["commented"] == []
    with pytest.raises(BadArgumentError, match="there is no cause 'detached'; the closest is 'detached-parameter'"):
        byname.check(names["loss"], ignore=["detached"])


CHECKED = """
import byname, torch
with byname.track():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    loss = model[1](model[0](torch.ones(1, 2)).detach()).sum()
    found = byname.check(loss, model=model)
    nothing = byname.check(loss, model=model, ignore="detached-parameter")
    other = model[1](model[0](torch.ones(1, 2)).detach()).sum()  # byname: ignore[detached-parameter]
    commented = byname.check(other, model=model)
"""
