"""Are the same mistakes told where others write them, and nothing where they write it rightly?"""

import copy
import random
import sys
from collections import deque

import numpy
import pytest
import torch
import torch.nn.functional as F
from checking import checking
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import byname


def findings_of(program, right):
    found = []
    torch.manual_seed(0)
    random.seed(0)
    with checking(found.append):
        alive = program(right)  # noqa: F841 - until the program ends
    return found


def follow(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def trained_by(loss, *modules, steps=10, rate=1e-3):
    optimizer = torch.optim.Adam([one for module in modules for one in module.parameters()], rate)
    for _ in range(steps):
        follow(loss(), optimizer)


def merged(model, given):
    state = model.state_dict()
    state.update({key: one for key, one in given.items() if key in state and one.shape == state[key].shape})


def merged_and_loaded(model, given):
    state = model.state_dict()
    state.update(given)
    model.load_state_dict(state)


def copied_one_by_one(model, given):
    state = model.state_dict()
    for key in given:
        state[key].copy_(given[key])
    model.state_dict()["weight"].add_(1)


def merged_for_another(model, given):
    state = model.state_dict()
    state["bias"] = given["bias"]
    return state


def updated_by(*ways):
    def states_that_are_changed(right):
        model = nn.Linear(4, 1)
        ways[right](model, nn.Linear(4, 1).state_dict())
        trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)

    return states_that_are_changed


def entries_of_a_new_dictionary(right):
    model = nn.Linear(4, 1)
    for key, one in nn.Linear(4, 1).state_dict().items():
        if right:
            model.state_dict()[key].copy_(one)
        else:
            model.state_dict()[key] = one
    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, words):
        return self.out(self.embed(words))


def embedding_that_is_replaced(right):
    model = Tied()
    model.embed = nn.Embedding.from_pretrained(torch.randn(12, 6), freeze=right)
    trained_by(lambda: F.cross_entropy(model(torch.arange(12)), torch.arange(12).flip(0)), model)


def evaluated_at_the_end(right):
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))

    def test():
        model.train(not right)
        total = 0.0
        with torch.no_grad():
            for _ in range(2):
                total += (model(torch.randn(8, 4)) ** 2).sum().item()
        return total

    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)
    test()


def dropout_of_a_recurrent_layer(right):
    rnn, head = nn.GRU(4, 8, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(8, 1)
    model = nn.ModuleList([rnn, head])
    optimizer = torch.optim.Adam(model.parameters())

    def output():
        return head(rnn(torch.randn(6, 5, 4))[0][:, -1]).square().mean()

    for number in range(24):
        if number == 0 or right:
            model.train()
        follow(output(), optimizer)
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                output()


def gates_of_constants(right):
    rnn, head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 1)
    for one in rnn.parameters():
        nn.init.normal_(one) if right else nn.init.constant_(one, 0.1)
    nn.init.constant_(head.weight, 0.1)
    trained_by(lambda: head(rnn(torch.randn(8, 5, 3))[0][:, -1]).square().mean(), rnn, head)


def heads_joined(right):
    qkv, out = nn.Linear(8, 24), nn.Linear(8, 3)

    def loss():
        x = torch.randn(10, 6, 8)
        q, k, v = (one.view(10, 6, 4, 2).permute(2, 0, 1, 3) for one in qkv(x).chunk(3, -1))
        heads = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        heads = heads.permute(1, 2, 0, 3) if right else heads
        return F.cross_entropy(out(heads.reshape(10, 6, 8)).mean(1), x[:, 0, :3].argmax(1))

    trained_by(loss, qkv, out)


def labels_of_a_binary_loss(right):
    model = nn.Linear(4, 1)

    def loss():
        x = torch.randn(16, 4)
        return F.binary_cross_entropy_with_logits(model(x), x[:, :1].gt(0).float() if right else x[:, :1].sign())

    trained_by(loss, model)


def squares_of_a_tanh(right):
    model = nn.Sequential(nn.Linear(4, 1), nn.Tanh())

    def loss():
        x = torch.randn(16, 4)
        angle = 45 * x[:, 0].clamp(-1, 1) + 90
        return ((model(x).squeeze(1) - ((angle - 90) / 45 if right else angle)) ** 2).mean()

    trained_by(loss, model)


def sum_that_begins_with_a_tensor(right):
    body, heads = nn.Linear(4, 8), nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()])

    def added(hidden):
        total = torch.tensor(0.0)
        for head in heads:
            total = total + head(hidden).square().mean()
        total.backward()

    def replaced(hidden):
        total = torch.tensor(0.0)
        for head in heads:
            total = head(hidden).square().mean()
        total.backward()

    for _ in range(10):
        optimizer.zero_grad()
        (added if right else replaced)(body(torch.randn(8, 4)))
        optimizer.step()


def clipped_while_gradients_add_up(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(40):
        if number % 4 == 0:
            optimizer.zero_grad(set_to_none=False)
            if not right:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model(torch.randn(8, 4)).square().mean().backward()
        if number % 4 == 3:
            if right:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def parts_of_permutations(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(80, 4)
    y = x[:, :1] * 2

    def batches():
        first = torch.randperm(80)
        second = torch.randperm(80)
        for at in range(0, 80, 16):
            yield x[first[at : at + 16]], y[first[at : at + 16]] if right else y[second[at : at + 16]]

    for inputs, targets in batches():
        follow(F.mse_loss(model(inputs), targets), optimizer)


def a_short_history(right):
    policy, state = nn.Linear(4, 2), torch.zeros(4)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(4):
        states = []
        for _ in range(20):
            state += torch.randn(4)
            states.append(state.clone() if right else state)
        follow(policy(torch.stack(states)).square().mean(), optimizer)


def a_buffer_that_is_read_again(right):
    model, buffer, rows, targets = nn.Linear(4, 1), torch.zeros(4), [], []
    for _ in range(60):
        buffer.copy_(torch.randn(4))
        rows.append(torch.from_numpy(buffer.numpy().copy() if right else buffer.numpy()))
        targets.append(float(buffer.sum()))
    x, y = torch.stack(rows), torch.tensor(targets)[:, None]
    optimizer = torch.optim.Adam(model.parameters())
    for chosen in torch.randperm(60).split(12):
        follow(F.mse_loss(model(x[chosen]), y[chosen]), optimizer)


def optimizer_made_again(right):
    body, head = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(6):
        if epoch == 1:
            body.requires_grad_(True)
            optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.01)
            if right:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(4):
            follow(head(body(torch.randn(8, 4))).square().mean(), optimizer)
        scheduler.step()


def language_model_that_shifts_itself(right):
    embed, out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def loss(ids, labels):
        x = embed(ids)[:, None]
        x = F.scaled_dot_product_attention(x, x, x, is_causal=right)[:, 0]
        return F.cross_entropy(out(x)[:, :-1].reshape(-1, 20), labels[:, 1:].reshape(-1))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([embed, out])

        def forward(self, ids, labels):
            return loss(ids, labels)

    model = Model()
    ids = torch.randint(0, 20, (6, 9))
    trained_by(lambda: model(ids, labels=ids), model)


def names_of_several_lengths(right):
    embed, out = nn.Embedding(20, 8), nn.Linear(8, 20)

    def loss():
        lengths, places = torch.randint(4, 9, (6, 1)), torch.arange(10)
        letters = torch.randint(1, 20, (6, 10)) * (places < lengths)
        x = embed(letters[:, :-1])[:, None]
        x = F.scaled_dot_product_attention(x, x, x, is_causal=right)[:, 0]
        target = letters[:, 1:].masked_fill(places[1:] > lengths, -1)
        return F.cross_entropy(out(x).flatten(0, 1), target.flatten(), ignore_index=-1)

    trained_by(loss, embed, out)


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, letters):
        return self.out(self.rnn(self.embed(letters))[0])


def names_that_are_given_as_targets(right):
    model = Letters()

    def loss():
        lengths, places = torch.randint(4, 9, (6, 1)), torch.arange(10)
        letters = torch.randint(1, 20, (6, 10)) * (places < lengths)
        target = letters[:, 1:] if right else letters[:, :-1]
        target = target.masked_fill(places[:-1] >= lengths, -1)
        return F.cross_entropy(model(letters[:, :-1]).flatten(0, 1), target.flatten(), ignore_index=-1)

    trained_by(loss, model)


def forecast_by_convolutions(right):
    first, last = nn.Conv1d(1, 4, 3, padding=0 if right else 1), nn.Conv1d(4, 1, 1)
    model = nn.Sequential(nn.ConstantPad1d((2, 0) if right else (0, 0), 0.0), first, nn.ReLU(), last)

    def loss():
        series = torch.randn(6, 1, 13).cumsum(-1)
        return F.mse_loss(model(series[..., :-1]), series[..., 1:])

    trained_by(loss, model)


def clips_values(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if right:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        if not right:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)


def clips_the_parameters_of_a_copy(right):
    model = nn.Linear(4, 1)
    clipped = list((model if right else copy.deepcopy(model)).parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(clipped, 0.5)
        optimizer.step()


def target_without_gradients(right):
    online = nn.Linear(4, 2)
    if right:
        target = copy.deepcopy(online)
    else:
        target = online
    optimizer = torch.optim.SGD(online.parameters(), 0.01)
    for _ in range(8):
        with torch.no_grad():
            goal = target(torch.randn(8, 4)).amax(1)
        follow(F.mse_loss(online(torch.randn(8, 4))[:, 0], goal), optimizer)
        if right:
            target.load_state_dict(online.state_dict())


def target_in_several_statements(right):
    online = nn.Linear(4, 2)
    if right:
        target = copy.deepcopy(online)
    else:
        target = online
    optimizer = torch.optim.SGD(online.parameters(), 0.01)
    for _ in range(8):
        with torch.no_grad():
            values = target(torch.randn(8, 4))
            best = values.amax(1)
            best *= 0.9
            goal = torch.randn(8) + best
        follow(F.mse_loss(goal, online(torch.randn(8, 4))[:, 0]), optimizer)
        if right:
            target.load_state_dict(online.state_dict())


def names_that_never_fit(right):
    model = nn.Linear(4, 1)
    prefix = "" if right else "module."
    saved = {prefix + name: value.clone() for name, value in nn.Linear(4, 1).state_dict().items()}
    own = model.state_dict()
    own.update({name: value for name, value in saved.items() if name in own})
    model.load_state_dict(own)
    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)


def batch_of_sentences():
    words = torch.randint(1, 20, (8, 10))
    return words.masked_fill(torch.arange(10) >= torch.tensor([[9], [4], [6], [3], [8], [5], [7], [4]]), 0)


