"""Which operation first turned finite numbers into NaN or Inf?"""

import gc
import threading
import weakref
from contextlib import contextmanager

import pytest
import torch
from checking import checking
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import byname


@contextmanager
def watched():
    """The findings of `--non-finite` in what runs inside."""
    found = []
    with checking(non_finite=found.append):
        yield found


def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def lines(finding):
    return [site.statement for site in finding.sites[:-1]]


def test_a_root_that_where_makes_finite_still_has_a_nan_gradient():
    x = leaf(0.0, 4.0)
    with watched() as found:
        y = x.sqrt()
        z = torch.where(x > 0, y, 0.0)
        z.sum().backward()
    (one,) = found
    assert one.cause == "non-finite-gradient"
    assert [str(name) for name in one.culprits] == ["y"]
    assert lines(one) == ["y = x.sqrt()", "z = torch.where(x > 0, y, 0.0)"]
    assert "NaN (1 of 2): its result is 0 (no finite slope there) at 1 of these elements" in one.message
    assert "torch.where(ok, sqrt(torch.where(ok, x, safe)), other)" in one.remedy


def test_a_name_that_is_gone_is_told_from_the_log():
    def forward(x):
        y = x.sqrt()
        return torch.where(x > 0, y, 0.0).sum()

    with watched() as found:
        forward(leaf(0.0, 4.0)).backward()
    assert [str(name) for name in found[0].culprits] == ["y"]


def _divergence(x):
    return torch.nn.functional.kl_div(x, x.detach(), reduction="sum")


FORWARD = {
    "log": (lambda x: x.log(), (0.0, 1.0), "log", "Inf", "its input is 0 at 1 of these elements"),
    "negative": (lambda x: x.log(), (-1.0, 1.0), "log", "NaN", "its input is negative at 1"),
    "sqrt": (lambda x: x.sqrt(), (-1.0, 1.0), "sqrt", "NaN", "its input is negative at 1"),
    "norm": (lambda x: x / x.norm(), (0.0, 0.0), "div", "NaN", "its denominator is 0"),
    "rtruediv": (lambda x: 1 / x, (0.0, 2.0), "div", "Inf", "its denominator is 0 at 1"),
    "exp": (lambda x: x.exp() / x.exp().sum(), (1000.0, 1.0), "exp", "Inf", "its input goes up to 1000"),
    "acos": (lambda x: x.acos(), (2.0, 0.5), "acos", "NaN", "its input is beyond 1 or -1 at 1"),
    "log1p": (lambda x: x.log1p(), (-1.0, 0.5), "log1p", "Inf", "its input is -1 or below at 1"),
    "logit": (lambda x: x.logit(), (1.0, 0.5), "logit", "Inf", "its input is 0 or 1 at 1"),
    "erfinv": (lambda x: x.erfinv(), (1.0, 0.5), "erfinv", "Inf", "its input is 1 or -1 at 1"),
    "atanh": (lambda x: x.arctanh(), (1.0, 0.5), "atanh", "Inf", "its input is 1 or -1 at 1"),
    "kl_div": (_divergence, (-1.0, 0.5), "kl_div", "NaN", "its targets are negative, as logarithms are, in 1 of 2"),
    "in place": (lambda x: (x * 1).log_(), (0.0, 1.0), "log", "Inf", ""),
    "a masked row": (lambda x: x.masked_fill(x == x, -torch.inf).softmax(0), (1.0, 2.0), "softmax", "NaN", ""),
}


@pytest.mark.parametrize("case", FORWARD)
def test_the_call_of_the_forward_pass_is_told(case):
    compute, values, operation, kind, reason = FORWARD[case]
    with watched() as found:
        y = compute(leaf(*values))
        y.sum().backward()
    (one,) = found
    assert one.message.startswith(f"`{operation}` at test_nonfinite.py:")
    assert f"into {kind} in the forward pass" in one.message
    assert reason in one.message


