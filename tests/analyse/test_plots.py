"""`Results.plot`: what is drawn for each kind of figure, headless and without touching pyplot."""

import io
import sys

import pytest
import torch
from processes import run_forked

from byname.analyse import Results
from byname.errors import BadArgumentError, BynameError

matplotlib = pytest.importorskip("matplotlib")
NAN = float("nan")


def names(axes, axis="y"):
    labels = axes.get_yticklabels() if axis == "y" else axes.get_xticklabels()
    return [label.get_text() for label in labels]


def picture(axes):
    page = io.BytesIO()
    axes.figure.savefig(page)
    return page.getvalue()


def units(count=3):
    return Results(
        {f"layers.{i}.relu": {"dead": i, "fired": torch.rand(8) * i, "kind": "ReLU"} for i in range(count)},
        name="DeadUnits",
    )


def test_numbers_are_bars_in_the_order_of_the_model():
    axes = units().plot()
    assert [patch.get_width() for patch in axes.patches] == [0, 1, 2]
    assert names(axes) == ["layers.0.relu", "layers.1.relu", "layers.2.relu"]
    low, high = axes.get_ylim()
    assert low > high  # the first is at the top
    assert axes.get_title(loc="left") == "DeadUnits: dead" and axes.get_xlabel() == "dead"
    assert picture(axes).startswith(b"\x89PNG")


def test_what_is_not_defined_is_said_to_be():
    ranks = {"a": {"rank": NAN}, "b": {"rank": torch.tensor(2.5)}, "c": {"rank": float("inf")}}
    axes = Results(ranks, name="Rank").plot("rank")
    assert [text.get_text() for text in axes.texts] == ["not defined", "2.5", "inf"]
    assert [patch.get_width() for patch in axes.patches] == [0, 2.5, 0] and picture(axes)
    cells = Results({"a": {"cka": {"a": 1.0, "b": NAN, "c": float("inf")}}}, name="Similarity").plot()
    assert [text.get_text() for text in cells.texts] == ["1"] and picture(cells)


def test_tensors_are_boxes_from_the_smallest_to_the_largest_value():
    axes = Results(
        {"a": {"mean": torch.tensor([[0.0, 1.0], [4.0, NAN]])}, "b": {"mean": torch.zeros(0)}}, name="F"
    ).plot()
    whiskers, *_ = axes.collections
    assert [line.tolist() for line in whiskers.get_segments()] == [[[0.0, 0.0], [4.0, 0.0]]]
    (box,) = axes.patches
    assert (box.get_x(), box.get_width()) == (0.5, 2.0) and names(axes) == ["a", "b"]
    assert picture(axes)


def test_spectra_are_curves_with_logarithmic_axes():
    spectrum = torch.tensor([8.0, 2.0, 0.5, 0.0])
    axes = Results({"a": {"eigenvalues": spectrum}, "b": {"eigenvalues": torch.ones(1)}}, name="Spectrum").plot()
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata().tolist() == [8.0, 2.0, 0.5] and axes.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert picture(axes)


