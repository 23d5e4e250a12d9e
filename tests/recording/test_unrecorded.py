"""Does a recorder say at its end where it has recorded nothing, why, and what to do? And nothing where it has?"""

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import byname
from byname.errors import NoMatchError, RecordingWarning


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.spare = nn.Linear(4, 4)

    def encode(self, x):
        return self.enc(x)

    def forward(self, x, often=False):
        h = {"relu": self.encode(x).relu(), "w": x}
        if often:
            rare = h["w"] + 1
            h["w"] = rare
        return self.head(h["relu"])


X = torch.ones(2, 4)


def forwards(model, number=3):
    for _ in range(number):
        model(X)


def encodes(model):
    for _ in range(3):
        model.encode(X).sum().backward()


FILTERED = 'its 3 forwards were in evaluation, and mode="train"; mode="both" records both'
PART = 'record the part that runs, record(model.enc, ...), or give count="step" and call `step()`'
CASES = {
    "mode": ("enc", {"mode": "train"}, lambda net: forwards(net.eval()), f"`enc`: {FILTERED}"),
    "mode of one": ({"enc": {"mode": "eval"}, "head": {}}, {}, lambda net: forwards(net, 1),
                    '`enc`: its 1 forward was in training, and mode="eval"; mode="both" records both'),
    "start": ("enc", {"start": 10}, forwards, "`enc`: start=10, but there were only 3 iterations"),
    "method": ("enc", {}, encodes, f"`enc`: the forward of Net never ran (its `encode` did); {PART}"),
    "part": ("enc", {}, lambda net: net.enc(X), f"`enc`: the forward of Net never ran (its part `enc` did); {PART}"),
    "key": ("forward.h['nope']", {}, forwards,
            "`forward.h['nope']`: `forward.h` holds a dict without 'nope'; it has 'relu', 'w'"),
    "wildcard key": ("forward.h['*']", {}, forwards,
                     "`forward.h['*']`: `forward.h` holds a dict without '*'; it has 'relu', 'w'; "
                     "its items are `forward.h[*]`"),
    "wildcard attribute": ("forward.h.*", {}, forwards,
                           "`forward.h.*`: `forward.h` holds a dict without attributes `*`; it has 'relu', 'w'; "
                           "its items are `forward.h[*]`"),
    "attribute": ("forward.h.relu", {}, forwards,
                  "`forward.h.relu`: `forward.h` holds a dict without attributes `relu`; it has 'relu', 'w'; "
                  "its items are `forward.h['relu']`"),
    "attribute that is no key": ("forward.h.nope", {}, forwards,
                                 "`forward.h.nope`: `forward.h` holds a dict without attributes `nope`; "
                                 "it has 'relu', 'w'"),
    "branch": ("forward.rare", {}, forwards,
               "`forward.rare`: no assignment of `rare` was reached in 3 forwards of Net"),
    "module": ("spare", {}, forwards, "`spare`: it was not called in 3 forwards of Net"),
    "no backward": (["enc.grad", "enc.weight.grad"], {}, forwards,
                    "`enc.grad`: no backward reached its value; "
                    "nothing was recorded at `enc.weight.grad`: no backward reached the parameter"),
    "not differentiable": ("forward.x.grad", {}, forwards,
                           "`forward.x.grad`: no gradient flows there, since the value does not require grad"),
    "several for one reason": (["enc", "head"], {"mode": "train"}, lambda net: forwards(net.eval()),
                               f"`enc`, `head`: {FILTERED}"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_where_nothing_was_recorded_the_warning_the_notes_and_the_file_say_why(case, tmp_path):
    where, options, run, reason = CASES[case]
    model = Net()
    with pytest.warns(RecordingWarning) as told:
        with byname.record(model, where, to=tmp_path / "run.h5", **options) as recorder:
            run(model)
    said = f"nothing was recorded at {reason}"
    assert [str(one.message) for one in told] == [f"byname: {said}"]
    assert told[0].filename == __file__
    recording = byname.open(tmp_path / "run.h5")
    assert "; ".join(recording.missing) == said and not recording.complete
    assert set(recording.missing) <= set(recorder.notes)


def test_nothing_ran_at_all():
    model = Net()
    with pytest.warns(RecordingWarning, match=r"no forward of this Net ran; if the program calls another method of it "
                                              r"\(`encode`\) or a part of it, .* copy of the model, attach to the copy"):  # fmt: skip
        with byname.record(model, ["enc", "enc.weight"]):
            pass


def test_parameters_are_asked_of_the_forward_that_never_ran():
    model = Net()
    with pytest.warns(RecordingWarning, match=r"`enc\.weight`: no forward of this Net ran") as told:
        with byname.record(model, "enc.weight"):
            encodes(model)
    assert len(told) == 1


def test_where_steps_are_counted_modes_are_said_too():
    model = Net().eval()
    with pytest.warns(RecordingWarning, match='`enc`: all that passed was in evaluation, and mode="train"'):
        with byname.record(model, "enc", count="step", mode="train") as recorder:
            model.encode(X)
            recorder.step()


def test_a_place_that_ran_only_when_it_was_not_due():
    model = Net()
    with pytest.warns(RecordingWarning, match="it had values only in iterations left out by every=2, start=0"):
        with byname.record(model, {"forward.rare": {"every": 2}, "enc": {}}):
            for number in range(4):
                model(X, often=bool(number % 2))


def test_figures_of_an_analyser_of_which_none_came():
    model, features = Net(), byname.analyse.FeatureStatistics()
    with byname.observe(model, "enc", features):
        with pytest.warns(RecordingWarning, match="at the analyser FeatureStatistics: no forward of"):
            with byname.record(model, features):
                model.encode(X)


@pytest.mark.parametrize(
    ("where", "options"),
    [
        (["enc", "head"], {}),
        ("*", {}),  # `spare` never runs, and a wildcard takes what there is
        ("**", {}),
        (nn.Linear, {}),
        (byname.select.linear, {}),
        ("forward.h[*]", {}),
        ("forward.*", {}),
        (["enc.grad", "enc.weight.grad", "enc.weight"], {"every": 2}),
        ("enc", {"start": 1}),
        ("relu", {}),
        ({"enc": {"mode": "train"}, "head": {"every": 2}}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*cannot be recorded")
def test_where_something_was_recorded_nothing_is_said(where, options, tmp_path):
    model = Net()
    with byname.record(model, where, to=tmp_path / "run.h5", **options) as recorder:
        for _ in range(3):
            model(X).sum().backward()
        model.eval()(X)
    recording = byname.open(tmp_path / "run.h5")
    assert not [one for one in (*recorder.notes, *recording.missing) if one.startswith("nothing was")]


def test_a_block_that_an_error_left_says_only_that():
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError), byname.record(model, "spare") as recorder:
            model(X)
            raise KeyError("the program's own")
    assert recorder.notes == ("the recorded program was left in iteration 0 by a KeyError",) or all(
        not note.startswith("nothing was") for note in recorder.notes
    )


def test_a_selection_without_a_match_ends_with_one_error_and_the_program_that_catches_it_goes_on(tmp_path):
    net = Net()
    where = {"head": {}, byname.select.conv: {"every": 2}, "enc": {"every": 2}}
    recorder = byname.record(net, where, to=tmp_path / "run.h5")
    with pytest.raises(NoMatchError, match=r"Nothing more is recorded at `select.conv`, `enc`"):
        net(X)
    forwards(net)
    recorder.close()
    recording = byname.open(tmp_path / "run.h5")
    assert (recording["head"].iterations, recording["enc"].iterations) == ([0, 1, 2, 3], [0])
    assert not recording.complete and "select.conv matches nothing" in recording.missing[0]


def test_values_that_belong_to_no_iteration_are_missing(tmp_path):
    model = Net()
    said = pytest.warns(RecordingWarning, match="`enc`: 1 value passed outside of the forwards of Net")
    with said, byname.record(model, "enc", to=tmp_path / "run.h5") as recorder:
        model(X)
        model.eval()
        model.encode(X)
    sentence = f"`enc`: 1 value passed outside of the forwards of Net, in no iteration; {PART}"
    assert recorder.notes == (sentence,)
    recording = byname.open(tmp_path / "run.h5")
    assert (recording.missing, recording.complete) == ((sentence,), False)
    assert recording["enc"].modes == ["train"] or list(recording["enc"].modes) == ["train"]


def test_where_warnings_are_errors_everything_is_off_and_stored_before_it_is_raised(tmp_path):
    model = Net()
    recorder = byname.record(model, ["enc", "spare"], to=tmp_path / "run.h5")
    model(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RecordingWarning):
            recorder.close()
    assert not model._forward_hooks and not model.enc._forward_hooks
    recording = byname.open(tmp_path / "run.h5")
    assert recording.ended and len(recording["enc"]) == 1
    recorder.close()


def test_a_warning_names_a_few_of_many_places_and_what_is_missing_names_all(tmp_path):
    model = nn.ModuleDict({f"m{one}": nn.Linear(2, 2) for one in range(20)})
    model.forward = lambda x: x
    with pytest.warns(RecordingWarning, match="`m7`, and 12 more: it was not called in 3 forwards") as told:
        with byname.record(model, [*model], to=tmp_path / "run.h5") as recorder:
            forwards(model)
    assert len(told) == 1 and "`m8`" not in str(told[0].message)
    for said in (recorder.notes, byname.open(tmp_path / "run.h5").missing):
        assert all(any(f"`m{one}`" in lost for lost in said) for one in range(20))


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("blocks.1.0", ", record(model.blocks[1], ...),"),
        ("blocks.1", ", record(model.blocks[1], ...),"),
        ("encode.h", ""),
    ],
)
def test_the_part_to_record_is_one_that_the_program_has(where, part):
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4)) for _ in range(2)])

        def encode(self, x):
            h = self.blocks[1](x)
            return h

    model = Blocks()
    with pytest.warns(RecordingWarning) as told, byname.record(model, where):
        model.encode(X)
    remedy = f'record the part that runs{part} or give count="step" and call `step()`'
    assert str(told[0].message).endswith(f"the forward of Blocks never ran (its `encode` did); {remedy}")