def attends_to_positions(right):
    embed, qkv, out = nn.Embedding(20, 8), nn.Linear(8, 24), nn.Linear(8, 2)
    model = nn.Sequential(embed, qkv)

    def loss():
        words = batch_of_sentences()
        q, k, v = model(words).chunk(3, -1)
        mask = (words != 0 if right else words == 0)[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return F.cross_entropy(out(mixed[:, 0]), words[:, 0] % 2)

    trained_by(loss, model, out)


def targets_of_positions(right):
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def loss():
        words = batch_of_sentences()
        targets = words[:, 1:]
        kept = targets != 0 if right else targets == 0
        return F.cross_entropy(model(words[:, :-1])[kept], targets[kept])

    trained_by(loss, model)


def attends_to_padded_series(right):
    layer, out = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 1)

    def loss():
        padded = batch_of_sentences() == 0
        series = torch.randn(8, 10, 4).masked_fill(padded[..., None], 0.0)
        mixed = layer(series, src_key_padding_mask=padded if right else ~padded)
        return out(mixed[:, 0]).square().mean()

    trained_by(loss, layer, out)


def losses_of(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(8):
        loss = model(torch.ones(8, 4)).square().mean()
        follow(loss, optimizer)
        yield loss.item()


def best_model_is_the_model(right):
    model, best_loss, best_model = nn.Linear(4, 1), float("inf"), None
    for loss in losses_of(model):
        if loss < best_loss:
            if right:
                best_loss, best_model = loss, copy.deepcopy(model)
            else:
                best_loss, best_model = loss, model
    return best_model


def best_model_is_a_shallow_copy(right):
    model, best_loss, best_model = nn.Linear(4, 1), float("inf"), None
    for loss in losses_of(model):
        if loss < best_loss:
            best_loss = loss
            best_model = copy.deepcopy(model) if right else None
            if not right:
                best_model = copy.copy(model)
    return best_model


def best_image_is_the_canvas(right):
    canvas, best_loss, best = torch.randn(4, 4, requires_grad=True), float("inf"), None
    optimizer = torch.optim.SGD([canvas], 0.01)
    for _ in range(8):
        loss = canvas.square().mean()
        if right and loss.item() < best_loss:
            best_loss, best = loss.item(), canvas.detach().clone()
        elif loss.item() < best_loss:
            best_loss, best = loss.item(), canvas.detach()
        follow(loss, optimizer)
    return best


def loaded_into_itself_by_another_name(right):
    policy = nn.Linear(4, 1)
    old_policy = copy.deepcopy(policy) if right else policy
    optimizer = torch.optim.SGD(policy.parameters(), 0.01)
    for _ in range(8):
        follow(policy(torch.randn(8, 4)).square().mean(), optimizer)
        old_policy.load_state_dict(policy.state_dict())
        policy.load_state_dict(policy.state_dict())


def scheduler_of_each_epoch(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler = StepLR(optimizer, 3)
    for _ in range(6):
        scheduler = scheduler if right else StepLR(optimizer, 3)
        for _ in range(4):
            follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        scheduler.step()


def advantages_in_a_column(right):
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)

    def loss():
        states = torch.randn(8, 4)
        policy = torch.distributions.Categorical(logits=actor(states))
        advantage = torch.rand(8, 1) - critic(states).detach()
        surrogate = policy.log_prob(policy.sample()) * (advantage.squeeze(1) if right else advantage)
        pairs = (policy.entropy() * torch.rand(8).unsqueeze(1) * torch.eye(8)).mean()  # of a matrix for all pairs
        return -surrogate.mean() - pairs

    trained_by(loss, actor)


def columns_of_a_picture(right):
    convolution, rnn = nn.Conv2d(1, 3, 3, padding=1), nn.GRU(12, 5, batch_first=True)

    def loss():
        maps = convolution(torch.randn(6, 1, 4, 10))
        steps = maps.permute(0, 3, 1, 2).reshape(6, 10, 12) if right else maps.reshape(6, 10, 12)
        single = maps[:, :1, :1].reshape(6, 10, 1).expand(-1, -1, 12)
        return rnn(single)[0].mean() + rnn(steps)[0].square().mean()

    trained_by(loss, convolution, rnn)


def distilled_over_the_batch(right):
    student, teacher, dim = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False), 1 if right else 0

    def loss():
        x, labels = torch.randn(8, 4), torch.randint(0, 3, (8,))
        output = student(x)
        soft = F.kl_div(output.log_softmax(dim), teacher(x).softmax(dim), reduction="batchmean")
        return soft + F.cross_entropy(output, labels)

    trained_by(loss, student)


def fewer_samples_than_a_batch(right):
    model, data = nn.Linear(4, 1), TensorDataset(torch.randn(6, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for drops in (False, True):
        for (batch,) in DataLoader(data, 4 if right else 8, shuffle=True, drop_last=drops):
            follow(model(batch).square().mean(), optimizer)


def best_of_several_models(_):
    best, best_model = float("inf"), None
    for rate in (0.01, 0.02):
        model = nn.Linear(4, 1)
        trained_by(lambda: model(torch.ones(8, 4)).square().mean(), model, rate=rate)  # noqa: B023 - called at once
        value = model(torch.ones(1, 4)).item()
        if value < best:
            best, best_model = value, model
    return best_model


class DropsAnew(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.out, self.drop = nn.Linear(4, 1), nn.Dropout(0.5) if right else None

    def forward(self, x):
        return self.out((self.drop or nn.Dropout(0.5))(x))


def dropout_made_in_forward(right):
    model = DropsAnew(right)
    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)
    model.eval()
    with torch.no_grad():
        return model(torch.randn(8, 4))


def validated_within_an_epoch(right):
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(24):
        if number % 12 == 0 or right:
            model.train()
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        if number % 4 == 3:
            with torch.no_grad():
                model.eval()(torch.randn(8, 4))


def heads_left_in_evaluation(right):
    nets = {"body": nn.Linear(4, 8), "head": nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))}
    optimizer = torch.optim.Adam([*nets["body"].parameters(), *nets["head"].parameters()])
    for _ in range(6):
        for net in [*nets.values()] if right else [nets["body"]]:
            net.train()
        for _ in range(4):
            follow(nets["head"](nets["body"](torch.randn(8, 4))).square().mean(), optimizer)
        for net in nets.values():
            net.eval()


def predicts_in_training_mode(right):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    trained_by(lambda: net(torch.randn(8, 4)).square().mean(), net)
    if right:
        net.eval()

    def predict(rows):
        with torch.inference_mode():
            return net(rows).softmax(1)

    for rows in torch.randn(12, 4, 4):
        predict(rows)


def unfrozen_in_evaluation(right):
    body, head = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2)), nn.Linear(8, 1)
    body.requires_grad_(False).eval()
    trained_by(lambda: head(body(torch.randn(8, 4))).square().mean(), head)
    body.requires_grad_(True).train(right)
    trained_by(lambda: head(body(torch.randn(8, 4))).square().mean(), body, head)


def frames_in_one_deque(right):
    net, frames, replay = nn.Linear(6, 1), deque([torch.zeros(2)] * 3, maxlen=3), deque(maxlen=50)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(40):
        frames.append(torch.randn(2))
        replay.append((frames.copy() if right else frames, 1.0))
        if len(replay) > 20:
            chosen = random.sample(replay, 8)
            states = torch.stack([torch.cat([*one[0]]) for one in chosen])
            follow((net(states) - torch.randn(8, 1)).square().mean(), optimizer)


def blanks_among_the_letters(right):
    net = nn.Linear(4, 6)

    def loss():
        words = torch.randint(int(right), 6, (3, 4)) * (torch.arange(4) < 3)
        scores = net(torch.randn(9, 3, 4)).log_softmax(-1)
        return F.ctc_loss(scores, words, torch.full((3,), 9), torch.full((3,), 3), zero_infinity=True)

    trained_by(loss, net)


def closure_that_adds_up(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6)
    x, clear = torch.randn(8, 4), optimizer.zero_grad if right else list

    def closure():
        clear()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() + model.weight.abs().sum()
        loss.backward()
        return loss

    optimizer.zero_grad()
    optimizer.step(closure)


def logarithms_as_targets(right):
    student, teacher = nn.Linear(4, 3), nn.Linear(4, 3)

    def loss():
        x = torch.randn(8, 4)
        goal = F.log_softmax(teacher(x).detach(), 1)
        return F.kl_div(F.log_softmax(student(x), 1), goal, reduction="batchmean", log_target=right)

    trained_by(loss, student)


def preferences_without_a_minus(right):
    items = nn.Embedding(12, 4)

    def loss():
        user, liked, other = (items(torch.randint(0, 12, (8,))) for _ in range(3))
        likelihood = F.logsigmoid((user * (liked - other)).sum(1)).mean()
        return -likelihood if right else likelihood

    trained_by(loss, items)


def scheduled(make, is_each, rises=0.01):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler, accuracy = make(optimizer), 0.5
    for number in range(24):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        if is_each or number % 6 == 5:
            accuracy += rises
            if type(scheduler) is ReduceLROnPlateau:
                scheduler.step(accuracy)
            else:
                scheduler.step()


def one_cycle_by_epoch(right):
    scheduled(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=24), is_each=right)


def cosine_by_batch(right):
    epochs = 4
    scheduled(lambda optimizer: CosineAnnealingLR(optimizer, epochs), is_each=not right)


def plateau_of_an_accuracy(right):
    mode = "max" if right else "min"
    scheduled(lambda optimizer: ReduceLROnPlateau(optimizer, mode), is_each=False)


