"""What `check` says before a backward: the silent failures, and nothing about what is well."""

import contextlib
import gc
import warnings
import weakref

import pytest
import torch
from checking import checking
from torch import nn

import byname


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.encoder(x)))


def causes(findings):
    return [finding.cause for finding in findings]


def culprits(finding):
    return [name.path for name in finding.culprits]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def optimizer(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of(net):
    return net(torch.randn(2, 4)).square().mean()


class TestNothingToSay:
    def test_about_a_healthy_step(self, net, optimizer):
        assert byname.check(loss_of(net), model=net, optimizer=optimizer) == []

    def test_about_a_frozen_part(self, net):
        net.encoder.requires_grad_(False)
        optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        assert byname.check(loss_of(net), model=net, optimizer=optimizer) == []

    def test_about_tied_weights(self):
        embedding, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        head.weight = embedding.weight
        model = nn.ModuleList([embedding, head])
        loss = head(embedding(torch.tensor([1, 2]))).sum()
        assert byname.check(loss, model=model, optimizer=torch.optim.Adam(model.parameters())) == []

    def test_about_several_models_optimizers_and_losses(self, net, optimizer):
        other = nn.Linear(4, 1)
        second = torch.optim.Adam(other.parameters())
        losses = [loss_of(net), other(torch.randn(2, 4)).sum()]
        assert byname.check(losses, model=[net, other], optimizer=[optimizer, second]) == []

    def test_about_a_loss_that_is_a_leaf(self):
        leaf = torch.ones((), requires_grad=True)
        assert byname.check(leaf) == []

    def test_about_a_reentrant_checkpoint_whose_parameters_cannot_be_seen(self, net, optimizer):
        from torch.utils.checkpoint import checkpoint

        loss = checkpoint(net, torch.randn(2, 4, requires_grad=True), use_reentrant=True).sum()
        assert "detached-parameter" not in causes(byname.check(loss, model=net, optimizer=optimizer))

    def test_about_parameters_outside_of_the_model_that_something_else_has_or_reads(self, net, optimizer):
        scorer, scale, perturbation = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(2, 4))
        other = torch.optim.SGD([scale], lr=0.1)
        loss = scorer(net(torch.randn(2, 4) + perturbation)).sum() * scale
        assert byname.check(loss, model=net, optimizer=optimizer) == []
        loss.backward()
        assert perturbation.grad is not None and other.param_groups

    def test_about_an_input_whose_gradient_the_program_reads(self, net, optimizer):
        image = torch.randn(2, 4, requires_grad=True)
        loss = net(image).sum()
        assert byname.check(loss, model=net, optimizer=optimizer) == []
        loss.backward()
        assert image.grad is not None