@pytest.mark.parametrize("in_file", [False, True])
def test_a_place_at_which_nothing_stands_any_more_ends_until_something_stands_there_again(tmp_path, in_file):
    model, to = nn.Sequential(nn.Linear(4, 4)), tmp_path / "run.h5" if in_file else None
    kept = model[0]
    said = pytest.warns(RecordingWarning, match="`0.bias`, `0.weight`: nothing is recorded from train iteration 2 on")
    with said as warned, byname.record(model, ["0", "0.weight", "0.bias"], to=to) as recorder:
        for step in range(6):
            if step == 2:
                model[0] = nn.Sequential(kept)
            if step == 4:
                model[0] = kept
            model(X)
    assert len(warned) == 1 and len(recorder.notes) == 1
    recording = byname.open(to) if in_file else recorder.results
    for step in (0, 1, 4, 5):
        assert torch.equal(recording["0.weight"].at(step), kept.weight)
    for step in (2, 3):
        with pytest.raises(NoMatchError, match=f"0.weight has no value at iteration {step}: it ended before"):
            recording["0.weight"][:1].at(step)
        assert recording["0"].at(step).shape == (2, 4)
    if in_file:
        assert (recording.missing, recording.complete) == (recorder.notes, False)


def test_a_weight_that_is_pruned_meanwhile_is_recorded_as_it_is_used():
    model, truth = nn.Sequential(nn.Linear(4, 4)), []
    with byname.record(model, ["0.weight", "0.weight.grad"]) as recorder:
        for step in range(6):
            if step in (2, 4):
                prune.l1_unstructured(model[0], "weight", 1)
            model.zero_grad()
            model(X).sum().backward()
            truth.append(model[0].weight.detach().clone())
            with torch.no_grad():
                next(model.parameters()).add_(1)
    found = recorder.results["0.weight"]
    assert [torch.equal(found.at(step), one) for step, one in enumerate(truth)] == [True] * 6
    assert recorder.results["0.weight.grad"].at(5).shape == (4, 4)
    assert not recorder.notes


