"""Every tensor of a running PyTorch program under the name the program itself gives it."""

from byname.autograd.check import check
from byname.autograd.explain import explain
from byname.autograd.explaining import explaining
from byname.autograd.finding import Explanation, Finding
from byname.autograd.graph import Graph, graph, path
from byname.autograd.leaves import Leaf, Leaves, leaves
from byname.autograd.saved import Saved, SavedTensor, saved
from byname.errors import BynameError
from byname.naming.name import Name
from byname.naming.names import name, names
from byname.naming.tags import tag
from byname.naming.track import Tracker, track
from byname.site import Site

__version__ = "0.1.0"

__all__ = [
    "BynameError",
    "Explanation",
    "Finding",
    "Graph",
    "Leaf",
    "Leaves",
    "Name",
    "Saved",
    "SavedTensor",
    "Site",
    "Tracker",
    "check",
    "explain",
    "explaining",
    "graph",
    "leaves",
    "name",
    "names",
    "path",
    "saved",
    "tag",
    "track",
]
