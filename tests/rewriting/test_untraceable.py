"""A model that cannot be a graph is refused in the words of its own source, and never rewritten into another model."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from byname.errors import RewriteError
from byname.rewriting.rewrite import rewrite


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.steps = 0
        self.log = []
        self.cache = None


class Branches(Base):
    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x)
        return x


class Loops(Base):
    def forward(self, x):
        for row in x:
            x = self.fc(row)
        return x


class Counts(Base):
    def forward(self, x):
        for _ in range(x.size(0)):
            x = self.fc(x)
        return x


class While(Base):
    def forward(self, x):
        while x.norm() > 1:
            x = x / 2
        return self.fc(x)


class Steps(Base):
    def forward(self, x):
        self.steps += 1
        return self.fc(x)


class Logs(Base):
    def forward(self, x):
        self.log.append(x)
        return self.fc(x)


class Caches(Base):
    def forward(self, x):
        if self.cache is None:
            self.cache = x
        return self.fc(x + self.cache)


class Checkpoints(Base):
    def forward(self, x):
        return checkpoint(self.fc, x, use_reentrant=False)


class CheckpointsAgain(Base):
    def forward(self, x):
        return checkpoint(lambda one: self.fc(one), x, use_reentrant=True)


class Casts(Base):
    def forward(self, x):
        with torch.autocast("cpu"):
            return self.fc(x)


class Infers(Base):
    def forward(self, x):
        with torch.inference_mode():
            return self.fc(x)


class Converts(Base):
    def forward(self, x):
        return self.fc(torch.tensor([float(one) for one in x]))


class Asserts(Base):
    def forward(self, x):
        assert x.shape[1] == 4
        return self.fc(x)


class Raises(Base):
    def forward(self, x):
        raise ValueError("not today")


class Measures(Base):
    def forward(self, x):
        return self.fc(x) * len(x)


class Boxes(Base):
    def forward(self, x):
        self.box = Box(x)
        return self.fc(self.box.x)


class Box:
    def __init__(self, x):
        self.x = x


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Returns(Base):
    def forward(self, x):
        return Slots(self.fc(x))


class KeepsABox(Base):
    def __init__(self):
        super().__init__()
        self.box = Box(0)

    def forward(self, x):
        self.box.x = self.fc(x)
        return self.box


class AsksForTheType(Base):
    def forward(self, x):
        n = x.shape[0]
        return self.fc(x) * (n if isinstance(n, int) else 2)


class InHelper(Base):
    def forward(self, x):
        return self.helper(self.fc(x))

    def helper(self, h):
        return h if h.max() > 1 else -h


@pytest.mark.parametrize(
    ("model", "statement", "reason"),
    [
        (Branches, "if x.sum() > 0:", "depends on a value"),
        (Loops, "for row in x:", "goes through the items of a value"),
        (Counts, "for _ in range(x.size(0)):", "needs a number"),
        (While, "while x.norm() > 1:", "depends on a value"),
        (Steps, "self.steps += 1", "sets `steps`"),
        (Logs, "its forward", "changes what is in `log`"),
        (Caches, "self.cache = x", "read before"),
        (Checkpoints, "return checkpoint(self.fc, x, use_reentrant=False)", "checkpoint"),
        (CheckpointsAgain, "return checkpoint(lambda one", "hands on a function"),
        (Casts, "return self.fc(x)", "runs under autocast"),
        (Infers, "return self.fc(x)", "runs under inference mode"),
        (Converts, "float(one) for one in x", "goes through the items"),
        (Asserts, "assert x.shape[1] == 4", "depends on a value"),
        (Raises, 'raise ValueError("not today")', "raises ValueError .*: not today"),
        (Measures, "return self.fc(x) * len(x)", "needs a number"),
        (Boxes, "self.box = Box(x)", "sets `box`"),
        (Returns, "its forward", "an object of Slots"),
        (KeepsABox, "its forward", "an object of Box"),
        (AsksForTheType, "isinstance(n, int)", "asks for the type"),
        (InHelper, "return h if h.max() > 1 else -h", "depends on a value"),
    ],
)
def test_the_error_names_the_statement_the_reason_and_interject(model, statement, reason):
    one = model()
    held = dict(one.__dict__), list(one.log)
    with pytest.raises(
        RewriteError, match=f"{model.__name__} cannot be rewritten.*{reason}.*byname.interject"
    ) as error:
        rewrite(one, "fc", lambda name, module, value: None)
    assert statement in str(error.value)
    assert "its forward" in statement or "test_untraceable.py:" in str(error.value)
    assert (dict(one.__dict__), list(one.log)) == held


def test_the_function_is_named_with_its_class():
    with pytest.raises(RewriteError, match=r"in InHelper\.helper \(test_untraceable\.py:\d+\)"):
        rewrite(InHelper(), "fc", lambda name, module, value: None)


def test_a_model_of_pytorch_is_told_by_its_own_statement():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)
    with pytest.raises(RewriteError, match=r"TransformerEncoder cannot .* \(transformer\.py:"):
        rewrite(model, "layers.0", lambda name, module, value: None)


class Catches(Base):
    def forward(self, x):
        try:
            scale = float(x.sum())
        except Exception:
            scale = 0.0
        return self.fc(x) * scale


def test_code_that_catches_errors_does_not_go_another_way_unnoticed():
    with pytest.raises(RewriteError, match="needs a number"):
        rewrite(Catches(), "fc", lambda name, module, value: None)
