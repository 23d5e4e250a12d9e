"""Recorded values as a Dataset: every sample once, whatever the order, and a file is read once an epoch."""

import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import byname
from byname import Series
from byname.errors import BadArgumentError, BynameError
from byname.recording.dataset import Samples


def series_of(values, path="h"):
    size = len(values)
    return Series(
        path, values, [*range(size)], [0] * size, [0] * size, ["train"] * size, [tuple(v.shape) for v in values]
    )


def numbered(*shapes):
    """Values whose samples all differ."""
    start, values = 0, []
    for shape in shapes:
        count = torch.Size(shape).numel()
        values.append(torch.arange(start, start + count, dtype=torch.float64).reshape(shape))
        start += count
    return values


@pytest.fixture
def recording(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with byname.record(model, ["0", "1"], to=tmp_path / "run.h5"):
        for _ in range(6):
            model(torch.randn(2, 3, 4))
    with byname.open(tmp_path / "run.h5") as recording:
        yield recording


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=9),
    st.sampled_from(["tokens", "batch", "records"]),
    st.none() | st.integers(0, 5),
    st.integers(1, 2000),
)
def test_every_sample_is_there_once(lengths, samples, shuffle, memory):
    values = numbered(*[(2, length, 3) for length in lengths])
    dataset = Samples({"h": series_of(values)}, samples=samples, shuffle=shuffle, memory=memory)
    leading = {"tokens": 2, "batch": 1, "records": 0}[samples]
    expected = [one for value in values for one in value.reshape(-1, *value.shape[leading:])]
    assert len(dataset) == len(expected)
    found = [dataset[number] for number in range(len(dataset))]
    if shuffle is None:
        assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))
    else:
        assert sorted(one.flatten()[0].item() for one in found) == [one.flatten()[0].item() for one in expected]


def test_a_seed_gives_one_order_and_another_seed_another():
    series = series_of(numbered(*[(4, 3)] * 10))
    first, again, other = (torch.stack([*series.dataset(shuffle=seed)]) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first, torch.stack([*series.dataset()]))


def test_an_epoch_reads_each_record_once(recording):
    series = recording["0"]
    read = []

    class Counting(list):
        def __getitem__(self, number):
            read.append(number)
            return super().__getitem__(number)

    counted = series.with_values([*series.values])
    object.__setattr__(counted, "values", Counting(counted.values))
    for shuffle in (None, 3):
        read.clear()
        for number in range(len(dataset := counted.dataset(shuffle=shuffle))):
            dataset[number]
        assert sorted(read) == [*range(6)]


def test_what_is_held_is_bounded_by_the_memory_asked_for():
    values, made = numbered(*[(4, 8)] * 20), []

    class Read:
        """Makes a value each time that it is asked for, as a file does."""

        def __len__(self):
            return len(values)

        def __getitem__(self, number):
            value = values[number].clone()
            made.append(weakref.ref(value))
            return value

    series = Series("h", Read(), *([0] * 20 for _ in range(3)), ["train"] * 20, [(4, 8)] * 20)
    dataset = Samples({"h": series}, shuffle=0, memory=3 * 4 * 32)
    for number in range(len(dataset)):
        dataset[number]
        assert sum(one() is not None for one in made) <= 3


def test_several_places_give_a_sample_of_each(recording):
    dataset = recording["*"].dataset(shuffle=1)
    assert len(dataset) == 36
    assert all(torch.equal(one["0"].relu(), one["1"]) for one in map(dataset.__getitem__, range(36)))


def test_places_that_do_not_belong_together_are_refused():
    one, other = series_of(numbered((2, 3))), series_of(numbered((3, 3)), "k")
    with pytest.raises(BynameError, match="do not have the same samples"):
        Samples({"h": one, "k": other})
    with pytest.raises(BynameError, match='samples="records"'):
        series_of([torch.tensor(1.0)]).dataset()


@pytest.mark.parametrize("options", [{"samples": "words"}, {"shuffle": True}, {"shuffle": -1}])
def test_arguments_without_a_meaning_are_refused(options):
    with pytest.raises(BadArgumentError):
        series_of(numbered((2, 3))).dataset(**options)


def test_an_index_beyond_the_end_ends_the_iteration(recording):
    dataset = recording["0"].dataset()
    assert len([*dataset]) == 36
    assert torch.equal(dataset[-1], dataset[35])
    with pytest.raises(IndexError, match="36 samples"):
        dataset[36]


def test_a_loader_with_workers_gives_the_same(recording):
    dataset = recording["0"].dataset(shuffle=1)
    expected = torch.stack([dataset[number] for number in range(36)])
    loader = DataLoader(dataset, batch_size=7, num_workers=2, multiprocessing_context="fork")
    assert torch.equal(torch.cat([*loader]), expected)


def test_a_worker_that_is_spawned_opens_the_file_itself(recording):
    in_memory = series_of(numbered((2, 3))).dataset()
    for dataset in (recording["0"].dataset(shuffle=1), in_memory):
        there = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - what such a worker gets
        assert all(torch.equal(there[number], dataset[number]) for number in range(len(dataset)))


def test_values_without_elements_are_samples_too():
    empty = series_of([torch.zeros(0, 3), torch.zeros(2, 0, 3)])
    assert [tuple(one.shape) for one in empty.dataset(samples="records")] == [(0, 3), (2, 0, 3)]
    assert [tuple(one.shape) for one in empty.dataset(samples="batch")] == [(0, 3), (0, 3)]


def test_a_probe_is_trained_on_it(recording):
    """The linear map that made the values from themselves is found again."""
    dataset = recording["*"].dataset(shuffle=0)
    probe = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.Adam(probe.parameters(), 0.1)
    for _ in range(40):
        for batch in DataLoader(dataset, batch_size=12):
            optimizer.zero_grad()
            loss = (probe(batch["0"]) - batch["0"]).square().mean()
            loss.backward()
            optimizer.step()
    assert loss < 1e-2


def test_token_ids_beside_their_activations():
    model = nn.ModuleDict({"embed": nn.Embedding(50, 8)})
    model.forward = lambda tokens: model["embed"](tokens)
    batches = [torch.randint(50, (4, 7)), torch.randint(50, (4, 7)), torch.randint(50, (2, 1))]
    with byname.record(model["embed"], ["input", "forward"], on_change=False) as rec, torch.no_grad():
        for batch in batches:
            model(batch)
    data = rec.results["**"].dataset(shuffle=0)
    assert len(data) == 4 * 7 * 2 + 2
    for one in DataLoader(data, batch_size=5):
        assert torch.equal(model["embed"].weight[one["input"]], one["forward"])


def test_values_of_one_shape_are_not_taken_for_token_ids():
    both = {path: series_of(numbered((4, 7)), path) for path in ("a", "b")}
    assert len(Samples(both)) == 4 and Samples(both)[0]["a"].shape == (7,)


def test_places_of_other_samples_are_refused_with_their_shapes():
    both = {"a": series_of(numbered((4, 7, 8)), "a"), "b": series_of(numbered((4, 6)), "b")}
    with pytest.raises(
        BynameError, match=r"b of shape \(4, 6\) and a of shape \(4, 7, 8\) do not have the same samples"
    ):
        Samples(both)