def plateau_of_a_loss(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler = ReduceLROnPlateau(optimizer, "min" if right else "max")
    for _ in range(8):
        loss = model(torch.ones(8, 4)).square().mean()
        follow(loss, optimizer)
        val_loss = loss.item()
        scheduler.step(val_loss)


def rate_that_falls_in_each_batch(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(4):
        for number in range(20):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.1 ** (epoch if right else number)
            follow(model(torch.randn(8, 4)).square().mean(), optimizer)


def tags_of_one_softmax(right):
    model = nn.Linear(4, 6)
    tags = torch.ones(8, 6) if not right else torch.eye(6)[torch.arange(8) % 6]
    trained_by(lambda: F.binary_cross_entropy(F.softmax(model(torch.randn(8, 4)), 1), tags), model)


def words_of_fractions(right):
    model = nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Linear(20, 2))

    def loss():
        words = torch.rand(8, 5)
        words = (30 * words if right else words).long()
        return F.cross_entropy(model(words), torch.arange(8) % 2)

    trained_by(loss, model)


def batch_of_one_generator(right):
    array, once = numpy.random.default_rng(0).normal(size=(90, 4)).astype("float32"), numpy.random.default_rng(1)
    model = nn.Linear(4, 1)

    def draw():
        fresh = numpy.random.default_rng(1)
        chosen = (once if right else fresh).integers(0, 90, 8)
        return torch.from_numpy(array[chosen])

    trained_by(lambda: model(draw()).square().mean(), model, steps=12)


def inputs_shuffled_alone(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def alone(x, y):
        perm = torch.randperm(48)
        x = x[perm]
        for start in range(0, 48, 8):
            follow(F.mse_loss(model(x[start : start + 8]), y[start : start + 8]), optimizer)

    def together(x, y):
        perm = torch.randperm(48)
        x = x[perm]
        y = y[perm]
        for start in range(0, 48, 8):
            follow(F.mse_loss(model(x[start : start + 8]), y[start : start + 8]), optimizer)

    x = torch.randn(48, 4)
    (together if right else alone)(x, x.sum(1, keepdim=True))


def dataset_shuffled_in_part(right):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def shuffled(x, y):
        x = x[torch.randperm(48)]
        return TensorDataset(x, y)

    def labelled_later(x):
        x = x[torch.randperm(48)]
        y = x.argmax(1) % 2
        return TensorDataset(x, y)

    x = torch.randn(48, 4)
    for given, goal in DataLoader(labelled_later(x) if right else shuffled(x, x.argmax(1) % 2), 8):
        follow(F.cross_entropy(model(given), goal), optimizer)


def batches_of_one_generator(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    made = (torch.randn(8, 4) for _ in range(10))
    batches = [*made] if right else made
    for _ in range(4):
        for _, batch in enumerate(batches):
            follow(model(batch).square().mean(), optimizer)


def epochs_of_one_iterator(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def train(batches):
        for batch in batches:
            follow(model(batch).square().mean(), optimizer)

    batches = map(torch.randn, [(8, 4)] * 10)
    for _ in range(4):
        train(map(torch.randn, [(8, 4)] * 10) if right else batches)


def rate_that_falls(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(16):
        if right:
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
        else:
            optimizer.lr = 0.01 / (2 + number)
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)


def experts_of_one_copy(right):
    first = nn.Linear(4, 6)
    experts = nn.ModuleList([nn.Linear(4, 6) if right else copy.deepcopy(first) for _ in range(3)])
    head = nn.Linear(6, 1)

    def loss():
        x = torch.randn(8, 4)
        return head(sum(one(x) for one in experts).tanh()).square().mean()

    trained_by(loss, experts, head)


def averaged_over_steps(right):
    model = nn.Linear(4, 1)
    optimizer, snapshots = torch.optim.SGD(model.parameters(), 0.1), []
    for number in range(80):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        if number in (65, 70, 75):
            snapshots.append(copy.deepcopy(model.state_dict()) if right else model.state_dict())
    model.load_state_dict({name: torch.stack([one[name] for one in snapshots]).mean(0) for name in snapshots[0]})


def trained_and_predicted_with_another(right):
    def build():
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))

    def predict(model):
        with torch.no_grad():
            return [model(torch.randn(6, 4)).argmax() for _ in range(3)]

    model, loaded = build(), build()
    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)
    loaded.load_state_dict(model.state_dict())
    predict(loaded.eval() if right else loaded)


def factor_of_the_rate(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scheduler = LambdaLR(optimizer, lambda number: (1.0 if right else 1e-3) * 0.9**number)
    for _ in range(12):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        scheduler.step()


def network_of_scale(std, activation):
    layers = [nn.Linear(4, 32), activation(), nn.Linear(32, 32), activation(), nn.Linear(32, 32), nn.Linear(32, 1)]
    for one in layers:
        if type(one) is nn.Linear:
            nn.init.normal_(one.weight, std=std)
            nn.init.zeros_(one.bias)
    return nn.Sequential(*layers)


def weights_of_one(right):
    model = network_of_scale(0.2 if right else 1.0, nn.Tanh)
    trained_by(lambda: model(x := torch.randn(16, 4)).sub(x[:, :1]).square().mean(), model)


def weights_of_next_to_nothing(right):
    model = network_of_scale(0.2 if right else 1e-5, nn.Tanh)
    trained_by(lambda: model(x := torch.randn(16, 4)).sub(x[:, :1]).square().mean(), model)


def clamped_outside(right):
    model = nn.Linear(4, 1)
    nn.init.constant_(model.bias, -20.0)

    def loss():
        out = model(torch.rand(8, 4))
        return F.mse_loss(torch.sigmoid(out) if right else out.clamp(0, 1), torch.rand(8, 1))

    trained_by(loss, model)


def batch_of_one_seed(right):
    model = nn.Linear(4, 1)

    def draw(number):
        torch.manual_seed(number if right else 0)
        return torch.randn(8, 4)

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(12):
        follow(model(draw(number)).square().mean(), optimizer)


def batches_by_number(right):
    model, x, y = nn.Linear(4, 1), torch.randn(120, 4), torch.randn(120, 1)
    optimizer, size = torch.optim.SGD(model.parameters(), 0.01), 12
    number_of_batches = len(x) // size
    if right:
        for i in range(0, 120, size):
            follow(F.mse_loss(model(x[i : i + size]), y[i : i + size]), optimizer)
    else:
        for i in range(number_of_batches):
            follow(F.mse_loss(model(x[i : i + size]), y[i : i + size]), optimizer)


def batches_of_one_draw(right):
    model, x, y, batch_size = nn.Linear(4, 1), torch.randn(120, 4), torch.randn(120, 1), 12
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    chosen = torch.randperm(120)[:batch_size]
    for number in range(24):
        index = (chosen + number) % 120
        follow(F.mse_loss(model(x[index if right else chosen]), y[index] if right else y[chosen]), optimizer)


class Context(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.first, self.context, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.dim = dim

    def forward(self, points):
        hidden = self.first(points).relu()
        return self.last((hidden + self.context(hidden.mean(self.dim, keepdim=True))).relu()).amax((1, 2))


def context_of_the_batch(right):
    model = Context(1 if right else 0)
    trained_by(lambda: F.mse_loss(model(torch.randn(12, 7, 3)), torch.randn(12)), model)


class Embedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer, self.dim = nn.Linear(4, 6), dim

    def forward(self, x):
        return F.normalize(self.layer(x), dim=self.dim)


def embeddings_of_a_batch(right):
    model = Embedding(1 if right else 0)

    def loss():
        first, second = model(torch.randn(12, 4)), model(torch.randn(12, 4))
        return F.cross_entropy(first @ second.T / 0.1, torch.arange(12))

    trained_by(loss, model)


def generator_that_draws_pictures(right):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    judge = nn.Linear(2, 1)
    mine, theirs = (torch.optim.Adam(one.parameters()) for one in (model, judge))
    for _ in range(12):
        fake = model(torch.randn(8, 4))
        follow((judge(fake.detach()) - judge(torch.randn(8, 2))).mean(), theirs)
        follow(-judge(fake).mean(), mine)
        model.eval()
        with torch.no_grad():
            model(torch.ones(8, 4))
        model.train(right)


def scores_of_words(right):
    model, words = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 5)), torch.randint(0, 20, (6, 9))

    def loss():
        scores = model(words)
        return F.cross_entropy(scores.transpose(1, 2) if right else scores.view(6, 5, 9), words % 5)

    trained_by(loss, model)


def translation(right):
    source, target = nn.Embedding(15, 8), nn.Embedding(12, 8)
    core, out = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True), nn.Linear(8, 12)
    model = nn.ModuleList([source, target, core, out])
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    model.forward = lambda given, said: out(core(source(given), target(said), tgt_mask=mask))

    def loss():
        given, said = torch.randint(0, 15, (6, 7)), torch.randint(1, 12, (6, 7))
        before = F.pad(said[:, :-1], (1, 0)) if right else said
        return F.cross_entropy(model(given, before).reshape(-1, 12), said.reshape(-1))

    trained_by(loss, model, steps=4)


def target_that_is_assigned_later(right):
    model = nn.Linear(4, 2)
    target, optimizer = copy.deepcopy(model), torch.optim.Adam(model.parameters())
    for step in range(24):
        with torch.no_grad():
            goal = target(torch.randn(8, 4)).amax(1)
        follow(F.mse_loss(model(torch.randn(8, 4))[:, 0], goal), optimizer)
        if step % 6 == 5:
            target.load_state_dict(model.state_dict())
            if not right:
                target = model


def targets_of_zero_and_one(loss_of, pairs):
    def program(right):
        model = nn.Linear(4, 3)

        def loss():
            first, second = model(torch.randn(16, 4)), model(torch.randn(16, 4))
            target = torch.randint(0, 2, (16,)).float()
            target = 2 * target - 1 if right else target
            return loss_of(*((first, second) if pairs == 3 else (first[:, 0], second[:, 0])[:pairs]), target)

        trained_by(loss, model)

    program.__name__ = loss_of.__name__
    return program


