"""Exports a small block-sparse model into an AOTInductor package, for programs without Python.

    python examples/aoti/export.py [--device cpu|cuda] [--dtype float32|bfloat16|...] [FOLDER]

Into FOLDER go

- model.pt2: the package, for any batch size up to MAX_BATCH;
- expected.pt: for each size of BATCHES an input, the result in fp64 and the error bound of each
  element; main.cpp and `main` here compare with them;
- bundle: the winners of the races for those sizes; a program that finds it through
  SPARSE_AUTOTUNE_BUNDLE does not race again.
"""

import argparse
import pathlib

import torch

import sparse_autotune as sa

BATCHES = (3, 64)
MAX_BATCH = 4096
# More than eight block rows: torch may rewrite shorter index tensors in place from call to call, so
# on a GPU the operators assume less about them, and winners of races in eager mode do not apply.
IN_FEATURES, HIDDEN, BLOCK, DENSITY = 128, 256, 16, 0.25
# Unit roundoff of a stored result. Sums are in fp32 (fp64 where that is the dtype).
ROUNDOFF = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
# GELU can magnify an error of its argument by 1.13; evaluating it adds a few roundoffs.
GELU_SLOPE, GELU_ROUNDOFFS = 1.13, 8


def make_model(device, dtype):
    """Two block-sparse layers and the GELU between them."""
    return torch.nn.Sequential(
        sa.SparseLinear(IN_FEATURES, HIDDEN, BLOCK, DENSITY, device=device, dtype=dtype),
        torch.nn.GELU(),
        sa.SparseLinear(HIDDEN, IN_FEATURES, BLOCK, DENSITY, device=device, dtype=dtype),
    ).requires_grad_(False)


def package(model, x, path):
    """Exports the model for any batch size and compiles it into a package."""
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    return torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def layer_and_bound(layer, x, error):
    """A layer's result in fp64, and its error bound for an input that is off by ``error``."""
    weight, bias = layer.weight.to_dense().double().cpu(), layer.bias.double().cpu()
    y = x @ weight.T + bias
    roundoff = ROUNDOFF[layer.values.dtype]
    sums = 2 * layer.in_features * min(roundoff, 2.0**-24)
    magnitude = (x.abs() + error) @ weight.abs().T + bias.abs()
    return y, error @ weight.abs().T + sums * magnitude + roundoff * (y.abs() + magnitude * sums)


def expected_of(model, x):
    """The model's result in fp64, and the bound of each element's error."""
    up, _, down = model
    x = x.double().cpu()
    hidden, error = layer_and_bound(up, x, torch.zeros_like(x))
    roundings = GELU_ROUNDOFFS * ROUNDOFF[up.values.dtype] * (hidden.abs() + error)
    hidden, error = torch.nn.functional.gelu(hidden), GELU_SLOPE * error + roundings
    return layer_and_bound(down, hidden, error)


def check(y, expected, bound, what):
    """Raises unless every element is within its bound, which NaN never is."""
    error = (y.double().cpu() - expected).abs()
    if not bool((error <= bound).all()):
        raise SystemExit(f"{what}: wrong by {error.max():.3g}, at most {bound.max():.3g} allowed")


def main():
    """Writes the files and runs the package from Python."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="build/aoti", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=[str(d).partition(".")[2] for d in ROUNDOFF])
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, options.dtype or ("bfloat16" if device == "cuda" else "float32"))
    options.folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = make_model(device, dtype)
    inputs = [torch.randn(size, IN_FEATURES).to(device, dtype) for size in BATCHES]
    stored = []
    for x in inputs:
        expected, bound = expected_of(model, x)
        check(model(x), expected, bound, f"eager, batch {len(x)}")  # and races, here, if it must
        stored += [x.cpu(), expected, bound]
    torch.save(stored, options.folder / "expected.pt")
    sa.cache.export(options.folder / "bundle")

    path = package(model, inputs[-1], options.folder / "model.pt2")
    compiled = torch._inductor.aoti_load_package(path)
    for i, x in enumerate(inputs):
        check(compiled(x), *stored[3 * i + 1 : 3 * i + 3], f"the package, batch {len(x)}")
    print(f"{path}: batches of {BATCHES} are within their bounds on {device}, {dtype}")


if __name__ == "__main__":
    main()
