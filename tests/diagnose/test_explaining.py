"""The context around a program: one note on each error, everywhere an error can come from, and nothing left behind."""

import asyncio
import gc
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from checking import checking
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import byname


def spoil(width=3):
    """Fails because `h` is changed after it was saved."""
    weight = torch.ones(width, requires_grad=True)
    h = weight.exp()
    h += 1
    h.sum().backward()


def notes(error):
    return getattr(error, "__notes__", [])


def assert_explained(error):
    assert len(notes(error)) == 1
    assert notes(error)[0].startswith("byname: modified-in-place: autograd saved `h` at test_explaining.py:")


def whats_patched():
    return {
        "backward": torch.autograd._engine_run_backward,
        "engine": torch.autograd.graph._engine_run_backward,
        "thread": threading.Thread.start,
        "module": nn.Module._call_impl,
        "function": torch.autograd.Function.__dict__.get("apply"),
        "from_numpy": torch.from_numpy,
        "parameter": nn.Parameter.__dict__["__new__"],
        "compile": torch.compile,
        "modes": torch._C._len_torch_function_stack(),
        "hooks": len(_global_optimizer_pre_hooks),
    }


class TestWhereAnErrorComesFrom:
    def test_nested_contexts_give_one_note(self):
        with pytest.raises(RuntimeError) as caught:
            with byname.explaining(), byname.explaining(), byname.explaining():
                spoil()

        assert_explained(caught.value)

    def test_an_error_that_is_caught_inside_has_its_note_already(self):
        with byname.explaining():
            with pytest.raises(RuntimeError) as caught:
                spoil()
            assert_explained(caught.value)

        assert_explained(caught.value)

    def test_a_decorated_function(self):
        @byname.explaining()
        def train(width, *, times):
            for _ in range(times):
                spoil(width)

        for _ in range(2):
            with pytest.raises(RuntimeError) as caught:
                train(3, times=2)
            assert_explained(caught.value)
        assert train.__name__ == "train"

    def test_a_decorated_method(self):
        class Trainer:
            @byname.explaining()
            def fit(self):
                spoil()

        with pytest.raises(RuntimeError) as caught:
            Trainer().fit()

        assert_explained(caught.value)

    def test_a_decorated_generator(self):
        @byname.explaining()
        def steps():
            got = yield 1
            assert got == "go on"
            spoil()

        running = steps()
        assert next(running) == 1
        with pytest.raises(RuntimeError) as caught:
            running.send("go on")

        assert_explained(caught.value)

    def test_a_generator_closed_early_leaves_nothing(self):
        before = whats_patched()

        @byname.explaining()
        def steps():
            yield from range(10)

        running = steps()
        next(running)
        running.close()

        assert whats_patched() == before

    def test_a_decorated_coroutine(self):
        @byname.explaining()
        async def train():
            await asyncio.sleep(0)
            spoil()

        with pytest.raises(RuntimeError) as caught:
            asyncio.run(train())

        assert_explained(caught.value)

    def test_a_thread_started_inside(self):
        found = []

        def work():
            try:
                spoil()
            except RuntimeError as error:
                found.append(error)

        with byname.explaining():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        assert_explained(found[0])
        assert "run" not in vars(thread)

    @pytest.mark.slow
    def test_a_pool_of_threads(self):
        with byname.explaining(), ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(spoil) for _ in range(12)]
            errors = [future.exception() for future in futures]

        for error in errors:
            assert_explained(error)

    def test_a_thread_that_outlives_the_context(self):
        go_on, found = threading.Event(), []

        def work():
            go_on.wait()
            try:
                spoil()
            except RuntimeError as error:
                found.append(error)

        before = whats_patched()
        with byname.explaining():
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
        assert whats_patched() == before
        go_on.set()
        thread.join()

        assert notes(found[0]) == []

    @pytest.mark.parametrize("backward", ["tensor", "autograd", "grad", "nested"])
    def test_every_way_into_the_engine(self, backward):
        def run(loss, weight):
            {
                "tensor": lambda: loss.backward(),
                "autograd": lambda: torch.autograd.backward([loss]),
                "grad": lambda: torch.autograd.grad(loss, weight),
                "nested": lambda: torch.autograd.backward([loss], [torch.ones(())], retain_graph=True),
            }[backward]()

        weight = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError) as caught, byname.explaining():
            h = weight.exp()
            h += 1
            run(h.sum(), weight)

        assert_explained(caught.value)