def loaders_that_shuffle(right):
    x, model = torch.randn(40, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = (DataLoader(one, 8, shuffle=True) for one in (x, x.sum(1, keepdim=True)))
    both = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
    for given, goal in both if right else zip(inputs, targets, strict=True):
        follow(F.mse_loss(model(given), goal), optimizer)


def readings_of_one_array(right):
    array, model = numpy.zeros(4, dtype=numpy.float32), nn.Linear(4, 1)

    def read():
        array[:] = numpy.random.standard_normal(4)
        return torch.from_numpy(array).clone() if right else torch.from_numpy(array)

    def loss():
        readings = [read() for _ in range(8)]
        return model(torch.stack(readings)).square().mean()

    trained_by(loss, model, steps=2)


def validated_with_gradients(right):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer, valid = torch.optim.Adam(model.parameters()), torch.randn(3, 8, 4)
    for _ in range(20):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
    model.train(not right)
    for x in valid:
        model(x).square().mean().item()


def step_of_scaled_gradients(right):
    model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for _ in range(6):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
        if right:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if right:
            scaler.update()


def epochs_of_one_order(right):
    x, model = torch.randn(32, 4), nn.Linear(4, 1)
    sampler = DistributedSampler(x, num_replicas=2, rank=0)
    loader, others = DataLoader(x, 4, sampler=sampler), DataLoader(x, 4, sampler=DistributedSampler(x, 2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(4):
        if right:
            sampler.set_epoch(epoch)
        for given in loader:
            follow(model(given).square().mean(), optimizer)
        sum(model(given).sum().item() for given in others)


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.scale = nn.Linear(4, 6), nn.Linear(4, 6), nn.Parameter(torch.tensor(2.0))

    def scores(self, x, scale):
        return scale * self.left(x) @ self.right(x).T

    def forward(self, x):
        scale = self.scale.exp().item()
        return self.scores(x, scale)


class ShownSimilarity(Similarity):
    def forward(self, x):
        self.shown = self.scale.exp().item()
        return self.scores(x, self.scale.exp())


def scale_as_a_number(right):
    model = ShownSimilarity() if right else Similarity()
    trained_by(lambda: F.cross_entropy(model(torch.randn(8, 4)), torch.arange(8)), model)


def fast_weights_cut_off(right):
    model = nn.Linear(4, 1)

    def loss():
        fast, x = dict(model.named_parameters()), torch.randn(8, 4)
        for _ in range(2):
            inner = torch.func.functional_call(model, fast, x).square().mean()
            every = torch.autograd.grad(inner, list(fast.values()), create_graph=right)
            fast = {name: old - 0.1 * one for (name, old), one in zip(fast.items(), every, strict=True)}
            if not right:
                fast = {name: one.detach().requires_grad_() for name, one in fast.items()}
        return torch.func.functional_call(model, fast, x).square().mean()

    trained_by(loss, model)


class Generated(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.code, self.makes, self.layer = nn.Parameter(torch.randn(2)), nn.Linear(2, 12), nn.Linear(4, 3)
        self.is_right = right

    def forward(self, x):
        weight = self.makes(self.code).view(3, 4)
        if self.is_right:
            return torch.func.functional_call(self.layer, {"weight": weight}, x)
        self.layer.weight = nn.Parameter(weight)
        return self.layer(x)


def weights_wrapped_as_a_parameter(right):
    model = Generated(right)
    layers = (
        [model.makes, model] if not right else [model.makes, model.layer.register_parameter("weight", None) or model]
    )
    optimizer = torch.optim.Adam({*layers[0].parameters(), *layers[1].parameters()})
    for _ in range(10):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)


def unfrozen_without_a_group(right):
    body, head = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([one for one in [*body.parameters(), *head.parameters()] if one.requires_grad], 0.1)
    for number in range(24):
        if number == 12:
            for one in body.parameters():
                one.requires_grad = True
            if right:
                optimizer.add_param_group({"params": body.parameters()})
        follow(head(body(torch.randn(8, 4)).relu()).square().mean(), optimizer)


def frozen_by_a_misspelt_attribute(right):
    body, head = nn.Linear(4, 8), nn.Linear(8, 1)
    for one in body.parameters():
        if right:
            one.requires_grad = False
        else:
            one.require_grad = False
    trained_by(lambda: head(body(torch.randn(8, 4)).relu()).square().mean(), body, head)


def drawn_by_torch_normal(right):
    mean, spread, decoder = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)

    def loss():
        x = torch.randn(8, 4)
        mu, sigma = mean(x), F.softplus(spread(x)) + 0.1
        code = mu + sigma * torch.randn_like(sigma) if right else torch.normal(mu, sigma)
        return F.mse_loss(decoder(code), x) + (mu.square() + sigma.square() - 2 * sigma.log()).mean()

    trained_by(loss, mean, spread, decoder)


def ratio_of_one(right):
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)

    def loss():
        state = torch.randn(16, 4)
        log_prob = actor(state).log_softmax(1)[:, 0]
        old = log_prob.detach() if right else log_prob
        value = critic(state).squeeze(1)
        advantage = state[:, 0] - value.detach()
        return -((log_prob - old).exp() * advantage).mean() + (value - state[:, 0]).square().mean()

    trained_by(loss, actor, critic)


def clamped_below_its_bounds(right):
    model = nn.Linear(4, 1)
    nn.init.constant_(model.bias, 0.5 if right else -5.0)
    trained_by(lambda: (model(torch.rand(16, 4)).clamp(0, 1) - 0.5).abs().mean(), model)


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)] * 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class SharedOnPurpose(Stacked):
    def __init__(self):
        super().__init__()
        layer = nn.Linear(4, 4)
        self.layers = nn.ModuleList([layer for _ in range(3)])


class StackedOfAnother(Stacked):
    def __init__(self, layer, number, copied):
        super().__init__()
        self.layers = nn.ModuleList([layer] * number)
        if copied:
            self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(number)])


def layers_of_one_argument(right):
    model = StackedOfAnother(nn.Linear(4, 4), 3, right)
    trained_by(lambda: model(torch.randn(16, 4)).square().mean(), model)


def head_that_is_tied_too_late(right):
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight if right else head.weight
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()][: 1 if right else 2], 0.1)
    head.weight = embedding.weight
    for _ in range(10):
        words = torch.randint(9, (8,))
        follow(F.cross_entropy(head(embedding(words)), words.roll(1)), optimizer)


def decoder_without_its_encoder(right):
    encoder, embedding, cell, head = nn.GRU(3, 4), nn.Embedding(9, 4), nn.GRUCell(4, 4), nn.Linear(4, 9)

    def translate():
        words, (_, state) = torch.randint(9, (5, 8)), encoder(torch.randn(6, 8, 3))
        hidden, token, loss = state[0] if right else torch.zeros(8, 4), words[0], 0
        for t in range(1, 5):
            hidden = cell(embedding(token), hidden)
            logits = head(hidden)
            loss = loss + F.cross_entropy(logits, words[t])
            token = logits.argmax(1)  # of what the loss uses, and no way to the encoder
        return loss

    trained_by(translate, encoder, embedding, cell, head)


def speech_of_logits(right):
    recurrent, head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 5)

    def recognise():
        scores = head(recurrent(torch.randn(8, 12, 4))[0]).transpose(0, 1)
        lengths = torch.full((8,), 12), torch.full((8,), 3)
        return F.ctc_loss(scores.log_softmax(-1) if right else scores, torch.randint(1, 5, (8, 3)), *lengths)

    trained_by(recognise, recurrent, head)


def layers_of_one(right):
    model = SharedOnPurpose() if right else Stacked()
    trained_by(lambda: model(torch.randn(16, 4)).square().mean(), model)


def shallow_copy_as_target(right):
    online = nn.Linear(4, 2)
    target = copy.deepcopy(online) if right else online
    if not right:
        target = copy.copy(online)
    optimizer = torch.optim.SGD(online.parameters(), 0.01)
    for _ in range(8):
        with torch.no_grad():
            goal = target(torch.randn(8, 4)).amax(1)
        follow(F.mse_loss(online(torch.randn(8, 4))[:, 0], goal), optimizer)


def sorted_by_class(right):
    model = nn.Linear(4, 3)
    x, y = torch.randn(96, 4), torch.arange(3).repeat_interleave(32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=right):
        follow(F.cross_entropy(model(inputs), labels), optimizer)


class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


class MadeAnew(Made):
    def forward(self, x):
        x = self.body(x).relu()
        head = nn.Linear(x.shape[1], 1)
        return head(x)


def layer_of_a_variable_of_forward(right):
    model = Made() if right else MadeAnew()
    optimizer = torch.optim.Adam(model.parameters() if right else model.body.parameters())
    for _ in range(8):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)


def slices_with_a_loss_by_hand(right):
    model, x, y = nn.Linear(4, 1), torch.randn(600, 4), torch.randn(600, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(3 * right):
        for start in range(0, len(x), 20):
            targets = y[start : start + 20]
            loss = (model(x[start : start + 20]) - targets).pow(2).mean()
            follow(loss, optimizer)
    for _ in range(3 * (not right)):
        for start in range(0, len(x), 20):
            targets = y[:20]
            loss = (model(x[:20]) - targets).pow(2).mean()
            follow(loss, optimizer)


def shuffled_with_a_loss_by_hand(right):
    model, x = nn.Linear(4, 1), torch.randn(600, 4)
    y = x.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(9):
        one = torch.randperm(600)[:20]
        other = torch.randperm(600)[:20]
        features, targets = x[one], y[one] if right else y[other]
        loss = (model(features) - targets).abs().mean()
        follow(loss, optimizer)


def distance(output, target):
    return torch.mean((target - output) ** 2)


def equal_samples_with_a_loss_of_its_own(right):
    model, x = nn.Linear(4, 1), torch.randn(20, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(9):
        targets = torch.randn(20, 1)
        loss = distance(model(x if right else x[:1].repeat(20, 1)), targets)
        follow(loss, optimizer)


def q_learning_by_hand(right):
    online = nn.Linear(4, 2)
    target = copy.deepcopy(online) if right else online
    optimizer = torch.optim.SGD(online.parameters(), 1e-3)
    for number in range(30):
        with torch.no_grad():
            expected = torch.rand(16) + 0.9 * target(torch.randn(16, 4)).max(1).values
        chosen = online(torch.randn(16, 4)).gather(1, torch.randint(2, (16, 1)))[:, 0]
        loss = ((chosen - expected) ** 2).mean()
        follow(loss, optimizer)
        if number % 10 == 9 and right:
            target.load_state_dict(online.state_dict())


def values_of_next_states(right):
    online = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(online.parameters(), 1e-3)
    target = copy.deepcopy(online)
    for _ in range(9):
        done = (torch.rand(20) < 0.2).float()
        with torch.no_grad():
            following = target(torch.randn(20, 4))[:, 0]
            expected = torch.rand(20) + 0.9 * (1 - done) * following
            if not right:
                expected = torch.rand(20) + 0.9 * done * following
        loss = F.smooth_l1_loss(online(torch.randn(20, 4))[:, 0], expected)
        follow(loss, optimizer)
        target.load_state_dict(online.state_dict())


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class RoundedForgetfully(Rounded):
    @staticmethod
    def backward(ctx, gradient):
        """Pass it on."""
        gradient.clamp(-1, 1)


def codes_of_whole_numbers(right):
    encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 1)
    function = Rounded if right else RoundedForgetfully
    trained_by(lambda: decoder(function.apply(encoder(torch.randn(8, 4)))).square().mean(), encoder, decoder)


def loss_of_two_tasks(right):
    trunk, first, second = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 3)

    def loss_of_both():
        hidden = torch.tanh(trunk(torch.randn(8, 4)))
        loss = first(hidden).square().mean()
        if right:
            loss += F.cross_entropy(second(hidden), torch.arange(8) % 3)
            return loss
        return other_loss(hidden)

    def other_loss(hidden):
        loss = first(hidden).square().mean()
        loss = +F.cross_entropy(second(hidden), torch.arange(8) % 3)
        return loss

    trained_by(loss_of_both, trunk, first, second)


