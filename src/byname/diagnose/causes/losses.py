"""Losses: computations that are nearly always mistakes, found in a graph or its source, such as double-softmax."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeGuard

from torch import nn

from byname.autograd.slots import held_by_nodes
from byname.diagnose.cause import Cause, Facts, always, variable
from byname.diagnose.causes.attention import ATTENTION
from byname.diagnose.causes.custom_function import RETURNS_NOTHING
from byname.diagnose.causes.cuts import cut_before, remedy_of, why_cut
from byname.diagnose.causes.loss import ACTIVATIONS, COMPARING, MOVES, NORMS, Loss, is_first, node_kind, shape_of
from byname.diagnose.causes.not_reached import cuts_beside
from byname.diagnose.causes.out_of_place import data_edit_advice
from byname.diagnose.causes.targets import TARGETS
from byname.diagnose.context import FailureContext, assigned_on, made_at, node_of, value_of
from byname.reading.frames import user_line, variables_of
from byname.reading.modules import modules_in, parameters_in
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.tensor import fact, is_tensor
from byname.source.code import enclosing_statement, names_bound, names_read, statements_in, statements_of
from byname.source.location import Expression, Site, assignments, is_library, site_of, statements_binding
from byname.tracking.log import DetachPoint, logs
from byname.tracking.lookup import creation_record_of, site_of_tensor


def _broadcast(loss: Loss) -> Iterator[Facts]:
    compared = [(below, node) for node in loss.of_kinds(COMPARING) for below, _ in node.next_functions]
    for expanded, node in compared:
        if node_kind(expanded) == "ExpandBackward":
            before, after = tuple(expanded._saved_self_sym_sizes), shape_of(expanded)
            if before != after and loss.call(expanded) == loss.call(node):  # not expanded by the program
                yield {"before": str(before), "after": str(after), "compared": loss.site(node)}


def _squares(loss: Loss) -> Iterator[Facts]:
    """Yield a difference of (N, 1) and (N,), which has shape (N, N), in a loss written by hand, or a mean of a product.

    The mean of all products is the product of two means, which nobody computes like this on purpose.
    """
    below = [(norm, norm.next_functions[0][0], _EACH) for norm in loss.of_kinds(NORMS)]
    products = [(node, node, _PICKS) for node in loss.of_kinds(("MulBackward",))]
    for node, made, each in [*(one for one in below if node_kind(one[1]) == "SubBackward"), *products]:
        shape, terms = shape_of(made), made.next_functions
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 1 or (None, 0) not in terms:
            continue
        given, output = next(term for term in terms if term[0] is not None)
        before = tuple(given._input_metadata[output].shape)
        is_column = before == (shape[0], 1) and node_kind(given) not in _MAKES_COLUMNS
        is_reduced = _ends_in_a_mean(loss, node, shape, each)
        if given.next_functions and is_reduced and (is_column or before == shape[:1]):
            site = loss.site(made)
            is_meant = _has_a_matrix(node, shape) if made is node else _broadcasts_on_purpose(loss, made)
            if site is not None and not is_meant:
                yield {"before": str(before), "after": str(shape), "compared": site}


def _has_a_matrix(product: Any, shape: tuple[int, ...]) -> bool:
    """Return whether the factor without a graph has a number for each pair, and is not broadcast."""
    return all(one.numel() > shape[0] for _, _, one in held_by_nodes([product]))


def _broadcasts_on_purpose(loss: Loss, minus: Any) -> bool:
    """Return whether the statement of a difference, or one that made its operands, adds a dimension by itself."""
    call = loss.call(minus)
    node, code = (None, None) if call is None else (node_of(call.line), call.line.code)
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)] if node is not None else []
    bound = [one.node for name in names if code is not None for one in statements_binding(code, name)]
    made = [ast.unparse(one.value) for one in bound if isinstance(one, ast.Assign)]
    site = loss.site(minus)
    return _ON_PURPOSE.search("; ".join([site.statement if site else "", *made])) is not None


def _ends_in_a_mean(loss: Loss, node: Any, shape: tuple[int, ...], each: Collection[str]) -> bool:
    """Return whether every result of a node goes into a mean or a sum, past nodes of some kinds for each number."""

    def is_alike(_: Any, user: Any) -> bool:
        return node_kind(user) in each and shape_of(user) == shape

    uses = [user for _, user in islice(loss.uses(node, is_alike), _MOST_USES)]
    ends = [user for user in uses if not is_alike(node, user)]
    return len(uses) < _MOST_USES and {*map(node_kind, ends)} <= {"MeanBackward", "SumBackward"}


_MOST_USES = 24
_EACH = {*NORMS, "WhereBackward", "AddBackward", "SubBackward", "DivBackward", "ClampBackward", "ClampMaxBackward"}
_PICKS = {"NegBackward", "MinimumBackward"}
_MAKES_COLUMNS = {*MOVES, "UnsqueezeBackward", "ReshapeAliasBackward", "IndexBackward", "SumBackward", "MeanBackward"}
_ON_PURPOSE = re.compile(r"None|newaxis|unsqueeze|(view|reshape)(?!\(-1\))|\.T\b|\.m?[tT]\(|transpose")
"""Words in statements that broadcast on purpose."""


def _edited(loss: Loss) -> Iterator[Facts]:
    """Yield results in the graph whose values were changed through ``.data``."""
    edits = [edit for log in logs() if log.of_this_thread() for edit in log.data_edits]
    if not edits:
        return
    numbers = {node._sequence_nr() for node in loss.context.nodes}
    sites = {edit: edit.line.site for edit in edits if edit.number in numbers}
    mine = [(edit, site) for edit, site in sites.items() if site is not None and not is_library(site.file)]
    for edit, site in {(site.file, site.line): (edit, site) for edit, site in mine}.values():
        path, remedy = data_edit_advice(site.statement or "", edit.operation)
        yield {
            "names": [variable(path)] if path else [],
            "statement": f"`{site.statement}`" if site.statement else "a statement",
            "edited": site,
            "remedy": remedy,
        }


def _constant_terms(loss: Loss) -> Iterator[Facts]:
    """Yield a term of the loss without a graph: log-probabilities of the parameters behind the loss, or derivatives."""
    if loss.frame is None or not loss.context.has_graph:
        return
    variables, own = dict(_paths_in(loss.frame)), loss.frame.f_code
    lookup, leaves = loss.context.lookup, set(map(id, loss.context.leaves))
    sums = (node for one in loss.context.roots if is_tensor(one) and (node := fact(one, "grad_fn")) is not None)
    calls = ((node, call.line) for node in sums if (call := lookup.call(node)) is not None)
    parts = ((node, line.code, node_of(line)) for node, line in calls if line.code is not None)
    terms = ((one, code) for node, code, part in parts if part is not None for one in _constants(part, node))
    for term, code in terms:
        read = [ast.unparse(one) for one in ast.walk(term) if isinstance(one, ast.Name | ast.Attribute)]
        made = [one for path in read for one in statements_binding(code, path)]
        paths = [*(path for one in made for path in one.reads), *read]
        known = {path: variables.get(path) for path in paths} if code is own else {}
        path, cut = next(_cut_parts(known, leaves), (read[-1] if read else "", _derivative(term, code, made)))
        if cut is not None:
            derived = cut.name == "grad"  # the variable is computed from it
            yield {
                "lines": [one.site for one in made],
                "term": ast.unparse(term),
                "variable": (assigned_on(cut.line) if derived else None) or variable(path),
                "made": cut.line.site if derived else site_of_tensor(variables[path]),
                "why": why_cut(cut),
                "cut": cut.line.site,
                "remedy": remedy_of(cut) if derived else f"compute `{path}` {_AGAIN}",
            }
            return


def _constants(part: ast.AST, node: Any) -> Iterator[ast.expr]:
    """Yield the terms of a sum in the source that have no graph, according to the nodes of the sum."""
    if isinstance(part, ast.BinOp) and node_kind(node) in ("AddBackward", "SubBackward"):
        for side, (below, _) in zip((part.left, part.right), node.next_functions, strict=False):
            yield from [side] if below is None else _constants(side, below)


def _derivative(term: ast.AST, code: CodeType, made: Sequence[Expression]) -> DetachPoint | None:
    """Return the ``autograd.grad()`` that gave a term: on a line that binds it, or in a function called there."""
    parts = [part for one in (term, *(one.node for one in made)) if one is not None for part in ast.walk(one)]
    called = {ast.unparse(one.func).rpartition(".")[2] for one in parts if isinstance(one, ast.Call)}
    places = {(code, one.site) for one in made}
    cuts = [(cut, cut.line.code) for log in logs() for cut in log.detaches if cut.name == "grad"]
    here = [cut for cut, own in cuts if own and (own.co_name in called or (own, cut.line.site) in places)]
    return here[-1] if here else None


def _cut_parts(values: dict[str, Any], leaves: Collection[int]) -> Iterator[tuple[str, DetachPoint]]:
    """Yield log-probabilities among some values with a call that cut them off from a leaf, and those of derivatives."""
    for path, held in values.items():
        every = [cut for log in logs() for cut in log.detaches_of(held)] if is_tensor(held) else []
        yield from ((path, cut) for cut in every if cut.name == "grad")
        made = creation_record_of(held) if is_tensor(held) else None
        node = None if made is None else node_of(made.line)
        if is_tensor(held) and _LOG.search(path if node is None else f"{path} {ast.unparse(node)}"):
            cuts = [cut for cut in every if cut.reason in ("no_grad", "inference")]
            yield from ((path, cut) for cut in cuts if any(id(one()) in leaves for one, _ in cut.inputs))


_AGAIN = (
    "again for the loss, outside of torch.no_grad(), by log_prob() of the same actions; values recorded under no_grad "
    "can be the old ones in a ratio of both"
)
_LOG = re.compile(r"log_?p(rob|i\b|\b|s\b)|log_softmax")  # log_prob, logp, log_pi, ...


def _leaf_losses(loss: Loss) -> Iterator[Facts]:
    """Yield losses without any input that requires grad, such as a number converted back to a tensor."""
    for root in loss.context.roots:
        if not is_tensor(root) or issubclass(type(root), nn.Parameter):
            continue
        if not fact(root, "is_leaf") or root.numel() != 1:
            continue
        context = FailureContext([root])
        name, made = context.name(root), made_at(root)
        cut = cut_before(context, root)
        facts: Facts = {"loss": name, "made": made, "noticed": loss.line.site, "lines": [], "cut": "", "remedy": _KEEP}
        if cut is not None:
            why = cut["why"]
            facts |= {"lines": [cut["off"], *why.sites], "cut": f"; {why}", "remedy": cut["remedy"]}
        yield facts


_KEEP = "keep the tensor that the loss function returned, as it is: without .item(), float() and torch.tensor()"

_COPIES = {"target", "teacher", "ema", "momentum"}
"""Words in the names of modules that follow another one, as a copy of their own."""


def _same_module(loss: Loss) -> Iterator[Facts]:
    """Yield a target network that a plain assignment made the one that learns, if a loss uses both."""
    if loss.frame is None:
        return
    code = loss.frame.f_code
    modules = [(path, held) for path, held in _paths_in(loss.frame) if issubclass(type(held), nn.Module)]
    copies = [(path, held) for path, held in modules if not _COPIES.isdisjoint(re.split(r"\W|_", path.lower()))]
    pairs = {(copy, path): held for copy, held in copies for path, other in modules if other is held and path != copy}
    for site, node in assignments(code) if pairs else ():
        value = ast.unparse(node.value)
        for copy in [one for one in map(ast.unparse, node.targets) if (one, value) in pairs]:
            theirs, walk = {id(one): one for one in parameters_in(pairs[copy, value])}, loss.context.walk
            mine = [number for number in walk.leaf_numbers if id(walk.nodes[number].variable) in theirs]
            is_used_twice = min([len(walk.users[number]) for number in mine], default=0) > 1
            if is_used_twice and not cuts_beside(loss.context, theirs.values()):
                yield {"copy": variable(copy), "module": variable(value), "assigned": site}
            return


def _repeated(loss: Loss) -> Iterator[Facts]:
    """Yield a list of modules that holds one module several times, since the program multiplied a list of it."""
    for outer in {id(inner): inner for one in loss.modules for inner in modules_in(one)}.values():
        init: Any = found_in(type(outer), "__init__")
        for name, held in snapshot(attributes_of(outer)["_modules"]):
            is_list = type(held) in (nn.ModuleList, nn.Sequential)
            parts = [one for _, one in snapshot(attributes_of(held)["_modules"])] if is_list else []
            if len(parts) > 1 and all(one is parts[0] for one in parts) and parameters_in(parts[0]):
                for one in statements_of(init.__code__) if type(init) is FunctionType else ():
                    given = init.__code__.co_varnames[1 : init.__code__.co_argcount]
                    is_meant = _SHARED.search(f"{type(outer).__name__} {ast.unparse(one)}")
                    is_other = is_meant or f"self.{name}" not in names_bound(one)
                    if not is_other and any(_multiplies(part, given) for part in ast.walk(one)):
                        site = site_of(init.__code__, one, None, init.__qualname__)
                        facts = {"list": variable(f"self.{name}"), "kind": type(parts[0]).__name__}
                        yield {"times": len(parts), "assigned": site, **facts}


_SHARED = re.compile(r"shar|tied|recur|universal|albert", re.I)


def _multiplies(part: ast.AST, arguments: Collection[str]) -> bool:
    """Return whether an expression multiplies a list of modules that it makes or was given, maybe not to be shared."""
    if not (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) and isinstance(part.left, ast.List)):
        return False
    return any(isinstance(one, ast.Call) or ast.unparse(one) in arguments for one in part.left.elts)


def _paths_in(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame, and the attributes of its ``self``, each with its path."""
    variables = variables_of(frame)
    yield from variables.items()
    own = attributes_of(variables["self"]) if "self" in variables else {}
    for space in (own, own.get("_modules")):
        if type(space) is dict:
            yield from [(f"self.{name}", held) for name, held in space.items() if type(name) is str]


