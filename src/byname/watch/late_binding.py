"""Late binding: the calls that a selector or a path matches, found in an example run or in the first forward.

Without an example, every module that may match is hooked until the first forward has ended. From then on only modules
with a match, and those that have not run yet, keep their hooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from torch import nn

from byname.errors import NoMatchError
from byname.model.call_graph import Flow, ModelCall, with_parts_of_attention
from byname.model.called_functions import called_function
from byname.model.families import near_calls_hint
from byname.model.module_tree import modules_by_id, modules_by_path, unwrap_module
from byname.model.operations import ATTENTIONS, is_leaf_module, is_multi_head, is_part_of_attention
from byname.model.predicates import depends_on_class_only, means_parts
from byname.model.selectors import Selector, Test, is_indexed, no_match
from byname.model.spot import Resolution, Spot, deduplicate, output_of
from byname.model.where import calls_of
from byname.place import NameSegment
from byname.reading.modules import modules_in
from byname.source.code import CodeKey, original_code
from byname.tracing.muted import muting
from byname.tracing.tracer import trace
from byname.watch.attachment import Attachment
from byname.watch.delivery import ReportedPlace, hook_calls, hook_outputs, reported_place
from byname.watch.function_mode import ObservedOperations, Owner
from byname.watch.handle import remove_all
from byname.watch.hooks import Hooks


class Binding:
    """The operations and selected calls that one attachment observes.

    Args:
        resolution: the places that the paths match. Names of operations may have wildcards. Its modules are not
            reported a second time for a selector.
        explicit: whether calls of attention may run step by step.

    Attributes:
        asked: whether any operation or selector was asked for.
        missing: a function that is called before the error for an operation or selector without a match is raised.
    """

    def __init__(
        self,
        model: nn.Module,
        attachment: Attachment,
        resolution: Resolution,
        selectors: Sequence[Selector],
        *,
        explicit: bool = False,
    ) -> None:
        self.missing: Callable[[], None] = lambda: None
        self._report_unmatched = attachment.unmatched
        self._model = model
        self._attachment = attachment
        self._patterns = {  # without the modules that another thread has removed since the paths were read
            pattern: [spot for spot in spots if id(spot.module) in self._paths]
            for pattern, spots in resolution.operations.items()
        }
        self._selectors = list(selectors)
        self._online: list[tuple[Selector, Test]] = []
        self._explicit = explicit
        self._owners: dict[int, Owner] = {}
        self._of_module: dict[int, list[tuple[str, Spot]]] = {}
        for pattern, spot in ((pattern, spot) for pattern, spots in self._patterns.items() for spot in spots):
            self._of_module.setdefault(id(spot.module), []).append((pattern, spot))
            self._own(spot.module)
            function = called_function(spot.module, spot.method) if spot.method else None
            if function is not None:
                self._owners[id(spot.module)].functions[spot.method] = CodeKey(original_code[function.__code__])
        self._modules: dict[int, list[ReportedPlace]] = {}
        self._reported = {
            id(spot.module) for spot in resolution.spots if spot.kind == "module" and not (spot.items or spot.gradient)
        }
        self._matched: set[Any] = set()
        self._exact: dict[str, Spot] = {}
        self._called: dict[str, ModelCall] = {}
        self._asking = self._outputs = self._hooks = self._left_out = Hooks(attachment)
        self._bound = not (resolution.operations or selectors)
        self.asked = not self._bound
        self._asked_of: dict[int, None] = {}
        self._wide = False

    def _own(self, module: nn.Module) -> None:
        if id(module) not in self._owners:
            self._owners[id(module)] = Owner(module, self._paths[id(module)][0])

    @cached_property
    def functions(self) -> ObservedOperations:
        return ObservedOperations(self._attachment, self._decide, explicit=self._explicit)

    @cached_property
    def _paths(self) -> dict[int, tuple[str, nn.Module]]:
        """The path and the module for each ``id``; made only if operations or selectors are requested."""
        return {id(module): (path, module) for path, module in modules_by_path(self._model).items()}

    @cached_property
    def _leaves(self) -> set[int]:
        return {key for key, (_, module) in self._paths.items() if is_leaf_module(module)}

    @property
    def needs_function_mode(self) -> bool:
        return bool(self._owners)

    @property
    def hooked(self) -> list[nn.Module]:
        """The modules that get hooks because a selector matches them, or may match them."""
        asked = {*self._modules, *self._asked_of}
        return [module for key, (_, module) in self._paths.items() if key in asked] if asked else []

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules by their paths, as they were when this was made; empty if nothing is requested."""
        return dict(self._paths.values()) if self._owners or self._online or self._modules else {}

    @property
    def chosen(self) -> list[str]:
        """The paths of the modules that have matched, or whose operations have."""
        chosen = {*self._matched, *(key for key, found in self._modules.items() if found)}
        return [path for key, (path, _) in self._paths.items() if path and key in chosen] if chosen else []

    def rebind(self, resolution: Resolution, selectors: Sequence[Selector]) -> Binding:
        """Return a binding for the model as it is now. What matched before need not match in the next forward."""
        new = Binding(self._model, self._attachment, resolution, selectors, explicit=self._explicit)
        new._matched.update(self._matched)
        new._report_unmatched = lambda error: self._attachment.notes.update({str(error): None})
        new.prepare_first_forward()
        return new

    def ran_without_match(self, path: str, module: nn.Module) -> bool:
        """Return whether a module ran in this forward, and neither matched nor made this call."""
        key, owner = id(module), self._owners.get(id(module))
        known = key in self._modules or owner is not None
        ran = self._modules.get(key) == [] or (owner is not None and owner.ran)
        return (ran or not (known or key in self._asked_of)) and path not in self._attachment.thread.state.calls

    def bind(self, example: Any) -> None:
        """Find the matching calls by one run of an example."""
        if self._bound:
            return
        flow = trace(self._model, example)
        flow = with_parts_of_attention(flow) if self._explicit else flow
        for call in flow.calls:
            if call.kind == "operation":
                self._called.setdefault(call.path, call._replace(function=None))
                matched = self._match_patterns(call)
                self._attachment.paths.update((spot.full, None) for spot in matched if not spot.items)
        for selector in self._selectors:
            self._match(selector, flow)
        for pattern, spots in self._patterns.items():
            in_function = any(spot.method for spot in spots)  # the example run does not show operations in functions
            if pattern not in self._matched and not in_function:
                raise NoMatchError(self._unmatched(pattern))
        self._selectors, self._online, self._bound = [], [], True

    def prepare_first_forward(self) -> None:
        """Prepare to find the matching calls in the first forward."""
        self._online = [(selector, selector.online()) for selector in self._selectors]
        modules = self._module_calls() if self._online else []
        asked: dict[int, None] = {}
        for selector, online in self._online:
            if not selector.only_modules:
                self._own_all_that(selector)
                found = [call for call in modules if online(call)] if depends_on_class_only(selector) else modules
            elif is_indexed(selector):  # by the order of the run
                found = modules if any(map(selector.online(), modules)) else []
            else:
                found = [call for call in modules if online(call)]
            if not (found if selector.only_modules else modules):
                raise no_match(selector, modules)
            asked.update((id(call.module), None) for call in found)
        self._asked_of = asked

    def _module_calls(self) -> list[ModelCall]:
        return calls_of(dict(self._paths.values()))

    def _own_all_that(self, selector: Selector) -> None:
        """Observe the functions that modules call; leaf modules only if the selector asks for functions inside them."""
        inside = selector.looks_inside or means_parts(selector)
        for key, (path, module) in self._paths.items():
            if key not in self._leaves or (inside and _asks_inside(selector, path, module)):
                self._own(module)

    def install(self) -> None:
        self._asking, self._hooks = Hooks(self._attachment), Hooks(self._attachment)
        self._own_what_nests()
        self._hook_chosen()
        self._hook_asked()
        inside = modules_by_id(owner.module for owner in self._owners.values())
        others = [module for key, module in inside.items() if key not in self._owners]
        self.functions.hook(self._hooks, [*self._owners.values()], others)
        self._asking.install()
        self._hooks.install()

    def _own_what_nests(self) -> None:
        """Keep the mode on around observed attention: else PyTorch nests padded batches, for its fast path alone."""
        if any(is_multi_head(owner.module) for owner in self._owners.values()):
            for _, module in self._paths.values():
                if isinstance(module, nn.TransformerEncoder):
                    self._own(module)
                    self._matched.add(id(module))

    def _hook_asked(self) -> None:
        """Hook the modules that a selector may match.

        One hook at the end of the call is enough for a leaf module if all selectors go by class and there is no
        ``before``. A leaf module calls no other module, so the order of the places stays the same.
        """
        by_class = self._attachment.before is None and all(
            depends_on_class_only(selector) for selector, _ in self._online
        )
        for path, module in self._paths.values() if self._online else ():
            if id(module) in self._asked_of and id(module) not in self._modules:
                at_end = by_class and id(module) in self._leaves
                hook_calls(self._asking, module, partial(self._places, path, module), at_end=at_end)

    def _hook_chosen(self) -> None:
        self._outputs.remove()
        self._outputs = Hooks(self._attachment)
        hook_outputs(self._outputs, [one for found in self._modules.values() for one in found])
        self._outputs.install()

    def remove(self) -> None:
        remove_all((self.functions, self._asking, self._outputs, self._hooks, self._left_out))
        self._asking = self._outputs = self._hooks = self._left_out = Hooks(self._attachment)
        vars(self).pop("functions")  # these hold this, which would then be freed by the garbage collector alone

    def exclude_new_modules(self, arriving: nn.Module) -> None:
        """Hook modules that were added since, so that their calls are not counted for the owner around them."""
        if self._owners:
            self._left_out.remove()
            inside = {id(one): one for module in (self._model, arriving) for one in modules_in(module)}
            arrived = [one for key, one in inside.items() if key not in self._paths and unwrap_module(one)[0] is one]
            self._left_out = Hooks(self._attachment)
            self.functions.hook(self._left_out, [], arrived)
            self._left_out.install()

    def end(self) -> bool:
        """Remove the hooks that are not needed, after an outermost forward that did not raise.

        Returns:
            Whether it is known from now on which calls match.
        """
        if self._bound:
            if self._wide:
                self._narrow()
            return False
        self._bound = self._wide = True
        for pattern, spots in self._patterns.items():
            if pattern not in self._matched:
                if any(self._owners[id(spot.module)].ran for spot in spots):
                    self._report_no_match(self._unmatched(pattern))
                self._attachment.note(pattern, "its module did not run in the first forward")
        for selector, _ in self._online:
            if selector not in self._matched:
                calls = [*self._module_calls(), *self._called.values()]
                self._report_no_match(f"in the first forward {no_match(selector, calls)}")
        self._narrow()
        return True

    def _report_no_match(self, why: str) -> None:
        if self._report_unmatched is not None:
            return self._report_unmatched(NoMatchError(why))
        self.missing()
        raise NoMatchError(f"{why}. Nothing stays attached")

    def _narrow(self) -> None:
        """Keep only the hooks of modules with a match, and of those that have not run yet."""
        if self.functions.in_other_threads():  # forwards there need the hooks with which they have begun
            return
        self._wide = False
        for key, owner in self._owners.items():
            owner.idle = owner.ran and key not in self._matched
        self._owners = {key: owner for key, owner in self._owners.items() if not owner.idle}
        self._hooks.keep(modules_by_id(owner.module for owner in self._owners.values()))
        if self._online:
            self._asking.keep({key for key in self._paths if key not in self._modules})
            self._hook_chosen()

    def _decide(self, owner: Owner, path: str, name: str, function: Any) -> Sequence[ReportedPlace]:
        call = ModelCall(path, name, "operation", owner.module, function=function)
        self._called.setdefault(path, call._replace(function=None))  # a user's function may reference anything
        spots = self._match_patterns(call)
        if path in self._exact:
            spots.append(self._exact[path])
        if self._wanting(call):
            spots.append(Spot("operation", path, owner.module, name))
        if spots:
            self._matched.add(id(owner.module))
            owner.idle = False
        return [reported_place(self._attachment, spot) for spot in deduplicate(spots)[0]]

    def _match_patterns(self, call: ModelCall) -> list[Spot]:
        """Return the places of one operation, one for each requested path that matches it."""
        function, name = self._label(call)
        found = []
        for pattern, spot in self._of_module.get(id(call.module), ()):
            if spot.method == function and NameSegment(spot.name).matches(name):
                self._matched.add(pattern)
                found.append(spot._replace(path=call.path))
                self._attachment.requested.add_match(found[-1].full, spot.full)
        return found

    def _label(self, call: ModelCall) -> tuple[str, str]:
        """Return the name of the function in which an operation is counted, empty for the module, and its own name."""
        prefix = self._paths[id(call.module)][0]
        function, _, name = call.path[len(prefix) + 1 if prefix else 0 :].rpartition(".")
        return function, name

    def _wanting(self, call: ModelCall) -> list[Selector]:
        """Return the selectors that match a call; none for an operation counted in a function.

        Each selector is asked once for each place. The module's own place of the operation is asked for as well.
        """
        function, name = ("", "") if call.kind == "module" else self._label(call)
        in_function = function and not is_part_of_attention(function, name)  # a step of attention is the module's
        if in_function or (self._bound and not self._online):
            return []
        inside = call.kind == "operation" and is_leaf_module(call.module)
        path = self._paths[id(call.module)][0]
        with muting(self._model):  # a predicate may call PyTorch
            wanting = [
                selector
                for selector, online in self._online
                if (not inside or _asks_inside(selector, path, call.module)) and online(call)
            ]
        self._note_selected(call, wanting)
        return wanting

    def _note_selected(self, call: ModelCall, selectors: Sequence[Selector]) -> None:
        self._matched.update(selectors)
        module = call.module if call.kind == "module" else None
        for selector in selectors:
            self._attachment.requested.select(call.path or "forward", module, selector)

    def _match(self, selector: Selector, flow: Flow) -> None:
        matched = [flow.calls[index] for index in selector.matches(flow)]
        every = Counter(call.path for call in flow.calls)
        for call in {one.path: one for one in matched}.values():
            self._note_selected(call, [selector])
            self._note_calls(call, {one.call for one in matched if one.path == call.path}, every[call.path])
            if call.kind == "module":
                self._choose(call.path, call.module)
            else:
                self._exact[call.path] = Spot("operation", call.path, call.module, call.operation)
                self._attachment.paths.setdefault(call.path)
                self._own(call.module)

    def _note_calls(self, call: ModelCall, wanted: set[int], every: int) -> None:
        """Note the numbers of the selected calls of a place, unless all of its calls are selected."""
        path, only = call.path or "forward", self._attachment.only
        chosen = path in self._exact if call.kind == "operation" else id(call.module) in self._modules
        if path in only:
            only[path] |= wanted
        elif not chosen and path not in self._attachment.paths:
            only[path] = wanted
        if len(only.get(path, ())) == every:
            del only[path]

    def _places(self, path: str, module: nn.Module) -> Sequence[ReportedPlace]:
        """Return the places of a module; the first call asks the selectors."""
        found = self._modules.get(id(module))
        if found is None:
            found = self._modules[id(module)] = []
            if self._wanting(ModelCall(path, type(module).__name__, "module", module)):
                self._choose(path, module)
        return found

    def _choose(self, path: str, module: nn.Module) -> None:
        found = self._modules.setdefault(id(module), [])
        if id(module) not in self._reported:
            self._reported.add(id(module))
            found.append(reported_place(self._attachment, output_of(path, module, exact=True)))
            self._attachment.paths.setdefault(path or "forward")

    def _unmatched(self, pattern: str) -> str:
        modules = self._module_calls()
        paths = (call.path for call in modules if call.path)
        hint = near_calls_hint(pattern, [*self._called], [*modules, *self._called.values()], paths)
        kernel = ATTENTIONS[0]
        if f".{kernel}" in f".{pattern}" and not any(call.operation in ATTENTIONS for call in self._called.values()):
            hint += f"; no {kernel} ran: where attention is computed in Python, its variables have places"
        return f"`{pattern}` matches no operation that ran{hint}"


def _asks_inside(selector: Selector, path: str, module: nn.Module) -> bool:
    """Return whether a selector may select operations inside a leaf module."""
    return selector.reaches_into(path) or (means_parts(selector) and is_multi_head(module))
