"""`byname.report`: one page of every kind of thing, in which no text becomes code."""

import copy
import os
import stat
import time

import pytest
import torch
from pages import Page
from torch import nn

import byname
from byname.analyse import Evaluation

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><b>",
    "{{ 7 * 7 }}",
    "a\u202eb\x1b[2J",
]


def series(path, values, *, mode="train"):
    values = list(values)
    count = len(values)
    shapes = [tuple(one.shape) if isinstance(one, torch.Tensor) else () for one in values]
    return byname.Series(path, values, [*range(count)], [0] * count, [0] * count, [mode] * count, shapes)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def page(tmp_path):
    def made(*things):
        return Page(byname.report(*things, to=tmp_path / "report.html"))

    return made


def trained(model, recorder, steps=5):
    with recorder:
        for _ in range(steps):
            model(torch.randn(3, 4)).sum().backward()
            model.zero_grad()


def test_a_recording_is_shown_with_its_run_its_places_and_its_gradients(model, tmp_path, page):
    file = tmp_path / "run.h5"
    trained(model, byname.record(model, ["1", "**.weight.grad"], to=file))
    shown = page(file)
    assert shown.titles() == ["1", "2.weight.grad", "0.weight.grad"]
    assert "Recording of Sequential" in shown.text
    assert torch.__version__ in shown.text
    assert "Gradients over the run" in shown.text
    place, *_ = [one for one in shown.datas if "curves" in one]
    assert [len(column) for column in place["curves"][0]["figures"]] == [5] * 5
    with byname.open(file) as recording:
        first = recording["1"].to_numpy()[0]
        assert place["curves"][0]["figures"][4][0] == pytest.approx(first.max(), rel=1e-5)
        assert len(page(recording).datas) == len(shown.datas)


def test_every_kind_of_thing_has_its_section(model, page):
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    units = byname.analyse.DeadUnits()
    handle = byname.observe(model, "1", units)
    model(torch.randn(3, 4))
    evaluation = Evaluation(units, [torch.randn(3, 4)])
    for step in range(3):
        evaluation.take(model, step=step)
    handle.remove()
    loss = model(torch.randn(3, 4)).sum()
    recorder = byname.record(model, "1")
    trained(model, recorder)
    with byname.growth() as growth:
        kept = [model(torch.randn(3, 4)) for _ in range(3)]
    things = [
        recorder, recorder.results["1"], recorder.results, byname.census(), growth, byname.leaves(loss, model=model),
        byname.saved(loss), byname.check(loss, model=model, optimizer=optimizer), byname.draw(model), units, units.result(),
        evaluation, byname.summary(model, torch.randn(3, 4)), byname.graph(loss), byname.holders(loss), byname.points(model),
        byname.capture(model, "1")(torch.randn(3, 4)),
    ]  # fmt: skip
    shown = page(*things)
    headings = [
        "Recorder", "Memory", "Growth", "Leaves", "Saved for backward", "Findings", "Drawing of Sequential", "DeadUnits",
        "Evaluation of DeadUnits", "Modules of Sequential", "Graph", "Holders", "Points",
        "Capture",
    ]  # fmt: skip
    for heading in headings:
        assert heading in shown.text
    assert len(shown.all("h2")) == len(things)
    assert "not-in-optimizer" in shown.text
    assert "kept[*]" in shown.text


def test_recorded_places_in_the_drawing_lead_to_their_plots(model, page):
    recorder = byname.record(model, "1")
    trained(model, recorder)
    shown = page(byname.draw(model, example=torch.randn(3, 4)), recorder)
    (link,) = [one for one in shown.all("a") if one.get("data-path") == "1"]
    assert link["href"].removeprefix("#") in shown.ids


def test_a_finding_is_shown_with_the_lines_of_the_file(page):
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError) as failed, byname.explaining():
        hidden = weight.exp()
        hidden.add_(1)  # spoilt here
        hidden.sum().backward()
    shown = page(byname.explain(failed.value))
    assert "modified-in-place" in shown.text
    assert "hidden.add_(1)  # spoilt here" in shown.text


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_the_program_becomes_code(text, page):
    finding = byname.Finding(
        text, text, (byname.Name(text, "local"),), (byname.Site(text, 3, text, text),), text, (text,)
    )
    module = nn.Module()
    module.__class__ = type(text, (nn.Module,), {"forward": lambda self, x: x})
    module.add_module(text.replace(".", ""), nn.Linear(2, 2))
    results = (
        byname.analyse.DeadUnits()
        .result()
        .__class__({text: {text: 1.0, "v": torch.ones(3), "k": {text: 2.0}}}, name=text)
    )
    words = [text, {"key": text}]
    things = [series(text, [1.0, 2.0]), series(f"{text}2", words), finding, byname.draw(module), results]
    things += [
        series(f"{text}.grad", torch.ones(4, 3, 3)),
        byname.tag(torch.ones(2), text),
        byname.holders(torch.ones(3)),
    ]
    things[-2] = byname.census()
    shown = page(*things)
    assert [one for one in shown.all("script") if one != {"type": "application/json"}] == [{}]
    assert not shown.all("img")
    assert not shown.all("b", onerror="")
    assert all(not name.startswith("on") for _, one in shown.elements for name in one)
    assert "{{" not in text or text in shown.text
    assert "\u202e" not in shown.source
    assert "\x1b" not in shown.source
    assert f"{text}2".isprintable() is False or f"{text}2" in shown.titles()


