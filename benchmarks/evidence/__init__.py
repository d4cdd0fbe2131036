"""What each family of GPU kernels is worth, measured and judged.

`python -m benchmarks.evidence --save benchmarks/results/evidence_h200.json` races every variant;
`python -m benchmarks.evidence.page` (`make families`) writes docs/kernels/families.md from that.
"""
