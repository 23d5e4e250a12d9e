"""Is it told of a program that runs, and trains otherwise than it says: clips too soon, stays in evaluation mode?"""

import pytest
import torch
import torch.nn.functional as F
from checking import findings_of
from torch import nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader, TensorDataset

import byname


def scaled_steps(clip, zeroed=False, scale=2.0**16, enabled=True):
    """Steps with a scaler, in which `clip` may clip and unscale, in its order."""
    model, other = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    other(torch.randn(8, 4)).sum().backward()
    for step in range(5):
        optimizer.zero_grad(set_to_none=not zeroed)
        loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss * (torch.inf if step == 0 and zeroed else 1)).backward()
        clip(scaler, optimizer, model, other)
        scaler.step(optimizer)
        scaler.update()
    return model, other, optimizer


def clip_scaled(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_values_and_unscale(scaler, optimizer, model, other):
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)


@pytest.mark.parametrize("clip", [clip_scaled, clip_values_and_unscale])
@pytest.mark.parametrize("zeroed", [False, True])
def test_gradients_that_are_clipped_before_they_are_unscaled_are_told(clip, zeroed):
    (found,) = findings_of(scaled_steps, clip, zeroed)
    assert found.cause == "scaler-order"
    assert (
        "clips gradients that are still multiplied by the scale, " + ("32768" if zeroed else "65536") in found.message
    )
    assert found.sites[0].line == clip.__code__.co_firstlineno + 1
    assert "`scaler.unscale_(optimizer)` on the line before" in found.remedy


def clip_unscaled(scaler, optimizer, model, other):
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_another_model(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)


def clip_to_the_scale(scaler, optimizer, model, other):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())


def average(scaler, optimizer, model, other):
    for one in model.parameters():
        one.grad.div_(2)


@pytest.mark.parametrize("clip", [clip_unscaled, clip_another_model, clip_to_the_scale, average])
@pytest.mark.parametrize("zeroed", [False, True])
def test_gradients_that_are_unscaled_or_of_another_model_or_only_averaged_are_not_clipped_too_soon(clip, zeroed):
    assert findings_of(scaled_steps, clip, zeroed) == []


@pytest.mark.parametrize("options", [{"scale": 1.0}, {"enabled": False}])
def test_a_scale_of_one_needs_no_unscaling(options):
    assert findings_of(lambda: scaled_steps(clip_scaled, **options)) == []


class Tied(nn.Module):
    """A model of language whose last layer has the weights of the first, by `tie`."""

    def __init__(self, tie):
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(9, 4), nn.LSTM(4, 4), nn.Linear(4, 9, bias=False)
        tie(self)

    def forward(self, x):
        return self.head(self.cell(self.embedding(x))[0])


def language_model(tie):
    model = Tied(tie)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        x = torch.randint(9, (8, 4))
        optimizer.zero_grad()
        F.cross_entropy(model(x[:-1]).flatten(0, 1), x[1:].flatten()).backward()
        optimizer.step()
    return model, optimizer


def tie_the_data(model):
    model.head.weight.data = model.embedding.weight.data


def tie_the_parameter(model):
    model.head.weight = model.embedding.weight


def tie_two_views(model):
    flat = torch.randn(2, 9, 4)
    model.head.weight.data, model.embedding.weight.data = flat[0], flat[1]


def test_parameters_that_share_memory_are_told_and_the_remedy_ties_them():
    (found,) = findings_of(language_model, tie_the_data)
    assert found.cause == "shared-memory"
    assert list(map(str, found.culprits)) == ["model.embedding.weight", "model.head.weight"]
    model = Tied(tie_the_data)
    exec(found.remedy.split("`")[1], {"model": model})
    assert model.head.weight is model.embedding.weight
    assert findings_of(language_model, lambda one: exec(found.remedy.split("`")[1], {"model": one})) == []


@pytest.mark.parametrize("tie", [tie_the_parameter, tie_two_views])
def test_one_parameter_and_parts_of_one_memory_are_healthy(tie):
    assert findings_of(language_model, tie) == []


def test_the_memory_of_another_model_is_none_of_its_own():
    def program():
        model, other = nn.Linear(4, 1), nn.Linear(4, 1)
        other.weight.data = model.weight.data
        optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
        for _ in range(4):
            optimizer.zero_grad()
            (model(torch.randn(8, 4)) * other(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
        return model, other, optimizer

    assert findings_of(program) == []


class Normed(nn.Module):
    def __init__(self, p=0.3, stats=True):
        super().__init__()
        self.body, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=stats)
        self.drop, self.head = nn.Dropout(p), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.body(x)).relu()))


def epochs(before, after, model=None):
    """Five epochs of four steps, with `before` and `after` called on the model around each."""
    model = model or Normed()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(5):
        before(model, epoch)
        for _ in range(4):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        after(model, epoch)
    return model, optimizer


def nothing(model, epoch):
    pass


def evaluate(model, epoch):
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 4))


def train_before_each_evaluation(model, epoch):
    evaluate(model.train(), epoch)


