"""One file a peer, found by its name, which is the peer's row in every table.

A file has DEVICES ("cpu", "cuda") and prepare(operands), which returns a call without arguments
that computes the product, or raises UnsupportedError. What prepare does is not timed: a peer gets
the matrix in the form it likes best.
"""
