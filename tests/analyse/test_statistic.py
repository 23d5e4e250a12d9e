"""Does every statistic hold to what the base class promises?"""

import copy
import functools
import pickle
import threading
from contextlib import contextmanager, suppress

import pytest
import torch
from every_statistic import EVERY, assert_same, loaded, public_statistics
from interrupting import Calls, by_signal

import byname
from byname import analyse
from byname.errors import BadArgumentError

every = pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in EVERY.items()])


def pieces(batch, *ends):
    """The batch in portions that end there."""
    return [tuple(part[start:end] for part in batch) for start, end in zip((0, *ends), (*ends, len(batch[0])))]


def filled(case, *batches):
    made = case.make()
    for batch in batches:
        made.add(*batch)
    return made


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for one in value for tensor in tensors_of(one)] if isinstance(value, list | tuple) else []


def held_by(statistic):
    return tensors_of([getattr(statistic, name) for name in statistic.STATE])


def test_the_table_has_every_public_statistic():
    assert set(EVERY) == public_statistics()


@every
@pytest.mark.parametrize("ends", [(1,), (20,), (39,), (5, 6, 30), tuple(range(1, 40))])
def test_portions_merged_or_added_give_what_the_whole_gives(case, ends):
    batch = case.batch(40)
    whole = filled(case, batch)
    assert whole.count == 40
    merged = case.make()
    for piece in pieces(batch, *ends):
        assert merged.merge(filled(case, piece)) is merged
    for parts in (merged, filled(case, *pieces(batch, *ends))):
        assert (parts.count, parts.nans) == (40, 0)
        assert_same(case.told(parts), case.told(whole), case.rtol)


@every
def test_ctrl_c_leaves_a_batch_out_or_takes_it_whole(case):
    first, second, third = pieces(case.batch(40), 20, 30)
    expected = {one.count: case.told(one) for one in (filled(case, first, third), filled(case, first, second, third))}
    for moment in range(20, 100, 3):
        statistic, calls = filled(case, first), Calls(moment, by_signal)
        with suppress(KeyboardInterrupt):
            calls(functools.partial(statistic.add, *second))
        if calls.thrown is None:
            break
        statistic.add(*third)
        assert_same(case.told(statistic), expected[statistic.count], case.rtol)


def test_ctrl_c_gives_a_value_to_all_of_several_analysers_or_to_none():
    model = torch.nn.Sequential(torch.nn.Identity())
    analyser = analyse.Several(
        analyse.FeatureStatistics(), analyse.DeadUnits(fires=lambda value: by_signal() or value > 0)
    )
    with byname.observe(model, "0", analyser):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(5, 3))
    figures = analyser.result()["0"]
    assert [figures["FeatureStatistics.samples"], figures["DeadUnits.samples"]] == [10, 10]


@every
def test_it_makes_no_difference_which_are_merged_first(case):
    a, b, c = ((filled(case, piece)) for piece in pieces(case.batch(40), 7, 19))
    left = copy.deepcopy(a).merge(b).merge(c)
    right = a.merge(b.merge(c))
    assert_same(case.told(left), case.told(right), case.rtol)


@every
def test_the_order_of_samples_makes_no_difference_where_it_is_not_told(case):
    batch = case.batch(40)
    order = torch.randperm(40)
    one, other = filled(case, batch), filled(case, *pieces(tuple(part[order] for part in batch), 11))
    assert_same(case.told(one, case.ordered), case.told(other, case.ordered), case.rtol)


@every
def test_merging_copies_and_leaves_the_other_as_it_was(case):
    a, b, later = (filled(case, piece) for piece in pieces(case.batch(40), 10, 20))
    before = b.state_dict()
    into_empty, into_full = case.make().merge(b), copy.deepcopy(a).merge(b)
    assert_same(b.state_dict(), before)
    expected = case.told(into_empty), case.told(into_full)
    b.merge(later).add(*case.batch(5, seed=1))
    assert_same((case.told(into_empty), case.told(into_full)), expected)


