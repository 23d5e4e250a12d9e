"""The layout puts nodes into rows so that edges go down, also where there is a cycle, and uncrosses them."""

from byname.drawing.layered import LayerEdge, LayerNode, arrange, ranks


def test_rows_go_down_along_every_edge_even_where_there_is_a_cycle():
    assert ranks(4, [(0, 1), (1, 2), (0, 2), (3, 2)], set(), set()) == [0, 1, 2, 1]
    assert sorted(ranks(3, [(0, 1), (1, 2), (2, 0)], set(), set())) == [0, 1, 2]
    level = arrange([LayerNode(10, 10), LayerNode(10, 10)], [LayerEdge(0, 1), LayerEdge(1, 0)])
    assert len(level.routes) == 2


def test_crossed_branches_are_uncrossed():
    nodes = [LayerNode(20, 10) for _ in range(4)]
    level = arrange(nodes, [LayerEdge(0, 3), LayerEdge(1, 2)])
    assert (level.corners[0][0] < level.corners[1][0]) == (level.corners[3][0] < level.corners[2][0])