def test_every_curve_can_be_seen_on_white_paper():
    for count in (1, 2, 5, 40):
        results = Results({str(at): {"eigenvalues": torch.ones(2)} for at in range(count)}, name="Spectrum")
        found = [line.get_color() for line in results.plot().get_lines()]
        assert len({*found}) == count
        for red, green, blue, _ in found:
            linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (red, green, blue)]
            luminance = sum(part * one for part, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
            assert 1.05 / (luminance + 0.05) > 2  # the contrast of WCAG; yellow has 1.1


def test_of_many_curves_the_legend_names_some_evenly_with_the_first_and_the_last():
    results = Results({str(at): {"eigenvalues": torch.ones(2)} for at in range(30)}, name="Spectrum")
    axes = results.plot()
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(axes.lines) == 30
    assert (len(names), names[0], names[-1]) == (24, "0", "29")
    assert [*map(int, names)] == sorted(set(map(int, names)))


def test_similarities_are_a_heat_map_with_names():
    places = ["conv", "fc1", "fc2"]
    cka = {one: {"cka": {other: 1.0 if one == other else 0.25 for other in places}} for one in places}
    axes = Results(cka, name="Similarity").plot("cka")
    assert axes.images[0].get_array().shape == (3, 3) and axes.images[0].get_clim() == (0.0, 1.0)
    assert names(axes) == names(axes, "x") == places
    assert [text.get_text() for text in axes.texts][:2] == ["1", "0.25"]
    assert picture(axes)


def test_numbers_of_classes_are_a_heat_map_and_a_class_that_is_missing_is_left_white():
    axes = Results({"a": {0: {"dead": 1}, 5: {"dead": 2}}, "b": {0: {"dead": 3}}}, name="PerClass").plot()
    grid = axes.images[0].get_array()
    assert grid[0].tolist() == [1, 2] and grid[1, 0] == 3 and str(grid[1, 1]) in ("--", "nan")
    assert names(axes, "x") == ["0", "5"] and picture(axes)


def test_tensors_of_classes_have_a_row_each():
    axes = Results({"a": {c: {"mean": torch.rand(4)} for c in (0, 1)}}, name="PerClass").plot("mean")
    assert names(axes) == ["a  0", "a  1"]


@pytest.mark.parametrize("figure", ["dead", "fired"])
def test_hundred_places_all_have_their_name_in_a_picture_of_their_size(figure):
    axes = units(100).plot(figure)
    assert len(names(axes)) == 100 and min(label.get_fontsize() for label in axes.get_yticklabels()) >= 6
    assert axes.figure.get_size_inches()[1] > 15


def test_it_draws_in_axes_that_are_given_with_fewer_names_where_there_is_no_room():
    from matplotlib.figure import Figure

    given = Figure(figsize=(3, 2)).add_subplot()
    assert units(100).plot("dead", axes=given) is given
    shown = names(given)
    assert 5 < len(shown) < 100 and len(given.patches) == 100


def test_long_names_lose_their_middle():
    path = "encoder." + ".".join(f"layer{i}" for i in range(20))
    (shown,) = names(Results({path: {"dead": 1}}, name="D").plot())
    assert len(shown) == 44 and shown.startswith("encoder.layer0") and shown.endswith("layer19") and "…" in shown


def test_figures_that_there_are_not_are_refused():
    with pytest.raises(BadArgumentError, match="DeadUnits has no figure 'daed' to draw; there is dead, fired"):
        units().plot("daed")
    for results in (Results({}, name="D"), Results({"a": {"kind": "ReLU"}}, name="D")):
        with pytest.raises(BadArgumentError, match="no numbers to draw"):
            results.plot()


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BynameError, match=r'pip install "byname\[plot\]"$'):
        units().plot()


def test_pyplot_and_its_settings_are_untouched():
    run_forked(
        """
        import matplotlib, os, sys, torch
        before = matplotlib.rcParams.copy()
        from byname.analyse import Results
        for figure in ({"f": 1}, {"f": torch.rand(3)}, {"eigenvalues": torch.rand(3)}, {"cka": {"a": 0.5}}):
            Results({"a": figure}, name="D").plot().figure.savefig(os.devnull, format="png")
        assert "matplotlib.pyplot" not in sys.modules
        assert dict.items(matplotlib.rcParams) == dict.items(before)
        """
    )


@pytest.mark.parametrize("how", ["pyplot", "a notebook"])
def test_where_pyplot_is_in_use_the_figure_is_one_of_its(how):
    run_forked(
        f"""
        import sys, types, torch, matplotlib
        matplotlib.use("agg")
        from byname.analyse import Results
        if {how!r} == "pyplot":
            import matplotlib.pyplot
        else:
            events = types.SimpleNamespace(register=lambda *given: None)
            shell = types.SimpleNamespace(events=events, enable_gui=lambda gui: None)
            sys.modules["IPython"] = ipython = types.ModuleType("IPython")
            ipython.version_info, ipython.get_ipython = (9, 0), lambda: shell
        for number, figure in enumerate(({{"f": 1}}, {{"f": torch.rand(3)}}, {{"cka": {{"a": 0.5}}}}), 1):
            axes = Results({{"a": figure}} if "cka" not in figure else figure, name="D").plot()
            plt = sys.modules["matplotlib.pyplot"]
            assert plt.gcf() is axes.figure and len(plt.get_fignums()) == number
        given = plt.subplots()[1]
        assert Results({{"a": {{"f": 1}}}}, name="D").plot(axes=given) is given
        assert len(plt.get_fignums()) == 4
        """
    )
