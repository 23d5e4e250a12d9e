"""`Results`: figures as rows, a table, frames, labelled arrays; equality and pickling."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

import byname
from byname.analyse import Results
from byname.analyse import results as labelled
from byname.errors import BynameError

NAN = float("nan")


def plain():
    mean = torch.tensor([0.1, 0.25, NAN], dtype=torch.float64)
    return Results(
        {
            "fc1": {"dead": 3, "norm": 12.3456789, "mean": mean},
            "layers.0.attn": {"dead": 0, "norm": 1234.5678, "mean": torch.tensor([[1.0, 2.0]], dtype=torch.float64)},
        },
        name="Demo",
    )


def of_classes():
    return Results({"fc1": {0: {"dead": 1}, 7: {"dead": 2}}, "fc2": {0: {"dead": 3}}}, name="PerClass")


def against_the_rest():
    figures = {"mean": torch.tensor([1.0, 2.0])}
    return Results({"fc1": {3: {"class": figures, "rest": figures}}}, name="ClassVersusRest")


def alike():
    names = ["conv", "layers.0", "layers.1", "head"]
    return Results(
        {one: {"cka": {other: 1 / (1 + abs(i - k)) for k, other in enumerate(names)}} for i, one in enumerate(names)},
        name="Similarity",
    )


def test_values_stay_what_the_analyser_gave():
    results = plain()
    assert type(results["fc1"]["mean"]) is torch.Tensor and results["fc1"]["dead"] == 3
    assert results.figures == ("dead", "norm", "mean") and len(results) == 2 and "fc1" in results


def test_rows_are_exact_plain_values():
    first, second = plain().rows()
    assert first == {
        "path": "fc1", "dead": 3, "norm": 12.3456789, "mean.min": 0.1, "mean.mean": 0.175, "mean.max": 0.25
    }  # fmt: skip
    assert second["mean.max"] == 2.0
    assert json.loads(json.dumps(plain().rows())) == plain().rows()


def test_the_table_has_four_digits_and_the_shapes_and_ranges_of_tensors():
    lines = repr(plain()).splitlines()
    assert lines[0] == "Demo: 2 places"
    assert lines[3].split() == "fc1 3 12.35 3: 0.1 … 0.175 … 0.25, 1 NaN".split()
    assert lines[4].split() == "layers.0.attn 0 1235 1×2: 1.0 … 1.5 … 2.0".split()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.zeros(3), "3: 0.0"),
        (torch.zeros(0), "0: nothing"),
        (torch.full((2,), NAN), "2: NaN"),
        (torch.tensor([True, False]), "2: False … 0.5 … True"),
        (torch.tensor([1, 10**9]), "2: 1 … 500000000 … 1000000000"),
        (torch.tensor([-float("inf"), 0.0]), "2: -inf … -inf … 0.0"),
        (torch.tensor(2.5), "2.5"),
        (1.23456e-9, "1.235e-09"),
        (-98765.4, "-98765"),
        (NAN, "nan"),
        ("relu", "relu"),
        (None, ""),
    ],
)
def test_odd_values_are_shown_as_what_they_are(value, shown):
    line = repr(Results({"p": {"one": 1, "figure": value}}, name="Demo")).splitlines()[3]
    assert line.split(maxsplit=2)[2:] == ([shown] if shown else [])


def test_classes_have_rows_of_their_own():
    assert of_classes().rows() == [
        {"path": "fc1", "class": 0, "dead": 1},
        {"path": "fc1", "class": 7, "dead": 2},
        {"path": "fc2", "class": 0, "dead": 3},
    ]
    rows = against_the_rest().rows()
    assert [(row["class"], row["group"], row["mean.max"]) for row in rows] == [(3, "class", 2.0), (3, "rest", 2.0)]


def test_figures_with_the_name_of_a_column_are_told_apart_from_it():
    odd = Results({"a": {0: {"path": 1, "class": 2, "place": 3}}}, name="D")
    assert odd.rows() == [{"path": "a", "class": 0, "figure.path": 1, "figure.class": 2, "place": 3}]
    assert set(odd.to_xarray().data_vars) == {"path", "figure.class", "figure.place"}


def test_a_dict_of_places_is_a_block_of_numbered_columns():
    assert alike().rows()[1]["cka[layers.1]"] == 0.5
    lines = repr(alike()).splitlines()
    assert lines[1].split() == "# path cka #0 cka #1 cka #2 cka #3".split()
    assert lines[4].split() == "#1 layers.0 0.5 1.0 0.5 0.3333".split()


def test_columns_stand_in_the_order_of_the_places_also_where_none_is_compared_with_itself():
    names = ["a", "b", "c", "d"]
    found = Results({one: {"cka": {other: 0.5 for other in names if other != one}} for one in names}, name="S")
    assert repr(found).splitlines()[1].split()[2:] == "cka #0 cka #1 cka #2 cka #3".split()
    assert (
        list(found.rows()[2]) == ["path", "cka[a]", "cka[b]", "cka[c]", "cka[d]"] and found.rows()[2]["cka[c]"] is None
    )
    assert found.to_xarray().other.values.tolist() == names


def test_of_hundred_places_in_columns_those_that_do_not_fit_are_left_out():
    names = [f"layers.{i}" for i in range(100)]
    wide = Results({one: {"cka": dict.fromkeys(names, 0.5)} for one in names}, name="Similarity")
    lines = repr(wide).splitlines()
    assert max(map(len, lines[:60])) <= 160 and "not shown here: cka #99" in lines[-1]


def test_tensors_that_do_not_fit_are_left_out_and_said_to_be():
    wide = Results({"a": {**{f"figure_{i}": torch.rand(8) for i in range(9)}, "norm": 1.5}}, name="Demo")
    lines = repr(wide).splitlines()
    assert max(map(len, lines)) <= 160 and lines[1].split()[-1] == "norm"
    assert lines[-1].startswith("not shown here: figure_8, figure_7")


def test_of_several_analysers_a_narrow_table_keeps_the_first_figures_and_not_how_much_data_each_had():
    names = [f"Analyser{i}.{figure}" for i in range(9) for figure in ("samples", "nans")]
    wide = Results({"a": {"first": 1.5, **dict.fromkeys(names, 7), "last": 2.5}}, name="Several")
    title, head, *_, below = repr(wide).splitlines()
    assert len(head) <= 160 and {"path", "first", "last"} <= {*head.split()}
    assert below.startswith("not shown here: Analyser8.nans, Analyser8.samples")
    many = Results({"a": {f"a_number_{i}": 0.5 for i in range(30)}}, name="Demo")
    assert max(map(len, repr(many).splitlines()[:4])) <= 160
    assert repr(many).splitlines()[1].startswith("path   a_number_0   a_number_1 ")


def test_nothing_and_places_without_figures_print():
    assert repr(Results({}, name="Demo")) == "Demo: 0 places"
    assert Results({"fc1": {}}, name="Demo").rows() == [{"path": "fc1"}]
    assert Results({}, name="Demo").to_pandas().empty


def test_html_is_escaped():
    html = Results({"<b>": {"<i>": "<u>", "mean": torch.ones(2)}}, name="<s>")._repr_html_()
    assert not any(tag in html for tag in ("<b>", "<i>", "<u>", "<s>"))
    assert "&lt;b&gt;" in html and "2: 1.0" in html


def test_results_equal_dicts_of_equal_numbers():
    results = plain()
    same = {
        "fc1": {"dead": 3.0, "norm": 12.3456789, "mean": np.array([0.1, 0.25, NAN])},
        "layers.0.attn": {"dead": 0, "norm": 1234.5678, "mean": [[1, 2]]},
    }
    assert results == same and same == results and results == plain()
    for other in ({"fc1": same["fc1"]}, {**same, "fc1": {**same["fc1"], "dead": 4}}, {}, 3, None,
                  {**same, "fc1": {**same["fc1"], "mean": [0.1, 0.25]}},
                  {**same, "fc1": {**same["fc1"], "mean": "text"}},
                  {**same, "fc1": {**same["fc1"], "mean": {}}}):  # fmt: skip
        assert results != other
    assert Results({"p": {"x": NAN, "y": [1, "a"]}}, name="") == {"p": {"x": NAN, "y": [1, "a"]}}
    with pytest.raises(TypeError, match="unhashable"):
        hash(results)


def test_results_are_copied_and_pickled():
    for made in (plain, of_classes, against_the_rest, alike):
        for again in (pickle.loads(pickle.dumps(made())), copy.deepcopy(made())):
            assert again == made() and again.name == made().name and repr(again) == repr(made())


def test_a_wide_frame_has_the_rows():
    frame = plain().to_pandas()
    assert frame.to_dict("records") == plain().rows()
    assert frame.dead.dtype == np.int64 and frame["mean.max"].dtype == np.float64
    assert of_classes().to_pandas().pivot(index="path", columns="class", values="dead").loc["fc1", 7] == 2


def test_a_long_frame_has_every_number():
    frame = plain().to_pandas(long=True)
    assert list(frame.columns) == ["path", "figure", "index", "value"] and len(frame) == 2 * 2 + 3 + 2
    means = frame[(frame.path == "fc1") & (frame.figure == "mean")]
    assert list(means["index"]) == [0, 1, 2] and list(means.value)[:2] == [0.1, 0.25] and np.isnan(means.value.iloc[2])
    other = frame[(frame.path == "layers.0.attn") & (frame.figure == "mean")]
    assert list(other["index"]) == [(0, 0), (0, 1)]
    assert list(against_the_rest().to_pandas(long=True).columns) == [
        "path", "class", "group", "figure", "index", "value"
    ]  # fmt: skip
    keys = alike().to_pandas(long=True)
    assert list(keys["index"][:4]) == ["conv", "layers.0", "layers.1", "head"]


def test_an_xarray_has_a_variable_a_figure_and_nan_where_nothing_is():
    found = plain().to_xarray()
    assert dict(found.sizes) == {"place": 2, "mean_dim_0": 3, "mean_dim_1": 2}
    assert found.dead.dims == ("place",) and found.dead.dtype == np.int64
    assert float(found.norm.sel(place="fc1")) == 12.3456789
    first = found["mean"].sel(place="fc1")
    assert first.mean_mask.values.tolist() == [[True, False]] * 3
    assert first.values[:2, 0].tolist() == [0.1, 0.25]
    assert int(found["mean"].mean_mask.sum()) == 5 and int(found["mean"].count()) == 4
    assert found.attrs == {"analyser": "Demo"}


def test_an_xarray_of_equal_sizes_needs_no_mask():
    found = Results({p: {"mean": torch.ones(4), "hit": True} for p in "ab"}, name="Demo").to_xarray()
    assert set(found.coords) == {"place"} and found["mean"].shape == (2, 4) and found.hit.dtype == bool


def test_classes_and_other_places_are_dimensions_of_an_xarray():
    found = of_classes().to_xarray()
    assert found.dead.dims == ("place", "class") and found["class"].values.tolist() == [0, 7]
    np.testing.assert_equal(found.dead.values, [[1.0, 2.0], [3.0, NAN]])
    assert against_the_rest().to_xarray()["mean"].dims == ("place", "class", "group", "mean_dim_0")
    cka = alike().to_xarray().cka
    assert float(cka.sel(place="conv", other="head")) == 0.25 and cka.shape == (4, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.bool])
def test_tensors_of_any_type_become_arrays(dtype):
    found = Results({"a": {"x": torch.ones(2, dtype=dtype)}, "b": {"x": torch.ones(3, dtype=dtype)}}, name="")
    assert float(found.to_xarray().x.sum()) == 5.0 and not np.isfinite(found.to_xarray().x.values[0, 2])


def test_texts_and_lists_stay_what_they_are_in_an_xarray():
    found = Results({"a": {"kind": "ReLU", "shapes": [[1, 2]]}, "b": {"kind": "Linear"}}, name="").to_xarray()
    assert found.kind.values.tolist() == ["ReLU", "Linear"] and found.shapes.values.tolist() == [[[1, 2]], None]


def test_an_array_that_would_be_nearly_all_padding_is_refused(monkeypatch):
    monkeypatch.setattr(labelled, "MOST", 1000)
    figures = {f"{i}": {"x": torch.ones(4000 if not i else 1)} for i in range(10)}
    with pytest.raises(BynameError, match="`x`, of shape \\(10, 4000\\), would have 40,000 elements, of which 4,009"):
        Results(figures, name="").to_xarray()


def test_paths_of_figures_are_read_by_the_path_language():
    assert plain().by_path("Demo")["layers.0.attn.Demo.dead"] == 0
    assert [*of_classes().by_path("PerClass")] == [
        "fc1.PerClass.0.dead", "fc1.PerClass.7.dead", "fc2.PerClass.0.dead"
    ]  # fmt: skip
    assert [*against_the_rest().by_path("A")] == ["fc1.A.3.class.mean", "fc1.A.3.rest.mean"]
    assert alike().by_path("S")["conv.S.cka['layers.1']"] == 1 / 3
    odd = Results({"h['k'][0]": {"a.b": 1}, "no path..": {"x": {3: 0.5}}}, name="")
    assert [*odd.by_path("O")] == [r"h['k'][0].O.a\.b", r"no path\.\..O.x[3]"]
    for made in (plain(), of_classes(), against_the_rest(), alike(), odd):
        for path in made.by_path("Name"):
            assert str(byname.select.path(path)) == f"select.path({path!r})" and ".Name." in path
