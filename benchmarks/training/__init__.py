"""What training costs: the three passes of a linear layer, and an MLP, beside the dense ones.

`python -m benchmarks.training --save build/training.json`
"""
