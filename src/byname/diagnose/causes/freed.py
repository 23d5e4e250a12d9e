"""backward-twice: the saved tensors that this backward call needs and an earlier one has freed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from byname.autograd.slots import slots_of
from byname.diagnose.causes.carrier import Carrier, carrier_of, letting_go
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import freed_by
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.quiet import DisableTorchFunction
from byname.source.location import Site

_SAME_LINE = (
    "if {it} is carried over from an earlier iteration, {detach}; if it depends on parameters, compute it inside the "
    "iteration. retain_graph=True would keep every earlier iteration in memory"
)
_SAME_ROOT = (
    "compute {it} anew before this backward, in a forward of its own: an earlier backward has already gone through it. "
    "retain_graph=True in that one is right only if nothing that the graph needs is changed in between, as by a step"
)
_OTHER_LINE = (
    "add the losses and call backward once, or compute {it} anew for the second, or detach it there. retain_graph=True "
    "in the first backward keeps all saved tensors in memory until the second, and allows no optimizer step in between"
)


def backward_twice(context: FailureContext, error: BaseException | None = None) -> Finding | None:
    """Return a finding about the first node, in engine order, that cannot run because its saved tensors are freed.

    If several nodes may be the one that failed, the finding names each of their variables.
    """
    if not context.has_graph:
        return None
    with DisableTorchFunction():
        gone = {slot.number for slot in slots_of(context.walk) if slot.state == "freed"}
        gone = {number for number in gone if context.can_fail_at(number)}
        if not gone:
            return None
        stamped = {number for number, node in enumerate(context.walk.nodes[1:], 1) if freed_by(node) is not None}
        if not context.places:  # nothing has run yet: the first freed node is the one that will fail
            possible = [number for number in context.order() if number in gone][:1]
        else:
            possible = list(_possible(context, gone, stamped))
    return _known(context, possible[-1], stamped) if len(possible) == 1 else _uncertain(context, possible)


def _possible(context: FailureContext, gone: set[int], stamped: set[int]) -> Iterator[int]:
    """Yield the nodes that may be the one that failed.

    The engine stops at the first node that was freed before this backward call. It has run the nodes before that one,
    and freed them itself. A node that was made under a tracker and has no mark of an earlier call can only have been
    freed in this way; for any other node that is not known.
    """
    live = {slot.number for slot in slots_of(context.walk) if slot.state != "freed"}
    for number in context.order():
        if number in gone and number in stamped:
            yield number
            return
        if number in gone and (not context.lookup or context.lookup.call(context.walk.nodes[number]) is None):
            yield number
        elif number in live:
            return


def _known(context: FailureContext, number: int, stamped: set[int]) -> Finding:
    carrier = carrier_of(context, number, stamped)
    if carrier is None:
        carrier = Carrier(context.variable(number, stamped), context.site(number), None)
    variable, made = carrier.name, carrier.made
    run = freed_by(context.walk.nodes[number])
    freed = None if run is None else run.site
    where = f", made at {made}," if made is not None and variable.path else ""
    where = where or ("" if carrier.join is None else f", which is written{at(carrier.join)} and carries the graph on,")
    by = f"the backward{at(freed)} freed them" if run is not None else "an earlier backward freed them"
    message = (
        f"this backward{at(context.noticed)} goes through {quote(variable)}{where} but the tensors that autograd "
        f"saved there are gone: {by}"
    )
    remedy = _SAME_LINE if freed is not None and freed == context.noticed else _OTHER_LINE
    if stamped.issuperset(context.walk.roots):
        remedy = _SAME_ROOT
    name = f"`{variable.path}`" if variable.path else "it"
    sites = known_sites(made, carrier.join, freed, context.noticed)
    detach = letting_go(context, variable, made)
    return Finding("backward-twice", message, _each(variable), sites, remedy.format(it=name, detach=detach))


def _each(variable: Name) -> tuple[Name, ...]:
    """Return the variable, or each variable if one statement assigns several."""
    return culprits_of(*(replace(variable, path=path) for path in variable.path.split(", ")))


def _uncertain(context: FailureContext, numbers: Sequence[int]) -> Finding:
    """Return a finding that names every variable whose node may be the one that failed."""
    possible = list(_first_of_each_name(context, numbers))
    names = tuple([name for name, _ in possible])
    sites = [made for _, made in possible] if len(possible) == 1 else []
    who = quote_all(names) or "a tensor without a name"
    message = (
        f"this backward{at(context.noticed)} goes through {who if len(names) < 2 else f'one of {who}'}, but an "
        "earlier backward freed the tensors that autograd saved there. byname.explaining() around the program "
        "remembers which backward that was"
    )
    remedy = _OTHER_LINE.format(it=f"`{names[0].path}`" if len(names) == 1 else "the shared part")
    return Finding("backward-twice", message, names, known_sites(*sites, context.noticed), remedy)


def _first_of_each_name(context: FailureContext, numbers: Iterable[int]) -> Iterator[tuple[Name, Site | None]]:
    seen: set[str] = set()
    with DisableTorchFunction():
        for number in numbers:
            name = context.variable(number, range(len(context.walk.nodes)))
            if name.path and name.path not in seen:
                seen.add(name.path)
                yield name, context.site(number)
