"""What is a rewritten model? A `GraphModule` that has the model's modules, and a graph for each way to run it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import fx, nn
from torch.fx.graph_module import _forward_from_src

from byname.errors import RewriteError
from byname.reading.quiet import dynamo_skip
from byname.rewriting.call_arguments import Arguments, of_call
from byname.rewriting.held import HELD, Held
from byname.rewriting.recipe import Recipe
from byname.rewriting.variant import Variant
from byname.rewriting.writing import read, written

__all__ = ["Rewritten"]


MOST = 64
"""Graphs of one model, after which it must be a mistake."""


class Rewritten(fx.GraphModule):
    """A model with interjections in its graph; made by `byname.rewrite`.

    It has modules of its own, of the same classes, which share the parameters and buffers of the model that was
    rewritten. Where its forward decides by ``self.training``, by a mode such as ``torch.is_grad_enabled()``, or by an
    argument that is no tensor, there is a graph for each case; ``graph`` is that of the present flags and modes.
    """

    _byname_recipe: Recipe
    _byname_variants: list[Variant]

    def __init__(self, recipe: Recipe, held: Held) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(_PRIVATE())
        self._adopt(recipe, held, [])

    def _adopt(self, recipe: Recipe, held: Held, variants: list[Variant]) -> None:
        """Takes the model's modules, parameters, attributes and hooks over."""
        type(self).__name__ = type(recipe.root).__name__
        self.__dict__.update(recipe.root.__dict__)
        self.__dict__.pop("forward", None)  # one that was put in the place of the class's is in the graph
        held.__dict__["root"] = self
        self.__dict__.update({"_byname_recipe": recipe, HELD: held, "_byname_variants": variants})

    @property
    def graph(self) -> fx.Graph:
        """The graph for the present training flags and modes."""
        return self._present().graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        self._present().graph = graph
        self.recompile()

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """The graphs for every way to run the model that has been met."""
        return tuple(variant.graph for variant in self._byname_variants)

    @property
    def code(self) -> str:
        """The code of `graph`."""
        return self.graph.python_code("self").src

    def recompile(self) -> Any:
        """Makes the graphs the forward again, after they were changed."""
        codes = [variant.graph.python_code("self") for variant in self._byname_variants]
        for variant, code in zip(self._byname_variants, codes, strict=True):
            variant.graph.owning_module = self
            variant.run = _forward_from_src(code.src, code.globals)
        first = self._byname_variants[0]
        always = self._byname_recipe.fixed and not (first.flags or first.switches or first.answers)
        forward = first.run if always else self._dispatching()
        type(self).forward = forward
        shown = codes[self._byname_variants.index(self._present())]
        own = {"_code": shown.src, "_lineno_map": shown._lineno_map, "_prologue_start": shown._prologue_start}
        self.__dict__.update(own)  # the compiler looks for these
        return shown

    def add(self, variant: Variant) -> None:
        """Takes one more graph."""
        self._byname_variants.append(variant)
        self.recompile()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own class has it."""
        return self._byname_recipe.root.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own class does it."""
        return self._byname_recipe.root.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._byname_recipe.root._load_from_state_dict(*args)

    def _present(self) -> Variant:
        return next((one for one in self._byname_variants if one.fits(self)), self._byname_variants[0])

    def _dispatching(self) -> Callable[..., Any]:
        signature = self._byname_recipe.signature

        def forward(self: Rewritten, *args: Any, **kwargs: Any) -> Any:
            call = of_call(signature, args, kwargs)
            for variant in self._byname_variants:
                if variant.arguments.fits(call) and variant.fits(self):
                    return variant(self, call)
            return self._one_more(call)(self, call)

        forward.__signature__ = _with_self(signature)  # type: ignore[attr-defined]
        return forward

    @dynamo_skip
    def _one_more(self, call: Arguments) -> Variant:
        """Traces the model for a way to call it that is new."""
        if len(self._byname_variants) >= MOST:
            raise RewriteError(
                f"this {type(self).__name__} was called in {MOST} ways, each with a graph of its own: {call}. An "
                "argument that takes many values should be a tensor"
            )
        variant = self._byname_recipe.variant(self, call, lambda path: self.get_submodule(path).training)
        self.add(variant)
        return variant

    def _state(self) -> dict[str, Any]:
        held: Held = self.__dict__[HELD]
        own = {key: value for key, value in self.__dict__.items() if key not in self._byname_recipe.root.__dict__}
        for key in ("_byname_recipe", "_byname_variants", HELD):
            own.pop(key)
        return {
            "own": own,
            "training": self.training,
            "recipe": self._byname_recipe,
            "held": held.things(),
            "variants": [
                (one.arguments, dict(one.flags), written(one.graph), one.switches, dict(one.answers))
                for one in self._byname_variants
            ],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = Held()
        held.__dict__.update(state["held"])
        self.__dict__.update(state["own"])
        variants = [Variant(one[0], one[1], read(one[2]), *one[3:]) for one in state["variants"]]
        self._adopt(state["recipe"], held, variants)
        self.training = state["training"]
        self.recompile()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty, (), self._state()

    __reduce__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Rewritten:
        new = memo[id(self)] = _empty()
        new.__setstate__(copy.deepcopy(self._state(), memo))
        return new

    def __copy__(self) -> Rewritten:
        new = _empty()
        new.__setstate__(self._state())
        return new


def _empty() -> Rewritten:
    return Rewritten.__new__(Rewritten)


def _PRIVATE() -> dict[str, Any]:
    """What a `GraphModule` has beside a module's own."""
    return {
        "_tracer_cls": None,
        "_tracer_extras": {},
        "meta": {},
        "_replace_hooks": [],
        "_create_node_hooks": [],
        "_erase_node_hooks": [],
        "_deepcopy_hooks": [],
        "shape_env": None,
    }


def _with_self(signature: inspect.Signature) -> inspect.Signature:
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[self, *signature.parameters.values()])