BACKWARD = {
    "sqrt": (lambda x: (x.sqrt()).sum(), (0.0, 1.0), "sqrt", "Inf"),
    "pow": (lambda x: (x**0.5).sum(), (0.0, 1.0), "pow", "Inf"),
    "acos": (lambda x: x.acos().sum(), (1.0, 0.5), "acos", "Inf"),
    "norm by hand": (lambda x: x.square().sum().sqrt(), (0.0, 0.0), "sqrt", "Inf"),
    "a masked log": (lambda x: x.log().masked_fill(x == 0, 0.0).sum(), (0.0, 1.0), "log", "NaN"),
}


@pytest.mark.parametrize("case", BACKWARD)
def test_the_operation_of_the_backward_pass_is_told(case):
    compute, values, operation, kind = BACKWARD[case]
    with watched() as found:
        loss = compute(leaf(*values))
        loss.backward()
    (one,) = found
    assert one.message.startswith(f"the backward of `{operation}` at test_nonfinite.py:")
    assert f"turned finite gradients into {kind}" in one.message


HEALTHY = {
    "attention": lambda x: x.masked_fill(torch.tensor([True, False]), -torch.inf).softmax(0).square().sum(),
    "double where": lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0).sum(),
    "a log nobody needs": lambda x: (x.detach().log(), x.sum())[1],
    "complex": lambda x: torch.complex(x, x).abs().add(1).sum(),
    "large": lambda x: (x + 2e38).mul(1.0).max(),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_what_does_not_reach_the_gradients_is_not_told(case):
    with watched() as found:
        HEALTHY[case](torch.nn.Parameter(torch.tensor([0.5, 1.0]))).backward()
    assert found == []


def test_sparse_gradients_are_looked_at():
    table = nn.Embedding(3, 2, sparse=True)
    with watched() as found:
        table(torch.tensor([0, 0])).sum().backward()
        assert found == []
        (table(torch.tensor([0])) * torch.zeros(1)).sqrt().sum().backward()
    assert "`sqrt`" in found[0].message


def test_a_parameter_that_holds_nan_already_is_told_by_name():
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    with watched() as found:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
    (one,) = found
    assert one.message.startswith("`model.weight` holds NaN (1 of 3) already")
    assert "optimizer step" in one.remedy


def test_what_a_spoilt_step_leaves_in_the_parameters_is_not_told_again():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched() as found:
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)) * 0).sqrt().sum().backward()
            optimizer.step()
    assert not torch.isfinite(model.weight).any()
    (one,) = found
    assert one.message.startswith("the backward of `sqrt`")


def test_a_parameter_that_is_spoilt_after_finite_gradients_is_told():
    model = nn.Linear(2, 1)
    with watched() as found:
        (model(torch.ones(1, 2)) * 0).sqrt().sum().backward()
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            model.weight[0, 0] = float("nan")
        model(torch.ones(1, 2)).sum().backward()
    assert found[0].message.startswith("the backward of `sqrt`")
    assert found[1].message.startswith("`model.weight` holds NaN (1 of 2) already")
    assert len(found) == 2


