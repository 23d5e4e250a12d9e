"""Is it told which parameters learn nothing in a whole run, and nothing of runs in which they are meant not to?"""

import copy
import functools
import gc
import sys
from collections import Counter
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from checking import checking
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname

STEPS = 6


def found_in(program):
    found = []
    with checking(found.append):
        alive = program()
    assert alive is not None
    return [(one.cause, sorted(map(str, one.culprits))) for one in found], found


def batch():
    return torch.randn(8, 4), torch.rand(8, 1)


def loss_of(model):
    x, y = batch()
    return F.mse_loss(model(x), y)


def trained(optimizer, loss, steps=STEPS):
    """Make steps that are right, with the loss of a batch."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss(*batch()).backward()
        optimizer.step()


def another_model(made=lambda: nn.Linear(4, 1)):
    model = made()
    optimizer = torch.optim.Adam(model.parameters())
    model = made()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


def a_copy():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss_of(copy.deepcopy(model)).backward()
        optimizer.step()
    return model, optimizer


def cleared_too_soon():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS * 3):  # more than are looked at
        loss_of(model).backward()
        optimizer.zero_grad()
        optimizer.step()
    return model, optimizer


def no_step():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step  # noqa: B018
    return model, optimizer


def no_zero_grad():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


def no_rate():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch // 100)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y))
    return model, optimizer


def rounded():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x).round(), y))
    return model, optimizer


def warped():
    model = nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x, y):
        grid = F.affine_grid(model(x).reshape(-1, 2, 3), (len(x), 1, 5, 5), align_corners=False)
        return F.grid_sample(torch.rand(len(x), 1, 5, 5), grid, mode="nearest", align_corners=False).mean()

    trained(optimizer, loss)
    return model, optimizer


def one_logit():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)))
    return model, optimizer


def probability_of_one():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.binary_cross_entropy(torch.softmax(model(x), -1), (y.view(-1, 1) > 0).float()))
    return model, optimizer


def detached_generator():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator = torch.optim.SGD(generator.parameters(), 0.1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.1)
    for _ in range(STEPS):
        fake = generator(torch.randn(8, 4)).detach()
        of_critic.zero_grad()
        critic(fake).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
    return generator, critic, of_generator, of_critic


def through_numpy():
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)
    for _ in range(STEPS):
        x, y = batch()
        h = torch.from_numpy(encoder(x).detach().numpy() * 2)
        optimizer.zero_grad()
        F.mse_loss(decoder(h), y).backward()
        optimizer.step()
    return encoder, decoder, optimizer


def wrapped_anew():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss = torch.tensor(loss_of(model).item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def softmax_twice():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.cross_entropy(model(x), torch.zeros(8, dtype=torch.long)))
    return model, optimizer


def sigmoid_twice():
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.binary_cross_entropy_with_logits(model(x).reshape(8, 1), y))
    return model, optimizer


def broadcast():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.huber_loss(model(x), y[:, 0]))
    return model, optimizer


def broadcast_with_its_arguments_swapped():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(y[:, 0], model(x)))
    return model, optimizer


def micro_batches_cleared_too_soon():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS * 4):
        loss_of(model).backward()
        if step % 4 == 3:
            optimizer.zero_grad()
            optimizer.step()
    return model, optimizer


def no_backward():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss_of(model).backward  # noqa: B018
        optimizer.step()
    return model, optimizer


def one_layer_unused():
    model, unused = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *unused.parameters()], 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 2 * STEPS)
    return model, unused, optimizer


def drawn():
    encoder, decoder = nn.Linear(4, 2), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)
    for _ in range(2 * STEPS):
        x, y = batch()
        mean, log_std = encoder(x).chunk(2, 1)
        optimizer.zero_grad()
        F.mse_loss(decoder(torch.normal(mean, log_std.exp())), y).backward()
        optimizer.step()
    return encoder, decoder, optimizer


def put_back():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first = copy.deepcopy(model.state_dict())
    for _ in range(2 * STEPS):
        model.load_state_dict(first)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


def too_small_for_the_dtype():
    model = nn.Linear(4, 1).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 1e-7)
    with torch.no_grad():
        model.weight.fill_(1), model.bias.fill_(1)
    trained(optimizer, lambda x, y: model(x.bfloat16()).square().mean(), 2 * STEPS)
    return model, optimizer


def most_are_too_small_for_the_dtype():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 1, bias=False)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, weight_decay=0.0)  # changes the bias of the norm, from 0
    trained(optimizer, lambda x, y: model(x.bfloat16()).square().mean(), 2 * STEPS)
    assert model[0].bias.any()
    return model, optimizer


def new_optimizers():
    model = nn.Linear(4, 1)
    for _ in range(2 * STEPS):
        optimizer = torch.optim.Adam(model.parameters())
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def frozen_by_an_attribute():
    model, head = nn.Linear(4, 4), nn.Linear(4, 1)
    model.requires_grad = False
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.mse_loss(head(model(x)), y).backward()
        optimizer.step()
    return model, head, optimizer


def softmax_before_nll():
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.nll_loss(model(x), torch.zeros(8, dtype=torch.long)))
    return model, optimizer


def made_in_forward():
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(head(nn.Linear(4, 4)(x)), y))
    return head, optimizer


def positions_in_a_loss():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        right = model(torch.randn(8, 4)).max(1)[1] == torch.zeros(8)
        optimizer.zero_grad()
        (1 - right.float().mean()).requires_grad_().backward()
        optimizer.step()
    return model, optimizer


def wrapped_in_the_loss():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        logits = model(torch.randn(8, 4))
        mean = torch.tensor([one.sum().item() for one in logits], requires_grad=True).square().mean()
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    return model, optimizer


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.factor = nn.Parameter(torch.ones(1)) * 0.1

    def forward(self, x):
        return self.inner(x) * self.factor


def parameter_of_which_a_result_is_kept():
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward(retain_graph=True)
        optimizer.step()
    return model, optimizer


def head_replaced_after_the_optimizer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.requires_grad_(False)
    model[1] = nn.Linear(4, 1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y))
    return model, optimizer


def frozen_later():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y))
    model.requires_grad_(False)
    head = nn.Linear(1, 1)
    other = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(STEPS):
        trained(other, lambda x, y: F.mse_loss(head(model(x)), y), 1)
        optimizer.step()
    return model, head, optimizer, other


def a_schedule_that_runs_out():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 8))
    for _ in range(24):
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 1)
        schedule.step()
    return model, optimizer


def probabilities_in_kl_div():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.kl_div(model(x).softmax(1), torch.full((8, 3), 1 / 3)))
    return model, optimizer


def softmax_over_the_samples():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.nll_loss(model(x).log_softmax(0), torch.zeros(8, dtype=torch.long)))
    return model, optimizer


def squares_by_hand():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: ((y[:, 0] - model(x)) ** 2).mean().sqrt())
    return model, optimizer


def distances_by_hand():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: (model(x).squeeze(-1) - y).abs().mean())
    return model, optimizer


def the_wrong_side_under_no_grad():
    online, target = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(online.parameters(), 0.1)

    def loss(x, y):
        with torch.no_grad():
            mine = online(x)
        return -F.cosine_similarity(target(x), mine).mean()

    trained(optimizer, loss)
    return online, target, optimizer


def a_loss_that_is_left_out():
    body, head, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), *other.parameters()], 0.1)

    def loss(x, y):
        hidden = body(x)
        total = F.mse_loss(head(hidden), y)  # noqa: F841 - left out of what is returned
        weighted = 0.5 * F.mse_loss(other(hidden), y)
        return weighted

    trained(optimizer, loss, 2 * STEPS)
    return body, head, other, optimizer


def a_checkpoint_of_the_first_block():
    stem, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*stem.parameters(), *head.parameters()], 0.1)

    def loss(x, y):
        hidden = checkpoint(stem, x, use_reentrant=True)
        return F.mse_loss(checkpoint(head, hidden, use_reentrant=False), y)

    trained(optimizer, loss, 2 * STEPS)
    return stem, head, optimizer


LINEAR = ["model.bias", "model.weight"]


@pytest.mark.grid(fast=9)
@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:reduction", "ignore:None of the inputs")
@pytest.mark.parametrize(
    ("program", "cause", "culprits"),
    [
        (another_model, "never-learns", None),
        (a_copy, "never-learns", LINEAR),
        (cleared_too_soon, "zeroed-before-step", LINEAR),
        (no_step, "never-stepped", LINEAR),
        (no_zero_grad, "never-zeroed", LINEAR),
        (no_rate, "zero-learning-rate", []),
        (rounded, "zero-gradient", LINEAR),
        (warped, "zero-gradient", LINEAR),
        (one_logit, "zero-gradient", LINEAR),
        (probability_of_one, "zero-gradient", LINEAR),
        (detached_generator, "detached-parameter", ["generator.bias", "generator.weight"]),
        (through_numpy, "detached-parameter", ["encoder.bias", "encoder.weight"]),
        (wrapped_anew, "leaf-loss", ["loss"]),
        (softmax_twice, "double-softmax", []),
        (sigmoid_twice, "double-softmax", []),
        (broadcast, "broadcast-loss", []),
        (broadcast_with_its_arguments_swapped, "broadcast-loss", []),
        (micro_batches_cleared_too_soon, "zeroed-before-step", LINEAR),
        (no_backward, "never-learns", LINEAR),
        (one_layer_unused, "never-learns", ["unused.bias", "unused.weight"]),
        (drawn, "zero-gradient", ["encoder.bias", "encoder.weight"]),
        (put_back, "never-learns", LINEAR),
        (too_small_for_the_dtype, "never-learns", LINEAR),
        (most_are_too_small_for_the_dtype, "never-learns", None),
        (new_optimizers, "optimizer-anew", LINEAR),
        (frozen_by_an_attribute, "not-frozen", LINEAR),
        (softmax_before_nll, "no-log-probabilities", []),
        (made_in_forward, "not-in-optimizer", []),
        (positions_in_a_loss, "leaf-loss", None),
        (head_replaced_after_the_optimizer, "never-learns", ["model[1].bias", "model[1].weight"]),
        (parameter_of_which_a_result_is_kept, "non-leaf-grad", ["self.factor"]),
        (a_schedule_that_runs_out, "zero-learning-rate", []),
        (probabilities_in_kl_div, "no-log-probabilities", []),
        (softmax_over_the_samples, "softmax-over-batch", []),
        (squares_by_hand, "broadcast-loss", []),
        (distances_by_hand, "broadcast-loss", []),
        (the_wrong_side_under_no_grad, "never-learns", ["online.bias", "online.weight"]),
        (a_loss_that_is_left_out, "never-learns", ["head.bias", "head.weight"]),
        (a_checkpoint_of_the_first_block, "never-learns", ["stem.bias", "stem.weight"]),
    ],
)
def test_what_learns_nothing_is_told_once_with_a_line_and_a_remedy(program, cause, culprits):
    told, findings = found_in(program)
    assert [one for one, _ in told] == [cause]
    assert culprits is None or told[0][1] == culprits
    assert findings[0].remedy
    assert {site.file for site in findings[0].sites} == {__file__}


class Around(torch.optim.SGD):
    """As a LightningOptimizer: an optimizer with the attributes of the one that it steps."""

    def __init__(self, optimizer):
        self.__dict__.update(optimizer.__dict__)
        self.inner = optimizer

    def step(self, closure=None):
        return self.inner.step(closure)


def test_parameters_that_are_frozen_in_turns_are_stepped_by_the_optimizer_inside_of_another():
    models = generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [Around(torch.optim.SGD(one.parameters(), 0.1)) for one in models]

    def program():
        for step in range(4 * STEPS):
            for one in models:
                one.requires_grad_(one is models[step % 2])
            optimizers[step % 2].zero_grad()
            critic(generator(torch.randn(8, 4))).square().mean().backward()
            optimizers[step % 2].step()
        return models

    assert found_in(program)[1] == []


def test_the_line_that_makes_an_optimizer_anew_is_told():
    _, (finding,) = found_in(new_optimizers)
    assert "optimizer = torch.optim.Adam(model.parameters())" in [site.statement for site in finding.sites]


@pytest.mark.parametrize("made", [lambda: nn.Linear(4, 1), lambda: nn.Linear(4, 1).half().float()])
def test_the_parameters_of_the_new_model_are_named_beside_those_of_the_old_one(made):
    _, (finding,) = found_in(functools.partial(another_model, made))
    assert "`model.bias` and `model.weight`, and no optimizer has them" in finding.message
    assert "of the 6 steps of Adam" in finding.message and "; optimizer was made at" in finding.message
    assert "no_grad" not in finding.message, "by which a module that is converted, or moved to a GPU, computes"


def multiplied(factor):
    body, head, other = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), *other.parameters()], 0.1)
    steps = iter(range(2 * STEPS))

    def loss(x, y):
        hidden = body(x)
        return F.mse_loss(head(hidden), y) + factor(next(steps)) * F.mse_loss(other(hidden), y)

    trained(optimizer, loss, 2 * STEPS)
    return body, head, other, optimizer


def all_dropped(p=1.0):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(p), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 2 * STEPS)
    return model, optimizer


@pytest.mark.parametrize(
    ("program", "line"),
    [(lambda: multiplied(lambda step: step // 20), "factor(next(steps)) *"), (all_dropped, "model(x)")],
)
def test_a_factor_of_zero_is_told_with_its_line(program, line):
    _, (finding,) = found_in(program)
    assert finding.cause == "zero-gradient" and "multiplies by 0 in the first backward" in finding.message
    assert line in finding.sites[0].statement and "p is the probability to drop" in finding.remedy


@pytest.mark.parametrize("program", [lambda: multiplied(lambda step: step // 4), lambda: all_dropped(0.5)])
def test_a_factor_that_is_zero_at_first_only_is_healthy(program):
    assert found_in(program) == ([], [])


def ensemble(members):
    """Train several models; the optimizer of each takes the place of the one before, if there is only one."""
    models = [nn.Linear(4, 1) for _ in range(4)]
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in models[-members:]]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for model in models:
            loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()
    return models, optimizers


def test_of_an_ensemble_the_models_that_no_optimizer_has_are_told():
    told, _ = found_in(lambda: ensemble(1))
    assert [cause for cause, _ in told] == ["not-in-optimizer"]
    assert found_in(lambda: ensemble(4)) == ([], [])


def test_a_target_that_gets_gradients_should_compute_without_them():
    def program():
        online, target_net = nn.Linear(4, 1), nn.Linear(4, 1)
        optimizer = torch.optim.SGD(online.parameters(), 0.1)
        trained(optimizer, lambda x, y: F.mse_loss(online(x), y + 0.9 * target_net(x)))
        return online, target_net

    _, (finding,) = found_in(program)
    assert finding.cause == "not-in-optimizer" and "compute with it under torch.no_grad()" in finding.remedy


@pytest.mark.parametrize(
    ("program", "said", "line"),
    [
        (one_logit, "log_softmax() at", "F.cross_entropy(model(x)"),
        (probability_of_one, "softmax() at", "torch.softmax(model(x), -1)"),
    ],
)
def test_of_a_softmax_of_one_element_the_line_is_told(program, said, line):
    _, (finding,) = found_in(program)
    assert said in finding.message and "along a dimension with one element" in finding.message
    assert line in finding.sites[0].statement and "binary_cross_entropy_with_logits" in finding.remedy


def test_of_round_the_line_is_told():
    _, (finding,) = found_in(rounded)
    assert "round" in finding.sites[0].statement


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (micro_batches_cleared_too_soon, "the gradients are cleared in between"),
        (no_backward, "No call of backward() was seen"),
        (no_step, "no step of the optimizer (SGD) that has them was seen"),
        (one_layer_unused, "no backward reaches them"),
        (drawn, "the derivative of normal() at"),
        (put_back, "a step does change them, and something puts them back"),
        (too_small_for_the_dtype, "the steps are too small for the dtype (torch.bfloat16)"),
        (most_are_too_small_for_the_dtype, "`model[0].weight` and `model[1].weight` have the same values"),
        (most_are_too_small_for_the_dtype, "the steps are too small for the dtype (torch.bfloat16)"),
        (a_schedule_that_runs_out, "is 0 in the last 16 of the 24 steps of AdamW"),
        (softmax_over_the_samples, "is over dimension 0 of shape (8, 3), which is the batch"),
        (made_in_forward, "2 parameters used at"),
        (positions_in_a_loss, "is a position or a choice, which has no gradient"),
    ],
)
def test_it_says_why_nothing_is_learnt(program, said):
    _, (finding,) = found_in(program)
    assert said in finding.message


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("program", "line", "remedy"),
    [
        (the_wrong_side_under_no_grad, "mine = online(x)", "outside of that block"),
        (a_loss_that_is_left_out, "total = F.mse_loss(head(hidden), y)", "use them in the loss, too"),
        (a_checkpoint_of_the_first_block, "checkpoint(stem, x", "use_reentrant=False"),
    ],
)
def test_where_parameters_without_a_gradient_were_used_is_told(program, line, remedy):
    _, (finding,) = found_in(program)
    assert line in finding.sites[0].statement
    assert remedy in finding.remedy


def there_and_back():
    """The weight is 1 before steps 1, 2, 4, 8 and 16, and no step is too small or undone: others lead back."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    nn.init.ones_(model.weight)
    for step in range(1, 17):
        optimizer.zero_grad()
        (model.weight.sum() * (1e-12 if step == 1 else 0.5 if step % 2 else -0.5)).backward()
        optimizer.step()
    return model, optimizer