@pytest.mark.parametrize("after", [evaluate, train_before_each_evaluation])
def test_a_model_that_stays_in_evaluation_mode_while_it_learns_is_told(after):
    (found,) = findings_of(epochs, nothing, after)
    assert found.cause == "left-in-evaluation"
    assert found.message.startswith("suspicious: BatchNorm1d and Dropout in the model ran in training mode at first")
    assert "in 16 of the 20 steps of Adam" in found.message and "`model.train()`" in found.remedy
    statements = ["F.mse_loss(model(x), y).backward()", "model.eval()", "optimizer.step()"]
    assert [site.statement for site in found.sites] == statements


def test_a_model_that_an_evaluation_before_the_first_step_leaves_in_its_mode_is_told():
    (found,) = findings_of(epochs, evaluate, nothing)
    assert found.cause == "left-in-evaluation"
    assert found.message.startswith(
        "suspicious: `model` and its `BatchNorm1d` and `Dropout` are in evaluation mode in all 20"
    )
    assert [site.statement for site in found.sites] == ["optimizer.step()", "model.eval()", "model(torch.randn(8, 4))"]
    assert found.remedy.startswith("call model.train() after each evaluation")


def loaded(model):
    model.load_state_dict(Normed().state_dict())
    return model.eval()


def test_a_model_that_is_loaded_in_evaluation_mode_and_trained_so_is_told():
    def program(model=None):
        return epochs(nothing, nothing, model or loaded(Normed()))

    (found,) = findings_of(program)
    assert found.cause == "left-in-evaluation" and not found.certain
    assert [site.statement for site in found.sites] == ["optimizer.step()", "return model.eval()"]
    assert findings_of(lambda: program(loaded(Normed()).train())) == []
    assert findings_of(lambda: epochs(lambda model, _: model.eval(), nothing)) == []


def test_a_mode_that_the_training_loop_chooses_after_an_evaluation_is_healthy():
    def program():
        model = Normed()
        optimizer = torch.optim.Adam(model.parameters())
        evaluate(model, 0)
        for _ in range(20):
            model.eval()
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
            optimizer.step()
        return model, optimizer

    assert findings_of(program) == []


def test_a_layer_that_alone_is_trained_on_a_model_in_evaluation_mode_is_healthy():
    def program():
        model = Normed().requires_grad_(False)
        optimizer = torch.optim.Adam(model.head.requires_grad_(True).parameters())
        evaluate(model, 0)
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1)).backward()
            optimizer.step()
        return model, optimizer

    assert findings_of(program) == []


def train(model, epoch):
    model.train()


def train_with_a_frozen_norm(model, epoch):
    model.train()
    model.norm.eval()


def freeze_the_norm_later(model, epoch):
    if epoch:
        train_with_a_frozen_norm(model, epoch)


def draw_in_evaluation(model, epoch):
    evaluate(model, epoch)
    model.drop.train()


def choose_evaluation(model, epoch):
    model.eval()


def at_the_end(model, epoch):
    if epoch == 3:
        model.eval()


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (train, evaluate, {}),
        (train_with_a_frozen_norm, evaluate, {}),
        (freeze_the_norm_later, nothing, {}),
        (choose_evaluation, nothing, {}),
        (nothing, draw_in_evaluation, {}),
        (nothing, at_the_end, {}),
        (nothing, evaluate, {"p": 0.0, "stats": False}),
    ],
)
def test_a_mode_that_is_meant_or_makes_no_difference_is_healthy(before, after, options):
    assert findings_of(epochs, before, after, Normed(**options)) == []


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, states):
        hidden = self.body(states).tanh()
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)

    @torch.no_grad()
    def act(self, states):
        choices, _ = self(states)
        actions = choices.sample()
        return actions, choices.log_prob(actions), (actions == 0).float()


def updates(loss_of):
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(5):
        states = torch.randn(16, 4)
        optimizer.zero_grad()
        loss_of(policy, states, *policy.act(states))
        optimizer.step()
    return policy, optimizer


def constant_policy_term(policy, states, actions, log_probs, rewards):
    choices, values = policy(states)
    advantage = (rewards - values).detach()
    policy_loss = -(log_probs * advantage).mean()
    loss = policy_loss + 0.5 * (rewards - values).square().mean() - 0.01 * choices.entropy().mean()
    loss.backward()


def constant_term_written_out(policy, states, actions, recorded, rewards):
    with torch.no_grad():
        chosen = policy(states)[0].logits.log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
    choices, values = policy(states)
    ((rewards - values).square().mean() - 0.01 * choices.entropy().mean() - (chosen * rewards).mean()).backward()


@pytest.mark.parametrize(
    ("loss_of", "term", "path", "line"),
    [
        (constant_policy_term, "policy_loss", "log_probs", "policy_loss = -(log_probs * advantage).mean()"),
        (constant_term_written_out, "(chosen * rewards).mean()", "chosen", "chosen = policy(states)[0]"),
    ],
)
def test_log_probabilities_without_a_graph_that_are_a_term_of_a_loss_are_told(loss_of, term, path, line):
    (found,) = findings_of(updates, loss_of)
    assert found.cause == "constant-term" and list(map(str, found.culprits)) == [path]
    assert found.message.startswith(f"suspicious: `{term}` is a term of the loss without a graph: `{path}`")
    assert found.sites[0].statement.startswith(line) and "again" in found.remedy


