"""Ranks: parameters that DistributedDataParallel should keep equal in all ranks, and that differ between them.

Each rank puts two sums of each parameter into the store by which `torch.distributed` was set up, and rank 0 reads those
that are there: nobody waits for another rank.
"""

from __future__ import annotations

import json
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from byname.diagnose.causes.loss import Loss
from byname.diagnose.context import FailureContext
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import can_read, reading_values, sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, on_call, topic_cause
from byname.diagnose.silent.training_batches import loader_of
from byname.naming.name import at
from byname.reading.frames import NO_LINE, Line
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of, living
from byname.reading.tensor import fact, is_tensor, memory_of
from byname.tracking.lookup import made_last
from byname.undo import Undo

# fmt: off
BARE_MODULE = topic_cause("bare-module",
    "the module itself is called{noticed:at}, not the DistributedDataParallel around it: the gradients of {names:3} "
    "are not averaged over the ranks in such a step, and their weights drift apart",
    "call the wrapped model, ddp(x), in place of ddp.module(x); it is right if the weights are averaged now and then")
APART = topic_cause("ranks-apart",
    "{name} has other values in rank {rank} than in rank 0 since step {since} of {kind}{noticed:at}{why}: "
    "{count} of {all} parameters differ, and {made:-}{keeper:-}{keeps}", "{remedy}")
ALIKE = topic_cause("ranks-alike",
    "{called:-}suspicious: rank {rank} is given the same batches{noticed:at} as rank 0 in each of {times} steps, and "
    "computes the same loss: it does the same work again",
    "DataLoader(..., sampler=DistributedSampler(dataset)), or a seed that depends on the rank where data is drawn")
NOT_REDUCED = topic_cause("ranks-apart",
    "suspicious: {name} has the same values in rank {rank} as in rank 0 at first, and other ones since step {since} of "
    "{kind}{noticed:at}: no DistributedDataParallel and no all_reduce() averages gradients or parameters in {steps} "
    "steps, so that each rank trains alone",
    "wrap the model in DistributedDataParallel, or all_reduce() each .grad between the backward and the step; it is "
    "right if each rank should have a model of its own")
REDUCED_TOO_SOON = topic_cause("ranks-apart",
    "all_reduce() of the gradients{noticed:at} comes before the backward{backward:at}, not between it and the step of "
    "{kind}: each rank makes the step with its own gradients, and their weights drift apart",
    "move it behind the backward, in front of optimizer.step()")
NEVER_SYNCED = topic_cause("ranks-apart",
    "suspicious: each backward{backward:at} before the {steps} steps of {kind}{noticed:at} runs under no_sync(), "
    "the last one too: these gradients are not averaged over the ranks, and their weights drift apart",
    "leave no_sync() for the last backward before each step, as by contextlib.nullcontext(): it averages all of them; "
    "it is right if each rank should learn alone, or if the weights are averaged from time to time")
SAME_ORDER = topic_cause("same-order",
    "the DistributedSampler of {loader} gives the same order in each of the last {times} epochs{noticed:at}: the order "
    "depends on the epoch that set_epoch() sets, and that is always {epoch}",
    "call {loader.path}.sampler.set_epoch(epoch) as each epoch begins")
# fmt: on

_MOST_RANKS, _MOST_NUMBERS, _LOOKS, _LOCAL, _ALONE = 9, 1 << 24, 3, 8, 12
"""Ranks that are compared; numbers of parameters whose sums are taken; looks in a row at which ranks differ; steps
under ``no_sync()``, and steps without any exchange between ranks, after which that is reported."""
_EXCHANGES = "all_gather all_gather_into_tensor reduce reduce_scatter reduce_scatter_tensor send isend".split()