def a_rate_of_zero_for_one_group():
    body, head = nn.Linear(4, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}], 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(head(body(x)), y), 2 * STEPS)
    return body, head, optimizer


def a_bias_before_a_norm():
    """The gradient of the bias is 0 but for rounding, and never changes it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    nn.init.constant_(model[0].bias, 3.0)
    trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 2 * STEPS)
    assert model[0].bias.grad.any() and (model[0].bias == 3.0).all()
    return model, optimizer


def adapted_to_each_sample():
    model = nn.Linear(4, 1)
    source = {name: one.clone() for name, one in model.state_dict().items()}
    for _ in range(2 * STEPS):
        model.load_state_dict(source)
        optimizer = torch.optim.Adam(model.parameters())
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    "program", [there_and_back, a_rate_of_zero_for_one_group, a_bias_before_a_norm, adapted_to_each_sample]
)
def test_values_that_are_the_same_for_another_reason_are_not_said_to_be_too_small_or_put_back(program):
    assert found_in(program)[0] == []


def micro_batches_each_cleared():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(8 * STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        if step % 8 == 7:
            optimizer.step()
    return model, optimizer


def optimizers_in_turn():
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    turns = [torch.optim.SGD(module.parameters(), 0.1) for module in (body, head)]
    for step in range(4 * STEPS):
        for one in turns:
            one.zero_grad()
        loss_of(lambda x: head(body(x))).backward()
        turns[step % 2].step()
    return body, head, turns


def heads_in_turn():
    heads = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*heads[0].parameters(), *heads[1].parameters()], 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for head in heads:
            loss_of(head).backward()
        optimizer.step()
    return heads, optimizer


def closures_at_changed_weights():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        for sign in (1, -1):
            optimizer.zero_grad()
            loss_of(model).backward()
            with torch.no_grad():
                model.weight += sign * 0.05
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("program", "causes"),
    [
        (micro_batches_each_cleared, ["zeroed-before-step"]),
        (optimizers_in_turn, []),
        (heads_in_turn, []),
        (closures_at_changed_weights, []),
    ],
)
def test_gradients_that_are_cleared_between_backward_calls_are_told(program, causes, monkeypatch):
    monkeypatch.setattr(
        "byname.diagnose.causes.training.reads_gradients", lambda: False
    )  # other tests in this process do
    gc.collect()  # scalers of other tests
    told, findings = found_in(program)
    assert [cause for cause, _ in told] == causes
    assert all("gradients of 7 backward calls at" in one.message for one in findings)


def test_a_program_that_reads_gradients_may_clear_them_between_backward_calls():
    assert found_in(micro_batches_each_cleared)[0] == []


def test_a_loss_of_numbers_wrapped_anew_is_not_advised_to_be_a_leaf():
    _, findings = found_in(wrapped_in_the_loss)
    (finding,) = [one for one in findings if one.cause in ("leaf-loss", "non-leaf-grad")]
    assert finding.cause == "leaf-loss" and [str(name) for name in finding.culprits] == ["mean"]
    assert finding.remedy.startswith("leave out requires_grad")


def test_the_remedy_of_a_module_that_is_not_frozen_freezes_it():
    _, (finding,) = found_in(frozen_by_an_attribute)
    assert finding.remedy == "model.requires_grad_(False)"
    assert finding.sites[0].statement == "model.requires_grad = False"


class Shy:
    """Nobody asks whether it is true, what it is equal to, or what it has."""

    def __bool__(self):
        raise AssertionError("byname runs code of the program")

    __eq__ = __len__ = __bool__
    __hash__ = None


class Curious(dict):
    """Attributes that nobody looks up by code of the program."""

    def get(self, *_):
        raise AssertionError("byname runs code of the program")

    __contains__ = get


def frozen_by_attributes_of_all_kinds():
    agent, curious = nn.Module(), Shy()
    agent.table, agent.shy, agent.body = torch.ones(3), Shy(), nn.Linear(4, 4)
    agent.table.requires_grad = False
    agent.shy.requires_grad = False
    curious.__dict__ = Curious(table=torch.ones(3))
    curious.table.requires_grad = False
    agent.body.requires_grad = False
    optimizer = torch.optim.SGD(agent.body.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = agent.body(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return agent, curious, optimizer


def test_attributes_beside_the_module_that_is_not_frozen_are_not_asked_what_they_are():
    _, (finding,) = found_in(frozen_by_attributes_of_all_kinds)
    assert finding.sites[0].statement == "agent.body.requires_grad = False"
    assert finding.remedy == "agent.body.requires_grad_(False)"


def accumulating():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS * 3):
        loss_of(model).backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def clearing_with_zeros():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


def two_players():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    of_generator = torch.optim.SGD(generator.parameters(), 0.1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.1)
    for _ in range(STEPS):
        fake = generator(torch.randn(8, 4))
        of_critic.zero_grad()
        critic(fake.detach()).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
    return generator, critic, of_generator, of_critic


def warming_up():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch / 10)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer


def only_the_head():
    body, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(head(body(x)), y))
    return body, head, optimizer


def one_step():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    loss_of(model).backward()
    optimizer.step()
    return model, optimizer


def straight_through():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        out = model(x)
        optimizer.zero_grad()
        F.mse_loss(out + (out.round() - out).detach(), y).backward()
        optimizer.step()
    return model, optimizer


def with_a_closure():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return model, optimizer


def a_residual_that_begins_at_zero():
    model, inner, outer = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 4)
    nn.init.zeros_(outer.weight), nn.init.zeros_(outer.bias)
    optimizer = torch.optim.SGD([*model.parameters(), *inner.parameters(), *outer.parameters()], 0.1)
    trained(optimizer, lambda x, y: F.mse_loss(model(x + outer(inner(x).relu())), y), 2 * STEPS)
    return model, inner, outer, optimizer


def rounds_of_their_own_optimizers():
    model = nn.Linear(4, 1)
    for _ in range(2 * STEPS):
        optimizer = torch.optim.Adam(model.parameters())
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 2)
    return model, optimizer


def an_optimizer_without_state_for_each_step():
    class Signs(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self):
            for one in self.param_groups[0]["params"]:
                one -= 0.01 * one.grad.sign()

    model = nn.Linear(4, 1)
    for step in range(3 * STEPS):
        kinds = [Signs, torch.optim.SGD, torch.optim.Rprop][step * 3 // (3 * STEPS) :]
        optimizer = kinds[0](model.parameters())
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model, optimizer


def copies_that_are_trained_once():
    slow, uses = torch.zeros(4), Counter()
    while max(uses.values(), default=0) < 12 and uses.total() < 2000:  # copies at an address that is used again
        fast = slow.clone().requires_grad_()
        optimizer = torch.optim.Adam([fast], 0.1)
        (fast - torch.rand(4)).square().sum().backward()
        optimizer.step()
        slow.lerp_(fast.detach(), 0.1)
        uses[id(fast)] += 1
        del fast, optimizer
    assert max(uses.values()) == 12
    return slow


def an_input_that_a_reentrant_checkpoint_needs():
    block, head = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], 0.1)

    def loss(x, y):
        entering = x.requires_grad_()
        return F.mse_loss(head(checkpoint(block, entering, use_reentrant=True)), y)

    trained(optimizer, loss)
    assert block.weight.grad.any()
    return block, head, optimizer


def tasks_in_turn():
    body, heads = nn.Linear(4, 4), [nn.Linear(4, 1) for _ in range(3)]
    optimizer = torch.optim.Adam([*body.parameters(), *(one for head in heads for one in head.parameters())])
    for step in range(3 * STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.mse_loss(heads[step % 3](body(x)), y).backward()
        optimizer.step()
    return body, heads, optimizer


def a_critic_of_differences():
    critic = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(critic.parameters())
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        (critic(torch.randn(8, 4)).mean() - critic(torch.randn(8, 4)).mean()).backward()
        optimizer.step()
    return critic, optimizer


def log_probabilities():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trained(optimizer, lambda x, y: F.nll_loss(model(x).log_softmax(1), torch.zeros(8, dtype=torch.long)))
    return model, optimizer


def momentum_in_the_gradient():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2 * STEPS):
        loss_of(model).backward()
        optimizer.step()
        for one in model.parameters():
            one.grad.data.mul_(0.5)
    return model, optimizer


def episodes_that_begin_anew():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(2 * STEPS):
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 1)
    return model, optimizer


def expanded_on_purpose():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    futures = torch.randn(8, 5, 3)
    trained(optimizer, lambda x, y: F.mse_loss(model(x).unsqueeze(1).expand_as(futures), futures))
    return model, optimizer


def all_pairs_on_purpose():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x, y):
        output, target = model(x).squeeze(-1), y[:, 0]
        return (output - target).abs().mean() - 0.5 * (output[:, None] - target).abs().mean()

    trained(optimizer, loss)
    return model, optimizer


def a_mean_of_the_targets():
    mean = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([mean], 0.1)
    trained(optimizer, lambda x, y: ((torch.randn(8, 8) - mean) ** 2).mean())
    return mean, optimizer


def two_students():
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    trained(optimizer, lambda x, y: F.kl_div(first(x).log_softmax(1), second(x).softmax(1), reduction="sum"))
    return first, second, optimizer


def both_dimensions_of_similarities():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x, y):
        similarity, labels = model(x) @ x.T, torch.arange(8)
        return F.nll_loss(similarity.log_softmax(0), labels) + F.nll_loss(similarity.log_softmax(1), labels)

    trained(optimizer, loss)
    return model, optimizer


def warmed_up_from_nothing_to_nothing():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 8, max(0.0, (24 - step) / 16)))
    for _ in range(25):
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 1)
        schedule.step()
    return model, optimizer


def frozen_by_hand_until_the_end():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        for parameter in model[1].parameters():
            parameter.grad = None
        optimizer.step()
    return model, optimizer


def a_total_that_begins_as_a_leaf():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(x, y):
        total = torch.tensor(0.0, requires_grad=True)
        total = total + F.mse_loss(model(x), y)
        return total + 0.1 * F.l1_loss(model(x), y)

    trained(optimizer, loss)
    return model, optimizer


@pytest.mark.grid(fast=10)
@pytest.mark.parametrize(
    "program",
    [
        a_total_that_begins_as_a_leaf,
        frozen_by_hand_until_the_end,
        momentum_in_the_gradient,
        episodes_that_begin_anew,
        expanded_on_purpose,
        all_pairs_on_purpose,
        a_mean_of_the_targets,
        two_students,
        both_dimensions_of_similarities,
        warmed_up_from_nothing_to_nothing,
        a_residual_that_begins_at_zero,
        rounds_of_their_own_optimizers,
        an_optimizer_without_state_for_each_step,
        copies_that_are_trained_once,
        frozen_later,
        an_input_that_a_reentrant_checkpoint_needs,
        tasks_in_turn,
        a_critic_of_differences,
        log_probabilities,
        accumulating,
        clearing_with_zeros,
        two_players,
        warming_up,
        only_the_head,
        one_step,
        straight_through,
        with_a_closure,
    ],
)
def test_nothing_is_told_of_what_is_meant(program):
    told, _ = found_in(program)
    assert told == []


def test_nothing_is_kept_alive_and_nothing_is_left_behind():
    from weakref import ref

    from torch.optim import optimizer as module

    before = dict(module._global_optimizer_pre_hooks)
    found = []
    with checking(found.append):
        alive = another_model()
        parameter, optimizer = ref(alive[0].weight), ref(alive[1])
        del alive
        assert parameter() is None
        assert optimizer() is None
    assert dict(module._global_optimizer_pre_hooks) == before


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = [nn.Linear(4, 4), nn.Linear(4, 1)]

    def forward(self, x):
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


@pytest.mark.parametrize("given", [True, False], ids=["model given", "model not given"])
def test_layers_in_a_plain_list_are_told_with_the_list_to_use(given):
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = loss_of(model)
    (finding,) = byname.check(loss, model=model if given else None, optimizer=optimizer)
    assert finding.cause == "not-in-optimizer"
    assert {str(name) for name in finding.culprits} == {
        f"model.rest[{number}].{name}" for number in (0, 1) for name in ("weight", "bias")
    }
    assert finding.remedy.startswith("make `model.rest` a torch.nn.ModuleList: ")


def test_several_leaves_that_nobody_uses_are_one_finding():
    model, scale = nn.Linear(4, 1), torch.ones(1, requires_grad=True)
    shifts = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = loss_of(lambda x: model(x) * scale + sum(shifts))
    (finding,) = byname.check(loss, optimizer=optimizer)
    assert finding.cause == "free-leaf"
    assert {str(name) for name in finding.culprits} == {"scale", "shifts[0]", "shifts[1]"}


def gradients_in_a_lambda():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    slope = lambda y, given: torch.autograd.grad(y.sum(), given, create_graph=True)[0]  # noqa: E731
    for _ in range(STEPS):
        place, time = torch.rand(8, 1, requires_grad=True), torch.rand(8, 1, requires_grad=True)
        u = model(torch.cat([place, time], 1)).square()
        optimizer.zero_grad()
        (slope(u, time) - slope(u, place)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_a_gradient_that_a_lambda_reads_is_read():
    assert found_in(gradients_in_a_lambda)[0] == []


BY_HAND = """
model = nn.Linear(4, 1)
x, y = torch.randn(32, 4), torch.randn(32, 1)
before = [one.detach().clone() for one in model.parameters()]
for _ in range(5):
    loss = (model(x) - y).square().mean()
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p = p - 0.1 * p.grad
changed = not any(map(torch.equal, before, model.parameters()))
"""
CARRIED = """
cell, out = nn.GRUCell(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], 0.01)
h = torch.zeros(2, 4)
for x in torch.randn(6, 2, 3):
    h = cell(x, h)
    out(h).square().mean().backward(retain_graph=True)
