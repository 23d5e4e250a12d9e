"""How do analysers work together? Several at once, one a class, and each class against the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser, checked_analyser
from byname.analyse.keeping import Kept, merged, twin
from byname.analyse.sample import Sample
from byname.analyse.statistics.identity import plain_name
from byname.errors import BadArgumentError


class Several(Analyser):
    """Several analysers at the same places, with one pass.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> several = Several(byname.analyse.DeadUnits(), byname.analyse.NameList())
        >>> with byname.observe(model, "1", several):
        ...     _ = model(torch.tensor([[1., -1.]]))
        >>> several.result()["1"]["dead"], several.result()["1"]["calls"]
        (1, 1)

    Their figures stand side by side. A figure that two of them have is told with the analyser:
    ``"FeatureStatistics.mean"`` and ``"GradientStatistics.mean"``.

    Args:
        analysers: any number of them; one that is not `enabled` is left out. Their own results stay empty.

    Raises:
        BadArgumentError: if one is no analyser, or compares places with each other, as `Similarity` does.
    """

    def __init__(self, *analysers: Analyser) -> None:
        super().__init__()
        for analyser in analysers:
            _checked(analyser)
        self.analysers = _named(analysers)
        self.listens = frozenset().union(*(analyser.listens for analyser in analysers))
        self.tells_classes_apart = any(analyser.tells_classes_apart for analyser in analysers)

    def settings(self) -> dict[str, Any]:
        """Those of each."""
        return {name: _kind_and_settings(analyser) for name, analyser in self.analysers.items()}

    def begin(self, sample: Sample) -> dict[Any, Kept]:
        """Nothing yet."""
        return {}

    def take(self, kept: Any, sample: Sample) -> None:
        """Gives a sample on."""
        for name, analyser in self.analysers.items():
            if analyser.enabled and ("gradient" if sample.gradient else "value") in analyser.listens:
                of_analyser = kept[name] if name in kept else analyser.begin(sample)
                analyser.take(of_analyser, sample)
                kept[name] = of_analyser

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The figures of all, side by side."""
        found = {name: self.analysers[name].figures(one) for name, one in kept.items()}
        often = Counter(figure for figures in found.values() for figure in figures)
        return {
            figure if often[figure] == 1 else f"{name}.{figure}": value
            for name, figures in found.items()
            for figure, value in figures.items()
        }

    def reset(self) -> None:
        """Forgets what was seen."""
        super().reset()
        for analyser in self.analysers.values():
            analyser.reset()  # which may know values of the forward before

    def begun(self, observation: int, iteration: int) -> None:
        """Tells it on."""
        for analyser in self.analysers.values():
            analyser.begun(observation, iteration)

    def started(self, observation: int) -> None:
        """Tells it on."""
        for analyser in self.analysers.values():
            analyser.started(observation)

    def ended(self, observation: int) -> None:
        """Tells it on."""
        for analyser in self.analysers.values():
            analyser.ended(observation)

    def settle(self) -> None:
        """Tells it on."""
        for analyser in self.analysers.values():
            analyser.settle()


class PerClass(Analyser):
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
        analyser: what is done for each class; its own results stay empty.

    Raises:
        BadArgumentError: as of `Several`; in a forward, if the classes are not known or not one number a sample.
            Also for a probe, alone or among several: all samples of a class have one class, so that it would always be
            right.
    """

    def __init__(self, analyser: Analyser) -> None:
        super().__init__()
        self.analyser = _checked(analyser)
        if analyser.tells_classes_apart:
            raise BadArgumentError(
                f"a {type(analyser).__name__} that tells classes apart has nothing to do within one class: observe it "
                "by itself"
            )
        self.listens = analyser.listens

    def settings(self) -> dict[str, Any]:
        """Those of the analyser."""
        return _kind_and_settings(self.analyser)

    def begin(self, sample: Sample) -> dict[Any, Kept]:
        """Nothing yet."""
        return {}

    def take(self, kept: Any, sample: Sample) -> None:
        """Gives a sample on."""
        classes = _classes_of(sample)
        for label in torch.unique(classes).tolist():
            one = sample.only(classes == label)
            of_class = kept[label] if label in kept else self.analyser.begin(one)
            self.analyser.take(of_class, one)
            kept[label] = of_class

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The figures of each class."""
        return {label: self.analyser.figures(kept[label]) for label in sorted(kept)}

    def reset(self) -> None:
        """Forgets what was seen."""
        super().reset()
        self.analyser.reset()  # which may know values of the forward before

    def begun(self, observation: int, iteration: int) -> None:
        """Tells it on."""
        self.analyser.begun(observation, iteration)

    def started(self, observation: int) -> None:
        """Tells it on."""
        self.analyser.started(observation)

    def ended(self, observation: int) -> None:
        """Tells it on."""
        self.analyser.ended(observation)

    def settle(self) -> None:
        """Tells it on."""
        self.analyser.settle()


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
        analyser: what is done for each class; it has to be one that merges.
    """

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The figures of each class and of its rest."""
        return {label: self._against(kept, label) for label in sorted(kept)}

    def _against(self, kept: dict[int, Kept], label: int) -> dict[str, Any]:
        rest: Kept | None = None
        for other, one in kept.items():
            if other != label:
                rest = twin(one) if rest is None else merged(rest, one)
        against = {} if rest is None else {"rest": self.analyser.figures(rest)}
        return {"class": self.analyser.figures(kept[label]), **against}


def _checked(analyser: Analyser) -> Analyser:
    checked_analyser(analyser)
    if type(analyser).result is not Analyser.result or type(analyser).put is not Analyser.put:
        raise BadArgumentError(f"{type(analyser).__name__} compares places with each other: observe it by itself")
    return analyser


def _kind_and_settings(analyser: Analyser) -> dict[str, Any]:
    """What has to be the same of an analyser in another one."""
    return {plain_name(type(analyser)): analyser.settings()}


def _named(analysers: tuple[Analyser, ...]) -> dict[str, Analyser]:
    """The analysers under the names of their classes, a second of one class with a number."""
    named: dict[str, Analyser] = {}
    for analyser in analysers:
        name = kind = type(analyser).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{kind}_{number}"
        named[name] = analyser
    return named


def _classes_of(sample: Sample) -> Tensor:
    """The class number of each sample."""
    targets = sample.targets
    if sample.parameter:
        raise BadArgumentError(f"`{sample.path}` is a parameter: it has no samples that could be of classes")
    if targets is None:
        raise BadArgumentError(
            "the classes of the samples are not known: set analyser.targets to a tensor of class numbers before each "
            'forward, or once to a path of the model such as "forward.targets"'
        )
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) != len(sample.value):
        raise BadArgumentError(
            f"`{sample.path}` has {len(sample.value)} samples; the targets are one class number each, not "
            f"{tuple(targets.shape)} of {targets.dtype}. Set analyser.targets anew for each batch"
        )
    return targets