def _unfrozen(loss: Loss) -> Iterator[Facts]:
    """Yield the modules to which ``requires_grad = False`` was assigned, and that still get gradients."""
    reached = {id(one): one for one in loss.context.leaves}
    for module in [inner for one in loss.modules for inner in modules_in(one)] if loss.frame is not None else ():
        theirs = [reached[id(one)] for one in parameters_in(module) if id(one) in reached]
        if dict.get(attributes_of(module), "requires_grad") is False and theirs:
            site = _freezing(loss.frame, module)
            yield {
                "names": tuple(FailureContext().names(theirs)),
                "kind": type(module).__name__,
                "assigned": site,
                "path": "module" if site is None else (site.statement or "").rpartition(".requires_grad")[0],
            }


def _misspelt(loss: Loss) -> Iterator[Facts]:
    """Yield the parameters to which a misspelt ``requires_grad`` was assigned, and that still get gradients."""
    own = ((one, key) for one in loss.context.leaves for key, held in snapshot(attributes_of(one)) if held is False)
    found = [(one, key) for one, key in own if _MISSPELT.fullmatch(str(key))]
    for word in {key for _, key in found}:
        every = [(site, ast.unparse(node.targets[0])) for site, node in assignments(loss.line.code)]
        sites = [site for site, target in every if target.endswith(f".{word}")]
        names = tuple(FailureContext().names([one for one, key in found if key == word]))
        yield {"names": names, "word": word, "assigned": sites[0] if len(sites) == 1 else None}