@every
def test_merging_with_one_that_saw_nothing_changes_nothing(case):
    full = filled(case, case.batch(40))
    before = full.state_dict()
    assert_same(full.merge(case.make()).state_dict(), before)
    assert_same(case.make().merge(full).state_dict(), before)
    assert case.make().merge(case.make()).count == 0


@every
def test_merging_with_itself_counts_all_twice(case):
    batch = case.batch(40)
    twice, once = filled(case, batch, batch), filled(case, batch)
    assert_same(case.told(once.merge(once)), case.told(twice), case.rtol)
    assert once.count == 80


@every
def test_the_state_makes_the_same_again_and_is_not_shared(case):
    first, second = pieces(case.batch(40), 15)
    original = filled(case, first)
    state = original.state_dict()
    restored = case.make()
    restored.load_state_dict(state)
    assert_same(restored.state_dict(), state)
    owners = [
        {tensor.data_ptr() for tensor in tensors_of(x) if tensor.numel()}
        for x in (state, held_by(original), held_by(restored))
    ]
    assert not owners[0] & owners[1] | owners[0] & owners[2] | owners[1] & owners[2]
    assert_same(case.told(original.add(*second)), case.told(restored.add(*second)))
    restored.load_state_dict(state)
    assert restored.count == 15


@every
def test_a_state_goes_through_torch_save_without_pickled_objects(case, tmp_path):
    original = filled(case, case.batch(40))
    torch.save(original.state_dict(), tmp_path / "state.pt")
    restored = case.make()
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same(case.told(restored), case.told(original))


@every
@pytest.mark.parametrize("samples", [0, 1, 40, None])
def test_a_saved_one_is_loaded_and_goes_on(case, tmp_path, samples):
    original = filled(case, *([] if samples is None else [case.batch(samples)]))
    original.save(tmp_path / "saved")
    restored = type(original).load(tmp_path / "saved")
    assert_same(restored.state_dict(), original.state_dict())
    assert_same(case.told(restored.add(*case.batch(9, seed=1))), case.told(original.add(*case.batch(9, seed=1))))
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@every
def test_other_settings_are_kept_and_do_not_merge(case, tmp_path):
    plain, other = filled(case, case.batch(4)), case.make(**dict(case.other))
    other.save(tmp_path / "saved")
    restored = type(other).load(tmp_path / "saved")
    assert_same(restored.state_dict(), other.state_dict())
    assert repr(restored) == repr(other)
    assert restored.merge(other).count == 0
    before = plain.state_dict()
    with pytest.raises(BadArgumentError, match="cannot merge"):
        plain.merge(other)
    with pytest.raises(BadArgumentError, match="this is the state of"):
        plain.load_state_dict(other.state_dict())
    assert_same(plain.state_dict(), before)


@every
def test_another_kind_does_not_merge(case):
    full = filled(case, case.batch(4))
    for other in (EVERY["Extremes" if case is not EVERY["Extremes"] else "History"].make(), 3, None):
        with pytest.raises(BadArgumentError, match="merges only its own class"):
            full.merge(other)


@every
def test_samples_of_another_shape_are_refused_whole_or_taken_whole(case):
    full, wide = filled(case, case.batch(6)), filled(case, case.batch(6, features=1))
    for attempt in (lambda: full.add(*case.batch(6, features=1)), lambda: full.merge(wide)):
        before = full.state_dict()
        if case.any_shape:
            attempt()
            assert full.count == before["count"] + 6
            continue
        with pytest.raises(BadArgumentError):
            attempt()
        assert_same(full.state_dict(), before)


@every
@pytest.mark.parametrize(
    "weights",
    [torch.ones(5), torch.ones(()), -torch.ones(6), torch.full((6,), torch.nan), torch.full((6,), torch.inf), "many"],
    ids=str,
)
def test_weights_that_are_none_change_nothing(case, weights):
    full = filled(case, case.batch(6))
    before = full.state_dict()
    with pytest.raises(BadArgumentError):
        full.add(*case.batch(6), weights)
    assert_same(full.state_dict(), before)


