"""Does watching get on with copies, files, threads, processes, checkpoints, and the hooks of others?"""

import copy
import io
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from models import specimens
from processes import run_forked_file
from torch.utils._pytree import tree_map
from watching import Log, differences, everything, quick_ones, run, run_plain, same, state

from byname import attach

SPECIMENS = {specimen.name: specimen for specimen in specimens()}


@pytest.fixture(params=quick_ones(SPECIMENS))
def specimen(request):
    return SPECIMENS[request.param]


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.grid(fast=4)
@pytest.mark.sees_nothing
@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_a_file], ids=["deepcopy", "torch.save"])
def test_a_copy_of_a_watched_model_is_not_watched(specimen, duplicate):
    if specimen.name == "replaced_forward" and duplicate is through_a_file:
        pytest.skip("a method that is not the class's own cannot be loaded from a file")
    args, kwargs = specimen.inputs()
    model, log = specimen.model(), Log()
    plain = run_plain(specimen)
    hooks = {name: _hooks(module) for name, module in model.named_modules()}
    with attach(model, everything(model, args, kwargs), log):
        twin = duplicate(model)
        assert {name: _hooks(module) for name, module in twin.named_modules()} == hooks
        assert differences(plain, run(twin, args, kwargs)) == []
        assert log.seen == []
        assert differences(plain, run(model, args, kwargs)) == []
        assert log.seen
    del log.seen[:]
    twin.load_state_dict(specimen.model().state_dict())
    with attach(twin, everything(twin, args, kwargs), log):
        assert differences(plain, run(twin, args, kwargs)) == []
        assert log.seen


def _hooks(module):
    return {key: len(value) for key, value in vars(module).items() if "hook" in key and hasattr(value, "__len__")}


