"""Do the places of a model hold what they must, and is it the same model while it is watched?"""

import pytest
import torch
from models import Note, specimens
from watching import Log, close, differences, everything, quick_ones, run, run_plain, same, state

from byname import attach

SPECIMENS = {specimen.name: specimen for specimen in specimens()}
EDITS = [(name, where, change) for name, specimen in SPECIMENS.items() for where, change in specimen.edits]
MODES = [pytest.param(True, id="train"), pytest.param(False, id="eval")]
EVAL_SLOW = [MODES[0], pytest.param(False, id="eval", marks=pytest.mark.slow)]

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
    pytest.mark.sees_nothing,  # every gradient of models that lack some
]


def everywhere(model, args, kwargs, callback):
    return attach(model, everything(model, args, kwargs), callback)


def by_hand(specimen, train, note):
    """The step of a specimen as its author wrote it once more."""
    args, kwargs = specimen.inputs()
    model = specimen.model().train(train)
    return run(_ByHand(specimen, model, note), args, kwargs)


class _ByHand(torch.nn.Module):
    def __init__(self, specimen, model, note):
        super().__init__()
        self.specimen, self.model, self.note = specimen, model, note

    def forward(self, *args, **kwargs):
        return self.specimen.by_hand(self.model, self.note, *args, **kwargs)

    def named_parameters(self, *args, **kwargs):
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args, **kwargs):
        return self.model.named_buffers(*args, **kwargs)


@pytest.fixture(params=SPECIMENS)
def specimen(request):
    return SPECIMENS[request.param]


def told(log, path):
    """What was told of a place, under whichever of its names came first."""
    return log.values(path) or log.values(path.removesuffix(".forward")) or log.values(f"{path}.forward")


@pytest.mark.grid(fast=16)
@pytest.mark.parametrize("train", MODES)
def test_places_hold_what_the_forward_by_hand_says(specimen, train):
    note, log = Note(), Log()
    by_hand(specimen, train, note)
    model = specimen.model().train(train)
    args, kwargs = specimen.inputs()
    with attach(model, list(note.places), log):
        run(model, args, kwargs, backward=False)
    wrong = {path for path, values in note.places.items() if not same(values, told(log, path))}
    assert wrong == set()


@pytest.mark.parametrize("train", EVAL_SLOW)
def test_gradients_of_places_are_those_of_the_forward_by_hand(specimen, train):
    note, log = Note(), Log()
    by_hand(specimen, train, note)
    reached = {path: values for path, values in note.gradients.items() if values}
    assert reached
    model = specimen.model().train(train)
    args, kwargs = specimen.inputs()
    with attach(model, [f"{path}.grad" for path in reached], log):
        run(model, args, kwargs)
    wrong = {path for path, values in reached.items() if not close(total(values), total(once(log, f"{path}.grad")))}
    assert wrong == set()


def once(log, path):
    """Where a checkpoint gives the same tensor to both runs, both tell its gradient."""
    value = path.removesuffix(".grad")
    names = {f"{one}.grad" for one in (value, value.removesuffix(".forward"), f"{value}.forward")}  # of one place
    found = [(key, value) for key, value in log.seen if key[0] in names]
    first = [value for key, value in found if not key[3]]
    return first or [value for _, value in found]


def total(values):
    """Of the gradients of one place, which come in another order where values are shared."""
    return sum(value.double().sum() for value in values)


@pytest.mark.parametrize("train", EVAL_SLOW)
def test_the_gradient_of_a_parameter_is_what_it_accumulates(specimen, train):
    log, model = Log(), specimen.model().train(train)
    with attach(model, [f"{name}.grad" for name, _ in model.named_parameters()], log):
        args, kwargs = specimen.inputs()
        done = run(model, args, kwargs)
    received = {name: log.values(f"{name}.grad") for name, _ in model.named_parameters()}
    assert any(received.values())
    expected = {name: done.gradients[name] for name in received if done.gradients[name] is not None}
    assert expected.keys() == {name for name, values in received.items() if values}
    assert all(same(received[name][-1], gradient) for name, gradient in expected.items())


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize("train", EVAL_SLOW)
def test_watching_everything_changes_nothing(specimen, train):
    args, kwargs = specimen.inputs()
    plain = run_plain(specimen, train)
    model, log = specimen.model().train(train), Log()
    with everywhere(model, args, kwargs, log):
        assert differences(plain, run(model, args, kwargs)) == []
    assert log.seen


