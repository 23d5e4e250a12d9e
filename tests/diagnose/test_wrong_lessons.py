"""Is it told what a run learns wrongly, and nothing of runs that are right and look alike?"""

import copy
import inspect
import io
import random
import textwrap
from collections import deque, namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
import torch.nn.functional as F
from checking import findings_of
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, OneCycleLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 20


def network(dropout=0.0, norm=False):
    return nn.Sequential(
        nn.Linear(4, 16),
        nn.BatchNorm1d(16) if norm else nn.Identity(),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(16, 3),
    )


def batch():
    x = torch.randn(12, 4)
    return x, x[:, :3].argmax(1)


def step(model, optimizer, x=None, y=None):
    if x is None:
        x, y = batch()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def loader_of(shuffle=True, count=60):
    x = torch.randn(count, 4)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=12, shuffle=shuffle)


# faulty programs, each with its cause


def best_in_a_dict_of_references():
    model, best = network(), None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(STEPS):
        step(model, optimizer)
        if epoch == 3:
            best = {"epoch": epoch, "state": dict(model.state_dict())}
    model.load_state_dict(best["state"])
    return model


def best_moved_to_where_it_is():
    model, best = network(), None
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(STEPS):
        step(model, optimizer)
        if epoch == 3:
            best = {name: value.cpu() for name, value in model.state_dict().items()}
    model.load_state_dict(best)
    return model


def validated_in_training_mode():
    model = network(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @torch.no_grad()
    def validate(data):
        return sum((model(x).argmax(1) == y).sum().item() for x, y in data)

    for _ in range(3):
        for x, y in loader_of():
            step(model, optimizer, x, y)
        validate(loader_of(count=36))
    return model


def validated_in_a_block():
    model, (x, y) = network(0.5), batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        for _ in range(6):
            step(model, optimizer)
        with torch.no_grad():
            val = F.cross_entropy(model(x), y)
        assert val > 0
    return model


class DropsAlways(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(F.dropout(torch.relu(self.first(x)), 0.3))


class Drops(DropsAlways):
    def forward(self, x):
        return self.last(F.dropout(torch.relu(self.first(x)), 0.3, training=self.training))


def evaluated_with(kind):
    def program():
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model.train()
            for _ in range(5):
                step(model, optimizer)
            model.eval()
            with torch.no_grad():
                model(batch()[0])
        return model

    return program


def decayed_per_batch():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = ExponentialLR(optimizer, gamma=0.5)
    for x, y in loader_of(count=1200):
        step(model, optimizer, x, y)
        scheduler.step()
    return model


def a_tiny_rate():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-14)
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def never_scheduled():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(4):
        for x, y in loader_of():
            step(model, optimizer, x, y)
    return model, scheduler


class Trainer:
    def __init__(self, optimizer, decay, begin):
        self.optimizer, self.decay, self.begin = optimizer, decay, begin

    def fit(self, model, epochs):
        for epoch in range(epochs):
            for x, y in loader_of():
                self.optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                self.optimizer.step()
            if epoch >= self.begin:
                self.decay.step()


def scheduled_by_a_trainer_later():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = CosineAnnealingLR(optimizer, T_max=4)
    Trainer(optimizer, scheduler, begin=8).fit(model, 3)
    return model, scheduler


def scheduled_before_the_optimizer_was_made_again():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 2)
    first = optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for x, y in loader_of():
            step(model, optimizer, x, y)
        scheduler.step()
    return model, first


def constant_weights_by_data():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for one in model.parameters():
        one.data.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def ones_in_a_parameter():
    weights = nn.Parameter(torch.ones(8, 4)), nn.Parameter(torch.randn(3, 8) * 0 + 0.5)
    optimizer = torch.optim.Adam(weights, 0.01)
    for _ in range(STEPS):
        step(lambda x: torch.tanh(x @ weights[0].T) @ weights[1].T * torch.tensor([1.0, 2.0, 3.0]), optimizer)
    return weights