_MISSPELT = re.compile(r"(?!requires_grad$)requ\w{1,6}grads?")


def _freezing(frame: FrameType | None, module: nn.Module) -> Site | None:
    """Return the line of a statement that assigns False to ``requires_grad`` of a module, or None."""
    variables = {} if frame is None else variables_of(frame)
    for site, node in assignments(None if frame is None else frame.f_code):
        targets: list[Any] = [one for one in node.targets if getattr(one, "attr", "") == "requires_grad"]
        if ast.unparse(node.value) == "False" and any(value_of(one.value, variables) is module for one in targets):
            return site
    return None


def _overwritten(loss: Loss) -> Iterator[Facts]:
    """Yield the variable of a loss if a loop overwrites it in each round, and so keeps the last value only."""
    for code, name, end in _ends(loss):
        for last in _kept_of_loops(code, name, end.lineno):
            site = site_of(code, last, name, code.co_qualname)
            yield {"name": variable(name), "noticed": site, "backward": loss.line.site}


def _ends(loss: Loss) -> Iterator[tuple[CodeType, str, Any]]:
    """Yield the code, the variable of the loss and the statement of its backward, and of each return that gave it."""
    line = user_line(loss.frame)
    if line.code is not None and line.expr is not None and line.expr.node is not None:
        yield line.code, line.expr.receiver or "", enclosing_statement(line.expr.node)
    for code in _codes_making(loss) - {line.code}:
        returns = [one for one in statements_of(code) if isinstance(one, ast.Return)]
        yield from ((code, one.value.id, one) for one in returns if isinstance(one.value, ast.Name))


