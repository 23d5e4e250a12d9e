"""backward-twice: what does this backward need that an earlier one has freed, and which one was that?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from byname.autograd.causes.words import at, lines, said
from byname.autograd.finding import Finding, listed
from byname.autograd.scene import Scene
from byname.autograd.slots import slots_of
from byname.autograd.stamps import freed_by
from byname.naming.name import Name
from byname.quiet import untouched
from byname.site import Site

__all__ = ["backward_twice"]

_REMEDY = (
    "if {it} is an input to this step, cut it off from the step before with .detach(); if it depends on parameters, "
    "compute it anew for each backward, or add the losses and call backward once. retain_graph=True in the first "
    "backward works too; it keeps everything saved in memory until the graph goes, and fails again where an optimizer "
    "step comes between"
)


def backward_twice(scene: Scene, error: BaseException | None = None) -> Finding | None:
    """The first node, in the order of the engine, that cannot run because what it saved is gone."""
    with untouched():
        gone = {slot.number for slot in slots_of(scene.walk) if slot.state == "freed"}
        if not gone:
            return None
        stamped = {number for number, node in enumerate(scene.walk.nodes[1:], 1) if freed_by(node) is not None}
        first = next((number for number in scene.order() if number in gone & stamped), None)
    return _uncertain(scene, gone) if first is None else _known(scene, first, stamped)


def _known(scene: Scene, number: int, stamped: set[int]) -> Finding:
    variable, made = scene.variable(number, stamped), scene.site(number)
    run = freed_by(scene.walk.nodes[number])
    freed = None if run is None else run.site
    it = said(variable)
    where = f", made at {made}," if made is not None and it != f"what was made at {made}" else ""
    message = (
        f"this backward{at(scene.noticed)} goes through {it}{where} and what autograd had saved there is gone: "
        f"the backward{at(freed)} has freed it"
    )
    return Finding("backward-twice", message, _each(variable), lines(made, freed, scene.noticed), _REMEDY.format(it=it))


def _each(variable: Name) -> tuple[Name, ...]:
    """The variable; of a statement that assigns several at once, each of them."""
    return tuple(replace(variable, path=path) for path in variable.path.split(", "))


def _uncertain(scene: Scene, gone: set[int]) -> Finding:
    """Without stamps: the failing backward has itself freed some of what is found freed, so several may be to blame."""
    possible = list(_first_of_each_name(scene, _ran_or_failed(scene, gone)))
    names = tuple(name for name, _ in possible)
    sites = [made for _, made in possible] if len(possible) == 1 else []
    who = listed(names) or "a tensor without a name"
    message = (
        f"this backward{at(scene.noticed)} goes through {who if len(names) < 2 else f'one of {who}'}, and what "
        "autograd had saved there was freed by an earlier backward. byname.explaining() around the program "
        "remembers which backward that was"
    )
    it = who if len(names) == 1 else "the shared part"
    return Finding("backward-twice", message, names, lines(*sites, scene.noticed), _REMEDY.format(it=it))


def _ran_or_failed(scene: Scene, gone: set[int]) -> Iterator[int]:
    """The nodes up to the one that failed, as far as that is known: the engine stops before any that is not freed."""
    live = {slot.number for slot in slots_of(scene.walk) if slot.state != "freed"}
    for number in scene.order():
        if number in gone:
            yield number
        elif number in live:
            return


def _first_of_each_name(scene: Scene, numbers: Iterable[int]) -> Iterator[tuple[Name, Site | None]]:
    seen: set[str] = set()
    with untouched():
        for number in numbers:
            name = scene.variable(number, range(len(scene.walk.nodes)))
            if name.path and name.path not in seen:
                seen.add(name.path)
                yield name, scene.site(number)