class TestTheErrorItself:
    def test_an_error_that_is_not_understood_is_left_alone(self):
        with pytest.raises(ValueError, match="no concern") as caught, byname.explaining():
            raise ValueError("no concern of autograd's")

        assert notes(caught.value) == []

    def test_words_of_pytorch_in_an_error_of_the_users_explain_nothing_wrong(self):
        with pytest.raises(RuntimeError) as caught, byname.explaining():
            raise RuntimeError("one of the variables has been modified by an inplace operation, says my own check")

        assert notes(caught.value) == []

    def test_type_arguments_and_context_stay(self):
        cause = KeyError("first")
        with pytest.raises(RuntimeError) as caught, byname.explaining():
            try:
                raise cause
            except KeyError:
                spoil()

        error = caught.value
        assert type(error) is RuntimeError
        assert len(error.args) == 1 and error.args[0].startswith("one of the variables needed")
        assert error.__context__ is cause

    def test_no_frame_of_byname_is_in_the_traceback(self):
        with pytest.raises(RuntimeError) as caught, byname.explaining():
            spoil()

        files = [entry.path for entry in caught.traceback]
        assert not [file for file in files if "/src/byname/" in str(file)]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_what_is_no_error_passes(self, kind):
        before = whats_patched()
        with pytest.raises(kind), byname.explaining():
            raise kind

        assert whats_patched() == before

    def test_the_explanation_of_the_note_is_found_again(self):
        with pytest.raises(RuntimeError) as caught, byname.explaining():
            spoil()

        why = byname.explain(caught.value)
        assert notes(caught.value) == [f"byname: {why}"]