@every
@pytest.mark.parametrize(
    "bad", [torch.tensor(1.0), torch.ones(6, 3, dtype=torch.complex64), "a batch", None, [[1], [2, 3]]], ids=str
)
def test_a_batch_that_is_none_changes_nothing(case, bad):
    full = filled(case, case.batch(6))
    before = full.state_dict()
    with pytest.raises(BadArgumentError):
        full.add(*([bad] * len(case.inputs)))
    assert_same(full.state_dict(), before)


@every
def test_a_mask_leaves_out_samples(case):
    batch, mask = case.batch(40), torch.arange(40) % 3 > 0
    chosen = filled(case, tuple(part[mask] for part in batch))
    masked = case.make().add(*batch, mask)
    assert masked.count == 40
    leave = {"argmin", "argmax", "topk"}  # they tell the number of the sample among all
    assert_same(case.told(masked, leave), case.told(chosen, leave), case.rtol)


@every
def test_a_batch_of_no_samples_changes_no_figure(case):
    batch = case.batch(40)
    empty = tuple(part[:0] for part in batch)
    assert_same(case.told(filled(case, empty, batch, empty)), case.told(filled(case, batch)), case.rtol)
    assert filled(case, empty).count == 0


@every
def test_without_any_samples_there_is_no_figure_but_counts_of_nothing(case):
    for name in case.figures:
        try:
            figure = getattr(filled(case, case.batch(0)), name)()
        except BadArgumentError:
            continue
        found = figure[0] if name == "result" and isinstance(figure, tuple) else figure
        for tensor in tensors_of([found]):
            assert bool(((tensor != tensor) | (tensor <= 0)).all()), name  # NaN, no sample, or none counted
    for name in case.figures:
        if case.make is not EVERY["Histogram"].make:  # whose bins are known before: each has counted nothing
            with pytest.raises(BadArgumentError, match="nothing was added"):
                getattr(case.make(), name)()


@every
def test_reset_forgets_all_but_the_settings(case):
    full = filled(case, case.batch(40))
    full.reset()
    assert_same(full.state_dict(), case.make().state_dict())
    other = filled(case, case.batch(8, features=2))
    assert_same(case.told(full.add(*case.batch(8, features=2))), case.told(other))


@every
def test_copies_and_pickles_are_whole_and_apart(case):
    original = filled(case, case.batch(40))
    before = original.state_dict()
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert_same(twin.state_dict(), before)
        twin.add(*case.batch(5, seed=1))
        assert_same(original.state_dict(), before)


@every
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_no_batch_is_kept_or_looked_at_again(case, weighted, dtype):
    """Of any type: float64 and int64 are what is not copied on the way into a state."""
    full = case.make()
    for seed in (0, 1):
        batch = tuple(part.to(dtype) for part in case.batch(40, seed=seed))
        mask = torch.ones(40, dtype=torch.bool)
        try:
            full.add(*batch, *([mask] if weighted else []))
        except BadArgumentError:  # not of this type
            assert full.count == 0
            return
        before = full.state_dict()
        theirs = {part.untyped_storage().data_ptr() for part in (*batch, mask)}
        for tensor in held_by(full):
            assert tensor.untyped_storage().data_ptr() not in theirs
            assert tensor.untyped_storage().nbytes() <= tensor.nbytes + 64  # no view of something large
        for part in (*batch, mask):
            part.zero_()
        assert_same(full.state_dict(), before)


@every
def test_what_comes_out_can_be_changed_without_harm(case):
    full = filled(case, case.batch(40))
    before = full.state_dict()
    for _ in range(2):
        for tensor in tensors_of(case.told(full)):
            tensor.zero_()
    assert_same(full.state_dict(), before)