class Ranks(Topic):
    """Watches which modules are called beside their DistributedDataParallel, and compares the parameters of ranks."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._wrapped: dict[int, bool] = {}
        self._bare: list[tuple[weakref.ref[Any], Line]] = []
        self._times, self._is_local, self._is_ever_synced = 0, False, False
        self._wrappers: dict[int, weakref.ref[Any] | None] = {}
        self._sums: dict[int, dict[int, list[tuple[float, float]]]] = {}
        self._apart: dict[tuple[int, int], list[int]] = {}
        self._averaged: dict[int, Line] = {}  # the memory that all_reduce() was given since the last step
        self._by_hand: dict[int, tuple[Line, set[int]]] = {}
        self._equal: dict[tuple[int, int], set[int]] = {}
        self._given: list[float] = []  # the sums of the inputs and of the loss of this step
        self._called = self._loader = NO_LINE
        self._alike: dict[tuple[int, int], list[Any]] = {}
        self._early: Line | None = None  # an averaging of gradients before any backward since the last step
        self._begun: tuple[Any, int] = (None, 0)  # the loader that gives the batches, and the steps before them
        self._exchanges = False  # more than one number, after the first step
        self._epochs: dict[Any, list[int]] = {}  # of samplers that shuffle, one for each epoch with steps

    def begin(self, block: Undo) -> None:
        """Watch where gradients are averaged by hand."""
        for owner in (torch.distributed, getattr(torch.distributed, "distributed_c10d", torch.distributed)):
            on_call(block, owner, "all_reduce", self._reduces)
            for name in (*_EXCHANGES, "broadcast"):
                on_call(block, owner, name, self._exchange)
        on_call(block, DataLoader, "__iter__", self._begins)

    def _begins(self, call: ObservedCall, result: Any) -> None:
        """Note the line of a loader, and report one that gave the same order in several epochs with steps."""
        (loader, before), self._begun = self._begun, (weakref.ref(call.args[0]), self._watch.steps)
        sampler: Any = attributes_of(None if loader is None else loader()).get("sampler")
        if issubclass(type(sampler), DistributedSampler) and sampler.shuffle and self._watch.steps > before + 1:
            epochs = self._epochs.setdefault(weakref.ref(sampler), [])
            epochs.append(sampler.epoch)
            if len(epochs) >= _LOOKS and len({*epochs}) == 1:
                facts = {"times": len(epochs), "epoch": epochs[0], "loader": loader_of(self._loader)[0]}
                self.report(SAME_ORDER, self._loader.site, **facts)
        self._loader = call.programs_line

    def _exchange(self, call: ObservedCall, result: Any) -> None:
        is_small = bool(call.tensors) and all(one.numel() == 1 for one in call.tensors)  # as of a loss that is printed
        self._exchanges = self._exchanges or (self._watch.steps > 0 and not is_small)

    def _reduces(self, call: ObservedCall, result: Any) -> None:
        self._exchange(call, result)
        given, group, every = call.given(0, "tensor"), call.given(2, "group"), self._watch.optimizers()
        if is_tensor(given) and group in (None, torch.distributed.GroupMember.WORLD) and len(self._averaged) < 1 << 12:
            grads = [fact(one, "grad") for followed in every for one in followed.parameters()]
            if any(one.has_new_grads for one in every):
                self._averaged[id(memory_of(given))] = call.programs_line
            elif any(one is not None and memory_of(one) is memory_of(given) for one in grads):
                self._early = call.programs_line

    def ran(self, call: ObservedCall) -> None:
        """Note a call with gradients of a module that is wrapped."""
        if call.depth or not torch.distributed.is_initialized():
            return
        if id(call.called) not in self._wrapped:
            wrappers = living(DistributedDataParallel) if torch.distributed.get_world_size() > 1 else []
            self._wrapped[id(call.called)] = any(one._modules.get("module") is call.called for one in wrappers)
        if self._wrapped[id(call.called)]:
            self._bare = [(weakref.ref(call.called), call.line)]
        if type(call.called) is DistributedDataParallel:
            self._called, self._given = call.line, [*self._given, *map(sum_of, call.tensors)]

    def backward(self, loss: Loss) -> None:
        """Note whether gradients stay in their rank, under ``no_sync()``: then ranks differ on purpose."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self._is_local = any(not one.require_backward_grad_sync for one in living(DistributedDataParallel))
            self._is_ever_synced = self._is_ever_synced or not self._is_local
            self._given += map(sum_of, loss.context.roots)

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Report the second step after a bare call, and compare the parameters of the ranks."""
        self._report_bare(followed)
        averaged, given, self._averaged, self._given = self._averaged, self._given, {}, []
        early, self._early = self._early, None
        if self._is_local and followed.steps == _LOCAL and not (self._is_ever_synced or self._exchanges):
            wrapper = _wrapper_of(followed)
            if wrapper is not None and not wrapper.require_forward_param_sync and torch.distributed.get_rank() == 0:
                self.report(NEVER_SYNCED, followed.site, backward=followed.backward, steps=_LOCAL, kind=followed.kind)
        if not torch.distributed.is_initialized() or self._times or self._is_local:
            return
        if early is not None and followed.has_new_grads and not averaged and torch.distributed.get_world_size() > 1:
            self.report(REDUCED_TOO_SOON, early.site, backward=followed.backward, kind=followed.kind)
        if followed.steps == 1:
            wrapper = _wrapper_of(followed)
            if wrapper is not None or not _is_wrapped(followed):
                self._wrappers[id(followed)] = None if wrapper is None else weakref.ref(wrapper)
        reference = self._wrappers.get(id(followed))
        wrapper = None if reference is None else reference()
        if wrapper is None and averaged:
            self._note_averaging(followed, averaged)
        is_alone = self._wrappers.get(id(followed), self) is None and not self._exchanges
        try:
            if wrapper is not None or id(followed) in self._by_hand or is_alone:
                self._share(followed, wrapper, given, torch.distributed.distributed_c10d._get_default_store())
        except RuntimeError:  # the process that has the store is gone
            self._wrappers.clear()

    def _note_averaging(self, followed: FollowedOptimizer, averaged: dict[int, Line]) -> None:
        """Note which parameters have gradients that all ranks have added up; those of most, or it is no average."""
        graded = {id(one): grad for one in followed.parameters() if (grad := fact(one, "grad")) is not None}
        mine = {key for key, grad in graded.items() if id(memory_of(grad)) in averaged}
        is_small = sum(map(torch.numel, followed.parameters())) <= _MOST_NUMBERS
        if is_small and torch.distributed.get_world_size() > 1 and 2 * len(mine) > len(graded) == len(followed.keys):
            self._by_hand.setdefault(id(followed), (next(iter(averaged.values())), mine))

    def _share(self, followed: FollowedOptimizer, wrapper: Any, given: list[float], store: Any) -> None:
        """Let the other ranks read the sums of the parameters, and compare those that they have put by now."""
        key, rank = f"byname/ranks/{self._watch.optimizers().index(followed)}", torch.distributed.get_rank()
        with reading_values():
            readable = all(map(can_read, followed.parameters()))
            values = [one.detach().double() for one in followed.parameters() if readable]
            sums = [(float(one.sum()), float(one.abs().sum())) for one in values]
            sums += [(one, 0.0) for one in given if readable]
        if rank:
            store.set(f"{key}/{followed.steps}/{rank}", json.dumps(sums))
            return
        waiting = self._sums.setdefault(id(followed), {})
        waiting[followed.steps] = sums
        ranks = range(1, min(torch.distributed.get_world_size(), _MOST_RANKS))
        for step, mine in list(waiting.items()):
            if not store.check([f"{key}/{step}/{other}" for other in ranks]):
                break  # none after it, so that the steps keep their order
            del waiting[step]
            for other in ranks:
                theirs, count = json.loads(store.get(f"{key}/{step}/{other}")), len(followed.parameters())
                self._look_for_alike((id(followed), other), [one for one, _ in mine[count:]], theirs[count:])
                differ = [at for at, pair in enumerate(zip(mine[:count], theirs, strict=False)) if _differ(*pair)]
                if id(followed) in self._by_hand:  # one that is not averaged may be the part of a rank
                    every = [id(one) for one in followed.parameters()]
                    equal = self._equal.setdefault((id(followed), other), {*range(len(every))} - {*differ})
                    differ = [at for at in differ if every[at] in self._by_hand[id(followed)][1] or at in equal]
                since = self._apart.setdefault((id(followed), other), [])
                since[:] = [*since, step] if differ else []
                if wrapper is None and id(followed) not in self._by_hand:
                    if step == len(since) + 1 == _ALONE and not self._exchanges:
                        names = {"name": FailureContext().names([followed.parameters()[differ[0]]])[0], "rank": other}
                        self.report(NOT_REDUCED, followed.site, since=1, steps=step, kind=followed.kind, **names)
                elif len(since) == _LOOKS:
                    self._report_apart(followed, wrapper, {"rank": other, "since": max(since[0] - 1, 1)}, differ)

    def _look_for_alike(self, key: tuple[int, int], mine: list[float], theirs: list[list[float]]) -> None:
        """Report a rank that repeats what rank 0 computes, with other inputs in each of the first looks."""
        alike = self._alike.setdefault(key, [])
        alike.append(mine[0] if len(mine) > 1 and mine == [one for one, _ in theirs] else None)
        if len(alike) == _LOOKS + 1 == len({*alike} - {None}):
            called = self._called.site
            self.report(ALIKE, self._loader.site or called, called=called, rank=key[1], times=len(alike))

    def _report_apart(
        self, followed: FollowedOptimizer, wrapper: Any, facts: dict[str, Any], differ: list[int]
    ) -> None:
        parameters = followed.parameters()
        line, known = self._by_hand.get(id(followed), (None, set[int]()))
        if line is None:
            known = {id(one) for one in wrapper._module_parameters}
        strange = [at for at in differ if id(parameters[at]) not in known]
        first = parameters[(strange or differ)[0]]
        made = made_last(first) if strange and line is None else None
        added = f"it was added{at(made)} after the wrapping and "
        keeps = "DistributedDataParallel would keep them equal"
        remedy = "begin with equal weights and change them in all ranks alike; call the wrapped model in each step"
        remedy = "wrap the model in DistributedDataParallel when it is complete" if strange else remedy
        if line is not None:
            added = ""
            remedy = "begin with equal weights: dist.broadcast(one.data, src=0) for each, before the first step"
            remedy = "average the gradients of all parameters" if strange else remedy
            keeps = "all_reduce() of the gradients keeps equal only what began equal"
        why = f", since {added}its gradients are not averaged" if strange else ""
        facts |= {"made": made, "keeper": None if line is None else line.site, "keeps": keeps}
        counts = {"count": len(differ), "all": len(parameters), "kind": followed.kind}
        names = {"name": FailureContext().names([first])[0], "why": why, "remedy": remedy}
        self.report(APART, followed.site, **facts, **counts, **names)

    def _report_bare(self, followed: FollowedOptimizer) -> None:
        for reference, line in self._bare:
            module = reference()
            if module is not None and not followed.keys.isdisjoint(map(id, parameters_in(module))):
                self._times += 1
                if self._times > 1:
                    self.report(BARE_MODULE, line.site, names=followed.all_names())
        self._bare = []


def _wrapper_of(followed: FollowedOptimizer) -> Any:
    """Return the DistributedDataParallel over all ranks that keeps the parameters of an optimizer equal; else None."""
    for one in living(DistributedDataParallel) if torch.distributed.get_world_size() > 1 else ():
        mine = {id(parameter) for parameter in parameters_in(one)}
        is_plain = one.process_group.size() == torch.distributed.get_world_size() and not one.parameters_to_ignore
        is_whole = followed.keys <= mine and sum(map(torch.numel, followed.parameters())) <= _MOST_NUMBERS
        if is_plain and is_whole and followed.keys and "LocalSGD" not in followed.kind and not one._comm_hooks:
            return one
    return None


def _is_wrapped(followed: FollowedOptimizer) -> bool:
    """Return whether there is one rank only, or any DistributedDataParallel has parameters of an optimizer."""
    wrappers = living(DistributedDataParallel) if torch.distributed.get_world_size() > 1 else [None]
    is_large = sum(map(torch.numel, followed.parameters())) > _MOST_NUMBERS
    return is_large or any(one is None or not followed.keys.isdisjoint(map(id, parameters_in(one))) for one in wrappers)


def _differ(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return max(abs(one[0] - other[0]), abs(one[1] - other[1])) > 1e-7 * max(one[1], other[1])
