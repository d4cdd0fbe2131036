"""A Llama with block-sparse MLPs, prefill and decode against the dense model.

    python examples/llama.py

The model has the layer sizes of Llama 3 8B on a GPU and a quarter of them on a CPU, and random
weights: it shows times and that results agree, not the quality of a pruned model. Needs
transformers; nothing is downloaded.
"""

import argparse
import copy
from functools import partial

import torch
from torch.utils.benchmark import Timer

import sparse_autotune as sa

try:
    import transformers
except ImportError:
    raise SystemExit("This example needs transformers: pip install transformers") from None


def dense_llama(hidden: int, layers: int, device: str, dtype: torch.dtype) -> torch.nn.Module:
    """A decoder of `layers` layers in the proportions of Llama 3 8B, whose `hidden` is 4096."""
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=max(hidden // 128, 1),
        num_key_value_heads=max(hidden // 512, 1),
    )
    return transformers.LlamaForCausalLM(config).to(device, dtype).eval()


def microseconds(call) -> float:
    """The median time of a call, after one that is not timed."""
    call()
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=1.0).median * 1e6


def replayed(call):
    """The call as a CUDA graph, which costs the host next to nothing; on a CPU the call itself."""
    if not torch.cuda.is_available():
        return call
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def mlps(model: torch.nn.Module, x: torch.Tensor):
    """A call that runs the MLPs of all layers, one after the other."""
    return partial(torch.nn.Sequential(*(layer.mlp for layer in model.model.layers)), x)


@torch.no_grad()
def main() -> None:
    """Prints the times of the dense and of the sparse model."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hidden", type=int, default=4096 if on_gpu else 1024)
    parser.add_argument("--layers", type=int, default=4 if on_gpu else 2)
    parser.add_argument("--tokens", type=int, default=4096 if on_gpu else 256)
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--density", type=float, default=0.125)
    options = parser.parse_args()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    torch.manual_seed(0)

    dense = dense_llama(options.hidden, options.layers, device, dtype)
    sparse = copy.deepcopy(dense)
    names = sa.sparsify_(sparse, options.block, options.density, filter=lambda n, _: ".mlp." in n)
    print(f"{len(names)} block-sparse layers, such as {names[0]}: {sparse.get_submodule(names[0])}")
    tokens = torch.randint(1024, (1, options.tokens), device=device)
    zeros = copy.deepcopy(sparse)  # the same numbers in dense layers
    for name in names:
        zeros.set_submodule(name, zeros.get_submodule(name).to_linear())
    logits, expected = (model(tokens).logits for model in (sparse, zeros))
    error = ((logits - expected).norm() / expected.norm()).item()
    print(f"logits differ from those of the same model with dense layers by {error:.1e} (relative)")
    if not error < (1e-4 if dtype == torch.float32 else 3e-2):
        raise SystemExit("wrong result")

    x = torch.randn(1, options.tokens, options.hidden, device=device, dtype=dtype)
    us = {}
    for model in (dense, sparse):
        generate = partial(model, use_cache=False, logits_to_keep=1)
        for name, call in {
            "prefill": partial(generate, tokens),
            "one MLP of it": partial(model.model.layers[0].mlp, x),
            "decode, 1 token": replayed(partial(generate, tokens[:, :1])),
            "its MLPs alone": replayed(mlps(model, x[:, :1])),
        }.items():
            us.setdefault(name, []).append(microseconds(call))
    print(f"{f'ms, {options.tokens} tokens':18}{'dense':>10}{'sparse':>10}")
    for name, (before, after) in us.items():
        print(f"{name:18}{before / 1e3:10.3f}{after / 1e3:10.3f}{before / after:8.2f}x")


if __name__ == "__main__":
    main()