def _codes_making(loss: Loss) -> set[CodeType]:
    """Return the code that made the loss, if a tracker saw it."""
    nodes = [fact(one, "grad_fn") for one in loss.context.roots if is_tensor(one)] if loss.context.has_graph else []
    calls = [loss.call(node) for node in nodes if node is not None]
    return {one.line.code for one in calls if one is not None and one.line.code is not None}


def _kept_of_loops(code: CodeType, name: str, number: int) -> Iterator[ast.Assign]:
    """Yield the assignments of a loss in loops before a line, of which it keeps that of the last round only."""
    before = [one for one in statements_of(code) if one.lineno < number]
    for at, loop in enumerate(before):
        if isinstance(loop, ast.For) and (loop.end_lineno or 0) < number:
            last, first = _overwriting(loop, name), [one for one in before[:at] if _assigns(one, name)]
            later = [one for one in before[at:] if one.lineno > (loop.end_lineno or 0) and _assigns(one, name)]
            is_sum = _ZERO.match(ast.unparse(first[-1].value)) if first else _is_of_each_round(last, loop)
            if last is not None and not later and is_sum:
                yield last


def _is_of_each_round(assignment: ast.Assign | None, loop: ast.For) -> bool:
    """Return whether each round of a loop assigns a value that is computed from the loop's own variables."""
    own = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    is_in_each = assignment in loop.body and not any(isinstance(one, ast.Continue) for one in ast.walk(loop))
    return assignment is not None and is_in_each and not own.isdisjoint(names_read(assignment))