optimizer.step()
"""


def checked(source, folder):
    """What is reported of a program, and its variables in the end."""
    file = folder / "program.py"
    file.write_text(source)
    reported, names = [], {"torch": torch, "nn": nn, "__name__": "program"}
    torch.manual_seed(0)
    with checking(reported.append):
        exec(compile(source, str(file), "exec"), names)
    return reported, names


TRAINER = """class Trainer:
    def __init__(self, model, optimizer, scheduler):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler

    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(12):
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4)).square().mean().backward()
                self.optimizer.step()
            if epoch >= 10:
                self.scheduler.step()
"""
SCHEDULED_ELSEWHERE = """model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
trainer = Trainer(model, optimizer, scheduler=scheduler)
trainer.fit(2)
"""


@pytest.mark.parametrize(("later", "causes"), [("self.scheduler.step()", []), ("pass", ["scheduler-never-stepped"])])
def test_a_scheduler_that_another_file_would_step_later_is_not_said_to_be_never_stepped(later, causes, tmp_path):
    names, file = {"torch": torch, "__name__": "trainer"}, tmp_path / "trainer.py"
    file.write_text(TRAINER.replace("self.scheduler.step()", later))
    exec(compile(file.read_text(), str(file), "exec"), names)
    program = tmp_path / "program.py"
    program.write_text(SCHEDULED_ELSEWHERE)
    reported = []
    with checking(reported.append):
        exec(compile(SCHEDULED_ELSEWHERE, str(program), "exec"), {"torch": torch, "nn": nn, **names})
    assert [one.cause for one in reported] == causes


def test_a_step_that_binds_a_variable_to_a_new_tensor_changes_no_parameter(tmp_path):
    (found,), names = checked(BY_HAND, tmp_path)
    assert not names["changed"]
    assert found.cause == "never-learns"
    assert {str(name) for name in found.culprits} == {"model.weight", "model.bias"}
    assert "`p = p - 0.1 * p.grad` at program.py:10 makes a new tensor" in found.message
    pasted = found.remedy.split("`")[1]
    assert pasted == "with torch.no_grad(): p -= 0.1 * p.grad"
    reported, names = checked(BY_HAND.replace("p = p - 0.1 * p.grad", pasted), tmp_path)
    assert names["changed"] and reported == []


READS_NOTHING = """
import torch.nn.functional as F
vectors = torch.randn(9, 4)
weights = nn.Linear(4, 2).state_dict()

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)
        EMBED

    def forward(self, words):
        return self.out(self.embedding(words).mean(1))