def test_the_page_asks_the_network_for_nothing(model, page):
    shown = page(byname.census(), byname.draw(model))
    assert all(one["href"].startswith(("#", "data:")) for tag, one in shown.elements if "href" in one)
    assert not any("src" in one for _, one in shown.elements)
    (policy,) = [one["content"] for one in shown.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "@import" not in shown.source
    assert "url(" not in shown.source


@pytest.mark.slow
def test_growth_is_drawn_from_mark_to_mark(page):
    history = []
    with byname.growth() as growth:
        for _ in range(3):
            history.append(torch.ones(100))
            growth.mark()
    shown = page(growth)
    (place,) = [one for one in shown.datas if "curves" in one]
    assert place["axis"] == "mark"
    assert place["curves"][0]["figures"][0][:4] == [0, 1, 2, 3]


def test_how_a_place_was_recorded_is_told(model, page):
    recorder = byname.record(model, "1", reduce="mean", every=2)
    trained(model, recorder)
    shown = page(recorder)
    assert "mean" in shown.text
    assert "every 2" in shown.text


def test_numbers_that_are_not_finite_are_counted_and_left_out(page):
    nan, inf = float("nan"), float("inf")
    found = page(series("loss", [1.0, nan, inf, 4.0]), series("gone", [nan, nan]))
    curve, gone = (one["curves"][0] for one in found.datas)
    assert curve["figures"] == [[1.0, None, None, 4.0]]
    assert curve["bad"] == [[1, 1, 0], [2, 0, 1]]
    assert gone["figures"] == [[None, None]]
    assert "1 NaN and 1 infinite among the values, the first at iteration 1." in found.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::byname.errors.RecordingWarning")
def test_empty_things_say_so(page, model):
    recorder = byname.record(model, "1")
    recorder.close()
    with byname.growth() as growth:
        pass
    shown = page(recorder, series("nothing", []), byname.analyse.DeadUnits(), growth)
    assert "nothing was recorded" in shown.text
    assert "no values yet from 1" in shown.text
    assert "no place" in shown.text


def test_a_recording_that_was_cut_short_says_so_first(model, tmp_path, page):
    with pytest.raises(ZeroDivisionError), byname.record(model, "1", to=tmp_path / "run.h5"):
        model(torch.ones(2, 4))
        1 / 0
    shown = page(tmp_path / "run.h5")
    assert shown.text.count("ZeroDivisionError") == 1
    assert "not complete" in shown.text


def test_values_that_are_no_numbers_are_in_a_table(page):
    shown = page(series("phase", ["warm", "warm", None, ("a", 1)]))
    assert "warm" in shown.text
    assert not shown.all("canvas")


def test_numbers_among_other_values_are_drawn_and_the_others_counted(page):
    shown = page(series("mixed", [None, 1, True, 2**70, 10**400, 3 + 4j, torch.ones(0)]))
    (curve,) = shown.datas[0]["curves"]
    assert curve["figures"] == [[1, 1, 1.18059e21, None, 5]]
    assert "2 records without a number not drawn" in shown.text


def test_a_recording_is_shown_while_it_is_written(model, tmp_path, page):
    with byname.record(model, "1", to=tmp_path / "run.h5") as recorder:
        for _ in range(3):
            model(torch.randn(3, 4))
        shown = page(recorder, tmp_path / "run.h5")
    assert "up to iteration 2" in shown.text
    assert "not ended" in shown.text


def test_facts_that_differ_between_recordings_stay_with_them(model, tmp_path, page):
    trained(model, byname.record(model, "1", to=tmp_path / "one.h5"))
    alone = nn.Linear(4, 2)
    trained(alone, byname.record(alone, "forward", to=tmp_path / "two.h5"))
    shown = page(tmp_path / "one.h5", tmp_path / "two.h5")
    assert "Report of Sequential and Linear" in shown.text
    assert shown.source.count("<dt>model</dt>") == 2
    assert shown.source.count("<dt>python</dt>") == 1


def test_the_page_of_a_difference_says_it_once_and_marks_the_first_place(model, page):
    other = copy.deepcopy(model)
    other[1] = nn.GELU()
    shown = page(byname.diff(model, other, example=torch.randn(3, 4)))
    assert shown.source.count("differ first in <code>1</code>") == 1
    assert "1 (the first)" in shown.text and "2 (the first)" not in shown.text


def test_names_between_backticks_stay_text(page):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"<b>`x`</b>": nn.Linear(4, 2)})

        def forward(self, x):
            return self.layers["<b>`x`</b>"](x)

    shown = page(byname.diff(Odd(), Odd(), example=torch.randn(3, 4)))
    assert "<b>`" not in shown.source and "<b>" not in shown.source.partition("<main>")[2].replace("<b></b>", "")


