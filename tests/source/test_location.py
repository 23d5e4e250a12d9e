"""The owner of a file, by its folders; the innermost line of the program; and short names that distinguish files."""

from pathlib import Path

import pytest
import torch
from failing import backward_twice, operator, wrong_shape, wrong_target
from processes import start

import byname
from byname import Site
from byname.source.location import is_library, is_torch, locate, short_names


@pytest.mark.parametrize("program", [backward_twice, wrong_target, wrong_shape, operator])
def test_the_innermost_frame_that_is_not_of_a_library_is_at_the_failing_line(program):
    with pytest.raises((RuntimeError, ValueError)) as raised, byname.track():  # noqa: PT011 - each has its own words
        program()
    entry = raised.tb.tb_next
    assert entry.tb_frame.f_code is program.__code__ and is_torch(entry.tb_next.tb_frame.f_code.co_filename)
    assert locate(program.__code__, entry.tb_lasti).site.line == max(line for _, _, line in program.__code__.co_lines())


def test_files_of_byname_count_as_those_of_torch():
    assert all(is_torch(str(file)) for file in Path(byname.__file__).parent.rglob("*.py"))
    assert is_torch(torch.nn.functional.__file__)
    for other in (__file__, pytest.__file__, str(Path(byname.__file__).parent) + "_of_somebody/else.py"):
        assert not is_torch(other)


def test_short_names_take_as_many_folders_as_tell_files_apart():
    files = ["/a/b/net.py", "/c/b/net.py", "/c/train.py", "net.py", "<cell>"]
    assert list(short_names(Site(file, 7) for file in files).values()) == [
        "a/b/net.py:7",
        "c/b/net.py:7",
        "train.py:7",
        "net.py:7",
        "<cell>:7",
    ]
    assert list(short_names([Site("/a/net.py", 1), Site("/a/net.py", 1, "f"), Site("/a/net.py", 2)]).values()) == [
        "net.py:1",
        "net.py:1",
        "net.py:2",
    ]


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/.local/lib/python3.12/site-packages/lib/net.py",
        "/usr/lib/python3/dist-packages/net.py",
        "C:\\Users\\me\\AppData\\Roaming\\Python\\Python312\\site-packages\\net.py",
    ],
)
def test_what_is_installed_is_a_library_wherever_it_lies(file):
    assert is_library(file)
    assert not is_library(file.replace("-packages", "-programs"))
    assert is_library(torch.__file__)


@pytest.mark.slow
def test_what_lies_beside_an_installed_pytorch_is_a_library(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; from byname.source.location import is_library\n"
    )
    program += "print(is_library(sys.argv[1] + '/other/net.py'), is_library(sys.argv[2]))"
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent)
    found = []
    for _ in range(2):  # a checkout of PyTorch's source, then what `pip install --target` leaves
        given = ["-c", program, str(tmp_path), str(tmp_path.parent / "net.py")]
        found.append(start(given, capture_output=True, text=True, check=True).stdout.split())
        (tmp_path / "torch-2.13.0.dist-info").mkdir(exist_ok=True)
    assert found == [["False", "False"], ["True", "False"]]