class Steps(nn.Module):
    """As a LightningModule: the training calls a part, and the validation the whole."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x):
        return self.net(x)

    def training_step(self, x):
        return self.net(x).square().sum()


def test_a_training_without_forwards_is_warned_of_and_its_gradients_are_counted_by_backwards():
    model = Steps()
    said = pytest.warns(RecordingWarning, match="`net`: 3 values passed outside of the forwards of Steps")
    with said, byname.record(model, ["net", "net.weight.grad"]) as recorder:
        with torch.no_grad():
            model.eval()(X)
        model.train()
        for _ in range(3):
            model.training_step(X).backward()
    assert list(recorder.results["net"].modes) == ["eval"]
    found = recorder.results["net.weight.grad"]
    assert (list(found.modes), list(found.iterations), list(found.calls)) == (["train"] * 3, [0, 1, 2], [0, 0, 0])


class HoldsAPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        part = self.parts[0]
        return part(x)


def test_a_wildcard_that_meets_only_modules_is_warned_of():
    model = nn.Sequential(HoldsAPart(), HoldsAPart())
    said = pytest.warns(RecordingWarning, match=r"nothing was recorded at `\*\*.part`: it cannot be recorded.*Linear")
    with said, byname.record(model, "**.part") as recorder:
        model(X)
    assert not [*recorder.results]


def test_a_wildcard_that_meets_modules_beside_values_is_silent():
    model = nn.Sequential(HoldsAPart())
    with byname.record(model, "0.forward.*") as recorder:
        model(X)
    assert ([*recorder.results], recorder.notes) == (["0.forward.x"], ())


def _wrapped(function):
    @functools.wraps(function)
    def wrapper(self, *args):
        return function(self, *args)

    return wrapper


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(4, 4), nn.Linear(4, 4)

    @_wrapped
    def text_features(self, x):
        return self.text(x)

    @_wrapped
    def image_features(self, x):
        return self.image(x)

    def forward(self, x):
        return self.text(x) + self.image(x)


@pytest.mark.parametrize(("method", "part"), [("image_features", "image"), ("text_features", "text")])
def test_the_method_that_ran_is_named_where_one_wrapper_is_around_several(method, part):
    model = Towers()
    said = pytest.warns(RecordingWarning, match=rf"the forward of Towers never ran \(its `{method}` did\)")
    with said, byname.record(model, part):
        getattr(model, method)(X)