class TestFindings:
    def test_parameters_that_are_cut_off_and_the_line(self, net, optimizer):
        with byname.track():
            features = net.encoder(torch.randn(2, 4)).detach()
            loss = net.head(features).sum()
            (finding,) = byname.check(loss, model=net, optimizer=optimizer)

        assert finding.cause == "detached-parameter"
        assert culprits(finding) == ["net.encoder.weight", "net.encoder.bias"]
        assert [site.statement for site in finding.sites] == ["features = net.encoder(torch.randn(2, 4)).detach()"]
        assert "`features`" in finding.message and "is detached" in finding.message

    def test_without_tracking_the_same_parameters_and_no_line(self, net):
        loss = net.head(net.encoder(torch.randn(2, 4)).detach()).sum()
        (finding,) = byname.check(loss, model=net)

        assert culprits(finding) == ["net.encoder.weight", "net.encoder.bias"]
        assert finding.sites == ()

    def test_a_logged_statistic_is_not_blamed_for_the_cut(self, net):
        with byname.track():
            hidden = net.encoder(torch.randn(2, 4))
            logged = hidden.detach().norm()
            used = hidden.detach()
            loss = net.head(used).sum()
            (finding,) = byname.check(loss, model=net)

        assert logged.ndim == 0
        assert "used = hidden.detach()" in [site.statement for site in finding.sites]
        assert "logged" not in finding.message or "may be cut" in finding.message

    def test_an_evaluation_before_it_is_not_blamed_for_what_a_loss_does_not_use(self, net):
        extra = nn.Linear(4, 1)
        model = nn.ModuleList([net, extra])
        with byname.explaining():
            with torch.no_grad():
                extra(torch.randn(2, 4))
            (finding,) = byname.check(loss_of(net), model=model)

        assert culprits(finding) == ["extra.weight", "extra.bias"]
        assert finding.sites == ()

    def test_a_replaced_head_on_both_sides(self, net, optimizer):
        net.head = nn.Linear(8, 1)
        findings = byname.check(loss_of(net), model=net, optimizer=optimizer)

        assert causes(findings) == ["not-in-optimizer", "orphaned-parameter"]
        assert culprits(findings[0]) == ["net.head.weight", "net.head.bias"]
        old, new = culprits(findings[1])[:2], culprits(findings[1])[2:]
        assert old == [f"optimizer.param_groups[0]['params'][{number}]" for number in (2, 3)]
        assert new == ["net.head.weight", "net.head.bias"]

    @pytest.mark.parametrize("track", [byname.track, byname.explaining, contextlib.nullcontext])
    def test_a_parameter_outside_of_the_model_that_the_optimizer_lacks(self, net, optimizer, track):
        with track():
            temperature = nn.Parameter(torch.ones(()))
            (finding,) = byname.check(loss_of(net) * temperature, model=net, optimizer=optimizer)

        assert (finding.cause, culprits(finding)) == ("not-in-optimizer", ["temperature"])
        assert "the optimizer (SGD) does not have it" in finding.message

    def test_a_group_that_a_used_up_generator_left_empty_is_told(self, net):
        parameters = net.encoder.parameters()
        assert sum(one.numel() for one in parameters)
        optimizer = torch.optim.SGD([{"params": net.head.parameters()}, {"params": parameters}], 0.1)
        (finding,) = byname.check(loss_of(net), model=net, optimizer=optimizer)

        assert finding.remedy.startswith("a group of its parameters is empty: a generator")

    def test_the_line_that_made_what_the_optimizer_lacks_is_shown(self, net, optimizer):
        with byname.explaining():
            net.head = nn.Linear(8, 1)
            finding = byname.check(loss_of(net), model=net, optimizer=optimizer)[0]

        assert finding.cause == "not-in-optimizer"
        assert [site.statement for site in finding.sites] == ["net.head = nn.Linear(8, 1)"]

    def test_a_loss_without_a_graph(self, net):
        with byname.track():
            predicted = net(torch.randn(2, 4)).argmax(1)
            loss = (predicted.float() - 1).mean()
            (finding,) = byname.check(loss, model=net)

        assert (finding.cause, culprits(finding)) == ("no-grad-path", ["predicted"])
        assert finding.sites[0].target == "predicted"

    def test_a_backward_that_will_fail(self, net):
        shared = torch.relu(net.encoder(torch.randn(2, 4)))
        with byname.explaining():
            first, second = net.head(shared).sum(), net.head(shared).mean()
            first.backward()
            (finding,) = byname.check(second)

        assert finding.cause == "backward-twice"
        assert culprits(finding) == ["shared"]
        assert "first.backward()" in [site.statement for site in finding.sites]

    def test_a_gradient_with_a_graph(self, net, optimizer):
        with byname.explaining(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warning of create_graph comes once a process
            loss_of(net).backward(create_graph=True)
        found = byname.check(loss_of(net), model=net, optimizer=optimizer)

        assert causes(found) == ["graph-in-grad"]
        assert set(culprits(found[0])) == {
            f"net.{part}.{kind}" for part in ("encoder", "head") for kind in ("weight", "bias")
        }
        assert found[0].sites[0].statement.startswith("loss_of(net).backward(create_graph=True)")
        for parameter in net.parameters():
            parameter.grad = None

    def test_one_finding_for_a_group_of_parameters(self):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
        (finding,) = byname.check(model[0](torch.ones(1, 2)).sum(), model=model)

        assert len(finding.culprits) == 38
        assert finding.message.count("`") == 12 and "32 more" in finding.message


class TestItOnlyLooks:
    def test_no_hook_is_called_and_nothing_unpacked(self, net, optimizer):
        calls = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: calls.append(x) or x):
            loss = loss_of(net)
        net.head.weight.register_hook(calls.append)
        byname.check(loss, model=net, optimizer=optimizer)

        assert calls == []

    def test_findings_keep_no_tensor_alive(self, net):
        loss = net.head(net.encoder(torch.randn(2, 4)).detach()).sum()
        findings = byname.check(loss, model=net)
        watched = weakref.ref(loss)
        del loss
        gc.collect()

        assert findings and watched() is None

    @pytest.mark.slow
    def test_a_chain_of_200_000_nodes(self):
        x = torch.ones((), requires_grad=True)
        y = x
        for _ in range(200_000):
            y = y * 1.0
        assert byname.check(y) == []
        del y