def dies():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 5.0)
    for _ in range(4 * STEPS):
        x = torch.randn(16, 4)
        loss = F.mse_loss(model(x), x.abs().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def only_the_first_batch():
    loader, model = loader_of(shuffle=False), network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x, y = next(iter(loader))
        step(model, optimizer, x, y)
    return model, loader


def a_loop_left_after_its_first_batch():
    loader, model = loader_of(shuffle=False), network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        for x, y in loader:
            step(model, optimizer, x, y)
            break
    return model, loader


def slices(x, y, starts, times=1):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for i in starts:
        for _ in range(times):
            step(model, optimizer, x[i : i + 12], y[i : i + 12])
    return model


def slices_of_one_start():
    x = torch.randn(60, 4)
    y = x[:, :3].argmax(1)
    return slices(x, y, [12] * STEPS)


def slices_of_all(times):
    def program():
        x = torch.randn(60, 4)
        y = x[:, :3].argmax(1)
        return slices(x, y, [*range(0, 60, 12)] * (STEPS // times), times)

    return program


def slices_for_training():
    x, model = torch.randn(60, 4), network()
    y, held_out = x[:, :3].argmax(1), 24
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer, x[:held_out], y[:held_out])
    assert F.cross_entropy(model(x[held_out:]), y[held_out:]) > 0
    return model, x, y


def a_section_of_a_series():
    x, model = torch.randn(90, 4), network()
    y, begin, end = x[:, :3].argmax(1), 6, 30
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer, x[begin:end], y[begin:end])
    return model, x, y


def a_part_whose_end_is_computed_before():
    x, model, begin = torch.randn(90, 4), network(), 6
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        end = begin + 12
        step(model, optimizer, x[begin:end], y[begin:end])
    return model, x, y


def a_batch_for_comparison():
    loader, model, style = loader_of(), network(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *style.parameters()], 0.1)
    reference, _ = next(iter(loader))
    for _ in range(4):
        for x, y in loader:
            loss = F.cross_entropy(model(x) + style(reference).mean(0), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, loader


def labels_of_a_look():
    loader, model = loader_of(), network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = next(iter(loader))
    for _ in range(4):
        for features, _ in loader:
            loss = F.cross_entropy(model(features), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, loader


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.rnn, self.out = kind(4, 8, **options), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def batch_taken_for_time():
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(12, 7, 4)
        step(model, optimizer, x, x[:, :, :3].sum(1).argmax(1))
    return model


class LastHidden(nn.Module):
    def __init__(self, mend=False):
        super().__init__()
        self.rnn, self.out, self.mend = nn.GRU(4, 8, 1, batch_first=True, bidirectional=True), nn.Linear(16, 3), mend

    def forward(self, x):
        _, hidden = self.rnn(x)
        hidden = hidden.transpose(0, 1) if self.mend else hidden
        return self.out(hidden.reshape(len(x), -1))


def classifies_sequences(make):
    def program():
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            x = torch.randn(12, 7, 4)
            step(model, optimizer, x, x[:, :, :3].sum(1).argmax(1))
        return model

    return program


def hidden_by_view(mend):
    return classifies_sequences(lambda: LastHidden(mend))


class TinyLM(nn.Module):
    def __init__(self, attend, words=20, width=8):
        super().__init__()
        self.embed, self.qkv, self.out = (
            nn.Embedding(words, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, words),
        )
        self.attend = attend

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(x + self.attend(q, k, v))


def sees_all(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def sees_the_past(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sees_by_a_mask(q, k, v):
    length = q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(length, length).tril().bool())


def sees_the_future(q, k, v):
    scores = (q @ k.transpose(1, 2)).masked_fill(torch.ones(q.shape[1], q.shape[1]).tril(-1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def language_model(attend, shift=1):
    def program():
        model = TinyLM(attend)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(STEPS):
            ids = torch.randint(0, 20, (6, 11))
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, shift : shift + 10].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def relu_on_logits():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def tanh_of_a_price():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1), nn.Tanh())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(16, 4)
        loss = nn.SmoothL1Loss()(model(x), 5 + x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def arguments_turned_round():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(16, 4)
        loss = F.binary_cross_entropy_with_logits((x[:, :1] > 0).float(), model(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def padded(rows=8, length=10):
    ids = torch.randint(1, 20, (rows, length))
    return ids.masked_fill(torch.arange(length) >= torch.randint(3, length, (rows, 1)), 0)


def padding_in(loss_of):
    def program():
        model = TinyLM(sees_the_past)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(STEPS):
            ids = padded()
            loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def whole_mean(logits, target):
    return F.cross_entropy(logits.transpose(1, 2), target)


def ignoring(logits, target):
    return F.cross_entropy(logits.transpose(1, 2), target, ignore_index=0)


def by_mask(logits, target):
    each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    mask = (target != 0).float()
    return (each * mask).sum() / mask.sum()


def by_inverted_mask(logits, target):
    each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    mask = (target == 0).float()
    return (each * mask).sum() / mask.sum()


def by_inverted_index(logits, target):
    each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    return each[target == 0].mean()


class Pooled(nn.Module):
    def __init__(self, inverted, words=20, width=8):
        super().__init__()
        self.embed, self.out, self.inverted = nn.Embedding(words, width), nn.Linear(width, 3), inverted
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, ids):
        x, mask = self.embed(ids), ids != 0 if self.inverted else ids == 0
        x, _ = self.attention(x, x, x, key_padding_mask=mask)
        return self.out(x.mean(1))


def attends_to(inverted):
    def program():
        model = Pooled(inverted)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(STEPS):
            ids = padded()
            step(model, optimizer, ids, ids[:, 0] % 3)
        return model

    return program


def clipped_after_the_step():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return model


def norms_that_are_logged():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    return model


def clipped_rightly():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(2 * STEPS):
        x, y = batch()
        (F.cross_entropy(model(x), y) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def equal_samples():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x = torch.randn(1, 4).expand(12, 4)
        step(model, optimizer, x, torch.randint(0, 3, (12,)))
    return model


def pixels(scale):
    def program():
        model = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            x = torch.randint(0, 256, (12, 1, 12, 12)).float() / scale
            step(model, optimizer, x, torch.randint(0, 3, (12,)))
        return model

    return program


def shuffled_apart():
    model = network()
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        order, other = torch.randperm(60), torch.randperm(60)
        features, labels = x[order], y[other]
        step(model, optimizer, features[:12], labels[:12])
    return model


def shuffled_together():
    model = network()
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        order = torch.randperm(60)
        features, labels = x[order], y[order]
        step(model, optimizer, features[:12], labels[:12])
    return model


def history_of_one_tensor(copied):
    def program():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        state, history = torch.zeros(4), []
        for _ in range(4 * STEPS):
            state.add_(torch.randn(4) * 0.1)
            history.append({"state": state.clone() if copied else state, "reward": random.random()})
            drawn = random.choices(history, k=6)
            x = torch.stack([one["state"] for one in drawn])
            loss = F.mse_loss(model(x)[:, 0], torch.tensor([one["reward"] for one in drawn]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model, history

    return program


def target_by(tau, copies=True):
    def program():
        online = network()
        target = copy.deepcopy(online)
        optimizer = torch.optim.Adam(online.parameters(), 1e-2)
        for _ in range(4 * STEPS):
            x, _ = batch()
            with torch.no_grad():
                goal = target(x).amax(1) * 0.9 + x[:, 0]
            loss = F.mse_loss(online(x).amax(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
                if copies:
                    mine.data.copy_(tau * theirs.data + (1 - tau) * mine.data)
                else:
                    mine.data = tau * theirs.data + (1 - tau) * mine.data
        return online, target

    return program


def shadow_by(decay):
    def program():
        model = network()
        shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(2 * STEPS):
            step(model, optimizer)
            with torch.no_grad():
                for name, one in model.named_parameters():
                    shadow[name] = decay * shadow[name] + (1 - decay) * one
        return model, shadow

    return program


def nothing_fits():
    saved = {f"encoder.{name}": value.clone() for name, value in network().state_dict().items()}
    model = network()
    model.load_state_dict(saved, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def initialised_after_loading(only=None):
    def program():
        saved = {name: value.clone() for name, value in network().state_dict().items()}
        model = network()
        model.load_state_dict(saved)
        for module in model.modules() if only is None else [model[only]]:
            if isinstance(module, nn.Linear):
                module.weight.data.normal_(0, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            step(model, optimizer)
        return model

    return program


def a_term_that_is_thrown_away():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        logits = model(x)
        loss = 0.01 * logits.square().mean()
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def terms_that_are_all_used():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        logits = model(x)
        loss = torch.zeros(())
        loss = loss + F.cross_entropy(logits, y)
        penalty = 0.01 * logits.square().mean()
        loss = loss + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = torch.zeros(())
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def dead_from_the_start():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(model[0].bias, -50.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def overwritten_losses():
    model = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        loss = torch.zeros(())
        for head in model:
            loss = F.cross_entropy(head(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class Translator(nn.Module):
    def __init__(self, masked, words=20, width=16):
        super().__init__()
        self.embed, self.out, self.masked = nn.Embedding(words, width), nn.Linear(width, words), masked
        self.layers = nn.Transformer(width, 2, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]) if self.masked else None
        source = source if source.is_floating_point() else self.embed(source)
        return self.out(self.layers(source, self.embed(target), tgt_mask=mask))


def nine_words():
    return torch.randint(0, 20, (6, 9))


def as_many_words():
    return torch.randint(0, 20, (6, 7))


def as_many_frames():
    return torch.randn(6, 7, 16)


def translator(masked, draw=nine_words):
    def program():
        model = Translator(masked)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            source, target = draw(), torch.randint(0, 20, (6, 8))
            loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def dead_inside():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 3.0)
    x = torch.rand(256, 6) + 1
    for _ in range(4):
        for part in x.split(32):
            loss = F.mse_loss(model(part), 10 * part[:, :1] + 20)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    return model


def sigmoid_before_cross_entropy():
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def each_mean(logits, target):
    return F.cross_entropy(logits.transpose(1, 2), target, reduction="none").mean()


def gathered_mean(logits, target):
    return -logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()


def picked_mean(logits, target):
    return (-logits.log_softmax(-1).gather(-1, target[..., None])[..., 0]).mean()


def gathered_by_mask(logits, target):
    each = -logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (each * (target != 0)).sum() / (target != 0).sum()


class PooledByHand(Pooled):
    def forward(self, ids):
        x, mask = self.embed(ids)[:, None], ids == 0 if self.inverted else ids != 0
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, None])
        return self.out(x.mean((1, 2)))


def attends_by_hand_to(inverted):
    def program():
        model = PooledByHand(inverted)
        optimizer = torch.optim.AdamW([*model.embed.parameters(), *model.out.parameters()])
        for _ in range(STEPS):
            ids = padded()
            step(model, optimizer, ids, ids[:, 0] % 3)
        return model

    return program


class Weighted(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score, self.out, self.dim = nn.Linear(4, 1), nn.Linear(4, 3), dim

    def forward(self, x):
        weights = self.score(x).exp()
        return self.out((weights / weights.sum(self.dim, keepdim=True) * x).sum(1))


def softmax_by_hand(dim):
    return classifies_sequences(lambda: Weighted(dim))


def best_is(copied):
    def program():
        model, best = network(), None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(STEPS):
            step(model, optimizer)
            if epoch == 3 and copied:
                best = copy.deepcopy(model)
            elif epoch == 3:
                best = model
        model.load_state_dict(best.state_dict())
        return model

    return program


def half_dead(rate):
    def program():
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(4 * STEPS):
            x = torch.rand(32, 6) + 1
            loss = F.mse_loss(model(x), 10 * x[:, :1] + 20)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
        return model

    return program


def tied_and(how):
    def program():
        embed, head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        head.weight = embed.weight
        how(embed, head)
        optimizer = torch.optim.Adam({*embed.parameters(), *head.parameters()})
        for _ in range(STEPS):
            ids = torch.randint(0, 20, (12,))
            step(nn.Sequential(embed, nn.Tanh(), head), optimizer, ids, (ids + 1) % 20)
        return embed, head

    return program


def initialised_by_a_new_parameter(embed, head):
    embed.weight = nn.Parameter(torch.randn(20, 8) * 0.1)


def initialised_in_place(embed, head):
    nn.init.normal_(embed.weight, 0, 0.1)


def tied_again(embed, head):
    embed.weight = nn.Parameter(torch.randn(20, 8) * 0.1)
    head.weight = embed.weight


def untied_on_purpose(embed, head):
    head.weight = nn.Parameter(head.weight.detach().clone())


def labels_from(first, classes=4, weights=(1.0, 1.0, 1.0)):
    def program():
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, classes))
        optimizer = torch.optim.Adam(model.parameters())
        model.words_of_another_model = [nn.Embedding(classes, 2)]
        for _ in range(STEPS):
            y = torch.multinomial(torch.tensor(weights), 24, replacement=True)
            step(model, optimizer, torch.randn(24, 4) + y[:, None], y + first)
        return model

    return program


class NextItem(nn.Module):
    def __init__(self, items=8):
        super().__init__()
        self.embed = nn.Embedding(items + 1, 8, padding_idx=0)
        self.out = nn.Linear(8, items + 1)

    def forward(self, items):
        return self.out(self.embed(items).mean(1))


def items_counted_from_1():
    model = NextItem()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer, torch.randint(0, 9, (36, 3)), torch.randint(1, 9, (36,)))
    return model


class TimeFirstBy(nn.Module):
    def __init__(self, swap):
        super().__init__()
        self.rnn, self.out, self.swap = nn.GRU(4, 8), nn.Linear(8, 3), swap

    def forward(self, x):
        return self.out(self.rnn(self.swap(x))[0][-1])


def inputs_by_view(x):
    return x.view(x.shape[1], x.shape[0], -1)


def inputs_by_transpose(x):
    return x.transpose(0, 1)


def inputs_by_contiguous_transpose(x):
    return x.transpose(0, 1).contiguous()


def time_first_by(swap):
    return classifies_sequences(lambda: TimeFirstBy(swap))


class GivenTargets(TinyLM):
    def forward(self, ids, targets):
        return F.cross_entropy(super().forward(ids).flatten(0, 1), targets.flatten())


def trained_on_words(model, length, loss_of):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        loss = loss_of(model, torch.randint(0, 20, (6, length)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def loss_in_forward(attend):
    return lambda: trained_on_words(GivenTargets(attend), 11, lambda model, ids: model(ids[:, :-1], ids[:, 1:]))


def exponentials_by_their_sum(x):
    e = torch.exp(x - x.max(1, keepdim=True).values)
    return e / e.sum(1, keepdim=True)


def probabilities_into(loss_of):
    def program():
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            x, y = batch()
            loss = loss_of(exponentials_by_their_sum(model(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def logarithm_into_nll(p, y):
    return F.nll_loss(p.log(), y)


def best_copied_back(kept):
    def program():
        model, best = network(), None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(STEPS):
            step(model, optimizer)
            if number == 3:
                best = [kept(one) for one in model.parameters()]
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), best, strict=True):
                mine.copy_(theirs)
        return model

    return program


def averaged_over_epochs(kept):
    def program():
        model, snapshots = network(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(STEPS):
            step(model, optimizer)
            if number % 5 == 4:
                snapshots.append([kept(one) for one in model.parameters()])
        return model, snapshots

    return program


def its_data(parameter):
    return parameter.data


def its_detached_clone(parameter):
    return parameter.detach().clone()


def one_column_of_probabilities():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x), (y > 0).float().unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class Normalised(nn.Module):
    def __init__(self, normalise):
        super().__init__()
        self.first, self.out, self.normalise = nn.Linear(4, 12), nn.Linear(12, 3), normalise
        self.running_mean = torch.zeros(12)

    def forward(self, x):
        return self.out(self.normalise(self, self.first(x).tanh()))


def by_the_largest_of_all(module, h):
    return h / h.abs().max()


def by_the_batch(module, h):
    return (h - h.mean(0)) / (h.std(0) + 1e-5)


def by_each_sample(module, h):
    return (h - h.mean(1, keepdim=True)) / h.abs().amax(1, keepdim=True)


def by_running_averages(module, h):
    module.running_mean = 0.9 * module.running_mean + 0.1 * h.detach().mean(0)
    return h - (h.mean(0) if module.training else module.running_mean)


class Neighbours(Normalised):
    def forward(self, x, matrix):
        h = matrix @ torch.relu(self.first(x))
        h = h - h.mean(0)
        return self.out(h + (torch.softmax(h, 0) * h).sum(0))


def nodes_of_parts_of_a_graph():
    model = Neighbours(by_the_batch)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        matrix = (torch.rand(12, 12) < 0.3).float()
        x, y = batch()
        loss = F.cross_entropy(model(x, matrix), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def normalised(normalise, again=False):
    def program():
        model, (x, y) = Normalised(normalise), batch()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            x, y = (x, y) if again else batch()
            step(model, optimizer, x, y)
        return model

    return program


def arrays():
    x = numpy.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    return x, x[:, :3].argmax(1)


def epochs_of(x, y):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        for start in range(0, 60, 12):
            step(model, optimizer, torch.as_tensor(x[start : start + 12]), torch.as_tensor(y[start : start + 12]))
    return model


def arrays_shuffled_apart():
    rng, (x, y) = numpy.random.default_rng(1), arrays()
    rng.shuffle(x)
    rng.shuffle(y)
    return epochs_of(x, y)


def lists_shuffled_apart():
    x, y = (one.tolist() for one in arrays())
    random.shuffle(x)
    random.shuffle(y)
    return epochs_of(x, y)


def arrays_permuted_apart():
    rng, (x, y) = numpy.random.default_rng(1), arrays()
    x, y = x[rng.permutation(60)], y[rng.permutation(60)]
    x = torch.from_numpy(x)
    return epochs_of(x, y)


def made_anew_after_loading():
    saved, model = network().state_dict(), network()
    model.load_state_dict(saved)
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        step(model, optimizer)
    return model


class Recurring(nn.Module):
    def __init__(self, squeezes):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)
        self.decode, self.squeezes = nn.GRU(8, 8, batch_first=True), squeezes

    def forward(self, ids):
        each, last = self.rnn(self.embed(ids))
        if self.squeezes == "repeated":
            each = last[0].unsqueeze(1).repeat(1, ids.shape[1], 1)
        if self.squeezes == "decoded":
            each = self.decode(torch.ones_like(each), last)[0]
        return self.out(each)


def recurring(squeezes, loss_of=F.cross_entropy):
    def program():
        model = Recurring(squeezes)
        if squeezes != "decoded":
            del model.decode
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            ids = torch.randint(0, 20, (6, 10))
            loss = loss_of(model(ids).transpose(1, 2), ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


class Captions(nn.Module):
    """An image is the first word; or a first word is put in front by the model itself."""

    def __init__(self, begins):
        super().__init__()
        self.begins, self.embed, self.see = begins, nn.Embedding(21, 8), nn.Linear(4, 8)
        self.rnn, self.out = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, images, ids):
        return self.out(self.rnn(self.begins(self, images, ids))[0][:, -ids.shape[1] :])


def image_first(model, images, ids):
    return torch.cat([model.see(images).unsqueeze(1), model.embed(ids[:, :-1])], 1)


def image_before_the_words(model, images, ids):
    return torch.cat([model.see(images).unsqueeze(1), model.embed(ids)], dim=-2)[:, :-1]


def a_first_word(model, images, ids):
    return model.embed(torch.cat([torch.full_like(ids[:, :1], 20), ids[:, :-1]], 1)) + model.see(images).unsqueeze(1)


def captions(begins):
    def loss_of(model, ids):
        return F.cross_entropy(model(torch.randn(6, 4), ids).flatten(0, 1), ids.flatten())

    return lambda: trained_on_words(Captions(begins), 10, loss_of)


def of_log_probabilities(scores, ids):
    return F.nll_loss(scores.log_softmax(1), ids)


class HeadsByView(nn.Module):
    def __init__(self, splits, joins):
        super().__init__()
        self.qkv, self.out, self.splits, self.joins = nn.Linear(32, 96), nn.Linear(32, 3), splits, joins

    def forward(self, x):
        q, k, v = (self.splits(one) for one in self.qkv(x).chunk(3, -1))
        mixed = self.joins((q @ k.transpose(-1, -2)).softmax(-1) @ v)
        return self.out(mixed.reshape(len(x), x.shape[1], 32).mean(1))


def split_by_view(x):
    return x.reshape(len(x), 4, x.shape[1], 8)


def split_rightly(x):
    return x.reshape(len(x), x.shape[1], 4, 8).transpose(1, 2)


def join_by_view(x):
    return x


def join_rightly(x):
    return x.transpose(1, 2)


def heads_by(splits, joins):
    def program():
        model = HeadsByView(splits, joins)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            step(model, optimizer, torch.randn(6, 10, 32), torch.randint(0, 3, (6,)))
        return model

    return program


def copy_of_the_input():
    model, embed, head = nn.GRU(16, 16, batch_first=True), nn.Embedding(20, 16), nn.Linear(16, 20)
    optimizer = torch.optim.Adam([*model.parameters(), *embed.parameters(), *head.parameters()])
    for _ in range(STEPS):
        ids = torch.randint(0, 20, (6, 10))
        loss = F.cross_entropy(head(model(embed(ids))[0]).transpose(1, 2), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def kept_each_epoch(keep, restore):
    def program():
        model, best = network(), None
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            step(model, optimizer)
            best = keep(model)
        restore(model, best)
        return model

    return program


def its_state(model):
    return {name: value.detach() for name, value in model.state_dict().items()}


def its_parameters(model):
    return list(model.parameters())


@torch.no_grad()
def copied_to_each(model, saved):
    for one, value in zip(model.parameters(), saved, strict=True):
        one.copy_(value)


def average_swapped_in(keep):
    def program():
        model = network()
        average, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            step(model, optimizer)
            with torch.no_grad():
                for mean, one in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(one, 0.1)
            backup = keep(model)
            model.load_state_dict(average.state_dict())
            with torch.no_grad():
                model.eval()(torch.randn(12, 4))
            model.train().load_state_dict(backup)
        return model, average

    return program


def loading_its_own_state(changed):
    def program():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            step(model, optimizer)
            state = model.state_dict()
            state["0.weight"] = changed(state["0.weight"])
            model.load_state_dict(state)
        return model

    return program


def target_with_the_encoder(trained):
    def program():
        encoder = nn.Sequential(nn.Linear(4, 16), nn.Tanh()).requires_grad_(trained)
        online, target = (nn.Sequential(encoder, nn.Linear(16, 2)) for _ in range(2))
        optimizer = torch.optim.SGD(online.parameters() if trained else online[1].parameters(), 0.1)
        for number in range(STEPS):
            states = torch.randn(12, 4)
            with torch.no_grad():
                goal = states.sum(1) + 0.9 * target(states).amax(1)
            loss = F.mse_loss(online(states)[:, 0], goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 5 == 0:
                target.load_state_dict(online.state_dict())
        return target

    return program


def images_by(arrange):
    def program():
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            step(model, optimizer, arrange(torch.rand(5, 6, 6, 3)), torch.randint(0, 3, (5,)))
        return model

    return program


def channels_by_view(images):
    return images.view(5, 3, 6, 6)


def channels_in_front(images):
    return images.permute(0, 3, 1, 2).contiguous()


def one_number_by(loss_of):
    def program():
        model = network()
        model.append(nn.Linear(3, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            x = torch.randn(12, 4)
            loss = loss_of(model(x), x.sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def huber_by_hand(predicted, target):
    error = predicted - target
    return torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5).mean()


def energy_distance(predicted, target):
    target = target[:, None]
    return 2 * (predicted - target.T).abs().mean() - (predicted - predicted.T).abs().mean()


def distance_to_a_row(predicted, target):
    row = target.reshape(1, -1)
    return (predicted - row).abs().mean()


def numbers_by(loss_of):
    def program():
        model, head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 1)
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
        for _ in range(STEPS):
            rows = [torch.randn(length, 3) for length in (4, 5, 7, 8, 10, 6)]
            x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
            loss = loss_of(head(model(x)[0])[..., 0], x.sum(-1).cumsum(1) * (x != 0).any(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def without_padding(predicted, target):
    mask = target != 0
    return (F.mse_loss(predicted, target, reduction="none") * mask).sum() / mask.sum()


class Adapted(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.base, self.head = nn.Linear(4, 8).requires_grad_(False), nn.Linear(8, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 8, bias=False)
        start(self.down.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.head(self.base(x) + self.up(self.down(x)))


def adapted_from(start):
    def program():
        model = Adapted(start)
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
        for _ in range(STEPS):
            step(model, optimizer)
        return model

    return program


@dataclass
class Transition:
    state: torch.Tensor
    reward: float


def records_of_one_tensor(copied):
    def program():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        state, history = torch.zeros(4), []
        for _ in range(4 * STEPS):
            state.add_(torch.randn(4) * 0.1)
            history.append(Transition(state.clone() if copied else state, random.random()))
            step(model, optimizer, torch.randn(6, 4), torch.randint(0, 2, (6,)))
        return model, history

    return program


def models_one_after_the_other():
    for number in range(STEPS):
        model = nn.Sequential(nn.Linear(4, 8 + number), nn.ReLU(), nn.Linear(8 + number, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            step(model, optimizer)
    return model


def drawn_by(loader):
    def program():
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            step(model, optimizer, *next(iter(loader)))
        return model

    return program


class Drawn(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        x = torch.randn(4)
        return x, x[:3].argmax()


class Noisy(Drawn):
    values = torch.randn(60, 4)

    def __getitem__(self, index):
        return self.values[index] + 0.1 * torch.randn(4), self.values[index][:3].argmax()


class Novelty(nn.Module):
    def __init__(self):
        super().__init__()
        self.target, self.predictor = network().requires_grad_(False), network()

    def forward(self, states):
        return (self.predictor(states) - self.target(states)).square().mean()


def novelty_of_a_random_network():
    novelty = Novelty()
    optimizer = torch.optim.Adam(novelty.predictor.parameters())
    for _ in range(2 * STEPS):
        states = torch.randn(12, 4)
        with torch.no_grad():
            novelty.target(states)
        loss = novelty(states)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return novelty


def sees_a_prefix(q, k, v):
    allowed = torch.ones(q.shape[1], q.shape[1]).tril().bool()
    allowed[:4, :4] = True
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def environments_that_begin_equal():
    policy = network()
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(STEPS):
        states = torch.tensor([[0.1, -0.2, 0.3, 0.0]]).repeat(12, 1)
        actions = torch.distributions.Categorical(logits=policy(states)).sample()
        loss = (F.cross_entropy(policy(states), actions, reduction="none") * (actions - 1.0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def nested_in_a_checkpoint():
    checkpoint = {"epoch": 3, "model": {name: value.clone() for name, value in network().state_dict().items()}}
    model = network()
    model.load_state_dict(checkpoint, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def reset_after_loading():
    saved = {name: value.clone() for name, value in network().state_dict().items()}
    model = network()
    model.load_state_dict(saved)
    for module in model:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def reset_for_each_fold():
    model = network()
    for _ in range(2):
        for module in [one for one in model if hasattr(one, "reset_parameters")]:
            module.reset_parameters()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            step(model, optimizer)
        model.load_state_dict(copy.deepcopy(model.state_dict()) | {"0.bias": torch.zeros(16)})
    return model


def reset_after_its_results_were_noted():
    saved, model, x = network().state_dict(), network(), torch.ones(2, 4)
    model.load_state_dict(saved)
    with torch.no_grad():
        model(x)
    for module in [one for one in model if hasattr(one, "reset_parameters")]:
        module.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def names_mended_by_a_hook():
    def rename(module, state, *rest):
        for key in [one for one in state if one.startswith("old.")]:
            state[key.removeprefix("old.")] = state.pop(key)

    saved, model = {f"old.{name}": value for name, value in network().state_dict().items()}, network()
    model.register_load_state_dict_pre_hook(rename)
    model.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def ignoring_another_word(logits, target):
    return F.cross_entropy(logits.transpose(1, 2), target, ignore_index=19)


def sees_what_is_no_padding(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(len(q), 1, k.shape[1], dtype=torch.bool))


def drawn_apart(again):
    def program():
        model, x, y = network(), torch.randn(60, 4), torch.randint(0, 3, (60,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            rows = torch.randint(60, (12,))
            step(model, optimizer, x[rows], y[torch.randint(60, (12,))] if again else y[rows])
        return model

    return program


def one_noisy_copy_from_another():
    model, copies = nn.Linear(4, 4), torch.randn(60, 4) + 0.1 * torch.randn(8, 60, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        loss = F.mse_loss(model(copies[torch.randint(8, ())]), copies[torch.randint(8, ())])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def counts_by(rate, log_input):
    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(STEPS):
            x = torch.rand(12, 4)
            loss = F.poisson_nll_loss(rate(model(x)).squeeze(1), torch.poisson(3 * x[:, 0]), log_input=log_input)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def frames_of_one_screen(copied):
    def program():
        model, screen, frames = nn.Linear(12, 2), torch.zeros(4), deque(maxlen=3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(2 * STEPS):
            screen.add_(torch.randn(4))
            frames.append(screen.clone() if copied else screen)
            if number > 8:
                loss = model(torch.cat([*frames])).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model, frames

    return program


def micro_batches_of_which_the_last_is_learned():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        for part, labels in zip(x.chunk(3), y.chunk(3), strict=True):
            loss = F.cross_entropy(model(part), labels)
        loss.backward()
        optimizer.step()
    return model


def many_to_one():
    cell, out = nn.RNNCell(4, 8), nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], 0.1)
    for x, y in [batch(), batch()]:
        for part in x.chunk(3):
            loss = F.cross_entropy(network()(part), y[:4])
    for _ in range(STEPS):
        state = None
        for moment in torch.randn(5, 12, 4):
            state = cell(moment, state)
            loss = F.cross_entropy(out(state), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return cell, out


FAULTY = {
    nested_in_a_checkpoint: "loads-nothing",
    reset_after_loading: "overwritten-after-loading",
    padding_in(ignoring_another_word): "loss-over-padding",
    language_model(sees_what_is_no_padding): "future-leak",
    drawn_apart(True): "shuffled-apart",
    counts_by(F.softplus, log_input=True): "no-log-probabilities",
    frames_of_one_screen(copied=False): "entries-are-one-tensor",
    micro_batches_of_which_the_last_is_learned: "loss-overwritten",
    numbers_by(F.mse_loss): "loss-over-padding",
    drawn_by(DataLoader(Noisy(), batch_size=12)): "first-batch-only",
    kept_each_epoch(its_state, lambda model, best: model.load_state_dict(best)): "loads-itself",
    kept_each_epoch(its_parameters, copied_to_each): "loads-itself",
    average_swapped_in(nn.Module.state_dict): "loads-itself",
    target_with_the_encoder(trained=True): "same-module",
    images_by(channels_by_view): "view-mixes",
    one_number_by(huber_by_hand): "broadcast-loss",
    records_of_one_tensor(copied=False): "entries-are-one-tensor",
    adapted_from(nn.init.zeros_): "zero-gradient",
    heads_by(split_by_view, join_rightly): "view-mixes",
    heads_by(split_rightly, join_by_view): "view-mixes",
    recurring(""): "target-not-shifted",
    recurring("", of_log_probabilities): "target-not-shifted",
    language_model(sees_the_past, shift=0): "target-not-shifted",
    made_anew_after_loading: "loads-another-model",
    arrays_shuffled_apart: "shuffled-apart",
    lists_shuffled_apart: "shuffled-apart",
    arrays_permuted_apart: "shuffled-apart",
    normalised(by_the_largest_of_all): "samples-mix",
    normalised(by_the_batch): "samples-mix",
    loss_in_forward(sees_all): "future-leak",
    probabilities_into(F.cross_entropy): "double-softmax",
    probabilities_into(F.nll_loss): "no-log-probabilities",
    best_copied_back(torch.Tensor.detach): "loads-itself",
    best_copied_back(its_data): "loads-itself",
    averaged_over_epochs(torch.Tensor.detach): "entries-are-one-tensor",
    one_column_of_probabilities: "zero-gradient",
    time_first_by(inputs_by_view): "view-mixes",
    padding_in(each_mean): "loss-over-padding",
    padding_in(gathered_mean): "loss-over-padding",
    padding_in(picked_mean): "loss-over-padding",
    attends_by_hand_to(True): "mask-inverted",
    softmax_by_hand(0): "softmax-over-batch",
    best_is(copied=False): "loads-itself",
    half_dead(3.0): "dead-units",
    tied_and(initialised_by_a_new_parameter): "weights-untied",
    labels_from(1): "class-never-occurs",
    translator(False): "future-leak",
    translator(False, as_many_words): "future-leak",
    dead_inside: "gradients-die",
    sigmoid_before_cross_entropy: "rectified-logits",
    best_in_a_dict_of_references: "loads-itself",
    best_moved_to_where_it_is: "loads-itself",
    validated_in_training_mode: "evaluated-in-training-mode",
    validated_in_a_block: "evaluated-in-training-mode",
    evaluated_with(DropsAlways): "dropout-in-evaluation",
    decayed_per_batch: "rate-too-small",
    a_tiny_rate: "rate-too-small",
    never_scheduled: "scheduler-never-stepped",
    scheduled_before_the_optimizer_was_made_again: "scheduler-of-another-optimizer",
    constant_weights_by_data: "equal-units",
    ones_in_a_parameter: "equal-units",
    dies: "gradients-die",
    only_the_first_batch: "first-batch-only",
    a_loop_left_after_its_first_batch: "first-batch-only",
    labels_of_a_look: "batch-not-used",
    slices_of_one_start: "same-slice",
    a_part_whose_end_is_computed_before: "same-slice",
    batch_taken_for_time: "batch-as-time",
    hidden_by_view(False): "view-mixes",
    language_model(sees_all): "future-leak",
    language_model(sees_the_future): "future-leak",
    relu_on_logits: "rectified-logits",
    tanh_of_a_price: "target-out-of-reach",
    arguments_turned_round: "loss-turned-round",
    padding_in(whole_mean): "loss-over-padding",
    padding_in(by_inverted_mask): "mask-inverted",
    padding_in(by_inverted_index): "mask-inverted",
    attends_to(True): "mask-inverted",
    clipped_after_the_step: "clips-at-the-wrong-place",
    equal_samples: "equal-samples",
    pixels(1): "inputs-not-scaled",
    shuffled_apart: "shuffled-apart",
    history_of_one_tensor(False): "entries-are-one-tensor",
    target_by(0.995): "average-is-a-copy",
    shadow_by(0.001): "average-is-a-copy",
    nothing_fits: "loads-nothing",
    initialised_after_loading(): "overwritten-after-loading",
    overwritten_losses: "loss-overwritten",
    a_term_that_is_thrown_away: "loss-overwritten",
}


# healthy programs that look alike


def best_by_deepcopy():
    model, best = network(), None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(STEPS):
        step(model, optimizer)
        if epoch == 3:
            best = copy.deepcopy(model.state_dict())
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
    model.load_state_dict(best)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    return model


def loaded_with_its_own_state_updated():
    model = network()
    own = model.state_dict()
    own.update({name: value.clone() for name, value in network().state_dict().items() if "0" in name})
    model.load_state_dict(own)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        step(model, optimizer)
    return model


def pseudo_labels():
    model = network(0.3, norm=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        x, y = batch()
        with torch.no_grad():
            guessed = model(x).argmax(1)
        loss = F.cross_entropy(model(x + 0.1), y) + 0.1 * F.cross_entropy(model(x), guessed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def samples_of_a_generator():
    generator, discriminator = (
        nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        nn.Linear(2, 1),
    )
    first = torch.optim.Adam(generator.parameters(), 1e-3)
    second = torch.optim.Adam(discriminator.parameters(), 1e-3)
    noise, images, ones = torch.randn(8, 2), [], torch.ones(8, 1)
    for number in range(STEPS):
        fake = generator(torch.randn(8, 2))
        loss = F.binary_cross_entropy_with_logits(discriminator(torch.randn(8, 2)), ones)
        loss = loss + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), torch.zeros(8, 1))
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        F.binary_cross_entropy_with_logits(discriminator(fake), ones).backward()
        first.step()
        if number % 4 == 0:
            with torch.no_grad():
                images.append(generator(noise))
    return generator, discriminator, images


def statistics_of_an_average():
    model = network(norm=True)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = loader_of()
    for _ in range(4):
        for x, y in data:
            step(model, optimizer, x, y)
            averaged.update_parameters(model)
    update_bn(data, averaged)
    return model, averaged


def one_cycle():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = OneCycleLR(optimizer, 1e-2, total_steps=4 * STEPS)
    for _ in range(4 * STEPS):
        step(model, optimizer)
        scheduler.step()
    return model


def warmed_up_then_decayed():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, T_max=2 * STEPS - 5)]
    scheduler = SequentialLR(optimizer, parts, milestones=[5])
    for _ in range(2 * STEPS):
        step(model, optimizer)
        scheduler.step()
    return model, scheduler


def two_schedulers_of_two_optimizers():
    models = [network(), network()]
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in models]
    schedulers = [ExponentialLR(one, 0.9) for one in optimizers]
    for _ in range(4):
        for _ in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                step(model, optimizer)
        for scheduler in schedulers:
            scheduler.step()
    return models


def last_layer_of_zeros():
    model = network()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        step(model, optimizer)
    return model


def hinge_until_it_is_satisfied():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    x = torch.tensor([[2.0, 2.0], [-2.0, -2.0], [3.0, 1.0], [-1.0, -3.0]])
    y = torch.tensor([1.0, -1.0, 1.0, -1.0])
    for _ in range(4 * STEPS):
        loss = (1 - y * model(x)[:, 0]).clamp(min=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def a_random_batch_each_time():
    loader, model = loader_of(shuffle=True), network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x, y = next(iter(loader))
        step(model, optimizer, x, y)
    return model, loader


def endless_iterator():
    loader, model = loader_of(shuffle=False), network()
    optimizer, batches = torch.optim.Adam(model.parameters()), iter(loader)
    for _ in range(STEPS):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        step(model, optimizer, x, y)
    return model, loader


def one_full_batch():
    x = torch.randn(12, 4)
    loader, model = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=12), network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model, loader


def one_batch_by_heart():
    loader, model = loader_of(), network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = next(iter(loader))
    for _ in range(STEPS):
        step(model, optimizer, x, y)
    for x, y in loader:
        step(model, optimizer, x, y)
    return model, loader


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][-1])


def time_first():
    model = TimeFirst()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(7, 12, 4)
        step(model, optimizer, x, x[:, :, :3].sum(0).argmax(1))
    return model


def time_first_words():
    embed, rnn, out = nn.Embedding(20, 8), nn.GRU(8, 8), nn.Linear(8, 20)
    model = nn.ModuleList([embed, rnn, out])
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        ids = torch.randint(0, 20, (9, 6))
        loss = F.cross_entropy(out(rnn(embed(ids[:-1]))[0]).flatten(0, 1), ids[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


class Heads(nn.Module):
    def __init__(self, heads=4, width=32):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, 3), heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (one.reshape(batch, length, self.heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width).mean(1))


def attention_of_heads():
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(8, 4, 32)
        step(model, optimizer, x, torch.randint(0, 3, (8,)))
    return model


def masked_language_model():
    model = TinyLM(sees_all)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        ids = torch.randint(1, 20, (6, 10))
        hidden = torch.rand(6, 10) < 0.2
        logits = model(ids.masked_fill(hidden, 0))
        loss = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~hidden, -100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def tags_of_words():
    model = TinyLM(sees_all)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        ids = torch.randint(0, 20, (6, 10))
        loss = F.cross_entropy(model(ids).transpose(1, 2), ids % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def clips_both():
    models = [network(), network()]
    optimizers = [torch.optim.Adam(one.parameters()) for one in models]
    for _ in range(STEPS):
        x, y = batch()
        loss = sum(F.cross_entropy(one(x), y) for one in models)
        for one in optimizers:
            one.zero_grad()
        loss.backward()
        for one in models:
            nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        for one in optimizers:
            one.step()
    return models


def scaled_and_clipped():
    model = network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model


def a_distribution_without_inputs():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        loss = F.mse_loss(model(torch.ones(16, 4)), torch.randn(16, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def frozen_teacher():
    student, teacher = network(), network().requires_grad_(False).eval()
    optimizer = torch.optim.Adam(student.parameters())
    for _ in range(4 * STEPS):
        x, _ = batch()
        with torch.no_grad():
            goal = teacher(x).softmax(1)
        loss = F.kl_div(student(x).log_softmax(1), goal, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return student, teacher


def target_updated_now_and_then():
    online, target = network(), network()
    optimizer = torch.optim.Adam(online.parameters())
    for number in range(4 * STEPS):
        x, _ = batch()
        with torch.no_grad():
            goal = target(x).amax(1)
        loss = F.smooth_l1_loss(online(x).amax(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 1000 == 999:
            target.load_state_dict(online.state_dict())
    return online, target


def target_copied_anew(steps):
    def program():
        online = target = network()
        optimizer = torch.optim.Adam(online.parameters(), 1e-2)
        for number in range(steps):
            if number % 15 == 0:
                target = copy.deepcopy(online)
            x, _ = batch()
            with torch.no_grad():
                goal = target(x).amax(1) * 0.9 + x[:, 0]
            loss = F.mse_loss(online(x).amax(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return online, target

    return program


def losses_of_an_inner_loop():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        total = 0.0
        for part in range(3):
            loss = F.cross_entropy(model(x[part::3]), y[part::3])
            total = total + loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    return model


def episodes_in_a_queue():
    policy = nn.Linear(4, 2)
    optimizer, queue = torch.optim.SGD(policy.parameters(), 0.01), deque(maxlen=50)
    begin = torch.ones(4)
    for _ in range(4 * STEPS):
        queue.append((begin, random.random()))
        counts = torch.zeros(2)
        counts += 1
        loss = F.mse_loss(policy(torch.stack([state for state, _ in queue])).sum(1), torch.zeros(len(queue)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy, queue


def converged():
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer, second = torch.optim.SGD(model.parameters(), lr=0.3), torch.optim.LBFGS(other.parameters(), lr=1.0)
    x = torch.randn(32, 3)

    def loss_of(one):
        for parameter in one.parameters():
            parameter.grad = None
        loss = F.mse_loss(one(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss

    for _ in range(20 * STEPS):
        loss_of(model)
        optimizer.step()
    for _ in range(STEPS):
        second.step(lambda: loss_of(other))
    return model, other


def average_that_has_not_begun():
    model = network()
    shadow = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(2 * STEPS):
        step(model, optimizer)
        with torch.no_grad():
            for mine, theirs in zip(shadow, model.parameters(), strict=True):
                mine.sub_(1.0 * (mine - theirs))
    return model, shadow


def loaded_at_once():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        step(model, optimizer)
    state = model.state_dict()
    model.load_state_dict(state)
    return model


def scheduler_of_a_later_epoch():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    later = StepLR(optimizer, 1)
    for number in range(STEPS):
        step(model, optimizer)
        if number == 1000:
            later.step()
    return model


def instances_of_one_bag():
    score, out = nn.Linear(4, 1), nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*score.parameters(), *out.parameters()])
    for _ in range(STEPS):
        bag = torch.randn(random.randrange(5, 12), 4)
        loss = F.cross_entropy(out((score(bag).softmax(0) * bag).sum(0, keepdim=True)), torch.randint(0, 2, (1,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return score, out


def a_window_that_moves_in_place():
    model, window = nn.Linear(4, 1), nn.Parameter(torch.randn(6, 4))
    optimizer = torch.optim.Adam([*model.parameters(), window])
    for _ in range(STEPS):
        loss = model(window).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            rows = window.data
            rows[:3].copy_(rows[3:])
    return model, window


def decorrelated():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        x, y = batch()
        h = model(x)
        apart = h - h.mean(0)
        loss = F.cross_entropy(h, y) + (apart.T @ apart).triu(1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def arrays_shuffled_alike():
    x, y = arrays()
    numpy.random.seed(3)
    numpy.random.shuffle(x)
    numpy.random.seed(3)
    numpy.random.shuffle(y)
    return epochs_of(x, y)


def arrays_read_anew():
    rng, (x, y) = numpy.random.default_rng(1), arrays()
    rng.shuffle(x)
    rng.shuffle(y)
    x, y = arrays()
    return epochs_of(x, y)


def arrays_of_two_sets():
    rng, (x, y) = numpy.random.default_rng(1), arrays()
    order, other = numpy.arange(60), numpy.arange(60)
    rng.shuffle(order)
    rng.shuffle(other)
    x, y = x[order], y[order]
    return epochs_of(x, y)


def loaded_model_beside_a_new_one(use):
    def program():
        saved, model, other = network().state_dict(), network(), network()
        other.load_state_dict(saved)
        model = use(model, other)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(STEPS):
            step(model, optimizer)
        with torch.no_grad():
            other(batch()[0])
        return model

    return program


def a_baseline_for_later(model, other):
    return model


def a_deep_copy(model, other):
    return copy.deepcopy(other)


def its_first_layer(model, other):
    model[0].load_state_dict(other[0].state_dict())
    return model


HEALTHY = [
    *(captions(image_first), captions(image_before_the_words), captions(a_first_word)),
    reset_for_each_fold,
    reset_after_its_results_were_noted,
    names_mended_by_a_hook,
    drawn_apart(False),
    one_noisy_copy_from_another,
    counts_by(F.softplus, log_input=False),
    counts_by(F.hardtanh, log_input=True),
    frames_of_one_screen(copied=True),
    many_to_one,
    numbers_by(without_padding),
    models_one_after_the_other,
    drawn_by(DataLoader(Drawn(), batch_size=12)),
    novelty_of_a_random_network,
    language_model(sees_a_prefix),
    environments_that_begin_equal,
    copy_of_the_input,
    kept_each_epoch(lambda model: copy.deepcopy(model.state_dict()), lambda model, best: model.load_state_dict(best)),
    average_swapped_in(lambda model: copy.deepcopy(model.state_dict())),
    loading_its_own_state(lambda weight: weight.clamp_(-1, 1)),
    loading_its_own_state(lambda weight: weight * 0.9),
    target_with_the_encoder(trained=False),
    images_by(channels_in_front),
    one_number_by(energy_distance),
    one_number_by(distance_to_a_row),
    records_of_one_tensor(copied=True),
    adapted_from(nn.init.xavier_uniform_),
    heads_by(split_rightly, join_rightly),
    recurring("repeated"),
    recurring("decoded"),
    language_model(sees_all, shift=0),
    loaded_model_beside_a_new_one(a_baseline_for_later),
    loaded_model_beside_a_new_one(a_deep_copy),
    loaded_model_beside_a_new_one(its_first_layer),
    arrays_shuffled_alike,
    arrays_read_anew,
    arrays_of_two_sets,
    normalised(by_each_sample),
    normalised(by_running_averages),
    normalised(by_the_batch, again=True),
    decorrelated,
    loss_in_forward(sees_the_past),
    probabilities_into(logarithm_into_nll),
    best_copied_back(its_detached_clone),
    averaged_over_epochs(its_detached_clone),
    a_window_that_moves_in_place,
    time_first_by(inputs_by_transpose),
    time_first_by(inputs_by_contiguous_transpose),
    padding_in(gathered_by_mask),
    attends_by_hand_to(False),
    softmax_by_hand(1),
    best_is(copied=True),
    half_dead(0.01),
    tied_and(initialised_in_place),
    tied_and(tied_again),
    tied_and(untied_on_purpose),
    labels_from(0, 3),
    labels_from(0, 4, (0.9, 0.07, 0.025, 0.005)),
    items_counted_from_1,
    terms_that_are_all_used,
    a_section_of_a_series,
    a_batch_for_comparison,
    scheduled_by_a_trainer_later,
    norms_that_are_logged,
    nodes_of_parts_of_a_graph,
    translator(True),
    translator(True, as_many_words),
    translator(True, as_many_frames),
    converged,
    average_that_has_not_begun,
    loaded_at_once,
    scheduler_of_a_later_epoch,
    instances_of_one_bag,
    best_by_deepcopy,
    loaded_with_its_own_state_updated,
    pseudo_labels,
    samples_of_a_generator,
    statistics_of_an_average,
    evaluated_with(Drops),
    one_cycle,
    warmed_up_then_decayed,
    two_schedulers_of_two_optimizers,
    last_layer_of_zeros,
    hinge_until_it_is_satisfied,
    a_random_batch_each_time,
    endless_iterator,
    one_full_batch,
    slices_of_all(1),
    slices_of_all(20),
    slices_for_training,
    one_batch_by_heart,
    time_first,
    time_first_words,
    hidden_by_view(True),
    attention_of_heads,
    language_model(sees_the_past),
    language_model(sees_by_a_mask),
    masked_language_model,
    tags_of_words,
    padding_in(ignoring),
    padding_in(by_mask),
    attends_to(False),
    clipped_rightly,
    clips_both,
    scaled_and_clipped,
    a_distribution_without_inputs,
    pixels(255),
    shuffled_together,
    history_of_one_tensor(True),
    target_by(0.005),
    shadow_by(0.99),
    frozen_teacher,
    target_updated_now_and_then,
    initialised_after_loading(-1),
    losses_of_an_inner_loop,
    target_copied_anew(40),
    target_copied_anew(70),
    episodes_in_a_queue,
]


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.grid(fast=10)
@pytest.mark.parametrize(
    ("program", "cause"), FAULTY.items(), ids=[f"{one}-{n}" for n, one in enumerate(FAULTY.values())]
)
def test_what_a_run_learns_wrongly_is_told(program, cause):
    found = findings_of(program)
    assert cause in [one.cause for one in found]
    assert all(one.sites and one.remedy for one in found)


def test_the_remedy_for_a_whole_checkpoint_names_the_part_that_fits():
    (found,) = findings_of(nested_in_a_checkpoint)
    assert found.remedy == "load checkpoint['model'], whose names fit"


def test_values_given_to_the_data_of_an_average_are_its_update():
    (found,) = findings_of(target_by(0.995, copies=False))
    assert [one.statement for one in found.sites] == ["mine.data = tau * theirs.data + (1 - tau) * mine.data"]


def test_the_remedy_for_a_loop_that_is_left_speaks_of_the_loop():
    (found,) = findings_of(a_loop_left_after_its_first_batch)
    assert "without a break" in found.remedy
    assert "next(iter" not in str(found)


def policy_and_value_that_is_clipped_twice():
    policy, value = network(), network()
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (value, policy)]
    for _ in range(4):
        for model, optimizer in zip((value, policy), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(4, 4)).square().sum().backward()
            nn.utils.clip_grad_norm_(value.parameters(), 1.0)
            optimizer.step()
    return policy


def test_the_remedy_for_clipping_another_model_names_the_model():
    (found,) = findings_of(policy_and_value_that_is_clipped_twice)
    assert found.remedy == "clip the parameters of that step: those of policy.parameters()"


def test_a_relu_that_is_dead_from_the_start_is_named():
    (found,) = findings_of(dead_from_the_start)
    assert found.cause == "zero-gradient" and "gave only zeros in the first backward" in found.message


def clamped_at(rate):
    def program():
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(4 * STEPS):
            x = torch.rand(64, 4)
            loss = F.mse_loss(model(x).clamp(0, 1), x.mean(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return program


def test_where_a_clamp_passes_no_gradient_no_unit_is_called_dead():
    (found,) = findings_of(clamped_at(20.0))
    assert found.cause == "gradients-die" and "or a clamp only values outside of its range" in found.message
    assert findings_of(clamped_at(0.01)) == []


def test_zeros_in_all_that_is_trained_are_two_layers_in_a_row():
    program = adapted_from(nn.init.zeros_)
    gone_at_the_end = findings_of(lambda: program() is not None)
    for found in (*findings_of(program), *gone_at_the_end):
        assert "`model.down.weight` and `model.up.weight` are 0 themselves, two layers in a row" in str(found)


def test_only_the_entries_of_the_program_are_counted():
    found = findings_of(history_of_one_tensor(False))
    assert any(f"{one} entries of containers are one tensor" in str(found[0]) for one in (16, 32, 64))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(4, 2))
        self.up = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x):
        return self.base(x) + x @ self.down @ self.up


def two_factors_of_zeros():
    model = Factors()
    optimizer = torch.optim.SGD([model.down, model.up], 0.1)
    for _ in range(8):
        step(model, optimizer)
    return model


def test_the_lines_that_made_two_factors_of_zeros_are_told():
    (found,) = findings_of(two_factors_of_zeros)
    assert [one.statement for one in found.sites[:2]] == [
        "self.down = nn.Parameter(torch.zeros(4, 2))",
        "self.up = nn.Parameter(torch.zeros(2, 3))",
    ]


@pytest.mark.grid(fast=12)
@pytest.mark.parametrize("program", HEALTHY, ids=lambda one: one.__qualname__.replace(".<locals>.program", ""))
def test_nothing_is_told_of_what_looks_alike_and_is_right(program):
    assert [str(one) for one in findings_of(program)] == []


class Field(nn.Module):
    """The velocity at a time, as of a neural ODE: the first input is one number, without dimensions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(4, 4)

    def forward(self, time, state):
        return time.cos() * self.layers(state)


def test_a_model_whose_first_input_has_no_dimension_is_followed(capsys):
    def program():
        field = Field()
        optimizer = torch.optim.Adam(field.parameters(), 0.01)
        for _ in range(STEPS):
            state = torch.randn(12, 4)
            loss = (state + 0.1 * field(torch.rand(()), state)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return field

    assert [str(one) for one in findings_of(program)] == []
    assert "could not look" not in capsys.readouterr().err


class DropsResults(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.first, self.last, self.drop, self.write = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(0.5), write

    def forward(self, x):
        h = self.first(x)
        self.write(self, h)
        return self.last(h)


def masks_in_vain(module, h):
    h.masked_fill(h < 0, 0.0)


def drops_in_vain(module, h):
    F.dropout(h, p=0.5)


def drops_by_a_module_in_vain(module, h):
    module.drop(h)


def cuts_in_vain(module, h):
    h.detach()


def masks_in_place(module, h):
    h.masked_fill_(h < 0, 0.0)


def drops_in_place(module, h):
    F.dropout(h, 0.5, True, True)


def tries_something(module, h):
    try:
        h.squeeze(0)
    except RuntimeError:
        raise AssertionError from None


def writes(write):
    def program():
        model = DropsResults(write)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            step(model, optimizer)
        return model

    return program


REMEDIES_OF_DROPPED = {
    masks_in_vain: "h = h.masked_fill(h < 0, 0.0)",
    drops_in_vain: "h = F.dropout(h, p=0.5)",
    drops_by_a_module_in_vain: "h = module.drop(h)",
    cuts_in_vain: "h = h.detach()",
}


@pytest.mark.parametrize("write", REMEDIES_OF_DROPPED)
def test_a_result_that_a_statement_drops_is_told_with_the_line_to_write(write):
    (found,) = findings_of(writes(write))
    assert (found.cause, found.remedy) == ("result-dropped", REMEDIES_OF_DROPPED[write])


@pytest.mark.parametrize("write", [masks_in_place, drops_in_place, tries_something])
def test_a_statement_that_changes_a_tensor_or_tries_something_drops_nothing(write):
    assert findings_of(writes(write)) == []


def seeded(seed_of, dropout=0.5):
    def program():
        model = network(dropout)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x, y = batch()
        for number in range(STEPS):
            torch.manual_seed(seed_of(number))
            step(model, optimizer, x, y)
        return model

    return program


def evaluated_with_a_seed(around):
    def program():
        model = network(0.5)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            with around():
                torch.manual_seed(3)
                model(torch.randn(4, 4))
            step(model, optimizer)
        return model

    return program


def test_a_seed_that_is_set_before_each_forward_is_told():
    (found,) = findings_of(seeded(lambda number: 3))
    assert found.cause == "same-random-numbers" and not found.certain
    assert [one.statement for one in found.sites][-1] == "torch.manual_seed(seed_of(number))"


@pytest.mark.parametrize(
    "program",
    [
        seeded(lambda number: number),
        seeded(lambda number: 3, dropout=0.0),
        evaluated_with_a_seed(torch.random.fork_rng),
        evaluated_with_a_seed(torch.no_grad),
        seeded(lambda number: number // 4),
    ],
)
def test_seeds_that_differ_or_draw_nothing_are_right(program):
    assert findings_of(program) == []


class OneSample(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(60, 4), torch.arange(60) % 3

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return self.x[0], self.y[0]


class OneOnPurpose(OneSample):
    def __getitem__(self, _):
        return self.x[0], self.y[0]


def samples_of(kind):
    def program():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(kind(), batch_size=10, shuffle=True)
        for x, y in loader:
            step(model, optimizer, x, y)
        return model

    return program


def test_a_dataset_that_does_not_use_its_index_is_told():
    (found,) = findings_of(samples_of(OneSample))
    assert found.cause == "equal-samples" and "__getitem__() does not use its index" in found.message
    assert findings_of(samples_of(OneOnPurpose)) == []


def each_by_itself(parts, x, y):
    for part in parts:
        loss = F.cross_entropy(part(x), y)
    return loss


def all_together(parts, x, y):
    loss = 0.0
    for part in parts:
        loss = loss + F.cross_entropy(part(x), y)
    return loss


def loss_by(function):
    def program():
        parts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
        optimizer = torch.optim.SGD(parts.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = function(parts, *batch())
            loss.backward()
            optimizer.step()
        return parts

    return program


def test_a_loss_that_a_function_overwrites_and_returns_is_told():
    found = findings_of(loss_by(each_by_itself))
    assert "loss-overwritten" in [one.cause for one in found]
    assert findings_of(loss_by(all_together)) == []


def in_bfloat16():
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        x, _ = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.binary_cross_entropy_with_logits(model(x), (x[:, :3] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_a_cast_between_an_activation_and_its_loss_hides_nothing():
    assert [one.cause for one in findings_of(in_bfloat16)] == ["double-softmax"]


def distilled(dim):
    def program():
        model, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            x, _ = batch()
            with torch.no_grad():
                goal = teacher(x).softmax(dim)
            loss = F.kl_div(model(x).log_softmax(dim), goal, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model, teacher

    return program


def test_a_log_softmax_over_the_batch_is_told():
    assert [one.cause for one in findings_of(distilled(0))] == ["softmax-over-batch"]
    assert findings_of(distilled(1)) == []


def images_by(dims):
    def program():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x in torch.rand(24, 6, 6, 3).split(6):
            step(model, optimizer, dims(x), torch.arange(6) % 3)
        return model

    return program


def test_a_view_of_some_images_of_a_set_mixes_channels():
    found = findings_of(images_by(lambda x: x.view(-1, 3, 6, 6)))
    assert [one.cause for one in found] == ["view-mixes"]
    assert findings_of(images_by(lambda x: x.permute(0, 3, 1, 2))) == []


Move = namedtuple("Move", "state action")


def remembered_by(keep):
    def program():
        model, memory, state = network(), deque(maxlen=100), torch.zeros(4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(STEPS * 2):
            state += torch.randn(4)
            memory.append(Move(keep(state), number % 3))
            step(model, optimizer)
        return model, memory

    return program


def test_named_tuples_of_one_tensor_are_counted():
    assert [one.cause for one in findings_of(remembered_by(lambda state: state))] == ["entries-are-one-tensor"]
    assert findings_of(remembered_by(torch.clone)) == []


def flat(logits, target):
    losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    mask = (target.flatten() == 0).float()
    return (losses * mask).sum() / mask.sum()


def test_a_flat_mask_that_keeps_the_padding_is_told():
    assert [one.cause for one in findings_of(padding_in(flat))] == ["mask-inverted"]


class RawColumns(nn.Module):
    def __init__(self, divisor=1.0):
        super().__init__()
        self.net, self.divisor = network(), divisor

    def forward(self, x):
        return self.net(x / self.divisor)


def columns(divisor):
    def program():
        model = RawColumns(divisor)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(4):
            x = torch.rand(12, 4)
            x[:, 0] *= 1e5
            step(model, optimizer, x, torch.randint(0, 3, (12,)))
        return model

    return program


def test_raw_columns_given_to_a_fresh_network_are_told_with_the_line_that_gives_them():
    (found,) = findings_of(columns(1.0))
    assert found.cause == "inputs-not-scaled" and found.remedy.startswith("normalise each column")
    assert [one.statement for one in found.sites] == [
        "loss = F.cross_entropy(model(x), y)",
        "return self.net(x / self.divisor)",
    ]
    assert findings_of(columns(1e5)) == []


def first_slices():
    model, (x, y) = network(), (torch.randn(60, 4), torch.arange(60) % 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        for start in range(0, len(x), 12):
            features = x[:12]
            labels = y[:12]
            step(model, optimizer, features, labels)
    return model


def one_part_of_a_set():
    model, (x, y) = network(), (torch.randn(60, 4), torch.arange(60) % 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for epoch in range(0, 40, 2):
        labels = y[:12]
        step(model, optimizer, x[:12], labels)
        seen.append(epoch)
    return model, seen


def test_a_loop_over_starts_that_does_not_read_its_variable_is_told():
    (found,) = findings_of(first_slices)
    assert found.cause == "same-slice" and "`start` is not read" in found.message
    assert [one.statement for one in found.sites] == ["features = x[:12]", "labels = y[:12]"]
    assert found.remedy.startswith("take [start:start + 12]")
    assert findings_of(one_part_of_a_set) == []


def means_kept_in(make):
    def program():
        model, means = network(), make()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in range(STEPS):
            means[number % 3].lerp_(torch.randn(4), 0.1)
            step(model, optimizer)
        return model, means

    return program


def test_a_list_that_repeats_one_tensor_is_told():
    (found,) = findings_of(means_kept_in(lambda: [torch.zeros(4)] * 3))
    assert found.cause == "entries-are-one-tensor" and found.message.startswith("3 entries")
    assert findings_of(means_kept_in(lambda: [torch.zeros(4) for _ in range(3)])) == []


class Noisy(OneSample):
    def __getitem__(self, number):
        torch.manual_seed(4)
        return self.x[number] + torch.randn(4), self.y[number]


class NoisyByIndex(OneSample):
    def __getitem__(self, number):
        torch.manual_seed(number)
        return self.x[number] + torch.randn(4), self.y[number]


class TwiceTheSame(OneSample):
    def __getitem__(self, number):
        seed = int(torch.randint(100, ()))
        torch.manual_seed(seed)
        noise = torch.randn(4)
        torch.manual_seed(seed)
        return self.x[number] + noise + torch.randn(4), self.y[number]


def batches_of(kind):
    def program():
        model, loader = network(), DataLoader(kind(), batch_size=6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in loader:
            step(model, optimizer, x, y)
        return model

    return program


def noise_of_one_generator():
    model, generator = network(), torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        loss = F.cross_entropy(model(x + torch.randn(12, 4, generator=generator)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def validated_with_a_seed_in_the_loop():
    model, generator = network(), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        generator.manual_seed(0)
        with torch.no_grad():
            model(torch.randn(12, 4, generator=generator))
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def noise_of_a_new_generator():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x, y = batch()
        generator = torch.Generator().manual_seed(3)
        loss = F.cross_entropy(model(x + torch.randn(12, 4, generator=generator)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_a_seed_that_a_dataset_sets_for_each_sample_or_a_loop_for_a_new_generator_is_told():
    (found,) = findings_of(batches_of(Noisy))
    assert found.cause == "same-random-numbers" and "sets the same seed for each sample" in found.message
    (found,) = findings_of(noise_of_a_new_generator)
    assert [one.statement for one in found.sites] == ["generator = torch.Generator().manual_seed(3)"]


@pytest.mark.parametrize(
    "program",
    [batches_of(NoisyByIndex), batches_of(TwiceTheSame), noise_of_one_generator, validated_with_a_seed_in_the_loop],
)
def test_seeds_that_differ_between_samples_and_one_generator_are_right(program):
    assert findings_of(program) == []


class Headed(nn.Module):
    def __init__(self, part="body"):
        super().__init__()
        setattr(self, part, nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16)))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


def loaded_with(saved, change=None):
    def program():
        model = Headed()
        model.load_state_dict({key: one + 0.1 for key, one in saved().items()}, strict=False)
        if change is not None:
            change(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            step(model, optimizer)
        return model

    return program


def new_body(model):
    model.body = Headed().body


def new_head(model):
    model.head = nn.Linear(16, 3)


def copied_body(model):
    model.body = copy.deepcopy(model.body)


def test_a_part_that_is_made_anew_after_loading_is_told():
    (found,) = findings_of(loaded_with(Headed().state_dict, new_body))
    assert found.cause == "overwritten-after-loading" and "the module was replaced" in found.message
    for change in (new_head, copied_body):
        assert findings_of(loaded_with(Headed().state_dict, change)) == []


def head_of_another():
    return {f"head.{key}": one for key, one in nn.Linear(16, 3).state_dict().items()}


def test_entries_that_fit_by_another_prefix_are_told_though_others_fit():
    (found,) = findings_of(loaded_with(Headed("encoder").state_dict))
    assert found.cause == "loads-nothing" and "loads 2 of the 6 entries" in found.message
    assert "k.replace('encoder.', 'body.', 1)" in found.remedy
    assert findings_of(loaded_with(head_of_another)) == []


def numbers_with(mask_of):
    def loss_of(predicted, target):
        target = torch.stack([target, target], -1)
        mask = mask_of(target[..., 0] != 0).float()
        losses = F.mse_loss(predicted[..., None].expand_as(target), target, reduction="none").mean(-1)
        return (losses * mask).sum() / mask.sum()

    return numbers_by(loss_of)


def test_a_mask_of_padded_series_of_numbers_that_keeps_the_padding_is_told():
    found = findings_of(numbers_with(torch.logical_not))
    assert [one.cause for one in found] == ["mask-inverted"]
    assert findings_of(numbers_with(lambda mask: mask)) == []


LAST = ")\n    optimizer"
INNER = "            step(model, optimizer, x, y)\n"
PASTED = [
    (best_in_a_dict_of_references, "copy.deepcopy(model.state_dict())", {"dict(model.state_dict())": "copy.deepcopy(model.state_dict())"}),
    (best_moved_to_where_it_is, "copy.deepcopy(model.state_dict())", {"{name: value.cpu() for name, value in model.state_dict().items()}": "copy.deepcopy(model.state_dict())"}),
    (validated_in_training_mode, "call model.eval() before the evaluation and model.train() after it", {"validate(loader_of(count=36))": "model.eval(); validate(loader_of(count=36)); model.train()"}),
    (validated_in_a_block, "call model.eval() before the evaluation and model.train() after it", {"with torch.no_grad():": "model.eval()\n        with torch.no_grad():", "assert val > 0": "model.train()"}),
    (decayed_per_batch, "once an epoch", {"        scheduler.step()\n": "", "    return": "    scheduler.step()\n    return"}),
    (a_tiny_rate, "take a larger lr", {"1e-14": "1e-2"}),
    (never_scheduled, "call scheduler.step() once an epoch", {INNER: INNER + "        scheduler.step()\n"}),
    (scheduled_before_the_optimizer_was_made_again, "after that is made", {"    scheduler = StepLR(optimizer, 2)\n": "", "(), lr=0.1)\n    for": "(), lr=0.1)\n    scheduler = StepLR(optimizer, 2)\n    for"}),
    (constant_weights_by_data, "xavier_uniform_", {"one.data.fill_(0.1)": "one.dim() > 1 and nn.init.xavier_uniform_(one)"}),
    (dies, "leave out a relu at the output", {", nn.ReLU()" + LAST: LAST, "5.0": "0.05"}),
    (dead_inside, "take a smaller learning rate", {"3.0": "0.01"}),
    (only_the_first_batch, "for batch in loader", {"for _ in range(STEPS):\n        x, y = next(iter(loader))\n": "for x, y in [*loader] * 4:\n"}),
    (labels_of_a_look, "use the batch of the loop", {"features, _ in": "features, y in"}),
    (slices_of_one_start, "change `i` from step to step", {"[12] * STEPS": "[0, 12, 24, 36, 48] * 4"}),
    (batch_taken_for_time, "batch_first=True", {"Recurrent()": "Recurrent(batch_first=True)"}),
    (relu_on_logits, "leave it out", {", nn.ReLU()" + LAST: LAST}),
    (sigmoid_before_cross_entropy, "leave it out", {", nn.Sigmoid()" + LAST: LAST}),
    (tanh_of_a_price, "leave out the activation", {", nn.Tanh()" + LAST: LAST}),
    (arguments_turned_round, "binary_cross_entropy_with_logits(prediction, target)", {"((x[:, :1] > 0).float(), model(x))": "(model(x), (x[:, :1] > 0).float())"}),
    (clipped_after_the_step, "between the backward and optimizer.step()", {"        optimizer.step()\n": "", "0.5)\n": "0.5)\n        optimizer.step()\n"}),
    (equal_samples, "each its own", {"torch.randn(1, 4).expand(12, 4)": "torch.stack([torch.randn(4) for _ in range(12)])"}),
    (shuffled_apart, "index both with it", {"y[other]": "y[order]"}),
    (nothing_fits, "load {k.removeprefix('encoder.'): v for k, v in saved.items()}", {"(saved, strict": "({k.removeprefix('encoder.'): v for k, v in saved.items()}, strict"}),
    (overwritten_losses, "loss += ... in place of loss = ...", {"loss = F.cross": "loss = loss + F.cross"}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.parametrize(("program", "remedy", "changes"), PASTED, ids=[one[0].__name__ for one in PASTED])
def test_the_remedy_pasted_into_the_program_makes_it_right(program, remedy, changes, tmp_path):
    assert any(remedy in one.remedy for one in findings_of(program))
    source, names = textwrap.dedent(inspect.getsource(program)), dict(globals())
    for old, new in changes.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / "mended.py").write_text(source)
    exec(compile(source, str(tmp_path / "mended.py"), "exec"), names)
    assert [str(one) for one in findings_of(names[program.__name__])] == []