def diverging(rate, scale=1.0):
    """Regression by gradient descent; returns what was found, the model, and how many losses were finite."""
    torch.manual_seed(0)
    model, finite = nn.Linear(1, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x = torch.arange(100.0)[:, None] * scale
    with watched() as found:
        for _ in range(40):
            loss = nn.functional.mse_loss(model(x), 50 * x + 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            finite += loss.isfinite().item()
    return found, finite


def test_training_that_diverges_is_told_once_with_the_parameter_that_has_grown():
    found, finite = diverging(0.01)
    assert 3 < finite < 40
    (one,) = found
    assert "`model.weight` holds numbers up to " in one.message and "most likely, training diverges" in one.message
    assert "lower the learning rate" in one.remedy and "normalise" in one.remedy


@pytest.mark.parametrize(("rate", "scale"), [(0.0001, 1.0), (0.01, 0.01)], ids=["lower rate", "normalised"])
def test_the_remedies_of_training_that_diverges_mend_it(rate, scale):
    found, finite = diverging(rate, scale)
    assert found == [] and finite == 40


def test_an_overflow_with_usual_parameters_is_not_called_divergence():
    model = nn.Linear(1, 1)
    with watched() as found:
        model(torch.full((4, 1), 1e30)).square().mean().backward()
    (one,) = found
    assert "diverges" not in one.message and "learning rate" not in one.remedy


def test_an_overflow_after_steps_may_be_one_of_a_growth_that_no_single_parameter_shows():
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    with watched() as found:
        for _ in range(2):
            model(torch.ones(4, 1)).square().mean().backward()
            optimizer.step()
            nn.utils.vector_to_parameters(torch.full((16,), 3e4), model.parameters())
    one = found[0]
    assert "its input goes up to" in one.message and "float32 ends at 3.4e+38" in one.message
    assert one.remedy.startswith("if the numbers have grown from step to step, lower the learning rate")


def test_what_takes_the_mean_of_nothing_is_told_so():
    output = nn.Linear(2, 3)(torch.ones(4, 2))
    ignored = torch.full((4,), -100)
    with watched() as found:
        (output[output.detach() > 1e6].mean() + output.sum()).backward(retain_graph=True)
        (nn.functional.cross_entropy(output, ignored) + output.sum()).backward(retain_graph=True)
        (nn.functional.mse_loss(output[:0], output[:0].detach()) + output.sum()).backward()
    assert [one.message.rpartition(": ")[2] for one in found] == [
        "its input has no elements",
        "all its targets are -100",
        "its input has no elements",
    ]
    assert all("leave the term out where nothing is selected" in one.remedy for one in found)


def test_inf_under_a_mask_that_multiplies_is_to_be_replaced_before():
    scores, mask = leaf(1.0, 2.0), torch.tensor([1.0, 0.0])
    with watched() as found:
        hidden = scores.masked_fill(mask == 0, -torch.inf)
        (hidden * mask).sum().backward()
    (one,) = found
    assert "`mul`" in one.message and "turned Inf into NaN" in one.message
    assert "0 times Inf" in one.remedy and "masked_fill" in one.remedy


def test_nan_that_the_loss_leaves_out_and_backward_multiplies_is_told_where_it_was_made():
    head = nn.Linear(3, 1)
    with watched() as found:
        weights = torch.full((2, 3), -torch.inf).index_fill(0, torch.tensor([0]), 0.0).softmax(-1)
        out = head(weights)
        out[:1].sum().backward()
    (one,) = found
    assert head.weight.grad.isnan().all()
    assert one.message.startswith("`softmax` at") and "turned Inf into NaN in the forward pass (3 of 6)" in one.message
    assert "The root leaves them out, but backward multiplies them by the gradient 0" in one.message


def test_what_was_overwritten_is_forgotten():
    with watched() as found:
        data = torch.zeros(2).log()
        data[:] = 1.0
        (leaf(1.0, 1.0) * data).sum().backward()
        data[0] = float("nan")
        (leaf(1.0, 1.0) * data).sum().backward()
    assert len(found) == 1
    assert "`setitem`" in found[0].message


def test_nan_in_the_data_is_no_operations_doing():
    data = torch.tensor([[1.0, float("nan"), 2.0]])
    model = nn.Linear(3, 1)
    with watched() as found:
        shifted = data + 1
        model(shifted).sum().backward()
    assert found[0].message.startswith("`data` holds NaN (1 of 3) already")
    assert "no operation seen here produced it" in found[0].message


def test_numbers_written_as_nan_are_told_as_given():
    with watched() as found:
        data = torch.tensor([float("nan"), 2.0])
        (leaf(1.0, 1.0) * data).sum().backward()
    assert "was given NaN (1 of 2)" in found[0].message
    assert [str(name) for name in found[0].culprits] == ["data"]


def test_data_spoilt_by_an_operation_outside_the_graph_is_that_operations_doing():
    with watched() as found:
        data = torch.ones(4, 2)
        scaled = (data - data.mean(0)) / data.std(0)
        nn.Linear(2, 1)(scaled).sum().backward()
    assert lines(found[0]) == ["scaled = (data - data.mean(0)) / data.std(0)"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_short_type_overflows(dtype):
    x = leaf(torch.finfo(dtype).max / 2, dtype=dtype)
    with watched() as found:
        y = x * 4
        y.sum().backward()
    assert f"{str(dtype).removeprefix('torch.')} ends at" in found[0].message
    assert ("GradScaler" in found[0].remedy) == (dtype is torch.float16)


class Spoils(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 0


def test_a_custom_function_is_told():
    x = leaf(1.0)
    with watched() as found:
        y = Spoils.apply(x)
        y.sum().backward()
    assert found[0].message.startswith("the backward of `Spoils` at")
    assert [str(name) for name in found[0].culprits] == ["y"]


def test_a_gradient_that_was_given_is_not_blamed_on_an_operation():
    with watched() as found:
        (leaf(1.0) * 2).backward(torch.tensor([torch.inf]))
    assert "it was given to backward(), or put there by a hook" in found[0].message


def test_finite_gradients_can_overflow_where_they_are_added():
    w = leaf(1.0)
    with watched() as found:
        for _ in range(2):
            (w * 3e38).sum().backward()
    assert found[0].message.startswith("the gradient of `w` became Inf (1 of 1)")
    assert "zero_grad" in found[0].remedy


def test_a_line_is_told_once():
    x = leaf(0.0, 1.0)
    with watched() as found:
        for _ in range(3):
            x.sqrt().sum().backward()
    assert len(found) == 1


def test_an_operation_from_before_has_no_site():
    loss = leaf(0.0, 1.0).sqrt().sum()
    with watched() as found:
        loss.backward()
    assert found[0].message.startswith("the backward of `sqrt` turned")
    assert len(found[0].sites) == 1


def test_it_works_with_retained_graphs_double_backward_and_grad():
    x = leaf(0.0, 1.0)
    with watched() as found:
        y = (x**1.5).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
        y.backward(retain_graph=True)
    assert len(found) == 1


def test_it_works_under_a_checkpoint():
    x = leaf(0.0, 1.0)
    with watched() as found:
        checkpoint(lambda x: torch.where(x > 0, x.sqrt(), 0.0), x, use_reentrant=False).sum().backward()
    assert "`sqrt`" in found[0].message


def test_no_hook_is_left_after_a_backward_that_raises():
    x = leaf(0.0, 1.0)

    def refuse(gradient):
        raise ValueError("no")

    with watched() as found:
        y = x.sqrt()
        loss = (y * 1).sum()
        y.register_hook(refuse)
        with pytest.raises(ValueError, match="no"):
            loss.backward(retain_graph=True)
    assert found == []
    x_alive, y_alive = weakref.ref(x), weakref.ref(y)
    del x, y, loss
    gc.collect()
    assert (x_alive(), y_alive()) == (None, None)


def test_nothing_is_kept_alive(no_collection):
    with watched():
        x = leaf(0.0, 1.0)
        y = x.sqrt()
        held = [weakref.ref(x), weakref.ref(y)]
        y.log().sum().backward()
        del x, y
        assert [one() for one in held] == [None, None]


def train(steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_training_is_the_same_to_the_last_bit():
    plain = train()
    with watched() as found:
        seen = train()
    assert found == []
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))


def test_the_users_dispatch_modes_do_not_see_the_looking():
    class Counts(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def run():
        with Counts() as mode:
            leaf(0.0, 1.0).sqrt().mean().backward()
            leaf(0.0, 1.0).log().mean().backward()
        return mode.names

    plain = run()
    with watched() as found:
        assert run() == plain
    assert len(found) == 2


def test_complex_numbers_have_no_order_to_be_asked_for():
    x = leaf(0j, 1j, dtype=torch.complex64)
    with watched() as found:
        x.log().abs().sum().backward()
        x.sqrt().abs().sum().backward()
    assert found[0].message.startswith("`log`")


def test_functional_transforms_and_edges_are_left_alone():
    x = leaf(0.0, 1.0)
    with watched() as found:
        torch.func.grad(lambda x: x.sqrt().sum())(x.detach())
        torch.vmap(lambda x: x.log())(x.detach())
        edge = torch.autograd.graph.get_gradient_edge((x * 2).sum())
        torch.autograd.grad(edge, x, grad_outputs=torch.ones(()))
    assert found == []


def test_the_users_modes_do_not_see_the_looking():
    class Counts(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    def run():
        with Counts() as mode:
            leaf(0.0, 1.0).sqrt().mean().backward()
        return mode.names

    plain = run()
    with watched():
        assert run() == plain


def test_threads_do_not_disturb_each_other():
    def work():
        loss = leaf(0.0, 1.0).log().sum()
        loss.backward()

    with watched() as found:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) >= 1
    assert all("`log` at" in one.message for one in found)
    assert torch._C._len_torch_function_stack() == 0


def test_repeated_eigenvalues_are_told_with_a_remedy_that_mends_them():
    def loss(noise):
        matrix = nn.Parameter(torch.eye(4) + noise)
        return (torch.linalg.eigh(matrix)[1] * torch.arange(4.0)).square().sum(), matrix

    with watched() as found:
        root, matrix = loss(torch.zeros(4, 4))
        root.backward()
    (one,) = found
    assert "the backward of `linalg.eigh`" in one.message
    assert "eigenvalues are equal to others in 4 of 4 elements" in one.message
    assert "noise" in one.remedy
    root, matrix = loss(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) * 1e-3)
    root.backward()
    assert matrix.grad.isfinite().all()


def test_a_target_too_long_for_ctc_is_no_overflow():
    x = torch.randn(6, 2, 5, requires_grad=True)
    lengths = torch.full((2,), 6), torch.full((2,), 9)
    with watched() as found:
        nn.functional.ctc_loss(x.log_softmax(-1), torch.randint(1, 5, (2, 9)), *lengths).backward()
    (one,) = found
    assert "zero_infinity=True" in one.remedy
    assert "scale" not in one.remedy


def test_an_overflow_of_float16_that_ends_in_a_finite_loss_is_told():
    x = leaf(-600.0, 2.0, dtype=torch.float16)
    with watched() as found:
        (x * torch.rsqrt(x.pow(2).mean() + 1)).sum().backward()
    (one,) = found
    assert "`pow` at" in one.message
    assert "its input goes up to 600 in magnitude, and float16 ends at" in one.message
    assert "The root is finite again" in one.message
    assert "float32" in one.remedy


def test_a_mask_that_overflows_float16_is_meant():
    x = leaf(1.0, 2.0, dtype=torch.float16)
    lowest = torch.tensor([0.0, -65504.0], dtype=torch.float16)
    with watched() as found:
        (x + lowest + lowest).softmax(0).float().square().sum().backward()
    assert found == []


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, 1), (torch.float32, 0)])
def test_a_step_that_spoils_a_parameter_with_finite_gradients_is_told_once(dtype, number):
    def program():
        embedding = nn.Embedding(9, 2, dtype=dtype)
        optimizer = torch.optim.Adam(embedding.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            embedding(torch.arange(3)).float().square().sum().backward()
            optimizer.step()

    with watched() as found:
        program()
    assert len(found) == number
    for one in found:
        assert "the step of Adam at test_nonfinite.py" in one.message
        assert "eps=1e-08 is 0 in float16" in one.message
        assert one.sites[0].statement == "optimizer.step()"


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_the_note_of_anomaly_mode_names_a_mask_that_comes_too_late():
    x = leaf(0.0, 4.0)
    with pytest.raises(RuntimeError) as error, byname.explaining(), torch.autograd.set_detect_anomaly(True):
        torch.where(x > 0, x.sqrt(), 0.0).sum().backward()
    (note,) = error.value.__notes__
    assert "The `where` at test_nonfinite.py" in note
    assert "torch.where(ok, sqrt(torch.where(ok, x, safe)), other)" in note
