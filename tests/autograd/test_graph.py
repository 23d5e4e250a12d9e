"""Graph: nodes, edges, and the shortest path from a root to a tensor."""

import pytest
import torch
from processes import run_forked
from torch import nn

import byname
from byname.errors import NotATensorError


def test_nodes_edges_and_dot():
    x = torch.ones(3, requires_grad=True)
    graph = byname.graph((x * x).sum())
    assert [node.name for node in graph] == ["SumBackward0", "MulBackward0", "AccumulateGrad"]
    assert [(edge.source, edge.target, edge.index) for edge in graph.edges] == [(1, 2, 0), (2, 3, 0), (2, 3, 1)]
    assert [str(leaf.name) for leaf in graph.leaves] == ["x"]
    assert len(graph.saved) == 2
    assert "n2 -> n1;" in graph.to_dot()
    assert 'label="x' in graph.to_dot()


def test_nodes_have_the_names_of_their_results():
    x = torch.ones(3, requires_grad=True)
    hidden = x * 2
    loss = hidden.sin().sum()
    assert [(node.name, node.tensor) for node in byname.graph(loss)] == [
        ("SumBackward0", "loss"),
        ("SinBackward0", ""),
        ("MulBackward0", "hidden"),
        ("AccumulateGrad", "x"),
    ]


def test_names_cannot_break_out_of_dot():
    x = byname.tag(torch.ones(1, requires_grad=True), 'a"]; evil [label="')
    lines = byname.graph(x * 2).to_dot().splitlines()
    (line,) = [line for line in lines if "evil" in line]
    assert line.count('"') - line.count('\\"') == 2


def test_the_shortest_way_to_a_tensor():
    x = torch.ones(2, requires_grad=True)
    h = x * 2
    loss = (h.sin() + h).sum()
    assert [(step.node, step.index) for step in byname.path(loss, h)] == [
        ("SumBackward0", 0),
        ("AddBackward0", 1),
        ("MulBackward0", None),
    ]
    assert byname.path(loss, x)[-1].node == "AccumulateGrad"
    assert byname.path(loss, loss)[0].node == "SumBackward0"


def test_no_way_is_none():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert byname.path((x * 2).sum(), y) is None
    assert byname.path((x * 2).sum(), torch.ones(2)) is None
    with pytest.raises(NotATensorError):
        byname.path(x * 2, "x")


def test_a_gradient_graph_of_higher_order():
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    assert [str(leaf.name) for leaf in byname.leaves(gradient)] == ["x"]
    assert byname.saved(gradient).bytes > 0
    assert byname.graph(gradient)


@pytest.mark.parametrize("nodes", [30_000, *(pytest.param(one, marks=pytest.mark.slow) for one in (100_000, 300_000))])
def test_a_long_chain_is_walked_and_freed(nodes):
    out = run_forked(f"""
        import gc, torch, byname
        x = torch.ones(1, requires_grad=True)
        y = x
        for _ in range({nodes}):
            y = y * 1.0
        (leaf,) = byname.leaves(y)
        print(leaf.name, leaf.distance, leaf.paths)
        print(len(byname.saved(y)))
        del y
        gc.collect()
        print("freed")
    """)
    assert out == ["x", str(nodes), "1", str(nodes), "freed"]


@pytest.mark.slow
def test_a_chain_of_a_million_nodes():
    out = run_forked("""
        import torch, byname
        y = x = torch.ones(1, requires_grad=True)
        for _ in range(1_000_000):
            y = y * 1.0
        print(byname.leaves(y)[0].distance)
        del y
        print("freed")
    """)
    assert out == ["1000000", "freed"]


def test_a_walked_ladder_half_of_which_is_kept_is_freed():
    out = run_forked("""
        import gc, threading, torch, byname
        threading.stack_size(512 * 1024)

        def run():
            a = torch.ones(1, requires_grad=True) * 1.0
            b = kept = a * 1.0
            for _ in range(40_000):
                a, b = a * 1.0, a + b
            total = a + b
            byname.leaves(total)
            del total, a
            gc.collect()
            del kept, b
            gc.collect()
            print("freed")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    """)
    assert out == ["freed"]


@pytest.mark.slow
@pytest.mark.parametrize("look", ["leaves", "saved"])
def test_an_interrupted_look_leaves_no_bomb(look):
    out = run_forked(f"""
        import signal, torch, byname
        look = byname.{look}  # imported before the interrupt can come
        x = torch.ones(1, requires_grad=True)

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        for after in (0.05, 0.1, 0.2, 0.3):
            y = x
            for _ in range(100_000):
                y = y * 1.0
            try:
                signal.setitimer(signal.ITIMER_REAL, after)
                look(y)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            del y
            print("freed", after)
    """)
    assert out == ["freed", "0.05", "freed", "0.1", "freed", "0.2", "freed", "0.3"]


def test_a_walked_graph_is_freed_on_a_small_stack():
    out = run_forked("""
        import threading, torch, byname

        def work(nodes):
            y = torch.ones(1, requires_grad=True)
            for _ in range(nodes):
                y = y * 1.0
            byname.leaves(y)
            del y
            print("freed", nodes)

        for nodes, stack in (300, 256), (3_900, 256), (3_900, 512), (100_000, 256):
            threading.stack_size(stack * 1024)
            thread = threading.Thread(target=work, args=(nodes,))
            thread.start()
            thread.join()
    """)
    assert out == ["freed", "300", "freed", "3900", "freed", "3900", "freed", "100000"]


def test_a_graph_result_holds_neither_tensors_nor_nodes(no_collection):
    import weakref

    model = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    loss = model(x).tanh().sum()
    watched = weakref.ref(x)
    graph = byname.graph(loss)
    del x, loss
    assert watched() is None
    assert len(graph.rows()) == len(graph)