model = Words()
for name, param in model.out.named_parameters():
    if param.shape == weights[name].shape:
        LOAD
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
for _ in range(12):
    words = torch.randint(0, 9, (8, 3))
    optimizer.zero_grad()
    F.cross_entropy(model(words), words[:, 0] % 2).backward()
    for one in optimizer.param_groups[0]["params"]:
        CLAMP
    optimizer.step()
"""
NOT_ASSIGNED, ASSIGNED = (
    "self.embedding.from_pretrained(vectors)",
    "self.embedding = nn.Embedding.from_pretrained(vectors)",
)
RENAMED, COPIED = "param = weights[name]", "param.data.copy_(weights[name])"
NOT_IN_PLACE, IN_PLACE = "one.grad.data.clamp(-1, 1)", "one.grad.data.clamp_(-1, 1)"


@pytest.mark.parametrize(
    ("embed", "load", "clamp", "said"),
    [
        (NOT_ASSIGNED, COPIED, IN_PLACE, "drops what from_pretrained() returns"),
        (ASSIGNED, RENAMED, IN_PLACE, "gives the variable `param` of the loop another value"),
        (ASSIGNED, COPIED, NOT_IN_PLACE, "drops what clamp() returns"),
        (ASSIGNED, "param = weights[name]; total = param.sum()", IN_PLACE, None),
        (ASSIGNED, COPIED, IN_PLACE, None),
        (ASSIGNED, COPIED, "one.grad.copy_(one.grad.clamp(-1, 1))", None),
    ],
)
def test_a_statement_whose_result_nothing_uses_is_told(embed, load, clamp, said, tmp_path):
    source = READS_NOTHING.replace("EMBED", embed).replace("LOAD", load).replace("CLAMP", clamp)
    found = [(one.cause, said) for one in checked(source, tmp_path)[0] if said is None or said in one.message]
    assert found == ([] if said is None else [("result-dropped", said)])


ONE_FOR_ALL = """
import torch.nn.functional as F
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
MADE
for _ in range(12):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    F.mse_loss(model(x), x[:, :1]).backward()
    optimizer.step()
    for number in range(3):
        CHANGED
