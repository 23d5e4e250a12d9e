"""Is it told where inputs, weights of classes, masks, averages and loaded weights do not fit what a run learns?"""

import copy
import io
import random

import pytest
import torch
import torch.nn.functional as F
from checking import findings_of
from torch import nn
from torch.distributions import Categorical


def follow(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def network(inputs=4, outputs=3):
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def adam(*models):
    return torch.optim.Adam([one for model in models for one in model.parameters()], 1e-3)


# each program is wrong, or right; it returns what is alive at its end


def policy_of_probabilities(right):
    policy = network()
    optimizer = adam(policy)
    for _ in range(4):
        probabilities = policy(torch.randn(12, 4)).softmax(-1)
        choices = Categorical(probs=probabilities) if right else Categorical(logits=probabilities)
        follow(-choices.log_prob(choices.sample()).mean(), optimizer)
    return policy


def classes_of(shares, weights):
    def program(right):
        model = network()
        optimizer = adam(model)
        counts = torch.tensor(shares)
        weight = weights if right else counts / counts.sum()
        for _ in range(12):
            y = torch.multinomial(counts, 64, replacement=True)
            follow(F.cross_entropy(model(torch.randn(64, 4)), y, weight=weight), optimizer)
        return model

    return program


inverse_weights = classes_of([0.7, 0.2, 0.1], torch.tensor([1.0, 3.5, 7.0]))
equal_classes = classes_of([1 / 3, 1 / 3, 1 / 3], torch.tensor([1.0, 3.0, 1.0]))
class_without_weight = classes_of([0.45, 0.45, 0.1], torch.tensor([1.0, 1.0, 0.0]))


def weight_of_positives(right):
    model = network(4, 1)
    optimizer = adam(model)
    for _ in range(12):
        y = (torch.rand(64, 1) < 0.2).float()
        weight = torch.tensor([4.0 if right else 0.25])
        follow(F.binary_cross_entropy_with_logits(model(torch.randn(64, 4)), y, pos_weight=weight), optimizer)
    return model


def evaluation_of_raw_data(right):
    x = torch.rand(64, 4) * 50 + 200
    model, scaled = network(), (x - x.mean(0)) / x.std(0)
    optimizer = adam(model)

    def evaluate(data):
        model.eval()
        with torch.no_grad():
            return model(data).argmax(1).float().mean()

    for _ in range(3):
        follow(F.cross_entropy(model(scaled), torch.arange(64) % 3), optimizer)
        evaluate(scaled[:32] if right else x[:32])
    if right:
        evaluate(torch.zeros(16, 4))  # says nothing of the data
        evaluate(100 + torch.zeros(1, 4))
        with torch.no_grad():
            model(torch.linspace(-9, 9, 64).reshape(16, 4))  # as for a picture
    return model


def codes_that_grow():
    encoder, decoder = network(4, 2), network(2, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)

    def codes_evaluated():
        with torch.no_grad():
            return F.mse_loss(decoder(20 * encoder(torch.randn(64, 4))), torch.zeros(64, 4))

    for _ in range(6):
        x = torch.randn(64, 4)
        follow(F.mse_loss(decoder(encoder(x)), x), optimizer)
    codes_evaluated()
    return encoder, decoder


def curriculum():
    model = network()
    optimizer = adam(model)

    def evaluate():
        with torch.no_grad():
            return model(torch.randn(64, 4)).argmax(1).float().mean()

    for scale in (0.05, 0.3, 1.0):
        for _ in range(24):
            follow(F.cross_entropy(model(scale * torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
        evaluate()
    return model


class ScaledBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.scale = nn.Parameter(torch.full((8,), 1e-7))

    def forward(self, x):
        return x + self.scale * self.layers(x)


def branches_that_begin_small():
    model = nn.Sequential(nn.Linear(4, 8), *(ScaledBranch() for _ in range(3)), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 1e-7)
    for _ in range(6):
        follow(F.cross_entropy(model(torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
    return model


def divided_twice(right):
    x = torch.randint(0, 256, (24, 1, 8, 8)) / 255
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = adam(model)
    for _ in range(3):
        follow(F.cross_entropy(model(x if right else x / 255), torch.arange(24) % 3), optimizer)
    return model


def lists_of_tensors(right):
    samples, labels = [torch.randn(4) for _ in range(48)], [number % 3 for number in range(48)]
    if right:
        return pairs_of_tensors(samples, labels)
    random.shuffle(samples)
    random.shuffle(labels)
    model = network()
    optimizer = adam(model)
    for start in range(0, 48, 12):
        x, y = torch.stack(samples[start : start + 12]), torch.tensor(labels[start : start + 12])
        follow(F.cross_entropy(model(x), y), optimizer)
    return model


def pairs_of_tensors(samples, labels):
    pairs, model = list(zip(samples, labels, strict=True)), network()
    random.shuffle(pairs)
    optimizer = adam(model)
    for start in range(0, 48, 12):
        x, y = zip(*pairs[start : start + 12], strict=True)
        follow(F.cross_entropy(model(torch.stack(x)), torch.tensor(y)), optimizer)
    return model


def generator_that_is_zeroed(right):
    generator, critic = network(4, 4), network(4, 1)
    steps = adam(generator), adam(critic)
    for _ in range(6):
        made = generator(torch.randn(12, 4))
        follow((critic(made.detach()) - critic(torch.randn(12, 4))).mean(), steps[1])
        if right:
            steps[0].zero_grad()
        (-critic(made).mean()).backward()
        if not right:
            steps[0].zero_grad()
        steps[0].step()
    return generator, critic


def one_dict(right):
    model = network(4, 3)
    optimizer = adam(model)
    for _ in range(4):
        entry, entries = {}, []
        for _ in range(20):
            if right:
                entry = {}
            entry["x"], entry["y"] = torch.randn(4), torch.randn(3)
            entries.append(entry)
        x, y = (torch.stack([one[key] for one in entries]) for key in "xy")
        follow(F.mse_loss(model(x), y), optimizer)
    return model


def same_batch_in_a_list():
    model = network(4, 3)
    optimizer = adam(model)
    batches = [{"x": torch.randn(12, 4), "y": torch.randn(12, 3)}] * 20
    for one in batches[:4]:
        follow(F.mse_loss(model(one["x"]), one["y"]), optimizer)
    return model


def soft_update(target, source, rate):
    for mine, other in zip(target.parameters(), source.parameters(), strict=True):
        mine.data.copy_((1 - rate) * mine.data + rate * other.data)


def swapped_target(right):
    critic = network(4, 1)
    critic_target = copy.deepcopy(critic)
    optimizer = adam(critic)
    for _ in range(40):
        with torch.no_grad():
            goal = 1 + 0.9 * critic_target(torch.randn(12, 4))
        follow(F.mse_loss(critic(torch.randn(12, 4)), goal), optimizer)
        soft_update(*((critic_target, critic) if right else (critic, critic_target)), 0.1)
    return critic, critic_target


def momentum_encoder(right):
    online, predictor = network(4, 8), nn.Linear(8, 8)
    momentum = copy.deepcopy(online).requires_grad_(False)
    optimizer = adam(online, predictor)
    for _ in range(24):
        x = torch.randn(12, 4)
        with torch.no_grad():
            goal = momentum(x + 0.1)
        follow(-F.cosine_similarity(predictor(online(x)), goal).mean(), optimizer)
        with torch.no_grad():
            for mine, other in zip(momentum.parameters(), online.parameters(), strict=True):
                mine.lerp_(other, 0.01 if right else 0.99)
    return online, momentum


def averaged(right, evaluate, is_trained=True):
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    ema = copy.deepcopy(model).train(is_trained).requires_grad_(False)
    optimizer = adam(model)
    for number in range(40):
        follow(F.cross_entropy(model(torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
        soft_update(ema, model, 0.1)
        for mine, other in zip(ema.buffers(), model.buffers(), strict=True) if right else ():
            mine.copy_(other)
        if number % 10 == 0:
            evaluate(model, ema)
    return model, ema


def average_of_parameters(right):
    def evaluate(_, ema):
        with torch.no_grad():
            ema(torch.randn(12, 4))

    return averaged(right, evaluate, is_trained=False)


def average_that_is_trained_between(right):
    def evaluate(*models):
        for one in models:
            one.eval()
            with torch.no_grad():
                one(torch.randn(12, 4))
            one.train()

    return averaged(right, evaluate)


def read_from(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def a_trend_in_the_order_of_time():
    series, model = torch.linspace(-2, 2, 960) + 0.01 * torch.randn(960), network()
    windows, optimizer = series.unfold(0, 4, 1), adam(model)
    for number in range(20):
        x = windows[number * 32 : number * 32 + 32]
        follow(F.cross_entropy(model(x), torch.arange(32) % 3), optimizer)
    with torch.no_grad():
        validation = model(windows[900:])
    assert validation.isfinite().all()
    return model


def environments_that_begin_nearly_equal():
    model = network()
    optimizer = adam(model)
    for _ in range(3):
        state, losses = 1 + 1e-3 * torch.randn(16, 4), []
        for _ in range(4):
            losses.append(F.cross_entropy(model(state), torch.arange(16) % 3))
            state = state + 0.1 * torch.randn(16, 4)
        follow(torch.stack(losses).mean(), optimizer)
    return model


class Scaled(nn.Module):
    """Weights of N(0, 1), whose results are divided by the root of their number, as in the NTK parametrisation."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        for layer in self.children():
            nn.init.normal_(layer.weight)

    def forward(self, x):
        h = (self.first(x) / 2).relu()
        h = (self.second(h) / 8).relu()
        return self.last(h) / 8


class Gated(nn.Module):
    """Blocks behind gates of 0, as of ReZero."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.last, self.gates = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        for gate, block in zip(self.gates, self.blocks, strict=True):
            x = x + gate * block(x).relu()
        return self.last(x)


def trained(kind, rate):
    def program():
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(12):
            follow(F.cross_entropy(model(torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
        return model

    return program


def statistics_adapted_to_other_data():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model.load_state_dict(read_from(model.state_dict()))
    model.train()
    with torch.no_grad():
        for test_batch in torch.randn(6, 12, 4):
            model(test_batch)
    other = network()
    optimizer = adam(other)
    for _ in range(3):
        follow(F.cross_entropy(other(torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
    return other


def body_of_another_object(right):
    body, state = network(4, 8), network(4, 8).state_dict()
    loaded = body if right else copy.deepcopy(body)
    loaded.load_state_dict(state)
    model = nn.Sequential(body, nn.ReLU(), nn.Linear(8, 3))
    optimizer = adam(model)
    for _ in range(4):
        follow(F.cross_entropy(model(torch.randn(12, 4)), torch.arange(12) % 3), optimizer)
    return model, loaded


class Attends(nn.Module):
    def __init__(self, mask_of):
        super().__init__()
        self.embed, self.out, self.mask_of = nn.Embedding(9, 8), nn.Linear(8, 9), mask_of

    def forward(self, ids):
        x = self.embed(ids)
        scores = (x @ x.transpose(1, 2)).masked_fill(self.mask_of(ids == 0), -1e9)
        return self.out(scores.softmax(-1) @ x + x)


def padded(rows, length):
    ids = torch.randint(1, 9, (rows, length))
    return ids.masked_fill(torch.arange(length) >= torch.randint(2, length - 2, (rows, 1)), 0)


class Fills(Attends):
    def forward(self, ids):
        x = self.embed(ids)
        scores = (x @ x.transpose(1, 2) / 16).masked_fill((ids == 0)[:, None, :], self.mask_of)
        return self.out(scores.softmax(-1) @ x + x)


class AddsMask(Attends):
    def __init__(self, filling):
        super().__init__(filling)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        x, pad = self.embed(ids), (ids == 0).float() * self.mask_of
        return self.out(self.attend(x, x, x, key_padding_mask=pad)[0])


def filled_with(number, kind=Fills):
    def masked_scores(right):
        model = kind(-1e4 if right else number)
        optimizer = adam(model)
        for _ in range(3):
            ids = padded(12, 8)
            follow(F.cross_entropy(model(ids).mean(1), ids[:, 0]), optimizer)
        return model

    return masked_scores


class PaddedAtTheLeft(Attends):
    def forward(self, ids):
        x = self.embed(ids)
        scores = (x @ x.transpose(1, 2)).masked_fill((ids == 0)[:, None, :], -1e9)
        scores = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -1e9)
        return self.out(scores.softmax(-1) @ x + x)


def padded_at_the_left():
    model = PaddedAtTheLeft(None)
    optimizer = adam(model)
    for _ in range(3):
        ids = padded(12, 8).flip(1)
        follow(F.cross_entropy(model(ids).mean(1), ids[:, -1]), optimizer)
    return model


def attention_with(wrong, right_mask, rows):
    def program(right):
        model = Attends(right_mask if right else wrong)
        optimizer = adam(model)
        for _ in range(3):
            ids = padded(rows, 8)
            follow(F.cross_entropy(model(ids).mean(1), ids[:, 0]), optimizer)
        return model

    return program


mask_of_rows = attention_with(lambda pad: pad[:, :, None], lambda pad: pad[:, None, :], 12)
mask_of_samples = attention_with(lambda pad: pad, lambda pad: pad[:, None, :], 8)
mask_of_both = attention_with(None, lambda pad: pad[:, None, :] | pad[:, :, None], 12)


def masked_words(right):
    model = Attends(lambda pad: pad[:, None, :])
    optimizer = adam(model)
    for _ in range(3):
        words = torch.randint(2, 9, (12, 10))
        masked = torch.rand(12, 10) < 0.3
        labels = words.masked_fill(~masked if right else masked, -100)
        follow(F.cross_entropy(model(words.masked_fill(masked, 1)).flatten(0, 1), labels.flatten()), optimizer)
    return model


class LabelsGiven(Attends):
    def forward(self, ids, labels):
        return F.cross_entropy(super().forward(ids).flatten(0, 1), labels.flatten())


def masked_words_with_labels():
    model = LabelsGiven(lambda pad: pad[:, None, :])
    optimizer = adam(model)
    for _ in range(3):
        words = torch.randint(2, 9, (12, 10))
        masked = torch.rand(12, 10) < 0.3
        follow(model(words.masked_fill(masked, 1), labels=words.masked_fill(~masked, -100)), optimizer)
    return model


def words_to_reconstruct():
    model = Attends(lambda pad: pad[:, None, :])
    optimizer = adam(model)
    for _ in range(3):
        ids = padded(12, 10)
        labels = ids.masked_fill(ids == 0, -100)
        follow(F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()), optimizer)
    return model


def one_step_of_a_generator_for_several_of_its_critic():
    generator, critic, every = network(4, 4), network(4, 1), 3
    steps = [torch.optim.SGD(one.parameters(), 0.01) for one in (generator, critic)]
    for number in range(24):
        made = generator(torch.randn(12, 4))
        follow((critic(made) - critic(torch.randn(12, 4))).mean(), steps[1])
        if number % every == 0:
            follow(-critic(generator(torch.randn(12, 4))).mean(), steps[0])
    return generator, critic


def whole_numbers_divided(right):
    images, model = torch.randint(0, 255, (12, 9)), network(9)
    optimizer = adam(model)
    for _ in range(4):
        given = images / 255 if right else (images // 255).float()
        follow(F.cross_entropy(model(given), torch.arange(12) % 3), optimizer)
    return model


def distribution_of_a_constant():
    model = network(1, 3)
    optimizer = adam(model)
    for _ in range(4):
        follow(F.cross_entropy(model(torch.ones(12, 1)), torch.arange(12) % 3), optimizer)
    return model


def weights_of_a_mean(right):
    model = network(4, 1)
    optimizer = adam(model)
    for _ in range(4):
        each = F.mse_loss(model(torch.randn(12, 4)), torch.randn(12, 1), reduction="none" if right else "mean")
        follow((torch.rand(12) * (each.squeeze(1) if right else each)).mean(), optimizer)
    return model


def focal(right):
    model = network()
    optimizer = adam(model)
    for _ in range(4):
        y = torch.arange(12) % 3
        each = F.cross_entropy(model(torch.randn(12, 4)), y, reduction="none" if right else "mean")
        follow(((1 - (-each).exp()) ** 2 * each).mean(), optimizer)
    return model


def weights_of_losses():
    model, spread = network(4, 1), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([*model.parameters(), spread])
    for _ in range(4):
        outputs = model(torch.randn(12, 4)).squeeze(1)
        losses = torch.stack([F.mse_loss(outputs, torch.randn(12)), outputs.abs().mean()])
        follow((torch.tensor([1.0, 0.2]) * losses * (-spread).exp() + spread).sum(), optimizer)
    return model, spread


def legal_moves(right):
    policy = network(4, 5)
    optimizer = adam(policy)
    for _ in range(4):
        scores, legal = policy(torch.randn(24, 4)), torch.arange(24)[:, None] % 5 != torch.arange(5)
        moves = Categorical(logits=scores.masked_fill(~legal, -1e9) if right else scores * legal)
        follow(-moves.log_prob(torch.arange(1, 25) % 5).mean(), optimizer)
    return policy


class Clips(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.frame, self.rnn, self.last, self.right = nn.Linear(9, 8), nn.GRU(8, 8), nn.Linear(8, 3), right

    def forward(self, clips):
        batch, time = clips.shape[:2]
        each = self.frame(clips.view(batch * time, -1))
        each = each.view(batch, time, -1).transpose(0, 1) if self.right else each.view(time, batch, -1)
        return self.last(self.rnn(each)[1][0])


class ClipsByTime(Clips):
    def forward(self, clips):
        each = self.frame(clips.transpose(0, 1).reshape(-1, clips.shape[2]))
        return self.last(self.rnn(each.view(clips.shape[1], len(clips), -1))[1][0])


class Spectrum(nn.Module):
    def __init__(self, right):
        super().__init__()
        self.first, self.last, self.right = nn.Linear(9, 8), nn.Linear(8, 3), right

    def forward(self, x):
        h = self.first(x)
        h = torch.fft.fft2(h).real if self.right else torch.fft.fftn(h).real
        return self.last(h.mean(1))


def of_classes(model, shape):
    def program(right=False):
        trained = model(right)
        optimizer = adam(trained)
        for _ in range(4):
            follow(F.cross_entropy(trained(torch.randn(shape)), torch.arange(shape[0]) % 3), optimizer)
        return trained

    return program


def pixels_with_the_statistics_of_fractions(right):
    images, model = torch.randint(0, 256, (12, 1, 6, 6)), nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten())
    optimizer = adam(model)
    for _ in range(4):
        given = ((images / 255 if right else images) - 0.1307) / 0.3081
        follow(F.cross_entropy(model(given), torch.arange(12) % 3), optimizer)
    return model


def one_batch_drawn_before(right):
    x, y, model = torch.randn(300, 4), torch.randn(300, 1), network(4, 1)
    optimizer, batch_rows = adam(model), torch.randperm(300)[:16]
    for _ in range(20):
        rows = torch.randperm(300)[:16]
        inputs, targets = (x[rows], y[rows]) if right else (x[batch_rows], y[batch_rows])
        follow(F.mse_loss(model(inputs), targets), optimizer)
    return model


def rows_to_train_with():
    x, y, model = torch.randn(300, 4), torch.randn(300, 1), network(4, 1)
    optimizer, labelled = adam(model), torch.randperm(300)[:16]
    for _ in range(20):
        follow(F.mse_loss(model(x[labelled]), y[labelled]), optimizer)
    return model


def zeros_by_hand(right):
    first, last = ((torch.randn if right else torch.zeros)(4, 8), torch.zeros(8, 3))
    parameters = [one.requires_grad_() for one in (first, last, torch.zeros(3))]
    for _ in range(10):
        scores = torch.tanh(torch.randn(12, 4) @ first) @ last + parameters[2]
        F.cross_entropy(scores, torch.arange(12) % 3).backward()
        with torch.no_grad():
            for one in parameters:
                one -= 0.1 * one.grad
                one.grad.zero_()
    return parameters


PROGRAMS = {
    zeros_by_hand: "zero-gradient",
    weights_of_a_mean: "mean-before-weights",
    focal: "mean-before-weights",
    legal_moves: "mask-without-effect",
    of_classes(Clips, (12, 5, 9)): "view-mixes",
    of_classes(Spectrum, (12, 5, 9)): "softmax-over-batch",
    pixels_with_the_statistics_of_fractions: "inputs-not-scaled",
    one_batch_drawn_before: "same-slice",
    whole_numbers_divided: "equal-samples",
    policy_of_probabilities: "double-softmax",
    inverse_weights: "weights-by-frequency",
    weight_of_positives: "weights-by-frequency",
    evaluation_of_raw_data: "evaluated-on-another-scale",
    divided_twice: "inputs-not-scaled",
    lists_of_tensors: "shuffled-apart",
    generator_that_is_zeroed: "zeroed-before-step",
    one_dict: "entries-are-one-tensor",
    swapped_target: "target-never-updated",
    momentum_encoder: "average-is-a-copy",
    average_of_parameters: "average-without-buffers",
    average_that_is_trained_between: "average-without-buffers",
    body_of_another_object: "loads-another-model",
    mask_of_rows: "mask-without-effect",
    mask_of_samples: "mask-inverted",
    filled_with(0): "mask-without-effect",
    filled_with(1e-9): "mask-without-effect",
    filled_with(1, AddsMask): "mask-without-effect",
    masked_words: "mask-inverted",
}
RIGHT = [
    *(weights_of_losses, of_classes(ClipsByTime, (12, 5, 9)), rows_to_train_with),
    *(lambda: equal_classes(True), lambda: class_without_weight(True), lambda: mask_of_both(True)),
    padded_at_the_left,
    *(same_batch_in_a_list, words_to_reconstruct, curriculum),
    *(masked_words_with_labels, codes_that_grow, branches_that_begin_small),
    *(a_trend_in_the_order_of_time, environments_that_begin_nearly_equal),
    *(trained(Scaled, 0.1), trained(Gated, 1e-6)),
    statistics_adapted_to_other_data,
    *(distribution_of_a_constant, one_step_of_a_generator_for_several_of_its_critic),
]


@pytest.mark.parametrize(("program", "cause"), PROGRAMS.items(), ids=list(PROGRAMS.values()))
def test_what_does_not_fit_is_told_and_what_does_is_right(program, cause):
    found = findings_of(program, False)
    assert cause in [one.cause for one in found]
    assert all(one.sites and one.remedy for one in found)
    assert [str(one) for one in findings_of(program, True)] == []


@pytest.mark.parametrize("program", RIGHT)
def test_nothing_is_told_of_what_looks_alike(program):
    assert [str(one) for one in findings_of(program)] == []
