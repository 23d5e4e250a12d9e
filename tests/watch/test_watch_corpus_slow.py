"""Do architectures of transformers compute the same while every place of them is watched?"""

import architectures
import numpy as np
import pytest
import torch
from models import shaken
from watching import Log, close, differences, everything, run, same, state, tensors

from byname import attach

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # transformers' own


class Net(torch.nn.Module):
    """Takes the inputs that a test has for a model, and seeds NumPy too: transformers masks by it."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.given = architectures.architecture(name)
        shaken(self.model)

    def forward(self):
        np.random.seed(0)
        return tensors(self.model(**self.given).to_tuple())


@pytest.fixture(params=architectures.NAMES)
def name(request):
    pytest.importorskip("transformers")
    return request.param


def test_watching_everything_changes_nothing(name):
    plain = run(Net(name).train())
    model, log = Net(name).train(), Log()
    run(model)
    before = state(model)
    model.load_state_dict(Net(name).state_dict())
    handle = attach(model, everything(model), log)
    assert differences(plain, run(model)) == []
    names = log.keys
    assert len(names) == len(set(names)) > 50
    del log.seen[:]
    run(model)
    assert [(path, 0, *rest) for path, _, *rest in log.keys] == [tuple(key) for key in names]
    handle.remove()
    assert state(model) == before


def test_watching_without_gradients_changes_nothing_or_says_so(name):
    model = Net(name).eval()
    with torch.no_grad():
        plain = run(model).output
        with attach(model, everything(model), Log()) as handle:
            watched = run(model).output
    if handle.notes:
        assert close(plain, watched)
    else:
        assert same(plain, watched)


def test_an_edit_of_the_last_module_changes_the_output(name):
    """As a forward hook does, by hand."""
    plain, model, other = run(Net(name).eval()).output, Net(name).eval(), Net(name).eval()
    where = _last_leaf(model)
    other.get_submodule(where).register_forward_hook(lambda module, args, output: output * 2)
    with attach(model, where, lambda event: event.value * 2):
        edited = run(model)
    assert differences(run(other), edited) == []
    assert not same(plain, edited.output)


def _last_leaf(model):
    """The last module without children that runs and gives a tensor."""
    ran = []
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(
                lambda module, args, output, name=name: ran.append(name) if isinstance(output, torch.Tensor) else None
            )
    model()
    for module in model.modules():
        module._forward_hooks.clear()
    return ran[-1]
