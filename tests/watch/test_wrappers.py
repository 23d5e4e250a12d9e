"""`attach` on modules that something else has its hands on: wrappers, parametrisations, transforms, scripts, swaps."""

import threading
import types

import pytest
import torch
from processes import run_forked_file
from small import Attention, net, nothing_left
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from byname import attach
from byname.errors import BadArgumentError

PLACES = [
    "blocks.1.qkv",
    "blocks.1",
    "blocks.1.softmax",
    "blocks.1.forward.scores",
    "head.bias",
    "seen",
    "blocks.1.grad",
    "blocks.1.softmax.grad",
    "head.bias.grad",
]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        h = self.first(x).relu()
        return self.second(h)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.inner(x)).tanh()


def told(model, where, call):
    """The paths told while a model is called, whose result and gradients stay what they are without."""
    plain = call(model)
    events = []
    part = model.last if isinstance(model, Around) else model
    with nothing_left(part), attach(model, where, lambda event: events.append(event.path)) as handle:
        y = call(model)
        if y.requires_grad:
            y.sum().backward()
    assert torch.allclose(y, plain, atol=1e-6)
    told.notes = handle.notes
    return events


def assert_each_place_is_told(model, call, places=PLACES):
    for where in places:
        assert told(model, where, call) == [where], where


class TestParametrised:
    def test_by_parametrize(self):
        class Doubled(nn.Module):
            def forward(self, weight):
                return weight * 2

        model, x = net()
        parametrize.register_parametrization(model.blocks[1].qkv, "weight", Doubled())
        parametrize.register_parametrization(model.head, "weight", Doubled())
        places = [
            "blocks.1.qkv.parametrizations.weight.0",
            "blocks.1.qkv.parametrizations.weight.original",
            "head.parametrizations.weight.original.grad",
        ]
        assert_each_place_is_told(model, lambda model: model(x), PLACES + places)
        assert type(model.head).__name__ == "ParametrizedLinear"

    def test_the_parametrised_weight_itself_can_be_replaced(self):
        model, x = net()
        parametrizations.weight_norm(model.head)
        with attach(model, "head.parametrizations.weight", lambda event: event.value * 0):
            assert torch.equal(model(x), model.head.bias.expand(2, 5, 2))

    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_by_the_hooks_of_the_old_weight_norm_and_spectral_norm(self):
        model, x = net()
        nn.utils.weight_norm(model.blocks[1].qkv)
        nn.utils.spectral_norm(model.head)
        model.eval()
        places = [*PLACES, "blocks.1.qkv.weight_g", "head.weight_orig", "head.weight_orig.grad"]
        assert_each_place_is_told(model, lambda model: model(x), places)
        seen = []
        with attach(model, "blocks.1.qkv.weight", lambda event: seen.append(event.value)):
            model(x)
        assert len(seen) == 1 and torch.equal(seen[0], model.blocks[1].qkv.weight)


class TestTransforms:
    def test_functional_call_tells_of_the_tensors_it_was_given(self):
        model, x = net()
        given = {name: (2 * one).detach().requires_grad_() for name, one in model.named_parameters()}

        def call(model):
            return functional_call(model, given, (x,))

        assert_each_place_is_told(model, call, PLACES[:8])
        values = []
        with attach(model, "head.bias", lambda event: values.append(event.value)):
            call(model)
        assert values[0] is given["head.bias"]

    @pytest.mark.sees_nothing
    def test_functional_call_and_the_gradient_of_a_parameter_that_was_not_used(self):
        model, x = net()
        given = {name: (2 * one).detach().requires_grad_() for name, one in model.named_parameters()}
        assert not told(model, "head.bias.grad", lambda model: functional_call(model, given, (x,)))
        assert "another tensor in place of the parameter" in told.notes[0]

    def test_vmap_and_grad(self):
        model, x = Pair(), torch.randn(3, 4)
        given = dict(model.named_parameters())
        places = ["first", "relu", "forward.h", "first.weight", "forward"]
        over_rows = torch.func.vmap(lambda row: functional_call(model, given, (row,)))
        assert_each_place_is_told(model, lambda _: over_rows(x), places)
        gradients = torch.func.grad(lambda given: functional_call(model, given, (x,)).sum())
        places += ["first.grad", "relu.grad", "forward.h.grad"]
        assert_each_place_is_told(model, lambda _: gradients(given)["first.weight"], places)

    def test_a_replacement_under_vmap(self):
        model, x = Pair(), torch.randn(3, 4)
        with attach(model, "relu", lambda event: event.value * 0):
            assert torch.allclose(torch.func.vmap(model)(x), model.second.bias.expand(3, 2))