def test_training_and_evaluation_are_two_curves(page):
    modes = ["train", "train", "eval", "eval"]
    both = byname.Series("loss", [1.0, 2.0, 3.0, 4.0], [0, 1, 0, 1], [0] * 4, [0] * 4, modes, [()] * 4)
    (place,) = page(both).datas
    assert [(one["name"], one["figures"]) for one in place["curves"]] == [("train", [[1, 2]]), ("eval", [[3, 4]])]


def test_booleans_are_ones_and_zeros_in_a_curve(page):
    (place,) = page(series("done", [torch.tensor(done) for done in (True, False, True)])).datas
    assert [one["figures"] for one in place["curves"]] == [[[1, 0, 1]]]


def test_pictures_of_batches_of_different_sizes_are_those_that_all_have(page):
    values = [torch.arange(float(size * 12)).reshape(size, 3, 4) for size in (5, 2, 4)]
    of_batches, of_rows = page(series("weights", values), series("rows", [torch.ones(3, 4), torch.ones(2, 4)])).datas
    assert of_batches["picture"]["slices"] == ["[0, :, :]", "[1, :, :]"]
    assert (of_batches["picture"]["rows"], of_batches["picture"]["columns"]) == (3, 4)
    assert not of_rows.get("picture")


def test_vectors_are_columns_side_by_side(page):
    (vectors,) = page(series("bias", [torch.arange(5.0) + step for step in range(4)])).datas
    assert (vectors["picture"]["rows"], vectors["picture"]["columns"], vectors["picture"]["of"]) == (5, 4, 4)


@pytest.mark.slow
def test_many_places_and_iterations_make_a_small_page(tmp_path):
    values = torch.randn(10_000, 16).cumsum(0)
    model = nn.Sequential(*(nn.Identity() for _ in range(50)))
    with byname.record(model, "*", before_gather=lambda path, series: whole(path, values * int(path))) as recorder:
        model(torch.ones(1))
    begin = time.process_time()
    file = byname.report(recorder.results["*"], to=tmp_path / "report.html")
    assert file.stat().st_size < 2_500_000
    assert time.process_time() - begin < 120
    assert "a point stands for up to 25 of them" in Page(file).text


def whole(path, values):
    count = len(values)
    facts = [*range(count)], [0] * count, [0] * count, ["train"] * count, [tuple(values.shape[1:])] * count
    return byname.Series(path, values, *facts)


def test_a_point_stands_for_the_range_of_its_iterations(page):
    values = torch.zeros(10_000)
    values[7777] = 9.0
    shown = page(whole("loss", values))
    (curve,) = shown.datas[0]["curves"]
    assert len(curve["first"]) == 400
    assert max(curve["figures"][4]) == 9.0
    assert curve["first"][1] == 25 and curve["last"][0] == 24
    assert "a point stands for up to 25 of them" in shown.text


def test_the_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = byname.report(series("first", [1.0]), to=tmp_path / "report.html")
    file.chmod(0o600)
    before = file.read_text()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            byname.report(series("second", [1.0]), to=file)
    assert file.read_text() == before
    byname.report(series("second", [1.0]), to=file)
    assert "second" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("things", "to", "words"),
    [
        ((), "report.html", "nothing was given"),
        (([],), "report.html", "nothing was given"),
        ((object(),), "report.html", "no section for a object"),
        ((torch.ones(2),), "report.html", "no section for a Tensor"),
        ((series("loss", [1.0]),), "run.h5", "should end in .html"),
        (
            (series("loss", [1.0]), "page.html"),
            "report.html",
            "'page.html' is a page, not a recording; to= names the page",
        ),
        ((series("loss", [1.0]),), 5, "not int"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_written(things, to, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(byname.BynameError, match=words):
        byname.report(*things, to=to)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        byname.report(series("loss", [1.0]), to=tmp_path / "nowhere/report.html")
    with pytest.raises(FileNotFoundError, match="no file"):
        byname.report(tmp_path / "none.h5", to=tmp_path / "report.html")


def test_without_jinja2_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'pip install "byname\[report\]"$'):
        byname.report(series("loss", [1.0]), to=tmp_path / "report.html")
