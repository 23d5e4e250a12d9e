"""Groups: several analysers at once, one for each class, and each class against the others."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser, Sample, checked_analyser, class_numbers
from byname.analyse.state import dotted, saved_class_name
from byname.analyse.statistic import Statistic, merged, twin
from byname.errors import BadArgumentError
from byname.text import numbered


def _handed_on(name: str) -> Any:
    def call_each(self: _Around, *observation: int) -> None:
        for analyser in self.inner:
            getattr(analyser, name)(*observation)

    return call_each


class _Around(Analyser):
    """An analyser around others: it passes its events on to them, and their own results stay empty."""

    def __init__(self, *analysers: Analyser) -> None:
        super().__init__()
        self.inner = tuple(map(_checked, analysers))
        self.listens = frozenset().union(*(analyser.listens for analyser in analysers))

    def reset(self) -> None:
        super().reset()
        for analyser in self.inner:
            analyser.reset()  # which may know values of the forward before

    def begin(self, sample: Sample) -> dict[Any, Any]:
        return {}

    started, begun, ended, settle = map(_handed_on, ("started", "begun", "ended", "settle"))

    def _classes(self) -> list[type[Statistic]]:
        return [*(kind for analyser in self.inner for kind in analyser._classes()), *super()._classes()]


class Several(_Around):
    """Several analysers at the same places, with one pass.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> several = Several(byname.analyse.DeadUnits(), byname.analyse.NameList())
        >>> with byname.observe(model, "1", several):
        ...     _ = model(torch.tensor([[1., -1.]]))
        >>> several.result()["1"]["dead"], several.result()["1"]["calls"]
        (1, 1)

    Their figures stand side by side. If two of them have a figure of one name, the analyser stands before it:
    ``"FeatureStatistics.mean"`` and ``"GradientStatistics.mean"``.

    Args:
        analysers: any number of them; one that is not `enabled` is left out. Their own results stay empty.

    Raises:
        BadArgumentError: if one is not an analyser, or compares places with each other, as `Similarity` does.
    """

    def __init__(self, *analysers: Analyser) -> None:
        super().__init__(*analysers)
        names = numbered(type(analyser).__name__ for analyser in analysers)
        self.analysers = dict(zip(names, analysers, strict=True))
        self.tells_classes_apart = any(analyser.tells_classes_apart for analyser in analysers)

    def settings(self) -> dict[str, Any]:
        """Return the settings of each."""
        return {name: _kind_and_settings(analyser) for name, analyser in self.analysers.items()}

    def take(self, kept: Any, sample: Sample) -> None:
        """Pass a sample on."""
        for name, analyser in self.analysers.items():
            if analyser.enabled and ("gradient" if sample.gradient else "value") in analyser.listens:
                analyser._give(kept, name, sample)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the figures of all, side by side."""
        found = {name: self.analysers[name].figures(one) for name, one in kept.items()}
        often = Counter(figure for figures in found.values() for figure in figures)
        return {
            figure if often[figure] == 1 else f"{name}.{figure}": value
            for name, figures in found.items()
            for figure, value in figures.items()
        }


class PerClass(_Around):
    """An analyser for each class of samples: ``{path: {class: {figure: value}}}``.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> units = byname.analyse.PerClass(byname.analyse.DeadUnits())
        >>> units.targets = torch.tensor([0, 1])
        >>> with byname.observe(model, "1", units):
        ...     _ = model(torch.tensor([[1., 0.], [1., 1.]]))
        >>> {label: figures["dead"] for label, figures in units.result()["1"].items()}
        {0: 1, 1: 0}

    Args:
        analyser: computes the figures of each class; its own results stay empty.

    Raises:
        BadArgumentError: as of `Several`; in a forward, if the classes are not known or not one number a sample.
            Also for a probe, alone or among several: all samples of a class have one class, so that it would always be
            right.
    """

    def __init__(self, analyser: Analyser) -> None:
        super().__init__(analyser)
        self.analyser = analyser
        if analyser.tells_classes_apart:
            raise BadArgumentError(
                f"a {type(analyser).__name__} needs several classes and would see only one here: give it to "
                "byname.observe alone"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings of the analyser."""
        return _kind_and_settings(self.analyser)

    def take(self, kept: Any, sample: Sample) -> None:
        """Pass a sample on."""
        classes = _classes_of(sample)
        for label in torch.unique(classes).tolist():
            self.analyser._give(kept, label, sample.only(classes == label))

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the figures of each class."""
        return {label: self.analyser.figures(kept[label]) for label in sorted(kept)}


class ClassVersusRest(PerClass):
    """An analyser for each class, and for all samples of other classes.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> units = ClassVersusRest(byname.analyse.DeadUnits())
        >>> units.targets = torch.tensor([0, 1, 2])
        >>> with byname.observe(model, "1", units):
        ...     _ = model(torch.tensor([[1., 0.], [0., 1.], [0., 0.]]))
        >>> figures = units.result()["1"][2]
        >>> figures["class"]["dead"], figures["rest"]["dead"]
        (2, 0)

    The results are ``{path: {class: {"class": {figure: value}, "rest": {figure: value}}}}``. The rest is merged from
    the other classes when the result is asked for.

    Args:
        analyser: computes the figures of each class; it must be able to merge.
    """

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the figures of each class and of its rest."""
        return {label: self._against(kept, label) for label in sorted(kept)}

    def _against(self, kept: dict[int, Any], label: int) -> dict[str, Any]:
        first, *others = [one for other, one in kept.items() if other != label] or [None]
        against = {} if first is None else {"rest": self.analyser.figures(reduce(merged, others, twin(first)))}
        return {"class": self.analyser.figures(kept[label]), **against}


def _checked(analyser: Analyser) -> Analyser:
    checked_analyser(analyser)
    if type(analyser).result is not Analyser.result or type(analyser).put is not Analyser.put:
        raise BadArgumentError(f"{type(analyser).__name__} compares places: give it to byname.observe alone")
    return analyser


def _kind_and_settings(analyser: Analyser) -> dict[str, Any]:
    kind = type(analyser)
    name = saved_class_name(kind)
    return {dotted(name) if name.startswith("byname.analyse:") else kind.__qualname__: analyser.settings()}


def _classes_of(sample: Sample) -> Tensor:
    if sample.parameter:
        raise BadArgumentError(f"`{sample.path}` is a parameter: it has no samples, and so no classes")
    return class_numbers(sample, len(sample.value), lambda: "Set analyser.targets again for each batch")