def physics_informed(create_graph):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        x = torch.rand(4, 1, requires_grad=True)
        slope = torch.autograd.grad(net(x).exp().sum(), x, create_graph=create_graph)[0]
        residual = (slope + x.detach()).square().mean()
        loss = (net(torch.rand(4, 1)) - 1).square().mean() + 0.1 * residual
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net, optimizer


def test_a_term_made_of_derivatives_without_a_graph_is_told():
    (found,) = findings_of(physics_informed, False)
    assert found.cause == "constant-term" and "`0.1 * residual` is a term of the loss without a graph" in found.message
    assert "`slope`" in found.message and found.remedy == "pass create_graph=True to it"
    assert not findings_of(physics_informed, True)


def critic_loss(critic, real, fake, create_graph):
    return critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake, create_graph)


def gradient_penalty(critic, real, fake, create_graph):
    mixed = torch.lerp(real, fake, torch.rand(4, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=create_graph)
    return (slope.norm(dim=1) - 1).square().mean()


def energy_loss(net, x):
    places = x.clone().requires_grad_()
    slope = torch.autograd.grad((places**2).sum(), places)[0]
    return (net(x) - slope.sum(1, keepdim=True)).square().mean() + 0.1 * net(x).abs().mean() + 1e-3


def losses_of(loss):
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net).backward()
        optimizer.step()
    return net, optimizer


def test_a_penalty_without_a_graph_in_a_function_of_its_own_is_told():
    def penalised(create_graph):
        return losses_of(lambda net: critic_loss(net, torch.randn(4, 2), torch.randn(4, 2), create_graph))

    (found,) = findings_of(penalised, False)
    assert found.cause == "constant-term" and "`10 * gradient_penalty(" in found.message
    assert found.remedy == "pass create_graph=True to it"
    assert not findings_of(penalised, True)
    assert not findings_of(losses_of, lambda net: energy_loss(net, torch.randn(4, 2)))


def present_log_probabilities(policy, states, actions, log_probs, rewards):
    choices, values = policy(states)
    log_probs = choices.log_prob(actions)
    policy_loss = -(log_probs * (rewards - values).detach()).mean()
    loss = policy_loss + 0.5 * (rewards - values).square().mean() - 0.01 * choices.entropy().mean()
    policy_loss, log_probs = policy_loss.detach(), policy.act(states)[1]  # for a report
    loss.backward()


def ratio_of_old_and_new(policy, states, actions, log_probs, rewards):
    choices, values = policy(states)
    ratio = (choices.log_prob(actions) - log_probs).exp()
    advantage = (rewards - values).detach()
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    (policy_loss + 0.5 * (rewards - values).square().mean() - 0.01 * choices.entropy().mean()).backward()


def distillation(policy, states, actions, log_probs, rewards):
    teacher = Policy()
    with torch.no_grad():
        teachers_log_probs = teacher(states)[0].logits
        negative_entropy = (teachers_log_probs.exp() * teachers_log_probs).sum(-1).mean()
    choices, values = policy(states)
    cross_entropy = -(teachers_log_probs.exp() * choices.logits).sum(-1).mean()
    loss = cross_entropy + negative_entropy + (rewards - values).square().mean()
    loss.backward()


def a_temporal_difference(policy, states, actions, log_probs, rewards):
    with torch.no_grad():
        goal = rewards + 0.9 * policy(states.roll(1))[1]
    choices, values = policy(states)
    loss = (goal - values).square().mean() - choices.entropy().mean() + goal.mean()
    loss.backward()


@pytest.mark.parametrize(
    "loss_of", [present_log_probabilities, ratio_of_old_and_new, distillation, a_temporal_difference]
)
def test_log_probabilities_with_a_graph_or_of_another_model_are_healthy(loss_of):
    assert findings_of(updates, loss_of) == []


def from_a_leaf():
    leaf = torch.ones((), requires_grad=True)
    for _ in range(3):
        leaf.backward()
    return leaf


def test_a_backward_from_a_leaf_is_looked_at():
    assert [found.cause for found in findings_of(from_a_leaf)] == ["leaf-loss"]


def load_and_initialise():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model.load_state_dict({key: torch.randn_like(one) for key, one in model.state_dict().items()})
    for one in model.parameters():
        nn.init.normal_(one)
    return few_steps(model, [torch.randn(8, 4) for _ in range(3)])


def one_batch_for_all():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), 8)
    (x,) = next(iter(loader))
    return few_steps(nn.Linear(4, 1), (x for _ in range(3) for _ in loader))


def few_steps(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("program", "cause"), [(one_batch_for_all, "batch-not-used"), (load_and_initialise, "overwritten-after-loading")]
)
def test_a_tracker_of_the_program_hides_nothing(program, cause):
    with byname.track():
        (found,) = findings_of(program)
    assert found.cause == cause