@every
def test_inputs_that_need_gradients_leave_no_graph(case):
    """And statistics that are not of floats give the same for what is made of such inputs."""
    leaves = [part.requires_grad_() if part.is_floating_point() else part for part in case.batch(40)]
    full = filled(case, tuple(leaf * 1 if leaf.requires_grad else leaf for leaf in leaves))
    assert not any(tensor.requires_grad for tensor in [*held_by(full), *tensors_of(case.told(full))])
    assert all(leaf.grad is None for leaf in leaves)
    assert_same(case.told(full), case.told(filled(case, case.batch(40))))


@every
def test_in_inference_mode_it_goes_on_after_and_before(case):
    first, second, third = pieces(case.batch(40), 10, 20)
    full = filled(case, first)
    with torch.inference_mode():
        full.add(*(part * 1 if part.dtype is not torch.bool else part.clone() for part in second))
        started = case.make().add(*(part.clone() for part in first))
        merged = copy.deepcopy(started).merge(full)
    assert not any(tensor.is_inference() for one in (full, started, merged) for tensor in held_by(one))
    full.add(*third)
    started.add(*second).add(*third)
    assert_same(case.told(full), case.told(filled(case, first, second, third)))
    assert_same(case.told(started), case.told(full))


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float16)
    yield
    torch.set_default_dtype(torch.float32)


AROUND = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": default_dtype,
    "default device": lambda: torch.device("meta"),
}


@every
@pytest.mark.parametrize("around", AROUND)
def test_what_is_set_around_it_makes_no_difference(case, around):
    first, second = pieces(case.batch(40), 15)
    mask = torch.arange(25) % 2 > 0
    expected = case.told(filled(case, first).add(*second, mask))
    with AROUND[around]():
        full = case.make().add(*first).merge(case.make().add(*second, mask)).reduce()
        restored = loaded(full)
    assert_same(case.told(full), expected, case.rtol)
    assert_same(case.told(restored), expected, case.rtol)


@every
def test_random_numbers_are_left_alone(case):
    before = torch.get_rng_state()
    full = filled(case, *pieces(case.batch(40), 10, 30))
    full.merge(filled(case, case.batch(40))).reduce()
    case.told(full)
    assert torch.equal(torch.get_rng_state(), before)


@every
def test_threads_fill_their_own_at_once(case):
    batches = [case.batch(30, seed=seed) for seed in range(8)]
    made = [case.make() for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: [one.add(*batch) for batch in batches]) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in made:
        assert_same(case.told(one), case.told(filled(case, *batches)))


@every
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_samples_of_different_shapes_are_refused(case, layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(BadArgumentError, match="nested"):
        case.make().add(nested, *case.batch(2)[1:])


@every
def test_other_layouts_of_the_same_numbers_give_the_same(case):
    batch = case.batch(40)
    expected = case.told(filled(case, batch))
    for change in (
        lambda x: x.T.contiguous().T,
        lambda x: x.repeat_interleave(2, 1)[:, ::2],
        lambda x: x.numpy(),
        lambda x: x.flip(0).numpy()[::-1],
        lambda x: x.tolist(),
        lambda x: x.to_sparse(),
    ):
        assert_same(case.told(filled(case, tuple(map(change, batch)))), expected, case.rtol)
    read_only = batch[0].numpy().copy()
    read_only.flags.writeable = False
    assert_same(case.told(filled(case, (read_only, *batch[1:]))), expected, case.rtol)


@every
def test_a_reduction_without_other_processes_is_a_copy(case):
    full = filled(case, case.batch(40))
    before = full.state_dict()
    alone = full.reduce()
    assert alone is not full
    assert_same(alone.state_dict(), before)
    alone.add(*case.batch(5))
    assert_same(full.state_dict(), before)
    assert case.make().reduce().count == 0


@every
def test_moving_to_a_device_that_is_not_there_moves_nothing(case):
    full = filled(case, case.batch(40))
    with pytest.raises((RuntimeError, AssertionError)):
        full.to("cuda:77")
    assert full.device == torch.device("cpu")
    assert full.to("cpu") is full
    assert full.to("meta").device == torch.device("meta")
