"""A saved state says what it is of; whatever is something else, or has other settings, is refused."""

import copy
import io
import json

import pytest
import torch
from torch import nn

import byname
from byname import analyse
from byname.analyse import (
    ClassVersusRest,
    DeadUnits,
    FeatureStatistics,
    GradientStatistics,
    LinearProbe,
    NameList,
    Outliers,
    PerClass,
    Rank,
    Several,
    Similarity,
    Spectrum,
)
from byname.errors import BadArgumentError

EVERY = {
    "FeatureStatistics": FeatureStatistics,
    "DeadUnits": DeadUnits,
    "Rank": Rank,
    "Spectrum": Spectrum,
    "Outliers": Outliers,
    "NameList": NameList,
    "GradientStatistics": GradientStatistics,
    "Similarity": Similarity,
    "LinearProbe": lambda: LinearProbe(3),
    "Several": lambda: Several(DeadUnits(), GradientStatistics()),
    "PerClass": lambda: PerClass(Outliers()),
    "ClassVersusRest": lambda: ClassVersusRest(Outliers()),
}

SETTINGS = {
    "FeatureStatistics.channel_dim": (FeatureStatistics, lambda: FeatureStatistics(channel_dim=-1), "channel_dim=-1"),
    "DeadUnits.channel_dim": (DeadUnits, lambda: DeadUnits(channel_dim=1), "channel_dim=1"),
    "DeadUnits.fires": (DeadUnits, lambda: DeadUnits(fires=0.5), "fires=0.5"),
    "DeadUnits.function": (lambda: DeadUnits(fires=0.5), lambda: DeadUnits(fires=torch.isfinite), "fires='isfinite'"),
    "Outliers.channel_dim": (Outliers, lambda: Outliers(channel_dim=-1), "channel_dim=-1"),
    "Rank.centred": (Rank, lambda: Rank(centred=True), "centred=True"),
    "Rank.rows": (Rank, lambda: Rank(rows="samples"), "rows='samples'"),
    "Spectrum.rows": (Spectrum, lambda: Spectrum(rows="samples"), "rows='samples'"),
    "Spectrum.channel_dim": (Spectrum, lambda: Spectrum(channel_dim=-1), "channel_dim=-1"),
    "GradientStatistics": (GradientStatistics, lambda: GradientStatistics(unbiased=True), "unbiased=True"),
    "Similarity": (Similarity, lambda: Similarity(biased=True), "biased=True"),
    "LinearProbe.classes": (LinearProbe, lambda: LinearProbe(3), "classes=3"),
    "LinearProbe.standardise": (LinearProbe, lambda: LinearProbe(standardise=False), "standardise=False"),
    "LinearProbe.features": (LinearProbe, lambda: LinearProbe(features="pool"), "features='pool'"),
    "LinearProbe.function": (LinearProbe, lambda: LinearProbe(features=torch.square), "features='square'"),
    "LinearProbe.loss": (LinearProbe, lambda: LinearProbe(loss=torch.nn.functional.nll_loss), "loss='nll_loss'"),
    "LinearProbe.nan": (LinearProbe, lambda: LinearProbe(nan="raise"), "nan='raise'"),
    "Several": (lambda: Several(Rank()), lambda: Several(Rank(centred=True)), "'centred': True"),
    "Several of others": (lambda: Several(Rank()), lambda: Several(Rank(), DeadUnits()), "DeadUnits="),
    "PerClass": (lambda: PerClass(Rank()), lambda: PerClass(Rank(centred=True)), "'centred': True"),
    "PerClass of others": (lambda: PerClass(Rank()), lambda: PerClass(Spectrum()), "byname.analyse.Spectrum="),
}


def passed(analyser, value=None):
    """The analyser after a value has passed, of three classes."""
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    analyser.targets = torch.arange(6) % 3
    with byname.observe(model, ["0", "1"], analyser):
        model(torch.randn(6, 4) if value is None else value).sum().backward()
    return analyser