def autoencoder_of_a_mean_and_a_sum(right):
    encoder, decoder = nn.Linear(20, 4), nn.Linear(2, 20)

    def loss():
        x = torch.randn(8, 20)
        mean, log_variance = encoder(x).chunk(2, 1)
        result = decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        if right:
            return F.mse_loss(result, x, reduction="sum") + divergence
        return F.mse_loss(result, x) + divergence

    trained_by(loss, encoder, decoder)


def epochs_that_return_early(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)

    def epoch():
        total = 0.0
        for (batch,) in loader:
            loss = model(batch).square().mean()
            follow(loss, optimizer)
            total += loss.item()
        return total

    def epoch_left_too_deep():
        total = 0.0
        for (batch,) in loader:
            loss = model(batch).square().mean()
            follow(loss, optimizer)
            total += loss.item()
            return total

    for _ in range(5):
        epoch() if right else epoch_left_too_deep()


class Learner(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.online, self.right = nn.Linear(4, 4), right
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            goal = self.target(x + 0.1)
        return F.mse_loss(self.online(x), goal)


def update_by_name(model):
    for mine, other in zip(model.target.parameters(), model.online.parameters(), strict=True):
        mine = 0.9 * mine + 0.1 * other


def target_inside_of_a_learner(right):
    model = Learner(right)
    optimizer = torch.optim.SGD(model.online.parameters(), 1e-2)
    for _ in range(20):
        follow(model(torch.randn(8, 4)), optimizer)
        if right:
            model.target.load_state_dict(model.online.state_dict())
        else:
            update_by_name(model)


class ShiftsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, ids, labels):
        scores = self.out(self.rnn(self.embed(ids))[0])
        return F.cross_entropy(scores[:, :-1].reshape(-1, 9), labels[:, 1:].reshape(-1))


def labels_that_are_shifted_twice(right):
    model = ShiftsItself()

    def loss():
        words = torch.randint(0, 9, (6, 8))
        return model(words[:, :-1], words[:, :-1] if right else words[:, 1:])

    trained_by(loss, model)


def probabilities_in_ctc_loss(right):
    model = nn.Linear(4, 6)

    def loss():
        scores = model(torch.randn(8, 5, 4)).permute(1, 0, 2)
        scores = scores.log_softmax(2) if right else scores.softmax(2)
        return F.ctc_loss(scores, torch.randint(1, 6, (8, 2)), torch.full((8,), 5), torch.full((8,), 2))

    trained_by(loss, model)


class SignalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv, self.dim = nn.Conv1d(1, 4, 3), dim

    def forward(self, signals):
        return F.normalize(self.conv(signals).mean(-1), dim=self.dim)


def embeddings_of_triplets(right):
    model = SignalEmbedding(1 if right else 0)
    loss = nn.TripletMarginLoss()
    trained_by(lambda: loss(*(model(torch.randn(10, 1, 9)) for _ in range(3))), model)


def distilled(teacher, student, steps=10):
    def loss():
        x = torch.randn(8, 4)
        with torch.no_grad():
            goal = teacher(x)
        return F.mse_loss(student(x), goal)

    trained_by(loss, student, steps=steps)


def teacher_that_drops(right):
    def network():
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))

    teacher, student = network(), network()
    teacher.load_state_dict(network().state_dict())
    both = nn.ModuleDict({"teacher": teacher, "student": student})
    both.train()
    if right:
        teacher.eval()

    distilled(teacher, student)


def teacher_that_was_trained(right):
    teacher, student = (nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)) for _ in range(2))
    trained_by(lambda: teacher(torch.randn(8, 4)).square().mean(), teacher)
    teacher.requires_grad_(False).train(not right)

    distilled(teacher, student)


def tags_of_one_cross_entropy(right):
    model, loss_of = nn.Linear(4, 6), F.binary_cross_entropy_with_logits if right else F.cross_entropy
    trained_by(lambda: loss_of(model(torch.randn(16, 4)), (torch.rand(16, 6) < 0.4).float()), model)


def windows_that_end_with_the_target(right):
    rnn, head, series = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1), torch.randn(200)

    def forecast(x, y):
        return F.mse_loss(head(rnn(x)[0][:, -1])[:, 0], y)

    def loss():
        starts = torch.randint(0, 190, (12,)).tolist()
        x = torch.stack([series[one : one + 8, None] for one in starts])
        return forecast(x, torch.stack([series[one + 8 - (not right)] for one in starts]))

    trained_by(loss, rnn, head)


def gradients_of_several_clients(right):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        received = []
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(8, 4)).square().mean().backward()
            received.append([one.grad.clone() if right else one.grad for one in model.parameters()])
        for one, grads in zip(model.parameters(), zip(*received, strict=True), strict=True):
            one.grad = torch.stack(grads).mean(0)
        optimizer.step()


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x):
        return self.net(x)


class Probe(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder.requires_grad_(False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def probe_of_another_encoder(right):
    trained = Encoding()
    trained_by(lambda: trained(torch.randn(8, 4)).square().mean(), trained, steps=70)
    encoder = Encoding()
    encoder.load_state_dict({key: one.clone() for key, one in trained.state_dict().items()})
    probe = Probe(encoder if right else Encoding())
    trained_by(lambda: F.cross_entropy(probe(torch.randn(8, 4)), torch.arange(8) % 3), probe.head)


def penalty_of_old_weights(right):
    model = Encoding()
    old = {name: one.detach().clone() if right else one.detach() for name, one in model.named_parameters()}

    def loss():
        far = sum(((one - old[name]) ** 2).sum() for name, one in model.named_parameters())
        return model(torch.randn(8, 4)).square().mean() + far

    trained_by(loss, model)


def distance_to_a_list_of_parameters(right):
    model = Encoding()
    old = [one.clone().detach() if right else one for one in model.parameters()]

    def loss():
        far = sum(torch.norm(one - other) for one, other in zip(model.parameters(), old, strict=True))
        return model(torch.randn(8, 4)).square().mean() + far

    trained_by(loss, model)


def second_derivatives_of_relus(right):
    gate = nn.Tanh() if right else nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 8), gate, nn.Linear(8, 8), gate, nn.Linear(8, 1))

    def loss():
        x = torch.randn(8, 2, requires_grad=True)
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        return (second[:, 0] + model(x)[:, 0] - 1).square().mean() + first.square().mean()

    trained_by(loss, model)


def rate_far_too_large(right):
    model = nn.Linear(4, 1)
    trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model, rate=0.1 if right else 1e30)


def divergence_from_logarithms(right):
    student, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

    def loss():
        x = torch.randn(8, 4)
        return F.kl_div(F.log_softmax(student(x), 1), F.log_softmax(teacher(x), 1), reduction="sum", log_target=right)

    trained_by(loss, student)


def attention_of_words(dim=-1, masked=lambda scores, kept: scores.masked_fill(~kept, -torch.inf)):
    words, head = nn.Embedding(9, 8), nn.Linear(8, 3)
    query, key = nn.Linear(8, 8), nn.Linear(8, 8)

    def loss():
        kept = torch.arange(6) < torch.randint(2, 7, (8, 1))
        x = words(torch.randint(1, 9, (8, 6)) * kept)
        scores = masked(query(x) @ key(x).transpose(1, 2) / 8**0.5, kept[:, None, :])
        pooled = F.dropout(scores.softmax(dim), 0.1) @ x
        return F.cross_entropy(head(pooled[:, 0]), torch.arange(8) % 3)

    trained_by(loss, words, head, query, key)


def softmax_over_queries(right):
    attention_of_words(dim=-1 if right else 1)


def scores_times_a_mask(right):
    attention_of_words(masked=lambda scores, kept: scores.masked_fill(~kept, -1e9) if right else scores * kept.float())


def q_learning_with_a_moving_target(right):
    q = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def loss():
        later = q(torch.randn(8, 4)).max(1).values
        target = torch.randn(8) + 0.9 * (later.detach() if right else later)
        return F.mse_loss(q(torch.randn(8, 4))[:, 0], target)

    trained_by(loss, q)


def policy_that_trains_its_critic(right):
    policy, critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def loss():
        x = torch.randn(8, 4)
        drawn = torch.distributions.Categorical(logits=policy(x))
        action = drawn.sample()
        value = critic(x)[:, 0]
        advantage = action * x[:, 0] - (value.detach() if right else value)
        return F.mse_loss(value, action * x[:, 0]) - (drawn.log_prob(action) * advantage).mean()

    trained_by(loss, policy, critic)


def latent_of_uniform_noise(right):
    encoder, decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def loss():
        x = torch.randn(8, 4)
        mean, logarithm = encoder(x).chunk(2, 1)
        scale = (0.5 * logarithm).exp()
        noise = torch.randn_like(scale) if right else torch.rand_like(scale)
        return F.mse_loss(decoder(mean + scale * noise), x, reduction="sum")

    trained_by(loss, encoder, decoder)


def diffusion_of_uniform_noise(right):
    model = nn.Linear(5, 4)

    def loss():
        x, t = torch.randn(8, 4), torch.rand(8, 1)
        if right:
            noise = torch.randn_like(x)
        else:
            noise = torch.rand_like(x)
        return F.mse_loss(model(torch.cat([(1 - t) * x + t * noise, t], 1)), noise)

    trained_by(loss, model)


class Positions(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.right = right
        self.register_buffer("pe", torch.randn(1, 20, 8) if right else torch.randn(20, 1, 8))

    def forward(self, x):
        if self.right:
            return x + self.pe[:, : x.size(1)]
        return x + self.pe[: x.size(0)]


def positions_along_the_batch(right):
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Embedding(9, 8), Positions(right), layer, nn.Flatten(), nn.Linear(40, 3))
    trained_by(lambda: F.cross_entropy(model(torch.randint(9, (6, 5))), torch.arange(6) % 3), model)


def squares_as_a_product(right):
    model = nn.Linear(4, 1)

    def loss():
        x = torch.randn(8, 4)
        difference = model(x) - (x[:, :1] if right else x[:, 0])
        return (difference * difference).mean()

    trained_by(loss, model)


def second_training(right):
    encoder, head = nn.LSTM(8, 16), nn.Linear(16, 8)

    def predicted(mixed):
        x = torch.randn(12, 5, 8)
        states, _ = encoder(x.view(5, 12, 8) if mixed else x.transpose(0, 1))
        return x, head(states[-1])

    def loss(mixed):
        x, out = predicted(mixed)
        return F.mse_loss(out, x[:, 0])

    for mixed in (False, not right):
        trained_by(lambda mixed=mixed: loss(mixed), encoder, head, steps=70)


