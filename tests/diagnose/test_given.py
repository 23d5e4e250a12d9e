"""Operations that refuse the tensors that they are given: of another device, or with an index that is out of range."""

import pytest
import torch
from torch import nn

import byname

META = torch.device("meta")


def explained(run):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        run()
    return byname.explain(caught.value)


def test_an_operand_without_a_name_is_the_input_of_its_module():
    model = nn.Sequential(nn.Linear(2, 3).to(META), nn.Linear(3, 1))
    x = torch.ones(4, 2, device=META)
    why = explained(lambda: model(x))
    assert "`model[1].weight` and `model[1].bias` are on cpu" in why.message
    assert why.message.startswith("an input of `model[1]` is on meta, and ")
    assert ".to_empty(device=...)" in why.remedy


def test_tensors_in_a_list_and_behind_a_method_are_told_one_by_one():
    parts, mask = [torch.ones(2), torch.ones(2, device=META)], torch.ones(2, device=META) > 0
    assert explained(lambda: torch.cat(parts)).message.startswith("`parts[1]` is on meta, and `parts[0]` is on cpu")
    assert "`mask` is on meta" in explained(lambda: parts[0].masked_fill(mask, 0.0)).message
    assert "another input is on cpu" in explained(lambda: parts[1] * parts[0].exp()).message


def test_the_same_words_about_dtypes_are_not_about_devices():
    convolution, images = nn.Conv2d(3, 4, 1), torch.ones(1, 3, 2, 2, dtype=torch.float64)
    assert explained(lambda: convolution(images)).cause == "wrong-dtype"


SCORES = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("labels", "says", "remedy"),
    [
        ([1, 2, 3, 1], "`labels` holds 3 at [2]", "subtract 1 from the labels"),
        ([0, 2, 4, 1], "`labels` holds 4 at [2]", "if 4 is right, it takes 5 outputs of the last layer"),
        ([0, -1, 2, 1], "`labels` holds -1 at [1]", "ignore_index=-1"),
    ],
)
@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.functional.nll_loss, nn.CrossEntropyLoss()])
def test_a_label_that_is_no_class(loss, labels, says, remedy):
    scores, labels = SCORES, torch.tensor(labels)
    why = explained(lambda: loss(scores, labels))
    assert says in why.message and "has 3 classes, from 0 to 2" in why.message
    assert remedy in why.remedy


def test_a_label_of_a_pixel_counts_the_classes_in_the_second_dimension():
    maps, labels = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2, 0], [0, 0, 5, 0]])
    why = explained(lambda: nn.functional.cross_entropy(maps, labels))
    assert "`labels` holds 5 at [1, 2]" in why.message and "`maps` has 3 classes" in why.message


def test_an_id_that_an_embedding_has_no_row_for():
    embedding, ids = nn.Embedding(5, 2), torch.tensor([[0, 7], [1, -1]])
    why = explained(lambda: embedding(ids))
    assert "`ids` holds 7 at [0, 1]" in why.message and "`embedding.weight` has 5 rows, from 0 to 4" in why.message
    assert why.remedy.startswith("if 7 is right, it takes 8 rows in nn.Embedding")
    padded = torch.tensor([2, -1])
    assert explained(lambda: embedding(padded)).remedy == "look where the -1 comes from"


@pytest.mark.parametrize(
    "run",
    [
        lambda table, chosen: table[chosen],
        lambda table, chosen: torch.gather(table, 0, chosen[:, None]),
        lambda table, chosen: table.gather(0, index=chosen[:, None]),
        lambda table, chosen: table.index_add_(0, chosen, torch.ones(2, 3)),
    ],
    ids=["item", "function", "method", "in place"],
)
def test_an_index_beyond_a_dimension_is_told_where_it_is_a_variable(run):
    table, chosen = torch.zeros(4, 3), torch.tensor([1, 9])
    why = explained(lambda: run(table, chosen))
    assert "`chosen` holds 9 at [1]" in why.message and "`table` has 4 entries" in why.message, why