@pytest.mark.grid(fast=8)
def test_watching_without_gradients_changes_nothing_or_says_so(specimen):
    args, kwargs = specimen.inputs()
    model = specimen.model().eval()
    with torch.no_grad():
        plain = run(model, args, kwargs).output
        with everywhere(model, args, kwargs, Log()) as handle:
            watched = run(model, args, kwargs).output
    if specimen.fast_path:
        assert close(plain, watched)
        assert any("fast path" in note for note in handle.notes)
    else:
        assert same(plain, watched)
        assert not any("fast path" in note for note in handle.notes)


@pytest.mark.grid(fast=8)
def test_names_are_unique_and_the_same_in_every_run(specimen):
    args, kwargs = specimen.inputs()
    model, log = specimen.model().eval(), Log()
    with everywhere(model, args, kwargs, log):
        run(model, args, kwargs)
        first = list(log.keys)
        run(model, args, kwargs)
    second = log.keys[len(first) :]
    assert len(first) == len(set(first)) > 0
    assert [(path, 0, call, again) for path, iteration, call, again in second] == first
    assert {iteration for _, iteration, _, _ in second} == {1}
    other = Log()
    again = specimen.model().eval()
    with everywhere(again, args, kwargs, other):
        run(again, args, kwargs)
    assert other.keys == first


@pytest.mark.grid(fast=30)
@pytest.mark.parametrize("train", EVAL_SLOW)
@pytest.mark.parametrize(("name", "where", "change"), EDITS, ids=[f"{name}-{where}" for name, where, _ in EDITS])
def test_an_edit_changes_the_output_as_by_hand(name, where, change, train):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    model = specimen.model().train(train)
    with attach(model, where, lambda event: change(event.value)):
        edited = run(model, args, kwargs)
    expected = by_hand(specimen, train, Note(where, change))
    assert same(edited.output, expected.output)
    assert close(list(edited.gradients.values()), list(expected.gradients.values()))
    assert not same(edited.output, run_plain(specimen, train).output)


@pytest.mark.parametrize("name", quick_ones(SPECIMENS))
def test_an_edit_of_a_gradient_changes_what_flows_on(name):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    plain = run_plain(specimen)
    changed = 0
    for where, _ in specimen.edits:
        note = Note(f"{where}.grad", torch.zeros_like)
        expected = by_hand(specimen, True, note)
        if not note.gradients.get(where):
            continue
        model = specimen.model()
        with attach(model, f"{where}.grad", lambda event: torch.zeros_like(event.value)):
            edited = run(model, args, kwargs)
        assert close(zeros(edited.gradients), zeros(expected.gradients)), where
        changed += not same(zeros(edited.gradients), zeros(plain.gradients))
    assert changed


def zeros(gradients):
    """With zeros where nothing arrived."""
    return [torch.zeros(()) if value is None or not value.any() else value for value in gradients.values()]


@pytest.mark.parametrize("name", quick_ones(SPECIMENS))
def test_nothing_is_left_after_removal(name):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    model = specimen.model()
    run(model, args, kwargs)
    before = state(model)
    handle = everywhere(model, args, kwargs, Log())
    run(model, args, kwargs)
    handle.remove()
    assert state(model) == before
    handle.remove()
    assert state(model) == before


@pytest.mark.parametrize("name", quick_ones(SPECIMENS))
def test_nothing_is_left_by_a_handle_that_was_disabled(name):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    model, log = specimen.model(), Log()
    run(model, args, kwargs)
    before = state(model)
    handle = everywhere(model, args, kwargs, log)
    handle.enabled = False
    assert state(model) == before
    plain = run_plain(specimen)
    run(model, args, kwargs)
    assert log.seen == []
    handle.enabled = True
    fresh = specimen.model()
    model.load_state_dict(fresh.state_dict())
    assert differences(plain, run(model, args, kwargs)) == []
    assert log.seen
    handle.remove()
    assert state(model) == before