"""


@pytest.mark.parametrize(
    ("made", "changed", "is_one"),
    [
        ("kept = [[]] * 3", "kept[number].append(x)", True),
        ("kept = [torch.zeros(8, 4)] * 3", "kept[number] += x", True),
        ("kept = [[0.0] * 4] * 3", "kept[number][0] = 1.0", True),
        ("kept = dict.fromkeys(range(3), torch.zeros(8, 4))", "kept[number].add_(x)", True),
        ("kept = [torch.zeros(8, 4)] * 3", "kept[number] = kept[number] + x", False),
        ("kept = [[] for _ in range(3)]", "kept[number].append(x)", False),
        ("kept = [[]] * 3", "kept[number] = [x]; kept[number].append(x)", False),
        ("kept = [[]] * 3", "(lambda kept: kept[0].append(x))([[]])", False),
        ("kept = [0.0] * 3", "kept[number] += 1", False),
        ("kept = dict.fromkeys(range(3), 0)", "kept[number] += 1", False),
    ],
)
def test_a_container_of_one_object_that_is_changed_in_place_is_told(made, changed, is_one, tmp_path):
    found, _ = checked(ONE_FOR_ALL.replace("MADE", made).replace("CHANGED", changed), tmp_path)
    assert {one.cause for one in found} == ({"entries-are-one-tensor"} if is_one else set())
    assert [one for one in found if one.sites[0].statement == made and "are one object" in one.message] or not is_one


SORTED_IN_EACH_STEP = """
import torch.nn.functional as F
net = nn.Linear(4, 5)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(12):
    optimizer.zero_grad()
    for number in range(80):
        F.cross_entropy(net(torch.randn(1, 4)), torch.tensor([number // 16])).backward()
    optimizer.step()
"""
PERTURBATIONS = """
net, other = nn.Linear(4, 2), nn.Linear(3, 2)
optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
first, second = torch.zeros(8, 4, requires_grad=True), torch.zeros(8, 3, requires_grad=True)
for _ in range(20):
    x, z = torch.randn(8, 4), torch.randn(8, 3)
    with torch.no_grad():
        first.zero_(), second.zero_()
    first.grad = second.grad = None
    (net(x + first) + other(z + second)).square().mean().backward()
    with torch.no_grad():
        first.add_(0.1 * first.grad.sign()), second.add_(0.1 * second.grad.sign())
    optimizer.zero_grad()
    (net(x + first.detach()) + other(z + second.detach())).square().mean().backward()
    optimizer.step()
"""
OWN_METHOD_AND_HOOKS = """
class Words(nn.Embedding):
    def from_pretrained(self, vectors):
        self.weight.data.copy_(vectors)

emb, net = Words(9, 4), nn.Linear(4, 1)
emb.from_pretrained(torch.randn(9, 4))
for _, parameter in net.named_parameters():
    _ = parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
optimizer = torch.optim.SGD([*emb.parameters(), *net.parameters()], 0.1)
for _ in range(12):
    optimizer.zero_grad()
    net(emb(torch.randint(9, (8,)))).square().mean().backward()
    optimizer.step()
"""
BINARY_WEIGHTS = """
scale, net = nn.Parameter(torch.rand(4) + 0.5), nn.Linear(4, 1)
optimizer = torch.optim.SGD([scale, *net.parameters()], 0.1)
for _ in range(12):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    net(x * (scale.abs().mean() * scale.detach().sign())).square().mean().backward()
    optimizer.step()
"""
BATCHES_OF_A_CLOSURE = """
net, x = nn.Linear(4, 1), torch.randn(24, 4)
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5)

def begin():
    for one in net.parameters():
        one.grad = None

def closure():
    begin()
    total = 0.0
    for rows in x.split(4):
        loss = (net(rows) - rows.sum(1, keepdim=True)).square().mean()
        loss.backward()
        total += loss.item()
    return total

for _ in range(3):
    optimizer.step(closure)
"""
ROWS_AND_A_NUMBER = """
rows = [*[(torch.ones(4), 0)] * 50, 3]
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(12):
    optimizer.zero_grad()
    net(torch.ones(32, 4) * torch.randn(1)).square().mean().backward()
    optimizer.step()
"""
A_NORM_THAT_IS_NOT_USED = """
import copy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.BatchNorm1d(8, affine=False)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))