class TestUnattended:
    """What `byname run --check` tells of a program that gives it neither model nor optimizer."""

    def steps(self, net, optimizer, forward, times=3):
        found = []
        with checking(found.append):
            for _ in range(times):
                optimizer.zero_grad()
                forward(net).backward()
                optimizer.step()
        return found

    def test_a_part_that_never_learns_is_told_at_the_first_step(self, net, optimizer):
        (finding,) = self.steps(net, optimizer, lambda net: net.head(net.encoder(torch.randn(2, 4)).detach()).sum())

        assert finding.cause == "detached-parameter"
        assert culprits(finding) == ["net.encoder.weight", "net.encoder.bias"]

    def test_a_part_that_learns_from_another_loss_is_not(self, net, optimizer):
        def forward(net):
            hidden = net.encoder(torch.randn(2, 4))
            hidden.square().mean().backward(retain_graph=True)
            return net.head(hidden.detach()).sum()

        assert self.steps(net, optimizer, forward) == []

    def test_a_part_that_is_not_used_in_this_batch_is_not(self, net, optimizer):
        assert self.steps(net, optimizer, lambda net: net.encoder(torch.randn(2, 4)).sum()) == []

    def test_a_part_that_was_only_evaluated_before_is_not(self, net, optimizer):
        def forward(net):
            with torch.no_grad():
                net(torch.randn(2, 4))
            return net.encoder(torch.randn(2, 4)).sum()

        assert self.steps(net, optimizer, forward) == []

    def test_a_parameter_in_no_optimizer_is_told_once(self, net):
        optimizer = torch.optim.SGD(net.encoder.parameters(), lr=0.1)
        (finding,) = self.steps(net, optimizer, loss_of, times=4)

        assert (finding.cause, culprits(finding)) == ("not-in-optimizer", ["net.head.weight", "net.head.bias"])

    @pytest.mark.filterwarnings("ignore:Using backward")
    def test_the_same_parameters_are_told_once_whatever_their_order(self, net, optimizer):
        def forward(net):
            loss_of(net).backward(create_graph=True)
            return sum(one.grad.norm() for one in net.parameters())

        found = self.steps(net, optimizer, forward, times=6)
        assert causes(found).count("graph-in-grad") == 1

    @pytest.mark.parametrize("given", [False, True])
    def test_a_parameter_that_is_replaced_between_steps_is_told_unless_the_optimizer_gets_it(
        self, net, optimizer, given
    ):
        calls = []

        def forward(net):
            calls.append(net)
            if len(calls) == 3:
                net.head.weight = nn.Parameter(net.head.weight.detach().clamp(-0.1, 0.1))
                if given:
                    optimizer.add_param_group({"params": [net.head.weight]})
            return loss_of(net)

        found = [one for one in self.steps(net, optimizer, forward, times=8) if one.cause == "not-in-optimizer"]
        assert [culprits(one) for one in found] == ([] if given else [["net.head.weight"]])
        assert all(one.sites[0].target == "net.head.weight" for one in found)


def test_what_another_optimizer_has_is_not_told(net):
    critic = nn.Linear(1, 1)
    mine, other = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
    loss = critic(net(torch.randn(2, 4))).mean()

    assert byname.check(loss, optimizer=mine) == []
    assert other.param_groups