class TestGraphModules:
    def test_every_kind_of_place(self):
        model, x = torch.fx.symbolic_trace(Pair()), torch.randn(3, 4)
        places = ["first", "relu", "first.weight", "first.grad", "relu.grad", "second.bias.grad", "forward"]
        assert_each_place_is_told(model, lambda model: model(x), places)
        assert set(told(model, "forward.relu", lambda model: model(x))) == {"forward.relu"}

    def test_one_that_is_compiled_anew_while_attached(self):
        model, x = torch.fx.symbolic_trace(Pair()), torch.randn(3, 4)
        plain, events = model(x), []
        with attach(model, ["relu", "first"], events.append):
            model.recompile()
            assert torch.equal(model(x), plain)
        assert len(events) == 2

    def test_an_exported_program(self):
        model, x = torch.export.export(Pair(), (torch.randn(3, 4),)).module(), torch.randn(3, 4)
        assert told(model, "linear*", lambda model: model(x)) == ["linear", "linear_1"]
        assert told(model, "first.weight", lambda model: model(x)) == ["first.weight"]


class TestScripts:
    @pytest.fixture(params=["scripted", "traced"])
    def script(self, request):
        pair = Pair()
        return torch.jit.script(pair) if request.param == "scripted" else torch.jit.trace(pair, torch.randn(3, 4))

    def test_what_is_around_a_script_is_told(self, script):
        model, x = Around(script), torch.randn(3, 4)
        for where in (
            "last",
            "tanh",
            "forward.x",
            "last.weight",
            "last.grad",
            "last.weight.grad",
        ):
            assert told(model, where, lambda model: model(x)) == [where]

    def test_all_modules_are_all_but_scripts_which_is_said(self, script):
        model, x = Around(script), torch.randn(3, 4)
        assert told(model, "**", lambda model: model(x)) == ["last", "forward"]
        assert told(model, "**.weight", lambda model: model(x)) == ["last.weight"]
        assert "TorchScript runs them" in told.notes[0]
        assert "Pair" in told.notes[0]

    @pytest.mark.parametrize(
        "where", ["inner", "inner.first", "inner.relu", "inner.first.grad", "inner.*", "inner.first.weight"]
    )
    def test_a_place_inside_is_refused(self, script, where):
        model = Around(script)
        with nothing_left(model.last), pytest.raises(BadArgumentError, match="TorchScript runs this"):
            attach(model, where, print)

    def test_a_script_is_no_model_to_attach_to(self, script):
        with pytest.raises(BadArgumentError, match="attach to the module that was scripted"):
            attach(script, "first", print)

    def test_a_model_can_be_traced_while_something_is_attached(self):
        model, x = Pair(), torch.randn(3, 4)
        with nothing_left(model), attach(model, ["first", "forward.h", "relu"], lambda event: None):
            traced = torch.jit.trace(model, x)
        assert torch.allclose(traced(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_modules():
    model = torch.ao.quantization.quantize_dynamic(Pair(), {nn.Linear})
    x = torch.randn(3, 4)
    assert_each_place_is_told(model, lambda model: model(x), ["first", "relu", "forward.h", "second", "forward"])


class TestForwardsOfTheirOwn:
    @pytest.mark.parametrize("how", ["lambda", "bound", "partial", "class"])
    def test_a_forward_that_was_put_on_the_instance_or_another_class(self, how):
        model, x = net()
        block = model.blocks[1]
        if how == "lambda":
            original = block.forward
            block.forward = lambda *args, **kwargs: original(*args, **kwargs)
        elif how == "bound":
            block.forward = types.MethodType(Attention.forward, block)
        elif how == "partial":
            import functools

            block.forward = functools.partial(Attention.forward, block)
        else:

            class Renamed(Attention):
                def forward(self, x):
                    return super().forward(x) * 2

            block.__class__ = Renamed
        places = [where for where in PLACES if where != "blocks.1.forward.scores" or how != "class"]
        assert_each_place_is_told(model, lambda model: model(x), places)

    @pytest.mark.sees_nothing
    def test_a_class_that_is_swapped_while_attached(self):
        class Other(Attention):
            def forward(self, x):
                return self.proj(self.qkv(x).chunk(3, -1)[0].softmax(-1))

        model, x = net()
        events = []
        with attach(model, ["blocks.1.qkv", "blocks.1.softmax", "blocks.1.forward.scores"], events.append) as handle:
            model.blocks[1].__class__ = Other
            model(x)
        assert [event.path for event in events] == ["blocks.1.qkv", "blocks.1.softmax"]
        assert handle.notes == (
            "nothing was seen at `blocks.1.forward.scores`: no assignment of `scores` was reached in 1 forward of Net",
        )
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class TestReplicas:
    def test_data_parallel_is_seen_through(self):
        model, x = net()
        assert_each_place_is_told(nn.DataParallel(model), lambda model: model(x))

    def test_copies_as_data_parallel_makes_them_are_told_each_in_its_thread(self):
        """`replicate` copies modules shallowly, with their hooks; it needs several devices, `_replicate_for_data_parallel` none."""
        model, x = Pair(), torch.randn(3, 4)
        events, errors = [], []

        def replica():
            copies = {id(module): module._replicate_for_data_parallel() for module in model.modules()}
            for module in model.modules():
                for name, child in module._modules.items():
                    copies[id(module)]._modules[name] = copies[id(child)]
                for name, one in module._parameters.items():
                    setattr(copies[id(module)], name, one * 1)
            return copies[id(model)]

        def run(one):
            try:
                one(x).sum().backward()
            except Exception as error:
                errors.append(error)

        with nothing_left(model), attach(model, ["first", "relu", "first.grad"], events.append):
            replicas = [replica() for _ in range(3)]
            threads = [threading.Thread(target=run, args=(one,)) for one in replicas]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not errors
        assert sorted(event.path for event in events) == ["first"] * 3 + ["first.grad"] * 3 + ["relu"] * 3


PROCESSES = """
    import os, tempfile
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from byname.watch.attach import attach

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 2)

        def forward(self, x):
            h = self.first(x).relu()
            return self.second(h)

    def sharded(model):
        mesh = dist.init_device_mesh("cpu", (2,))
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)
        return model

    HOWS = {
        "ddp": DistributedDataParallel,
        "compiled ddp": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
        "ddp of compiled": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
        "fsdp": sharded,
    }
    WHERE = ["first", "relu", "forward.h", "second.bias", "first.grad", "relu.grad", "second.bias.grad"]

    def run(rank, file):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        for how in HOWS:
            torch.manual_seed(0)
            model = Model()
            check(HOWS[how](model), model, torch.randn(3, 4) + rank)
            dist.barrier()
            if rank == 0:
                print(how)
        dist.destroy_process_group()

    def check(wrapped, model, x):
        wrapped(x).sum().backward()
        plain = [full(one.grad) for one in wrapped.parameters()]
        hooks = count(wrapped)
        events = []
        with attach(wrapped, WHERE, lambda event: events.append((event.path, event.value))):
            for _ in range(2):
                wrapped.zero_grad()
                wrapped(x).sum().backward()
                for one, gradient in zip(wrapped.parameters(), plain, strict=True):
                    assert torch.allclose(full(one.grad), gradient)
        assert sorted(path for path, _ in events) == sorted(WHERE * 2), events
        told = [value for path, value in events if path == "second.bias.grad"][-1]
        assert torch.allclose(full(told), plain[-1]), (told, plain[-1])
        with attach(wrapped, "relu", lambda event: event.value * 0):
            assert torch.allclose(wrapped(x), full(model.second.bias).expand(3, 2))
        assert count(wrapped) == hooks
        wrapped(x).sum().backward()

    def full(tensor):
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def count(model):
        return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())

    if __name__ == "__main__":
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(run, (os.path.join(folder, "meet"),), nprocs=2)
"""


@pytest.mark.slow
def test_two_processes_of_data_parallel_and_sharded_models(tmp_path):
    assert run_forked_file(tmp_path, PROCESSES) == ["ddp", "compiled ddp", "ddp of compiled", "fsdp"]


def test_a_path_may_begin_with_the_name_of_the_wrapper_around_the_model():
    compiled, events = torch.compile(Pair(), backend="eager"), []
    for where in ("_orig_mod.first", "_orig_mod.relu", "_orig_mod.first.weight"):
        with attach(compiled, where, lambda event: events.append(event.path)):
            compiled(torch.ones(1, 4))
    assert events == ["first", "relu", "first.weight"]
