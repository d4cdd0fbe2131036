"""Fine-tuning a pruned transformer block: train, prune gradually, compare.

    python examples/finetune.py

A small causal language model with one transformer block learns to continue arithmetic sequences.
Then seven of eight blocks of its MLP's weights are dropped, at once or gradually, and it trains on.
Nothing but torch is needed.
"""

import argparse
import copy

import torch
from torch.utils.benchmark import Timer

import sparse_autotune as sa

VOCABULARY, LENGTH = 97, 24


class Model(torch.nn.Module):
    """An embedding, one transformer block and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.places = torch.nn.Embedding(LENGTH, width)
        self.norm1 = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2 = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        """Logits of each next token."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places.weight[:length]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return self.head(x + self.mlp(self.norm2(x)))


def sequences(count: int, device) -> torch.Tensor:
    """Each token is the one before it plus a step that differs between sequences."""
    first = torch.randint(VOCABULARY, (count, 1), device=device)
    step = torch.randint(1, 8, (count, 1), device=device)
    return (first + step * torch.arange(LENGTH, device=device)) % VOCABULARY


@torch.no_grad()
def report(name, model) -> None:
    """Prints the accuracy for tokens from the third on, which the first two decide."""
    tokens = sequences(512, model.head.weight.device)
    right = model(tokens[:, :-1]).argmax(2) == tokens[:, 1:]
    print(f"{name:40} accuracy {right[:, 1:].float().mean().item():6.1%}")


def train(model, steps: int, device, before_step=None) -> None:
    """Predicts the next token of new sequences in every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        if before_step is not None:
            before_step(step, optimizer)
        optimizer.zero_grad()
        tokens = sequences(64, device)
        logits = model(tokens[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()


def main() -> None:
    """Prints the accuracy of each model and the time of a step of its MLP."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--density", type=float, default=0.125)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    dense = Model(options.width).to(device)
    train(dense, options.steps, device)
    report("dense", dense)

    pruned = copy.deepcopy(dense)
    sa.sparsify_(pruned.mlp, options.block, options.density)
    report(f"{options.density:.1%} of the MLP's blocks kept", pruned)
    train(pruned, options.steps, device)
    report("and fine-tuned", pruned)

    gradual = copy.deepcopy(dense)
    sa.sparsify_(gradual.mlp, options.block, 1.0)
    layers = [layer for layer in gradual.mlp if isinstance(layer, sa.SparseLinear)]
    schedule = sa.PolynomialDensity(1.0, options.density, 0, options.steps // 2)

    def prune(step, optimizer):
        if step % 10 == 0:
            for layer in layers:
                sa.prune_(layer, schedule(step), optimizer=optimizer)

    # Each density on the way is a new kind of problem, which is not worth a race of its own.
    with sa.settings.override(mode="off"):
        train(gradual, options.steps, device, before_step=prune)
    report("pruned gradually while fine-tuning", gradual)

    x = torch.randn(64 * LENGTH, options.width, device=device)

    for name, mlp in (("dense", dense.mlp), ("block-sparse", pruned.mlp)):
        step = "mlp(x).square().mean().backward()"
        timer = Timer(step, globals={"mlp": mlp, "x": x}, num_threads=torch.get_num_threads())
        time = timer.blocked_autorange(min_run_time=0.5).median
        print(f"forward and backward of the MLP, {name:12} {time * 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
