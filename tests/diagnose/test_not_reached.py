"""What is said of the calls that may have cut a parameter off."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname


def on_one_line(hidden):
    hidden = hidden.detach()
    return [hidden.mean(0).tolist(), hidden.amax(0).tolist()]


def in_a_loop(hidden):
    rows = []
    for _ in range(30):
        rows.append(hidden.detach().mean(0).tolist())  # noqa: PERF401 - as many programs do
    return rows


@pytest.mark.parametrize("rows_of", [on_one_line, in_a_loop])
def test_calls_on_one_line_are_told_once(rows_of):
    encoder, head, x = nn.Linear(3, 3, bias=False), nn.Linear(3, 1), torch.randn(4, 3)
    with byname.explaining():
        loss = head(torch.tensor(rows_of(encoder(x)))).mean()
        (finding,) = byname.check(loss, model=nn.ModuleList([encoder, head]))
    assert "The path may be cut here" in finding.message
    assert finding.message.count("is detached from the graph") == 1
    assert finding.message.count("is converted to plain numbers") == 1


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(10, 4), nn.Linear(4, 4)

    @torch.no_grad()
    def embed(self, tokens):
        return nn.functional.normalize(self.out(self.table(tokens)), dim=-1)


def test_what_a_decorated_function_returns_is_a_result_and_no_parameter_is_said_to_be_computed():
    model = Embedder()
    with pytest.raises(RuntimeError) as error, byname.explaining():
        model.embed(torch.randint(10, (3, 5))).sum().backward()
    (note,) = error.value.__notes__
    assert re.search(r": a result of `model\.\w+\.weight` at \S+ is computed while gradients are switched off", note)
    assert "outside of that block (a decorator of the function is one, too)" in note


def test_what_sample_draws_from_a_result_is_the_cut_though_it_draws_from_views():
    encoder, head, x = nn.Linear(3, 4), nn.Linear(2, 1), torch.randn(4, 3)
    with byname.explaining():
        mean, scale = encoder(x).chunk(2, -1)
        drawn = torch.distributions.Normal(mean, scale.exp()).sample()
        (finding,) = byname.check(head(drawn).mean(), model=nn.ModuleList([encoder, head]))
    assert "The path is cut here: `drawn`" in finding.message and "is drawn by sample()" in finding.message
    assert "rsample()" in finding.remedy and finding.sites[0].statement.startswith("drawn = ")


def test_a_detach_on_the_wrong_side_of_a_distillation_is_told_though_the_loss_uses_what_it_detaches():
    student, teacher, x = nn.Linear(3, 4), nn.Linear(3, 4), torch.randn(8, 3)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    with byname.explaining():
        logits = student(x)
        distilled = F.kl_div(logits.detach().log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean")
        loss = nn.functional.cross_entropy(logits, torch.randint(4, (8,))) + distilled
        (finding,) = byname.check(loss, model=nn.ModuleList([student, teacher]), optimizer=optimizer)
    assert finding.cause == "not-in-optimizer" and "Beside it" in finding.message
    assert any(site.statement.startswith("distilled = ") for site in finding.sites)


def test_a_view_made_under_no_grad_is_the_tensor_of_the_graph():
    encoder, head, x = nn.Linear(3, 4), nn.Linear(4, 1), torch.randn(4, 3)
    with byname.explaining():
        hidden = encoder(x)
        with torch.no_grad():
            scaled = hidden.flatten(1) * 2
        (finding,) = byname.check(head(scaled).mean(), model=nn.ModuleList([encoder, head]))
    assert "The path is cut here: `scaled`" in finding.message


def test_of_what_a_library_computed_without_gradients_the_line_of_the_program_is_told(tmp_path):
    file, names = tmp_path / "site-packages" / "graphs.py", {}
    source = "def encoded(layer, x):\n    return layer(x)\n"
    file.parent.mkdir()
    file.write_text(source)
    exec(compile(source, str(file), "exec"), names)
    with pytest.raises(RuntimeError) as error, byname.explaining():
        with torch.no_grad():
            z = names["encoded"](nn.Linear(3, 2), torch.randn(4, 3))
        z.square().mean().backward()
    (note,) = error.value.__notes__
    assert re.search(r"`z` at \S*test_not_reached.py:\d+ is computed while gradients are switched off", note)
    assert "graphs.py" not in note