net = Net()
average = copy.deepcopy(net).eval()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    for _ in range(12):
        x = torch.randn(32, 4)
        optimizer.zero_grad()
        (net(x) - x[:, :1]).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mine, other in zip(average.state_dict().values(), net.state_dict().values()):
                mine.lerp_(other, 0.1) if mine.is_floating_point() else mine.copy_(other)
    with torch.no_grad():
        score = (average(torch.randn(32, 4)) > 0).float().mean()
"""


@pytest.mark.parametrize(
    "source",
    [
        SORTED_IN_EACH_STEP,
        PERTURBATIONS,
        OWN_METHOD_AND_HOOKS,
        BINARY_WEIGHTS,
        BATCHES_OF_A_CLOSURE,
        ROWS_AND_A_NUMBER,
        A_NORM_THAT_IS_NOT_USED,
    ],
)
def test_a_program_close_to_a_fault_is_healthy(source, tmp_path, capsys):
    assert [str(one) for one in checked(source, tmp_path)[0]] == []
    assert "could not look" not in capsys.readouterr().err


def test_a_state_carried_through_backward_calls_without_a_step_is_told(tmp_path):
    (found,), _ = checked(CARRIED, tmp_path)
    assert found.cause == "graph-grows" and "3 earlier backward calls" in found.message
    assert str(found.culprits[0]) in ("h", "part of h") and found.sites[0].statement == "h = cell(x, h)"
    reported, _ = checked(CARRIED.replace("cell(x, h)", "cell(x, h.detach())"), tmp_path)
    assert reported == []


TARGET = """
import copy
online = nn.Linear(4, 2)
target = online
optimizer = torch.optim.Adam(online.parameters())
for _ in range(2):
    with torch.no_grad():
        y = target(torch.randn(8, 4)).amax(1)
    y = torch.rand(8) + 0.99 * target(torch.randn(8, 4)).amax(1)
    loss = (online(torch.randn(8, 4))[:, 0] - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


FOLLOWING = """
import copy
import torch.nn.functional as F
online = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
NAME = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.SGD(online.parameters(), 0.05)

def update():
    with torch.no_grad():
        for mine, its in zip(NAME.parameters(), online.parameters()):
            UPDATE

for _ in range(40):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = NAME(x)
    loss = F.mse_loss(online(x + 0.1 * torch.randn(8, 4)), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    CALL
"""
RIGHT, WRONG = "mine.lerp_(its, 0.1)", "mine = 0.9 * mine + 0.1 * its"


def following(name, update, call):
    return FOLLOWING.replace("NAME", name).replace("UPDATE", update).replace("CALL", call)


def test_a_loop_over_the_arguments_of_a_function_that_updates_nothing_is_told(tmp_path):
    source = FOLLOWING.replace(
        "mine, its in zip(NAME.parameters(), online.par", "its, mine in zip(net.parameters(), target.par"
    )
    source = source.replace("def update():", "def update(net, target):").replace("NAME", "critic_target")
    (found,), _ = checked(source.replace("UPDATE", WRONG).replace("CALL", "update(online, critic_target)"), tmp_path)
    assert "a loop binds `mine` to new tensors, which changes no parameter" in found.message


@pytest.mark.parametrize(
    ("name", "update", "call", "why"),
    [
        ("target", RIGHT, "pass", "copies weights to it; update() is never called"),
        ("target", WRONG, "update()", "a loop binds `mine` to new tensors, which changes no parameter"),
        ("teacher", WRONG, "update()", "a loop binds `mine` to new tensors, which changes no parameter"),
    ],
)
def test_a_target_that_no_line_updates_is_told(name, update, call, why, tmp_path):
    (found,), _ = checked(following(name, update, call), tmp_path)
    assert found.cause == "target-never-updated" and found.message.startswith(
        f"suspicious: `{name}` has the shapes of `online`"
    )
    assert why in found.message and [site.statement for site in found.sites] == [f"goal = {name}(x)"]


def test_a_method_that_copies_weights_is_not_said_to_be_never_called_since_other_files_may_call_it(tmp_path):
    source = following("target", RIGHT, "pass").replace("def update():", "class Agent:\n  def update(self):")
    (found,), _ = checked(source, tmp_path)
    assert found.message.endswith("No line that runs copies weights to it")


@pytest.mark.parametrize(
    ("name", "update", "call"),
    [
        ("target", RIGHT, "update()"),
        ("teacher", RIGHT, "update()"),
        ("teacher", "pass", "pass"),
        ("teacher", "mine = mine - its; mine.norm()", "update()"),
    ],
)
def test_a_target_that_follows_and_a_teacher_that_stays_are_healthy(name, update, call, tmp_path):
    assert checked(following(name, update, call), tmp_path)[0] == []


def test_a_target_network_that_is_the_online_network_is_told(tmp_path):
    (found,), names = checked(TARGET, tmp_path)
    assert names["target"] is names["online"]
    assert found.cause == "same-module" and [str(name) for name in found.culprits] == ["target", "online"]
    assert [(site.line, site.statement) for site in found.sites] == [(4, "target = online")]
    pasted = found.remedy.split("`")[1]
    reported, names = checked(TARGET.replace("target = online", pasted), tmp_path)
    assert reported == [] and names["target"] is not names["online"]


def test_an_attribute_that_is_the_online_network_is_told(tmp_path):
    source = """
class Agent:
    def __init__(self):
        self.online = nn.Linear(4, 2)
        self.online_target = self.online
        self.optimizer = torch.optim.Adam(self.online.parameters())
    def update(self):
        y = self.online_target(torch.randn(8, 4)).amax(1)
        loss = (self.online(torch.randn(8, 4))[:, 0] - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
Agent().update()
"""
    (found,), _ = checked(source, tmp_path)
    assert [str(name) for name in found.culprits] == ["self.online_target", "self.online"]


def test_a_target_model_that_one_loss_uses_once_is_no_copy(tmp_path):
    once = TARGET.replace("y = torch.rand(8) + 0.99 * target(torch.randn(8, 4)).amax(1)", "y = torch.rand(8)")
    assert checked(once, tmp_path)[0] == []
    called_so = TARGET.replace("online", "first").replace("target", "second")
    assert checked(called_so, tmp_path)[0] == []


class Squeezed(nn.Module):
    """Its hidden values are changed past autograd, or, `instead`, as autograd sees it."""

    def __init__(self, change):
        super().__init__()
        self.first, self.last, self.change = nn.Linear(4, 8), nn.Linear(8, 1), change

    def forward(self, x):
        return self.last(self.change(torch.sigmoid(self.first(x))))


def assigned(h):
    h.data = (h.data * 16).round() / 16
    return h


def clamped(h):
    h.data.clamp_(0.2, 0.8)
    return h


def part_zeroed(h):
    h.data[h < 0.5] = 0
    return h


def column_doubled(h):
    h.data[:, 0].mul_(2)
    return h


def straight_through(h):
    return h + ((h * 16).round() / 16 - h).detach()


def clamped_out_of_place(h):
    return h.clamp(0.2, 0.8)


def copy_changed(h):
    seen = h.data.clone().clamp_(0.2, 0.8)
    seen += h.data * 2
    return h * seen.mean()


def squeezed_by(change):
    def program():
        model = Squeezed(change)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y))
        return model, optimizer

    return program


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (assigned, "write h = (h * 16).round() / 16; if the gradient is to pass"),
        (clamped, "write h = h.clamp(0.2, 0.8); if the gradient is to pass"),
        (part_zeroed, "put `h = h.clone()` on the line before `h[h < 0.5] = 0`"),
        (column_doubled, "put `h = h.clone()` on the line before `h[:, 0].mul_(2)`"),
    ],
)
def test_a_result_that_is_changed_through_data_is_told_once(change, advice):
    told, (found,) = found_in(squeezed_by(change))
    assert told == [("data-edit", ["h"])]
    assert found.message.startswith("suspicious: ") and advice in found.remedy
    assert [site.line for site in found.sites] == [change.__code__.co_firstlineno + 1]