@pytest.mark.parametrize(
    "run",
    [
        lambda table, chosen, counts: torch.index_select(table[None].expand(20, 4), 1, chosen),
        lambda table, chosen, counts: table.scatter_add_(0, chosen + 1, counts),
        lambda table, chosen, counts: torch.zeros(4).long().index_add_(0, chosen, counts),
        lambda table, chosen, counts: table[None, :, None].expand(20, 4, 1)[counts, chosen + 7],
        lambda table, chosen, counts: table[None].expand(20, 4)[0][chosen + 7],
        lambda table, chosen, counts: torch.stack([table, table])[0][chosen],
    ],
)
def test_of_indices_that_are_computed_in_the_expression_nothing_is_said_nor_of_other_integers_beside_them(run):
    table, chosen, counts = torch.zeros(4, dtype=torch.long), torch.tensor([3, 9]), torch.tensor([4, 10])
    assert explained(lambda: run(table, chosen, counts)).cause == "unknown"


def test_a_number_as_an_index_is_left_to_pytorchs_words():
    table = torch.zeros(4, 3)
    assert explained(lambda: table[7]).cause == "unknown"


@pytest.mark.parametrize(
    "message", ["CUDA error: device-side assert triggered", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"]
)
def test_what_a_gpu_says_late_is_told_as_late_and_by_name_where_each_kernel_is_waited_for(message, monkeypatch):
    embedding, ids = nn.Embedding(5, 2), torch.tensor([7])
    with pytest.raises(IndexError) as caught:
        embedding(ids)
    told = {}
    for blocking in ("0", "1"):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
        told[blocking] = byname.explain(RuntimeError(message).with_traceback(caught.value.__traceback__))
    if "CUBLAS" in message:  # which says so of other faults, too
        assert {why.cause for why in told.values()} == {"unknown"}
        return
    assert "a kernel that was started before, at this or an earlier line" in told["0"].message
    assert "CUDA_LAUNCH_BLOCKING=1" in told["0"].remedy
    assert "an index in `ids` is out of range for `embedding.weight`, of shape (5, 2)" in told["1"].message


def test_labels_and_scores_without_names_are_told_as_that():
    why = explained(lambda: nn.functional.cross_entropy(torch.zeros(2, 3), torch.tensor([1, 5])))
    assert (
        why.message.startswith("the tensor of labels holds 5 at [1] at ")
        and "tensor of scores has 3 classes" in why.message
    )


def test_nan_of_a_distribution_is_told_with_the_parameters_that_hold_it():
    policy, x = nn.Linear(4, 3), torch.ones(2, 4)
    with torch.no_grad():
        policy.bias[0] = torch.nan
    message = explained(lambda: torch.distributions.Categorical(logits=policy(x))).message
    assert message.startswith("the parameter logits of this Categorical at ")
    assert message.endswith("holds NaN, and so does `policy.bias`: the NaN was there before this forward")
    with torch.no_grad():  # as while a policy acts: there is no graph to look at
        assert "so does `policy.bias`" in explained(lambda: torch.distributions.Categorical(logits=policy(x))).message


def test_nan_of_a_distribution_that_comes_from_its_inputs_blames_no_parameter():
    policy, x = nn.Linear(4, 3), torch.full((2, 4), torch.inf)
    why = explained(lambda: torch.distributions.Bernoulli(torch.sigmoid(policy(x - x))))
    assert why.message.endswith("holds NaN (6 of 6), and the parameters that it is computed from are finite")
    assert why.remedy.startswith("look at the inputs of this forward")


def test_a_row_that_a_mask_leaves_out_is_told_for_a_distribution():
    policy, legal = nn.Linear(4, 3), torch.tensor([[True, False, True], [False, False, False]])
    logits = policy(torch.ones(2, 4)).masked_fill(~legal, -torch.inf)
    why = explained(lambda: torch.distributions.Categorical(logits=logits))
    assert "all of 1 row is NaN, and others hold -inf, as where a mask leaves out a whole row" in why.message
    assert "mask with -1e9" in why.remedy


@pytest.mark.parametrize(
    ("make", "what", "write"),
    [
        (lambda given: torch.distributions.Normal(0.0, given), "scale of this Normal", "F.softplus(x)"),
        (lambda given: torch.distributions.Bernoulli(given), "probs of this Bernoulli", "torch.sigmoid(x)"),
    ],
)
def test_values_that_a_distribution_cannot_take_are_told_with_what_to_write(make, what, write):
    why = explained(lambda: make(-torch.ones(3)))
    assert why.cause == "invalid-distribution" and write in why.remedy
    assert f"`given`, the parameter {what} at " in why.message and "has values from -1 to -1" in why.message
    x = torch.linspace(-2, 2, 5)
    make(eval(write, {"F": nn.functional, "torch": torch, "x": x}))
