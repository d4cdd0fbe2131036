"""A graph layer whose edges carry matrices: one block-sparse product instead of gather and scatter.

    python examples/graph_layer.py

In an edge-conditioned convolution (message passing networks, NNConv) a node receives
sum over its edges of W(edge) @ x(neighbour), where a small network makes W(edge) of the edge's
features. Those matrices are the blocks of a block-sparse matrix with the graph's pattern.
"""

import argparse
from functools import partial

import torch
from torch.utils.benchmark import Timer

import sparse_autotune as sa


class Graph:
    """A random graph with about `degree` edges a node, sorted by the node that receives."""

    def __init__(self, nodes: int, degree: int, device: str) -> None:
        ends = torch.randint(nodes, (2, nodes * degree))
        edges = torch.unique(ends[0] * nodes + ends[1]).to(device)  # sorted, each once
        self.receivers, self.col_indices = edges // nodes, edges % nodes
        counts = torch.bincount(self.receivers, minlength=nodes)
        self.crow_indices = torch.nn.functional.pad(counts.cumsum(0), (1, 0))


def multiplied(graph: Graph, blocks: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What each node receives, as a product with a block-sparse matrix."""
    shape = (x.numel(), x.numel())
    a = sa.BsrTensor(graph.crow_indices, graph.col_indices, blocks, shape)
    return (a @ x.reshape(-1)).view_as(x)


def gathered(graph: Graph, blocks: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same by gather, batched product and scatter."""
    messages = torch.bmm(blocks, x[graph.col_indices].unsqueeze(2)).squeeze(2)
    return torch.zeros_like(x).index_add(0, graph.receivers, messages)


class EdgeConvolution(torch.nn.Module):
    """x' = relu(A(edges) x + R x), with a matrix for each edge in A."""

    def __init__(self, width: int, edge_features: int) -> None:
        super().__init__()
        self.width = width
        self.matrix_of_edge = torch.nn.Linear(edge_features, width * width)
        self.root = torch.nn.Linear(width, width)

    def forward(self, x, edges, graph, receive):
        """Of nodes (nodes, width) and edges (edges, features); `receive` as `multiplied`."""
        blocks = self.matrix_of_edge(edges).view(-1, self.width, self.width)
        return torch.relu(receive(graph, blocks, x) + self.root(x))


def milliseconds(call) -> float:
    """The median time of a call, after one that is not timed."""
    call()
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1.0).median * 1e3


def main() -> None:
    """Compares both ways: results, gradients, times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10000)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    graph = Graph(options.nodes, options.degree, device)
    layer = EdgeConvolution(options.width, edge_features=8).to(device)
    x = torch.randn(options.nodes, options.width, device=device, requires_grad=True)
    edges = torch.randn(len(graph.col_indices), 8, device=device)
    print(f"{options.nodes} nodes, {len(edges)} edges, a matrix of {options.width} x "
          f"{options.width} each, {device}")  # fmt: skip

    results = []
    for receive in (multiplied, gathered):
        y = layer(x, edges, graph, receive)
        results.append([y, *torch.autograd.grad(y.square().mean(), [x, *layer.parameters()])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    print("results and gradients agree")

    with torch.no_grad():
        blocks = layer.matrix_of_edge(edges).view(-1, options.width, options.width)

    @torch.no_grad()
    def messages(receive):
        return receive(graph, blocks, x)

    @torch.no_grad()
    def forward(receive):
        return layer(x, edges, graph, receive)

    def step(receive):
        layer(x, edges, graph, receive).square().mean().backward()

    print(f"{'milliseconds':32}{'gather, scatter':>16}{'block-sparse':>14}")
    for name, call in (
        ("the messages alone", messages),
        ("the layer, forward", forward),
        ("the layer, forward and backward", step),
    ):
        before, after = (milliseconds(partial(call, way)) for way in (gathered, multiplied))
        print(f"{name:32}{before:16.2f}{after:14.2f}{before / after:8.2f}x")


if __name__ == "__main__":
    main()