def reloaded(state):
    """What a checkpoint makes of it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.sees_nothing
@pytest.mark.parametrize("name", EVERY)
def test_a_state_goes_through_a_checkpoint_and_says_what_it_is_of(name):
    saved, loaded = passed(EVERY[name]()), EVERY[name]()
    state = reloaded(saved.state_dict())
    assert (state["analyser"], state["version"]) == (f"byname.analyse:{name}", 1)
    loaded.load_state_dict(state)
    assert str(loaded.result()) == str(saved.result())
    assert loaded.paths == saved.paths


@pytest.mark.sees_nothing
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seen", [True, False])
def test_the_state_of_another_analyser_is_refused_and_both_are_named(name, seen):
    kept = passed(EVERY[name]())
    before = str(kept.result())
    for other, make in EVERY.items():
        if other != name:
            state = (passed(make()) if seen else make()).state_dict()
            with pytest.raises(BadArgumentError, match=f"^this is the state of an? {other}, not of an? {name}$"):
                kept.load_state_dict(state)
    assert str(kept.result()) == before


@pytest.mark.sees_nothing
@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_state_of_other_settings_is_refused_as_it_is_by_merge(case, swapped):
    make, other, words = SETTINGS[case]
    kept, saved = (other(), make()) if swapped else (make(), other())
    for saved in (saved, passed(copy.deepcopy(saved))):  # also where nothing was seen
        with pytest.raises(BadArgumentError, match="this is the state of an? .* with .* made with the same") as refused:
            kept.load_state_dict(reloaded(saved.state_dict()))
        assert words.split("=")[0] in str(refused.value)
        assert swapped or words in str(refused.value)
        with pytest.raises(BadArgumentError, match="cannot merge"):
            kept.merge(saved)
    assert kept.paths == ()
    again = other() if not swapped else make()
    again.load_state_dict(saved.state_dict())
    assert str(again.result()) == str(saved.result())


def test_what_is_no_state_is_refused():
    for state in (None, 3, [], {}, {"parts": 3}, {"parts": [1]}, {"parts": [["a", {}]]}, {"parts": [["a", 3]]}):
        with pytest.raises(BadArgumentError, match="this is not the state of an analyser"):
            DeadUnits().load_state_dict(state)
    state = DeadUnits().state_dict()
    for wrong in ({"analyser": 3}, {"version": "new"}, {"settings": 3}):
        with pytest.raises(BadArgumentError, match="state of a"):
            DeadUnits().load_state_dict({**state, **wrong})
    with pytest.raises(BadArgumentError, match="has version 99, and this byname reads up to 1"):
        DeadUnits().load_state_dict({**state, "version": 99})
    with pytest.raises(BadArgumentError, match=r"state of a '\\x1b\[31mDeadUnits', not"):
        DeadUnits().load_state_dict({**state, "analyser": "b:\x1b[31mDeadUnits"})


@pytest.mark.sees_nothing
def test_states_of_0_2_0_are_read():
    """Each statistic in the state of an analyser, and in a file, said its class twice."""

    def as_written(state):
        if "parts" in state:
            return {**state, "parts": [[key, as_written(one)] for key, one in state["parts"]]}
        return {"statistic": state["statistic"], "state": state}

    for make in EVERY.values():
        saved, loaded = passed(make()), make()
        loaded.load_state_dict(reloaded(as_written(saved.state_dict())))
        assert str(loaded.result()) == str(saved.result())
    mean = analyse.Mean().add([1.0, 2.0])
    assert analyse.Mean.made(as_written(mean.state_dict())).mean() == 1.5


def test_a_state_without_a_word_about_itself_is_taken_as_before():
    saved, loaded = passed(DeadUnits()), DeadUnits()
    loaded.load_state_dict({"parts": saved.state_dict()["parts"]})
    assert loaded.result() == saved.result()


def test_settings_of_ones_own_need_not_be_plain():
    class Odd(FeatureStatistics):
        def __init__(self, function, weights):
            super().__init__()
            self.function, self.weights = function, weights

        def settings(self):
            return {"function": self.function, "weights": self.weights, "type": torch.float32, "none": float("nan")}

    def odd(function=torch.relu, weights=None):
        return Odd(function, torch.ones(2) if weights is None else weights)

    saved, loaded = passed(odd()), odd()
    state = reloaded(saved.state_dict())
    loaded.load_state_dict(state)
    assert str(loaded.merge(saved).result()["0"]["samples"]) == "12"
    for other in (odd(torch.tanh), odd(weights=torch.zeros(2))):
        with pytest.raises(BadArgumentError, match="function='tanh'|weights=tensor"):
            other.load_state_dict(state)
        with pytest.raises(BadArgumentError, match="cannot merge"):
            other.merge(saved)


class Mean(analyse.Statistic):
    """Of the name of one of byname."""

    STATE = ("_x",)

    def __init__(self, *, nan="omit"):
        super().__init__(nan=nan)
        self._x = 0.0

    def _add(self, samples, weights):
        self._x = self._x + float(samples.sum())

    def _merge(self, other):
        self._x += other._x

    def result(self):
        return self._x


class Sums(analyse.Analyser):
    def begin(self, sample):
        return Mean()

    def take(self, kept, sample):
        kept.add(sample.value)

    def figures(self, kept):
        return {"sum": kept.result()}


class Means(Sums):
    def begin(self, sample):
        return analyse.Mean()

    def figures(self, kept):
        return {"sum": kept.result().tolist()}


def test_an_own_mean_is_not_that_of_byname():
    names = f"{__name__}:Mean", "byname.analyse:Mean"
    assert (Mean().state_dict()["statistic"], analyse.Mean().state_dict()["statistic"]) == names
    ones = torch.ones(6, 4)
    for make, value in ((Sums, 24.0), (Means, [1.0] * 4)):
        saved, loaded = passed(make(), ones), make()
        loaded.load_state_dict(reloaded(saved.state_dict()))
        assert loaded.result()["0"]["sum"] == value == saved.reduce().result()["0"]["sum"]
    for kept, other in ((Mean(), analyse.Mean()), (analyse.Mean(), Mean())):
        one, two = (each.state_dict()["statistic"].replace(":", ".") for each in (kept, other))
        with pytest.raises(BadArgumentError, match=f"^a {one} merges only its own class, not a {two}$"):
            kept.merge(other)
        with pytest.raises(BadArgumentError, match=f"^this is the state of a {two}, not of a {one}$"):
            kept.load_state_dict(other.state_dict())
        with pytest.raises(BadArgumentError, match=f"^this is not a saved {one} but a {two}$"):
            type(kept).made(other.state_dict())


def test_an_own_mean_is_loaded_from_its_file_and_not_from_that_of_byname(tmp_path):
    Mean().add([1.0, 2.0]).save(tmp_path / "own")
    analyse.Mean().add([1.0, 2.0]).save(tmp_path / "ours")
    assert Mean.load(tmp_path / "own").result() == 3.0
    assert analyse.Mean.load(tmp_path / "ours").result() == 1.5
    for kind, file in ((Mean, "ours"), (analyse.Mean, "own")):
        with pytest.raises(BadArgumentError, match="this is not a saved .*Mean but a .*Mean"):
            kind.load(tmp_path / file)


@pytest.mark.parametrize(
    ("mine", "other"),
    [(analyse.CrossCovariance, analyse.Covariance), (analyse.Covariance, analyse.CrossCovariance)],
)
def test_statistics_that_keep_the_same_are_told_apart(mine, other):
    saved = other()
    with pytest.raises(BadArgumentError, match=f"^this is the state of a {other.__name__}, not of a {mine.__name__}$"):
        mine().load_state_dict(saved.state_dict())


def test_other_settings_of_a_statistic_are_both_named():
    saved = analyse.Variance(channel=1, nan="raise").state_dict()
    with pytest.raises(
        BadArgumentError,
        match="a Variance with channel=1, nan='raise' and cannot be loaded into one with channel=None, nan='omit'",
    ):
        analyse.Variance().load_state_dict(saved)


def cell(factor=1):
    """What a notebook cell makes anew each time it runs."""

    class Total(analyse.Statistic):
        STATE = ("_x",)

        def __init__(self, *, nan="omit"):
            super().__init__(nan=nan)
            self._x = 0.0

        def _add(self, samples, weights):
            self._x = self._x + float(samples.sum())

        def _merge(self, other):
            self._x += other._x

        def result(self):
            return self._x * factor

    class Sums(analyse.Analyser):
        KEEPS = {"total": Total}

        def figures(self, kept):
            return {"sum": kept["total"].result()}

    return Sums, Total


def test_each_analyser_of_a_cell_that_ran_twice_uses_the_statistic_it_was_written_with():
    cells = [cell(1), cell(10), cell(100)]
    for (Sums, Total), factor in zip(cells, (1, 10, 100)):
        saved, loaded, other = passed(Sums(), torch.ones(6, 4)), Sums(), passed(Sums(), torch.ones(6, 4))
        for state in (saved.state_dict(), reloaded(saved.state_dict())):
            loaded.load_state_dict(state)
            assert loaded.result()["0"]["sum"] == 24 * factor
        assert loaded.merge(other).merge(saved).result()["0"]["sum"] == 72 * factor
        assert saved.reduce().result()["0"]["sum"] == 24 * factor
        around = passed(ClassVersusRest(Several(Sums())), torch.ones(6, 4))
        again = ClassVersusRest(Several(Sums()))
        again.load_state_dict(around.state_dict())
        for one in (around, again):
            assert one.result()["0"][0] == {"class": {"sum": 8.0 * factor}, "rest": {"sum": 16.0 * factor}}
        assert type(Total().reduce()) is Total


def test_classes_of_two_runs_of_a_cell_are_refused_with_a_true_sentence():
    (Sums, Total), (SumsAgain, TotalAgain) = cell(), cell()
    name = f"{__name__}.cell.<locals>"
    for mine, other, kind in ((Total(), TotalAgain(), "Total"), (Sums(), SumsAgain(), "Sums")):
        with pytest.raises(BadArgumentError, match=f"there are two classes named {name}.{kind}, as when") as told:
            mine.merge(other)
        assert "load_state_dict(other.state_dict())" in str(told.value)
    mine, other = Sums(), passed(SumsAgain(), torch.ones(6, 4))
    mine.load_state_dict(other.state_dict())  # as the sentence says
    assert mine.result()["0"]["sum"] == 24
    assert mine.merge(passed(Sums(), torch.ones(6, 4))).result()["0"]["sum"] == 48


def test_an_analyser_that_declares_no_statistic_loads_those_it_has_kept_of_a_cell_that_ran_twice():
    (_, Total), _ = cells = cell(1), cell(10)

    class Sums(analyse.Analyser):
        def begin(self, sample):
            return Total()

        def take(self, kept, sample):
            kept.add(sample.value)

        def figures(self, kept):
            return {"sum": kept.result()}

    saved = passed(Sums(), torch.ones(6, 4))
    for loaded in (saved, copy.deepcopy(saved)):
        loaded.load_state_dict(reloaded(saved.state_dict()))
        assert loaded.merge(saved.reduce()).result()["0"]["sum"] == 48
        saved = passed(Sums(), torch.ones(6, 4))
    with pytest.raises(BadArgumentError, match="classes named .*Total .* name the class in the analyser's KEEPS"):
        Sums().load_state_dict(saved.state_dict())
    state = saved.state_dict()
    state["parts"][0][1]["statistic"] = "elsewhere:Total"
    with pytest.raises(BadArgumentError, match="there is no statistic 'elsewhere.Total' here: import its module first"):
        Sums().load_state_dict(state)
    assert len(cells) == 2


def test_the_program_itself_has_another_name_where_it_is_imported():
    class Own(Mean):
        pass

    Own.__module__ = "__main__"
    Own.__qualname__ = "Own"
    saved = Own().add([1.0, 2.0]).state_dict()
    assert saved["statistic"] == "__main__:Own"
    Own.__module__ = "train"
    loaded = Own()
    loaded.load_state_dict(saved)
    assert loaded.result() == 3.0
    Own.__module__ = "other"
    with pytest.raises(BadArgumentError, match=r"state of a train\.Own, not of an other\.Own"):
        loaded.load_state_dict({**saved, "statistic": "train:Own"})
    Own.__qualname__ = "Mean"
    Own.__module__ = "__main__"
    with pytest.raises(BadArgumentError, match=r"state of a __main__\.Mean, not of a byname\.analyse\.Mean"):
        analyse.Mean().load_state_dict(Own().state_dict())


def test_a_state_cannot_have_an_attribute_that_hides_what_it_says_of_itself():
    for name in ("statistic", "version", "settings"):
        with pytest.raises(BadArgumentError, match=f"the STATE of Bad has '{name}'"):
            type("Bad", (Mean,), {"STATE": ("_x", name)})


def test_states_are_plain_enough_for_json_but_for_their_tensors():
    for make in EVERY.values():
        json.dumps(make().state_dict())