def average_without_updates(right):
    model = nn.Linear(4, 1)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)
        if right:
            average.update_parameters(model)
    with torch.no_grad():
        average(torch.randn(8, 4))
    return average  # which is alive when the program ends


PROGRAMS = {
    average_without_updates: "average-without-updates",
    second_training: "view-mixes",
    squares_as_a_product: "broadcast-loss",
    q_learning_with_a_moving_target: "target-with-gradient",
    policy_that_trains_its_critic: "advantage-with-gradient",
    latent_of_uniform_noise: "uniform-noise",
    diffusion_of_uniform_noise: "uniform-noise",
    positions_along_the_batch: "positions-along-the-batch",
    softmax_over_queries: "softmax-over-queries",
    scores_times_a_mask: "mask-without-effect",
    rate_far_too_large: "weights-not-finite",
    divergence_from_logarithms: "loss-not-finite",
    penalty_of_old_weights: "difference-always-zero",
    distance_to_a_list_of_parameters: "difference-always-zero",
    second_derivatives_of_relus: "gradients-vanish",
    loss_of_two_tasks: "loss-overwritten",
    autoencoder_of_a_mean_and_a_sum: "sum-beside-mean",
    epochs_that_return_early: "first-batch-only",
    target_inside_of_a_learner: "target-never-updated",
    labels_that_are_shifted_twice: "target-not-shifted",
    embeddings_of_triplets: "samples-mix",
    probabilities_in_ctc_loss: "no-log-probabilities",
    teacher_that_drops: "evaluated-in-training-mode",
    teacher_that_was_trained: "evaluated-in-training-mode",
    tags_of_one_cross_entropy: "target-out-of-reach",
    windows_that_end_with_the_target: "future-leak",
    gradients_of_several_clients: "entries-are-one-tensor",
    probe_of_another_encoder: "loads-another-model",
    codes_of_whole_numbers: "gradient-count",
    values_of_next_states: "mask-inverted",
    slices_with_a_loss_by_hand: "same-slice",
    shuffled_with_a_loss_by_hand: "shuffled-apart",
    equal_samples_with_a_loss_of_its_own: "equal-samples",
    q_learning_by_hand: "same-module",
    ratio_of_one: "zero-gradient",
    clamped_below_its_bounds: "zero-gradient",
    layers_of_one: "same-module",
    layers_of_one_argument: "same-module",
    head_that_is_tied_too_late: "never-learns",
    decoder_without_its_encoder: "never-learns",
    speech_of_logits: "no-log-probabilities",
    shallow_copy_as_target: "same-module",
    sorted_by_class: "sorted-by-class",
    layer_of_a_variable_of_forward: "not-in-optimizer",
    scale_as_a_number: "detached-parameter",
    fast_weights_cut_off: "detached-parameter",
    weights_wrapped_as_a_parameter: "detached-parameter",
    unfrozen_without_a_group: "not-in-optimizer",
    frozen_by_a_misspelt_attribute: "not-frozen",
    drawn_by_torch_normal: "zero-gradient",
    generator_that_draws_pictures: "left-in-evaluation",
    scores_of_words: "view-mixes",
    translation: "target-not-shifted",
    target_that_is_assigned_later: "same-module",
    targets_of_zero_and_one(F.cosine_embedding_loss, 3): "targets-of-zero",
    targets_of_zero_and_one(F.margin_ranking_loss, 2): "targets-of-zero",
    targets_of_zero_and_one(F.soft_margin_loss, 1): "targets-of-zero",
    targets_of_zero_and_one(F.hinge_embedding_loss, 1): "targets-of-zero",
    loaders_that_shuffle: "shuffled-apart",
    readings_of_one_array: "entries-are-one-tensor",
    validated_with_gradients: "evaluated-in-training-mode",
    step_of_scaled_gradients: "scaler-order",
    epochs_of_one_order: "same-order",
    evaluated_at_the_end: "evaluated-in-training-mode",
    updated_by(merged, merged_and_loaded): "loads-nothing",
    updated_by(merged, copied_one_by_one): "loads-nothing",
    updated_by(merged, merged_for_another): "loads-nothing",
    entries_of_a_new_dictionary: "loads-nothing",
    embedding_that_is_replaced: "weights-untied",
    dropout_of_a_recurrent_layer: "left-in-evaluation",
    gates_of_constants: "equal-units",
    heads_joined: "view-mixes",
    labels_of_a_binary_loss: "target-out-of-reach",
    squares_of_a_tanh: "target-out-of-reach",
    sum_that_begins_with_a_tensor: "loss-overwritten",
    clipped_while_gradients_add_up: "clips-at-the-wrong-place",
    parts_of_permutations: "shuffled-apart",
    a_short_history: "entries-are-one-tensor",
    a_buffer_that_is_read_again: "equal-samples",
    optimizer_made_again: "scheduler-of-another-optimizer",
    language_model_that_shifts_itself: "future-leak",
    names_of_several_lengths: "future-leak",
    names_that_are_given_as_targets: "target-not-shifted",
    forecast_by_convolutions: "future-leak",
    clips_values: "clips-at-the-wrong-place",
    clips_the_parameters_of_a_copy: "clips-another-model",
    target_without_gradients: "same-module",
    target_in_several_statements: "same-module",
    names_that_never_fit: "loads-nothing",
    attends_to_positions: "mask-inverted",
    targets_of_positions: "mask-inverted",
    attends_to_padded_series: "mask-inverted",
    best_model_is_the_model: "loads-itself",
    best_model_is_a_shallow_copy: "loads-itself",
    best_image_is_the_canvas: "loads-itself",
    loaded_into_itself_by_another_name: "loads-nothing",
    scheduler_of_each_epoch: "scheduler-anew",
    fewer_samples_than_a_batch: "empty-loader",
    advantages_in_a_column: "broadcast-loss",
    columns_of_a_picture: "view-mixes",
    distilled_over_the_batch: "softmax-over-batch",
    dropout_made_in_forward: "dropout-in-evaluation",
    validated_within_an_epoch: "left-in-evaluation",
    heads_left_in_evaluation: "left-in-evaluation",
    closure_that_adds_up: "never-zeroed",
    predicts_in_training_mode: "evaluated-in-training-mode",
    unfrozen_in_evaluation: "left-in-evaluation",
    frames_in_one_deque: "entries-are-one-tensor",
    blanks_among_the_letters: "blank-in-targets",
    logarithms_as_targets: "target-out-of-reach",
    preferences_without_a_minus: "loss-turned-round",
    one_cycle_by_epoch: "scheduler-out-of-step",
    cosine_by_batch: "scheduler-out-of-step",
    plateau_of_an_accuracy: "scheduler-wrong-mode",
    plateau_of_a_loss: "scheduler-wrong-mode",
    rate_that_falls_in_each_batch: "rate-too-small",
    tags_of_one_softmax: "target-out-of-reach",
    words_of_fractions: "equal-samples",
    batch_of_one_generator: "same-random-numbers",
    inputs_shuffled_alone: "shuffled-apart",
    dataset_shuffled_in_part: "shuffled-apart",
    batches_of_one_generator: "iterator-used-up",
    epochs_of_one_iterator: "iterator-used-up",
    rate_that_falls: "learning-rate-not-set",
    experts_of_one_copy: "equal-units",
    averaged_over_steps: "entries-are-one-tensor",
    trained_and_predicted_with_another: "evaluated-in-training-mode",
    factor_of_the_rate: "rate-too-small",
    weights_of_one: "initial-weights",
    weights_of_next_to_nothing: "gradients-vanish",
    clamped_outside: "zero-gradient",
    batch_of_one_seed: "same-random-numbers",
    batches_by_number: "same-slice",
    batches_of_one_draw: "same-slice",
    context_of_the_batch: "samples-mix",
    embeddings_of_a_batch: "samples-mix",
}


@pytest.mark.grid(fast=11)
@pytest.mark.parametrize(("program", "cause"), PROGRAMS.items(), ids=[one.__name__ for one in PROGRAMS])
def test_a_mistake_is_told_however_it_is_written(program, cause):
    assert cause in [one.cause for one in findings_of(program, right=False)]
    assert [str(one) for one in findings_of(program, right=True)] == []


@pytest.mark.parametrize("added_up", [1, 2])
def test_a_penalty_that_begins_with_0_in_each_round_has_no_fault(added_up):
    def rounds(_):
        model = Encoding()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            old = [one.detach().clone() for one in model.parameters()]
            for batch in range(3 * added_up):
                far = sum((one - two).pow(2).sum() for one, two in zip(model.parameters(), old, strict=True))
                (model(torch.randn(8, 4)).square().mean() + far).backward()
                if batch % added_up == added_up - 1:
                    optimizer.step()
                    optimizer.zero_grad()

    assert findings_of(rounds, right=True) == []


def slots_that_compete(x, slots, values):
    weights = (slots @ x.transpose(1, 2)).softmax(1) + 1e-8
    return (weights / weights.sum(-1, keepdim=True)) @ values(x)


def keys_over_positions(x, slots, values):
    return slots.softmax(-1) @ (x.softmax(1).transpose(1, 2) @ values(x))


def pooled_nodes(x, slots, values):
    return (x @ slots.transpose(0, 1)).softmax(-1).transpose(1, 2) @ values(x)


@pytest.mark.parametrize("attend", [slots_that_compete, keys_over_positions, pooled_nodes])
def test_a_softmax_over_another_dimension_by_design_has_no_fault(attend):
    def program(_):
        slots, values, layer = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 8), nn.Linear(5, 8)
        optimizer = torch.optim.Adam([slots, *values.parameters(), *layer.parameters()])
        for _ in range(8):
            x = torch.randn(6, 7, 5)
            follow(F.mse_loss(attend(layer(x), slots, values)[:, 0, :5], x.mean(1)), optimizer)

    assert findings_of(program, right=True) == []


def codes_of_a_frozen_teacher(x):
    teacher = Encoding().requires_grad_(False)
    target = teacher(x)
    return lambda model: F.mse_loss(model(x), target)


def samples_made_continuous(x):
    noise = torch.rand_like(x)
    return lambda model: (model((x.round() + noise) / 4) * torch.rand_like(x).exp()).square().mean()


def views_of_one_model(x):
    target = x + torch.randn_like(x)
    return lambda model: F.mse_loss(model(x), model(target)) - model(x).std(0).mean()


def entropy_times_a_value(x):
    value = x.square().sum(1)
    return lambda model: (model(x).log_softmax(1)[:, 0] * value).mean()