class TestNothingIsLeft:
    def test_everything_patched_is_put_back(self):
        before = whats_patched()
        with byname.explaining(), checking(lambda _: None, non_finite=lambda _: None):
            assert whats_patched() != before
            nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()

        assert whats_patched() == before

    def test_also_after_a_crash(self):
        before = whats_patched()
        with pytest.raises(RuntimeError), checking(lambda _: None, non_finite=lambda _: None):
            spoil()

        assert whats_patched() == before

    def test_what_somebody_else_has_patched_since_stays(self, monkeypatch):
        original = torch.autograd._engine_run_backward
        with byname.explaining():
            inner = torch.autograd._engine_run_backward

            def theirs(*args, **kwargs):
                return inner(*args, **kwargs)

            torch.autograd._engine_run_backward = theirs
        try:
            assert torch.autograd._engine_run_backward is theirs
            torch.ones(1, requires_grad=True).sum().backward()
        finally:
            torch.autograd._engine_run_backward = original

    def test_no_tensor_is_kept_alive(self):
        with byname.explaining():
            model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
            x = torch.randn(2, 3)
            loss = model(x).sum()
            loss.backward()
            kept = [weakref.ref(one) for one in (x, loss, *model.parameters())]
            del model, x, loss
            gc.collect()
            assert [reference() for reference in kept] == [None] * len(kept)

    def test_an_explanation_keeps_no_tensor_alive(self):
        weight = torch.ones(3, requires_grad=True)
        kept = weakref.ref(weight)
        try:
            with byname.explaining():
                h = weight.exp()
                h += 1
                h.sum().backward()
        except RuntimeError as error:
            why = byname.explain(error)
        del h, weight
        gc.collect()

        assert why.cause == "modified-in-place"
        assert kept() is None

    def test_training_is_bit_for_bit_the_same(self):
        def train():
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
            for _ in range(5):
                loss = layer(torch.randn(2, 4, 8)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return [*layer.parameters(), torch.rand(3)]

        plain = train()
        with checking(lambda _: None, non_finite=lambda _: None):
            explained = train()

        assert all(torch.equal(one, other) for one, other in zip(plain, explained, strict=True))


class TestArguments:
    def test_bad_arguments_are_refused_before_anything_is_installed(self):
        before = whats_patched()
        with pytest.raises(byname.BynameError, match="model= expects an nn.Module"):
            byname.explaining(model=torch.ones(1))
        with pytest.raises(byname.BynameError, match="optimizer= expects"):
            byname.explaining(optimizer=[1])
        with pytest.raises(byname.BynameError, match="async generator"):

            @byname.explaining()
            async def batches():
                yield 1

        assert whats_patched() == before

    def test_explain_wants_an_exception(self):
        with pytest.raises(TypeError, match="explain\\(\\) expects an exception, but got str"):
            byname.explain("modified by an inplace operation")

    def test_explain_without_an_error(self, monkeypatch):
        import sys

        monkeypatch.delattr(sys, "last_value", raising=False)
        with pytest.raises(ValueError, match="there is no exception to explain"):
            byname.explain()

    def test_explain_takes_the_error_that_is_being_handled(self):
        try:
            spoil()
        except RuntimeError:
            assert byname.explain().cause == "modified-in-place"

    @pytest.mark.parametrize("thing", [1, None, "loss", nn.Linear(1, 1)])
    def test_check_wants_a_tensor(self, thing):
        with pytest.raises(byname.BynameError, match="check\\(\\) expects the loss, a tensor"):
            byname.check(thing)


def test_a_backward_in_a_helper_is_noted_with_what_called_it():
    def learn(loss):
        loss.backward()

    with pytest.raises(RuntimeError) as caught, byname.explaining():
        loss = torch.ones(3, requires_grad=True).exp().sum()
        learn(loss)
        loss.sum().backward()
    (site,) = [one for one in byname.explain(caught.value).sites if one.statement == "loss.backward()"]
    assert site.caller.statement == "learn(loss)"


class TestWhatIsToldBeforeAnErrorAndOnIt:
    """A finding of the check that foretells an error, and the note on that error, say the same."""

    def stepped(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = model(torch.ones(1, 3)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        loss.backward()

    def test_the_note_is_the_only_answer_where_the_error_ends_the_program(self):
        reported = []
        with pytest.raises(RuntimeError, match="modified by an inplace") as caught, checking(reported.append):
            self.stepped()
        assert [note.partition(":")[2].split(":")[0].strip() for note in notes(caught.value)] == [
            "optimizer-step-between"
        ]
        assert reported == []

    def test_the_finding_is_told_at_the_end_where_the_program_catches_the_error(self):
        reported = []
        with checking(reported.append):
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                self.stepped()
            assert reported == []
        assert [one.cause for one in reported] == ["optimizer-step-between"]

    def test_an_error_that_is_raised_from_the_first_shows_its_note(self):
        reported = []
        with pytest.raises(ValueError, match="training failed"), checking(reported.append):
            try:
                self.stepped()
            except RuntimeError as error:
                raise ValueError("training failed") from error
        assert reported == []

    def test_one_step_that_changed_several_tensors_is_one_finding_with_all_of_them(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with byname.track():
            loss = model(torch.ones(1, 3)).sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            (one,) = byname.check(loss)
        changed = [parameter for parameter in (model[1].weight, model[2].weight) if parameter._version]
        assert {str(name) for name in one.culprits} == {"model[1].weight", "model[2].weight"} and len(changed) == 2


def test_a_checked_loss_without_a_graph_has_one_note_and_no_error_of_byname(monkeypatch):
    found, logged = [], []
    monkeypatch.setattr(logging.getLogger("byname"), "warning", lambda *words, **_: logged.append(words))
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError) as error, checking(found.append):
        loss = weight.exp().sum().detach()
        loss.backward()
    assert notes(error.value)[0].startswith("byname: no-grad-path: ")
    assert [one.cause for one in found] == []
    assert logged == []