@pytest.mark.parametrize("name", ["nanogpt", "unrolled", "streaming", "tree", "dicts"])
def test_threads_that_share_a_watched_model_do_not_disturb_each_other(name):
    specimen = SPECIMENS[name]
    model = specimen.model().eval()
    inputs = [tree_map(lambda value: value.flip(0) if n % 2 else value, specimen.inputs()[0]) for n in range(4)]
    where = [place for place in everything(model, inputs[0]) if not place.endswith(".grad")]
    seen = {}

    def callback(event):
        thread = threading.current_thread().name
        seen.setdefault(thread, []).append((event.path, event.call, event.recomputed))

    def forward(number):
        for _ in range(3):
            outputs[number] = model(*inputs[number])
        names[number] = seen[threading.current_thread().name]

    outputs, names = {}, {}
    with attach(model, where, callback):
        alone = []
        for number in range(4):
            seen.clear()
            alone.append((model(*inputs[number]), list(seen[threading.current_thread().name])))
        threads = [threading.Thread(target=forward, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert sorted(outputs) == [0, 1, 2, 3]
    for number, (output, keys) in enumerate(alone):
        assert same(output, outputs[number])
        assert names[number] == keys * 3


@pytest.mark.parametrize("name", ["checkpointed_reentrant", "checkpointed_not_reentrant"])
def test_both_runs_of_a_checkpoint_are_told_apart(name):
    specimen = SPECIMENS[name]
    model, log = specimen.model(), Log()
    args, kwargs = specimen.inputs()
    with attach(model, ["layers.0", "layers.1.forward.h", "layers.1.tanh", "first"], log):
        run(model, args, kwargs)
    for path in ("layers.1.forward.h", "layers.1.tanh"):
        assert [key[3] for key in log.keys if key[0] == path] == [False, True], path
        first, second = log.values(path)
        assert same(first, second)
    assert [key[3] for key in log.keys if key[0] == "first"] == [False]
    assert {key[1] for key in log.keys} == {0}


@pytest.mark.parametrize("name", ["checkpointed_reentrant", "checkpointed_not_reentrant"])
def test_an_edit_inside_a_checkpoint_holds_in_both_runs(name):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    model, plain = specimen.model(), SPECIMENS["checkpointed_not_reentrant"].model()
    for layer in plain.layers:
        layer.forward = lambda x, layer=layer: x + layer.drop(torch.tanh(layer.linear(x)) * 2)
    expected = run(plain, args, kwargs)
    with attach(model, "layers.*.forward.h", lambda event: event.value * 2):
        assert differences(expected, run(model, args, kwargs)) == []


@pytest.mark.parametrize("place", ["forward.x", "forward.h"])
@pytest.mark.parametrize("name", ["checkpointed_reentrant", "checkpointed_not_reentrant"])
def test_an_edit_of_a_gradient_inside_a_checkpoint_is_made_once(name, place):
    specimen, plain = SPECIMENS[name], SPECIMENS["checkpointed_not_reentrant"].model()
    args, kwargs = specimen.inputs()

    def tripled(value):
        value.register_hook(lambda gradient: gradient * 3)
        return value

    def forward(x):
        x = tripled(x) if place == "forward.x" else x
        h = torch.tanh(layer.linear(x))
        return x + layer.drop(tripled(h) if place == "forward.h" else h)

    layer = plain.layers[1]
    plain.forward = lambda x: forward(plain.layers[0](plain.first(x))).sin()
    expected = run(plain, args, kwargs)
    model = specimen.model()
    with attach(model, f"layers.1.{place}.grad", lambda event: event.value * 3):
        assert differences(expected, run(model, args, kwargs)) == []


def test_a_shared_module_answers_to_both_of_its_names():
    specimen = SPECIMENS["twins"]
    args, kwargs = specimen.inputs()
    for where in ("left", "right"):
        model, log = specimen.model(), Log()
        with attach(model, where, log):
            run(model, args, kwargs)
        assert log.keys == [(where, 0, 0, False), (where, 0, 1, False)]


def test_the_hooks_of_others_stay_and_run_in_their_order():
    specimen = SPECIMENS["nanogpt"]
    model = specimen.model().eval()
    order, values = [], []
    place = model.get_submodule("layers.0.attn")

    def hook(what, factor):
        def called(module, args, output):
            order.append(what)
            return output * factor

        return called

    place.register_forward_hook(hook("before", 2))
    place.register_forward_pre_hook(lambda module, args: order.append("pre"))
    place.register_full_backward_hook(lambda module, grad_input, grad_output: order.append("backward"))
    with attach(model, "layers.0.attn", lambda event: (order.append("byname"), values.append(event.value))[2:] or None):
        late = place.register_forward_hook(hook("after", 3))
        run(model, *specimen.inputs())
    assert order == ["pre", "before", "byname", "after", "backward"]
    del order[:]
    run(model, *specimen.inputs())
    assert order == ["pre", "before", "after", "backward"]
    late.remove()
    assert len(place._forward_hooks) == 1


@pytest.mark.sees_nothing
def test_modes_of_others_see_the_same_calls():
    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    specimen = SPECIMENS["nanogpt"]
    args, kwargs = specimen.inputs()
    model, calls = specimen.model().eval(), []
    where = everything(model, args, kwargs)
    with Counting():
        model(*args, **kwargs)
        plain, calls = calls, []
        with attach(model, where, lambda event: None):
            model(*args, **kwargs)
            watched, calls = calls, []
    assert [name for name in watched if name in ("softmax", "gelu", "matmul", "linear", "masked_fill", "dropout")] == [
        name for name in plain if name in ("softmax", "gelu", "matmul", "linear", "masked_fill", "dropout")
    ]


@pytest.mark.sees_nothing
def test_a_part_of_a_watched_model_can_be_called_alone():
    specimen = SPECIMENS["nanogpt"]
    model, log = specimen.model().eval(), Log()
    where = everything(model, *specimen.inputs())
    x = torch.randn(2, 6, 12)
    plain = model.layers[0](x)
    with attach(model, where, log):
        assert same(plain, model.layers[0](x))
    assert {path.split(".")[0] for path, *_ in log.keys} == {"layers"}


@pytest.mark.sees_nothing
def test_the_optimizer_works_on_the_watched_model_as_on_the_plain_one():
    specimen = SPECIMENS["nanogpt_with_loss"]
    args, kwargs = specimen.inputs()

    def train(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(*args, **kwargs)[1].backward()
            optimizer.step()
        return list(model.parameters())

    model = specimen.model()
    before = state(model)
    with attach(model, everything(model, args, kwargs), Log()):
        watched = train(model)
    assert same(train(specimen.model()), watched)
    assert {key: value for key, value in state(model).items() if "__dict__" not in key} == {
        key: value for key, value in before.items() if "__dict__" not in key
    }


DISTRIBUTED = """
    import os, sys, tempfile
    sys.path[:0] = {path!r}
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel
    from models import specimens
    from watching import Log, everything, differences, run, state
    from byname.watch.attach import attach

    def train(model, watched, log, rank):
        wrapped = DistributedDataParallel(model) if watched != "inner first" else None
        root = model if wrapped is None or watched == "inner" else wrapped
        ids = torch.arange(12).view(2, 6) % 8 + rank
        targets = ids.flip(1)
        if watched:
            handle = attach(root, everything(model, (ids,), {{"targets": targets}}), log)
        wrapped = wrapped or DistributedDataParallel(model)
        return [run(wrapped, (ids,), {{"targets": targets}}) for _ in range(2)]

    def main(rank, store):
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=2)
        specimen = next(one for one in specimens() if one.name == "nanogpt_with_loss")
        plain = train(specimen.model(), "", None, rank)
        for watched in ("outer", "inner", "inner first"):
            log = Log()
            pairs = zip(plain, train(specimen.model(), watched, log, rank), strict=True)
            found = [name for pair in pairs for name in differences(*pair)]
            told = f"{{watched}} {{found}} {{len(log.seen) > 100}} {{ {{key[1] for key in log.keys}} }}"
            print(told + chr(10), end="", flush=True)  # in one piece: both ranks write
        dist.destroy_process_group()
        os._exit(0)  # a process that ends in the ordinary way is now and then aborted by a thread of gloo's (PyTorch 2.13)

    if __name__ == "__main__":
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(main, args=(folder + "/store",), nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs gloo")
def test_two_ranks_of_data_parallel_training_are_the_same_watched_or_not(tmp_path):
    here = Path(__file__).parent
    lines = run_forked_file(tmp_path, DISTRIBUTED.format(path=[str(here), str(here.parent), *sys.path]))
    assert sorted(lines) == sorted(2 * [f"{name} [] True {{0, 1}}" for name in ("outer", "inner", "inner first")])