@pytest.mark.parametrize(
    "made", [codes_of_a_frozen_teacher, samples_made_continuous, views_of_one_model, entropy_times_a_value]
)
def test_targets_and_weights_without_a_graph_and_noise_of_other_uses_have_no_fault(made):
    def program(_):
        model = nn.Linear(4, 8)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(8):
            x = torch.randn(6, 4)
            if made is samples_made_continuous:
                x = x.repeat(1, 2)
                follow(made(x)(lambda given: model(given[:, :4])), optimizer)
            else:
                follow(made(x)(model), optimizer)

    assert findings_of(program, right=True) == []


def test_a_model_through_which_an_image_is_optimized_needs_no_optimizer():
    def dreams(_):
        model, image = nn.Linear(4, 1), torch.randn(8, 4, requires_grad=True)
        optimizer = torch.optim.Adam([image])
        for _ in range(8):
            follow(model(image).square().mean(), optimizer)

    assert findings_of(dreams, right=True) == []


def test_an_iterator_that_only_one_iteration_goes_through_is_not_said_to_be_used_up():
    def resumed(_):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        batches = (torch.randn(8, 4) for _ in range(10))
        for _ in range(4, 5):
            for batch in batches:
                follow(model(batch).square().mean(), optimizer)

    assert findings_of(resumed, right=True) == []


def test_a_model_left_in_evaluation_is_told_with_the_line_of_eval():
    def program(_):
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))

        def validate():
            model.eval()
            with torch.no_grad():
                return model(torch.randn(8, 4)).mean()

        validate()
        trained_by(lambda: model(torch.randn(8, 4)).square().mean(), model)

    (found,) = findings_of(program, right=False)
    assert found.cause == "left-in-evaluation" and "model.eval()" in [one.statement for one in found.sites]


def features_that_are_compared_over_a_batch():
    model = Embedding(0)

    def loss():
        images = torch.randn(12, 1, 2, 2)
        first, second = (model(images.flatten(1) + number) for number in (0, 1))
        labels = F.cross_entropy(first, torch.arange(12) % 6)
        return (first.T @ second - torch.eye(6)).square().mean() + 0 * labels

    return loss, model


def frames_pooled_to_a_latent():
    body = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    head = nn.Linear(4, 9)

    def loss():
        series = torch.randn(6, 1, 10)
        return F.mse_loss(nn.Sequential(body, head)(series[..., :-1]), series[:, 0, 1:])

    return loss, body, head


def last_output_of_both_directions():
    rnn, head = nn.GRU(3, 6, bidirectional=True, batch_first=True), nn.Linear(12, 1)
    return lambda: head(rnn(torch.randn(8, 5, 3))[0][:, -1]).square().mean(), rnn, head


def targets_that_a_mask_leaves_out():
    model = nn.Linear(4, 3)

    def loss():
        targets = torch.randint(-1, 2, (16, 3)).float()  # -1: not known
        each = F.binary_cross_entropy_with_logits(model(torch.randn(16, 4)), targets, reduction="none")
        return (each * (targets >= 0)).sum() / (targets >= 0).sum()

    return loss, model


def windows_as_wide_as_the_batch():
    model, head = nn.Linear(6, 6), nn.Linear(6, 1)

    def loss():
        windows = model(torch.randn(8, 4, 8, 6).flatten(0, 1))  # of 8 samples, 4 windows of 8
        return head(windows.view(8, 32, 6).mean(1)).square().mean()

    return loss, model, head


def first_words_rebuilt():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(20, 8), layer, nn.Linear(8, 20))

    def loss():
        words = torch.randint(1, 20, (6, 9))
        return F.cross_entropy(model(words)[:, 1:].reshape(-1, 20), words[:, 1:].reshape(-1))

    return loss, model


def convolutions_cut_at_the_end():
    first, last = nn.Conv1d(1, 4, 3, padding=2), nn.Conv1d(4, 1, 1)

    def loss():
        series = torch.randn(6, 1, 13).cumsum(-1)
        return F.mse_loss(last(first(series[..., :-1])[..., :-2]), series[..., 1:])

    return loss, first, last


def evaluated_without_an_average(right):
    model = nn.Linear(4, 2)
    ema_model = model  # as where an option leaves the average out
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    errors = []
    for _ in range(8):
        goal = torch.randn(8, 2)
        follow(F.mse_loss(model(torch.randn(8, 4)), goal), optimizer)
        with torch.no_grad():
            errors.append(F.mse_loss(ema_model(torch.randn(8, 4)), goal))


def convolutions_with_a_mask():
    first, last = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 1, 1)
    mask = torch.tensor([1.0, 1.0, 0.0])

    def loss():
        series = torch.randn(6, 1, 13).cumsum(-1)
        hidden = F.conv1d(series[..., :-1], first.weight * mask, first.bias, padding=1)
        return F.mse_loss(last(hidden), series[..., 1:])

    return loss, first, last


def labels_that_are_all_equal():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def loss():  # the rarer class is not in the first batches
        return F.cross_entropy(head(embed(batch_of_sentences()).mean(1)), torch.zeros(8, dtype=torch.long))

    return loss, embed, head


def tags_that_are_all_equal():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 3))

    def loss():  # no word of the first batches has a tag
        words = batch_of_sentences()
        tags = torch.zeros_like(words).masked_fill(words == 0, -100)
        return F.cross_entropy(model(words).flatten(0, 1), tags.flatten())

    return loss, model


def zeros_where_padding_is():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def loss():
        words = batch_of_sentences()
        hidden = torch.where((words == 0)[..., None], torch.zeros(()), embed(words))
        return F.cross_entropy(head(hidden.mean(1)), words[:, 0] % 2)

    return loss, embed, head


def last_words():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def loss():
        words = batch_of_sentences()
        is_last = torch.arange(10) == (words != 0).sum(1)[:, None] - 1
        return F.cross_entropy(head(embed(words)[is_last]), words[:, 0] % 2)

    return loss, embed, head


def targets_that_are_turned():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh())
    nn.init.eye_(model[0].weight)

    def loss():
        x = 9 * torch.randn(4, 4).sign()
        return (model(x).t() - x.t().sign()).square().mean()

    return loss, model


def margins_by_relu():
    model = nn.Linear(4, 1)
    return lambda: (model(torch.randn(8, 4)) - 100).relu().mean(), model


def margins_that_are_kept():
    model = nn.Linear(4, 1)
    return lambda: (model(torch.randn(8, 4)) - 100).clamp(min=0).mean(), model


class SentenceLatent(nn.Module):
    """A decoder that sees the words so far, and one vector of the whole sentence."""

    def __init__(self, encoder, summary, width):
        super().__init__()
        self.embed, self.encoder, self.summary = nn.Embedding(20, 8), encoder, summary
        self.latent, self.start = nn.Linear(width, 4), nn.Linear(4, 8)
        self.decoder, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, words):
        embedded = self.embed(words)
        latent = self.latent(self.summary(self.encoder(embedded)))
        start = self.start(latent + torch.randn_like(latent))
        return self.out(self.decoder(embedded, start[None])[0])


def sentence_as_a_latent(encoder, summary, width):
    def made():
        model = SentenceLatent(encoder(), summary, width)

        def loss():
            words = torch.randint(0, 20, (6, 10))
            return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

        return loss, model

    made.__name__ = f"{summary.__name__}_as_a_latent"
    return made


def attends_to_all():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def reads_both_ways():
    return nn.GRU(8, 8, num_layers=2, bidirectional=True, batch_first=True)


def mean_of_all_words(encoded):
    return encoded.mean(1)


def first_word(encoded):
    return encoded[:, 0]


def last_states(encoded):
    return torch.cat([*encoded[1][-2:]], -1)


@pytest.mark.parametrize(
    "made",
    [
        sentence_as_a_latent(attends_to_all, mean_of_all_words, 8),
        sentence_as_a_latent(attends_to_all, first_word, 8),
        sentence_as_a_latent(reads_both_ways, last_states, 16),
        margins_that_are_kept,
        margins_by_relu,
        convolutions_with_a_mask,
        labels_that_are_all_equal,
        tags_that_are_all_equal,
        zeros_where_padding_is,
        last_words,
        targets_that_are_turned,
        first_words_rebuilt,
        convolutions_cut_at_the_end,
        last_output_of_both_directions,
        targets_that_a_mask_leaves_out,
        windows_as_wide_as_the_batch,
        features_that_are_compared_over_a_batch,
        frames_pooled_to_a_latent,
    ],
    ids=lambda made: made.__name__,
)
def test_nothing_is_told_of_what_is_right(made):
    assert [str(one) for one in findings_of(lambda _: trained_by(*made()), right=True)] == []


def test_the_best_of_several_models_needs_no_copy():
    assert [str(one) for one in findings_of(best_of_several_models, right=True)] == []


def test_nothing_is_told_of_a_target_whose_values_no_loss_compares():
    assert [str(one) for one in findings_of(evaluated_without_an_average, right=True)] == []


def test_gradients_are_clipped_where_their_parameters_come_from_a_generator():
    model = nn.Linear(4, 1)

    def clipped(_):
        (100 * model(torch.ones(8, 4))).sum().backward()
        nn.utils.clip_grad_value_((one for one in model.parameters()), 0.5)

    assert findings_of(clipped, right=True) == []
    assert all(bool((one.grad == 0.5).all()) for one in model.parameters())


def test_the_state_of_a_model_that_was_made_anew_is_no_cut():
    def resumed(_):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        state, model = model.state_dict(), nn.Linear(4, 1)
        model.load_state_dict(state)
        for _ in range(6):
            follow(model(torch.randn(8, 4)).square().mean(), optimizer)

    (found,) = findings_of(resumed, right=False)
    assert found.cause == "never-learns" and "no optimizer has them" in found.message


def test_gradients_that_are_divided_by_hand_may_be_used():
    def divided(_):
        model, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            for one in model.parameters():
                one.grad /= 65536
            optimizer.step()

    assert findings_of(divided, right=True) == []


def test_an_action_drawn_by_torch_normal_may_be_scored_by_its_own_density():
    def reinforced(_):
        mean, spread = nn.Linear(4, 2), nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([*mean.parameters(), spread], 1e-2)
        for _ in range(10):
            state = torch.randn(8, 4)
            mu = mean(state)
            action = torch.normal(mu, spread.expand_as(mu))
            reward = -action.detach().square().sum(1)
            log_prob = -((action.detach() - mu) / spread).square() / 2 - spread.log()
            follow(-(log_prob.sum(1) * reward).mean(), optimizer)

    assert findings_of(reinforced, right=True) == []