@pytest.mark.parametrize("change", [straight_through, clamped_out_of_place, copy_changed])
def test_what_autograd_sees_and_copies_are_no_edits_through_data(change):
    assert found_in(squeezed_by(change))[0] == []


def weights_kept_small():
    model = nn.Linear(4, 1)
    model.weight.data.uniform_(-0.1, 0.1)
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        model.weight.data.clamp_(-0.5, 0.5)
        model.bias.data = model.bias.data.clamp(-0.5, 0.5)
        averaged.weight.data.mul_(0.9).add_(model.weight.data, alpha=0.1)
    return model, optimizer, averaged


def hidden_state_reset():
    cell, readout = nn.GRUCell(4, 8), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *readout.parameters()], 0.1)
    hidden = torch.zeros(8, 8)
    for _ in range(STEPS):
        x, y = batch()
        hidden = cell(x, hidden)
        optimizer.zero_grad()
        F.mse_loss(readout(hidden), y).backward()
        optimizer.step()
        hidden.data[0] = 0  # an episode is over; what was learnt from is done with
        hidden = hidden.detach()
    return cell, readout, optimizer


@pytest.mark.parametrize("program", [weights_kept_small, hidden_state_reset])
def test_data_of_parameters_and_of_what_no_loss_needs_any_more_is_healthy(program):
    assert found_in(program)[0] == []


