"""The smallest analyser there can be, for tests of what is done with analysers."""

from byname.analyse import Analyser, Extremes


class Largest(Analyser):
    def begin(self, sample):
        return Extremes()

    def take(self, kept, sample):
        kept.add(sample.value.reshape(1) if sample.value.ndim == 0 else sample.value)

    def figures(self, kept):
        return {"samples": kept.count, "largest": float(kept.max().max())}


class LargestGradient(Largest):
    listens = frozenset({"gradient"})