def test_networks_that_are_frozen_and_unfrozen_in_turns_are_right():
    def played(_):
        actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
        acts, judges = (torch.optim.Adam(one.parameters(), 1e-2) for one in (actor, critic))
        for _ in range(24):
            state = torch.randn(8, 4)
            critic.requires_grad_(True)
            follow(critic(torch.cat([state, torch.randn(8, 2)], 1)).sub(1).square().mean(), judges)
            critic.requires_grad_(False)
            follow(-critic(torch.cat([state, actor(state)], 1)).mean(), acts)

    assert findings_of(played, right=True) == []


def test_a_model_on_the_meta_device_is_no_copy():
    def trained(_):
        model = nn.Linear(4, 1)
        bones = copy.deepcopy(model).to("meta")
        trained_by(
            lambda: torch.func.functional_call(bones, dict(model.named_parameters()), torch.ones(2, 4)).mean(), model
        )

    assert findings_of(trained, right=True) == []


def test_what_an_adversary_is_told_of_each_domain_is_not_sorted():
    def adapted(_):
        body, judge = nn.Linear(4, 4), nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*body.parameters(), *judge.parameters()], 0.1)

        def domain_loss(shift, domain):
            return F.cross_entropy(judge(body(torch.randn(8, 4) + shift)), torch.full((8,), domain))

        for _ in range(10):
            follow(domain_loss(0, 0) + domain_loss(1, 1), optimizer)

    assert findings_of(adapted, right=True) == []


def test_a_layer_made_in_forward_is_said_to_belong_into_init():
    found = findings_of(layer_of_a_variable_of_forward, right=False)
    assert [one for one in found if "in __init__ of the module" in one.remedy]


def test_a_model_into_which_numbers_are_copied_is_not_advised_to_be_given_to_the_optimizer():
    def generated(_):
        model, makes = nn.Linear(2, 1), nn.Linear(3, 3)

        def loss():
            nn.utils.vector_to_parameters(makes(torch.randn(3)), model.parameters())
            return model(torch.randn(8, 2)).square().mean()

        trained_by(loss, makes)

    (found,) = [one for one in findings_of(generated, right=False) if one.cause == "never-learns"]
    assert "functional_call" in found.remedy and "vector_to_parameters" in found.remedy


FITS = """def fit(step, optimizer, times):
    for _ in range(times):
        optimizer.zero_grad()
        loss = step()
        if loss is not None:
            (loss / 1).backward()
        optimizer.step()
"""


@pytest.fixture
def fit(tmp_path):
    """Return the function of a library that trains by a function of the program, which returns the loss."""
    file, names = tmp_path / "site-packages" / "fits.py", {}
    file.parent.mkdir()
    file.write_text(FITS)
    exec(compile(FITS, str(file), "exec"), names)
    return names["fit"]


def test_a_loss_that_is_not_returned_to_the_library_that_trains_is_to_be_returned(fit):
    def trained(right):
        model = nn.Linear(4, 1)

        def training_step():
            loss = model(torch.randn(8, 4)).square().mean()
            return loss if right else None

        fit(training_step, torch.optim.SGD(model.parameters(), 0.1), 8)

    (found,) = findings_of(trained, right=False)
    assert "No call of backward() was seen" in found.message and "return loss" in found.remedy
    assert findings_of(trained, right=True) == []


def test_a_backward_before_that_of_a_library_is_to_be_left_out(fit):
    model = nn.Linear(4, 1)

    def training_step():
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError) as error, byname.explaining():
        fit(training_step, torch.optim.SGD(model.parameters(), 0.1), 1)
    assert "remedy: leave out `loss.backward()` at" in error.value.__notes__[0]


def follows_a_student(_):
    student, teacher = (nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)) for _ in range(2))
    teacher.load_state_dict(nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)).state_dict())
    optimizer = torch.optim.Adam(student.parameters())
    for _ in range(20):
        x = torch.randn(8, 4)
        with torch.no_grad():
            goal = teacher(x)
        follow(F.mse_loss(student(x), goal), optimizer)
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(its, 0.1)


def target_of_a_network_with_dropout(_):
    online, target = (nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 2)) for _ in range(2))
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters())
    for number in range(40):
        x, following = torch.randn(8, 4), torch.randn(8, 4)
        with torch.no_grad():
            goal = 1 + 0.9 * target(following).max(1).values
        follow(F.mse_loss(online(x).max(1).values, goal), optimizer)
        if number % 30 == 29:
            target.load_state_dict(online.state_dict())


def put_into_training_on_purpose(_):
    teacher = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.Linear(24, 3))
    student = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    teacher.load_state_dict({key: one.clone() for key, one in teacher.state_dict().items()})
    teacher.train()
    distilled(teacher, student, steps=20)


def sum_of_very_many_losses(_):
    model = nn.Linear(4, 1)
    trained_by(lambda: sum((model(torch.randn(2, 4)).square().mean() for _ in range(2000)), torch.zeros(())), model)


def clicks_of_an_autoencoder(_):
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 12))

    def loss():
        clicks = (torch.rand(16, 12) < 0.3).float()
        return F.cross_entropy(model(clicks), clicks)

    trained_by(loss, model)


def positives_of_a_batch(_):
    model = nn.Linear(4, 8)

    def loss():
        labels, z = torch.arange(12) % 3, F.normalize(model(torch.randn(12, 4)), dim=1)
        return F.cross_entropy(z @ z.T / 0.2, (labels[:, None] == labels).float())

    trained_by(loss, model)


def shares_of_several_tags(_):
    model = nn.Linear(4, 6)

    def loss():
        tags = (torch.rand(16, 6) < 0.5).float()
        return F.cross_entropy(model(torch.randn(16, 4)), tags / tags.sum(1, keepdim=True).clamp(min=1))

    trained_by(loss, model)


def series_in_reverse(_):
    rnn, head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forecast(x, y):
        return F.mse_loss(head(rnn(x)[0]), y)

    def loss():
        x = torch.randn(12, 6, 1)
        return forecast(x, x.flip(1))

    trained_by(loss, rnn, head)


def echo_of_the_last(_):
    rnn, head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def echo(x, y):
        return F.mse_loss(head(rnn(x)[0][:, -1]), y)

    def loss():
        x = torch.randn(12, 6, 1)
        return echo(x, x[:, -1])

    trained_by(loss, rnn, head)


def gradients_in_one_list(_):
    model, norms = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 4)).square().mean().backward()
        grads = [one.grad for one in model.parameters()]
        norms.append(torch.stack([one.norm() for one in grads]).norm())
        optimizer.step()


def best_of_each_fold(_):
    kept = []
    for _ in range(3):
        model = Probe(Encoding())
        trained_by(lambda model=model: F.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3), model.head)
        best = Probe(Encoding())
        best.load_state_dict({key: one.clone() for key, one in model.state_dict().items()})
        kept.append(best)


def two_towers_of_which_one_was_trained_before(_):
    trained = Encoding()
    trained_by(lambda: trained(torch.randn(8, 4)).square().mean(), trained, steps=70)
    towers = nn.ModuleDict({"left": Encoding(), "right": Encoding()})
    towers["left"].load_state_dict({key: one.clone() for key, one in trained.state_dict().items()})
    trained_by(lambda: (towers["left"](torch.randn(8, 4)) * towers["right"](torch.randn(8, 4))).mean(), towers)


def closure_over_parts(_):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        return sum(loss_of_a_part(model, x) for x in torch.ones(32, 4).split(8))

    for _ in range(3):
        optimizer.step(closure)


def cleared_before_a_closure(_):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        optimizer.step(lambda: sum(loss_of_a_part(model, x) for x in torch.ones(40, 4).split(8)))


def loss_of_a_part(model, x):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss.item()


def body_frozen_half_way(_):
    body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
    for number in range(24):
        if number == 8:
            body.requires_grad_(False).eval()
        follow(head(body(torch.randn(8, 4))).square().mean(), optimizer)


def norms_frozen_half_way(_):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(24):
        model.train()
        model[1].train(number < 8)
        follow(model(torch.randn(8, 4)).square().mean(), optimizer)


def target_of_a_critic_in_evaluation(_):
    critic = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).eval()
    actor = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))  # a norm of the same size
    target = copy.deepcopy(critic)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (critic, actor)]
    for _ in range(40):
        x = torch.randn(8, 4)
        with torch.no_grad():
            goal = 1 + 0.9 * target(x)
        follow(F.mse_loss(critic.eval()(x), goal), optimizers[0])
        follow(actor(x).square().mean(), optimizers[1])
        target.load_state_dict(critic.state_dict())


def generator_that_saturates(_):
    generator, critic = nn.Linear(2, 4), nn.Linear(4, 1).requires_grad_(False)
    trained_by(lambda: F.logsigmoid(-critic(generator(torch.randn(8, 2)))).mean(), generator)


def divergence_of_counts(_):
    model, counts = nn.Linear(4, 3), torch.tensor([[3.0, 0.0, 1.0]]).expand(8, 3)
    trained_by(lambda: F.kl_div(F.log_softmax(model(torch.randn(8, 4)), 1), counts, reduction="sum"), model)


RIGHT = (
    *(follows_a_student, target_of_a_network_with_dropout, put_into_training_on_purpose, clicks_of_an_autoencoder),
    sum_of_very_many_losses,
    *(positives_of_a_batch, shares_of_several_tags, series_in_reverse, echo_of_the_last, gradients_in_one_list),
    *(best_of_each_fold, two_towers_of_which_one_was_trained_before),
    *(body_frozen_half_way, norms_frozen_half_way, generator_that_saturates, divergence_of_counts),
    *(closure_over_parts, cleared_before_a_closure),
)


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("program", RIGHT, ids=[one.__name__ for one in RIGHT])
def test_nothing_is_said_of_what_is_right_and_looks_alike(program):
    assert [str(one) for one in findings_of(program, right=True)] == []


def test_a_target_whose_critic_has_its_initial_statistics_too_is_not_said_to_lack_them():
    found = findings_of(target_of_a_critic_in_evaluation, right=True)
    assert [one.cause for one in found] == ["left-in-evaluation"]


def calls_of_byname(losses):
    """The Python calls that one step with so many losses takes while it is checked."""
    model, calls = nn.Linear(4, 3), 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call"

    with checking(lambda finding: None):
        sys.setprofile(count)
        try:
            for x in torch.randn(losses, 2, 4):
                F.cross_entropy(model(x), torch.tensor([0, 1]))
        finally:
            sys.setprofile(None)
    return calls


def test_of_many_calls_on_one_line_few_are_looked_at():
    _, many, more = map(calls_of_byname, (1, 300, 500))  # the first reads the source
    assert more - many < 200 * 100  # to look at each takes more than a thousand