def test_a_line_put_in_place_of_an_edit_through_data_mends_the_gradients():
    """The remedy is true: with it the gradient is that of the values, as numbers by hand say."""
    x = torch.tensor([0.1, 0.5, 0.9], requires_grad=True)
    h = x * 1
    before = h.data.clone()
    _, (found,) = found_in(squeezed_by(clamped))
    advice = found.remedy
    space = {"h": h}
    exec(advice.partition("write ")[2].partition(";")[0], space)
    (gradient,) = torch.autograd.grad(space["h"].sum(), x)
    assert torch.equal(gradient, ((before > 0.2) & (before < 0.8)).float())
    space = {"h": x * 1}
    exec(advice.rpartition("write ")[2], space)
    assert torch.equal(space["h"], before.clamp(0.2, 0.8))
    assert torch.equal(torch.autograd.grad(space["h"].sum(), x)[0], torch.ones(3))


@pytest.mark.parametrize("wraps", [False, True])
def test_parts_of_a_librarys_module_that_a_program_leaves_out_are_no_finding(tmp_path, monkeypatch, wraps):
    library = ModuleType("encoders")
    library.__file__ = str(tmp_path / "site-packages" / "encoders.py")
    monkeypatch.setitem(sys.modules, "encoders", library)

    def forward(self, x):
        return self.layer(x)

    encoder = type("Encoder", (nn.Module,), {"forward": forward, "__module__": "encoders"})

    class OfTheProgram(nn.Linear):
        pass

    def program():
        model = encoder()
        model.layer, model.pooler = nn.Linear(4, 1), (OfTheProgram if wraps else nn.Linear)(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trained(optimizer, lambda x, y: F.mse_loss(model(x), y), 2 * STEPS)
        return model, optimizer

    causes = [finding.cause for finding in found_in(program)[1]]
    assert causes == (["never-learns"] if wraps else [])  # what holds a module of the program is a wrapper


@pytest.mark.slow
def test_a_leaf_that_a_library_makes_for_its_checkpoints_is_no_finding():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    convolutions = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
    config = transformers.Wav2Vec2Config(**sizes, **convolutions, **positions, vocab_size=32)

    def program():
        model = transformers.Wav2Vec2ForCTC(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(2 * STEPS):
            optimizer.zero_grad()
            model(input_values=torch.randn(2, 800), labels=torch.randint(1, 30, (2, 4))).loss.backward()
            optimizer.step()
        return model, optimizer

    assert found_in(program)[0] == []


def test_an_optimizer_of_the_model_that_was_copied_says_nothing_of_a_cut_in_the_copying():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def program():
        learner = copy.deepcopy(model)
        trained(optimizer, lambda x, y: F.mse_loss(learner(x), y))
        return learner

    causes, found = found_in(program)
    assert [cause for cause, _ in causes] == ["never-learns"]
    assert "from the parameters of this model" in found[0].remedy