def _thrown_away(loss: Loss) -> Iterator[Facts]:
    """Yield the variable of a loss that is assigned twice in a row, so that nothing reads its first value."""
    for code, name, statement in _ends(loss):
        first = None
        for one in getattr(statement.parent, "body", ()) if name.isidentifier() else ():
            if one is statement:
                break
            used = [part for part in ast.walk(one) if isinstance(part, ast.Name) and part.id == name]
            is_set = _assigns(one, name) and len(used) == 1 and isinstance(one.targets[0], ast.Name)
            if is_set and first is not None:
                yield {"name": variable(name), "first": first, "noticed": site_of(code, one, name, code.co_qualname)}
            is_computed = is_set and "(" in ast.unparse(one.value) and not _BEGINS.match(ast.unparse(one.value))
            if used:
                first = site_of(code, one, name, code.co_qualname) if is_computed else None


_BEGINS = re.compile(r"torch\.(zeros|ones|tensor|full|empty|as_tensor)|float\(|None")
"""What a variable is assigned before its value is computed."""
_ZERO = re.compile(r"0(\.0)?$|torch\.(zeros\(|tensor\(0\)|tensor\(0\.0)")


def _assigns(statement: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    return isinstance(statement, ast.Assign) and name in names_bound(statement)


def _overwriting(loop: ast.For, name: str) -> ast.Assign | None:
    """Return the one statement of a loop that assigns a variable; None if the loop reads it, or may end early."""
    assigned = [one for one in statements_in(loop.body) if _assigns(one, name)]
    for node in ast.walk(loop):
        reads = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        adds = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        if reads or adds or isinstance(node, ast.Break | ast.Return):
            return None
    return assigned[0] if len(assigned) == 1 else None


_COMPARED = (
    "suspicious: the loss{compared:at} combines values of shape {before} with targets or weights of another shape: "
    "both are broadcast to {after}, so that each value meets several of them",
    "give both the same shape, as by target.reshape(output.shape) or output.squeeze(-1)",
)

# fmt: off
LOSSES: tuple[Cause[Loss], ...] = (
    *ACTIVATIONS,
    *ATTENTION,
    *TARGETS,
    RETURNS_NOTHING,
    Cause("data-edit", always, _edited,
        "suspicious: {statement}{edited:at} changes a result that this loss is computed from through .data, where "
        "autograd does not see it: backward computes gradients as if nothing had changed there{names:-}", "{remedy}"),
    Cause("broadcast-loss", is_first, _broadcast, *_COMPARED),
    Cause("broadcast-loss", is_first, _squares, *_COMPARED),
    Cause("loss-overwritten", is_first, _overwritten,
        "suspicious: each round of a loop assigns {name} anew{noticed:at}, and nothing in the loop reads it: only the "
        "value of the last round is left for the backward{backward:at}, and the others are thrown away",
        "add them up, {name.path} += ... in place of {name.path} = ..., or sum() a list; or call backward in the loop"),
    Cause("loss-overwritten", is_first, _thrown_away,
        "suspicious: {name} is computed{first:at}, and assigned anew{noticed:at} before anything reads it: its first "
        "value is thrown away, and goes into no backward", "add both up: {name.path} += ... in the second line"),
    Cause("not-frozen", is_first, _unfrozen,
        "suspicious: requires_grad = False was assigned to a module ({kind}){assigned:at}, where it is an attribute "
        "like any other and freezes nothing: {names} still {names:gets a gradient|get gradients}",
        "{path}.requires_grad_(False)"),
    Cause("not-frozen", is_first, _misspelt,
        "suspicious: `{word} = False` was assigned to {names:3}{assigned:at}, an attribute like any other that freezes "
        "nothing: {names:it still gets a gradient|they still get gradients}",
        "requires_grad = False, or module.requires_grad_(False)"),
    Cause("same-module", is_first, _same_module,
        "suspicious: {copy} and {module} are the same module since `{assigned.statement}`{assigned:at}, and this loss "
        "is computed with it twice: what {copy} gives changes with every step, and the gradient flows through it, too",
        "make a copy of its own, `{copy.path} = copy.deepcopy({module.path}).requires_grad_(False)`, and update it "
        "from time to time: {copy.path}.load_state_dict({module.path}.state_dict())"),
    Cause("same-module", is_first, _repeated,
        "suspicious: {list} holds one {kind} {times} times since `{assigned.statement}`{assigned:at}, not {times} of "
        "them: a list times a number repeats its entries, so that all share the same parameters",
        "make each anew: [{kind}(...) for _ in range({times})]; it is right if they should share their parameters"),
    Cause("constant-term", is_first, _constant_terms,
        "suspicious: {lines:-}`{term}` is a term of the loss without a graph: {variable}{made:at} {why}. Gradients "
        "reach the parameters behind it by other terms only{cut:-}", "{remedy}"),
    Cause("leaf-loss", always, _leaf_losses,
        "{lines:-}backward{noticed:at} starts from {loss}, which was made{made:at} from nothing that requires grad, "
        "and was given requires_grad itself: no parameter gets a gradient from it{cut}", "{remedy}"),
)
# fmt: on
"""Causes found in a loss before a backward call of a running program."""
