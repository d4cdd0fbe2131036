"""What each family of GPU kernels is worth, measured and judged.

`python -m benchmarks.evidence --save benchmarks/results/evidence_h200.json` races every variant;
`make families` replaces the estimates in it by those of today's cost models, where the build has
CUDA's variants, and writes docs/kernels/families.md.
"""
