#!/usr/bin/env python3
"""Train, grow and prune a decoder with parameter tokens and averages over depth.

    python examples/one_decoder.py [TEXT] [--steps 300]

The script trains a small model on the bytes of a text (default: the top-level modules of Python's standard library),
grows it to twice its parameter tokens, trains it further, and evaluates it with simulated cache eviction. It takes two
minutes on two CPU cores.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

from formerlab import grow
from formerlab.cache import Decay, Local, Simulation
from formerlab.layers import Attend, DepthWeightedAverage, LayerNorm, Pattention, causal_attention
from formerlab.models import Decoder

CONTEXT, BATCH = 128, 16

# Projections are attention to parameter tokens (Tokenformer), and every block reads an average of all earlier blocks
# (DenseFormer). The same fields accept any other projection, norm, position or mixer of formerlab.layers.
SPEC = Decoder(
    vocabulary=256,  # bytes
    layers=4,
    width=64,
    heads=4,
    context=CONTEXT,
    projection=Pattention(tokens=64),
    feedforward=Pattention(tokens=256),
    norm=LayerNorm(gain=False, bias=False),
    depth=DepthWeightedAverage(dilation=1, period=1),
    embedding_std=None,
)


def read(path: Path | None) -> tuple[Tensor, Tensor]:
    """Return the bytes of a text as two tensors (bytes,): nine tenths for training, and the held-out last tenth."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    files = [path] if path else sorted(standard_library.glob("*.py"))
    text = torch.frombuffer(bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def windows(text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return random windows of a text, (count, CONTEXT + 1)."""
    starts = torch.randint(len(text) - CONTEXT, (count, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)]


def train(model: nn.Module, text: Tensor, steps: int) -> None:
    """Minimise the mean negative log-likelihood of the next byte with AdamW; the learning rate falls to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = windows(text, BATCH, generator)
        loss = model(batch[:, :-1], targets=batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"  step {step:4d}  loss {loss.item():.3f}")


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Tensor, attend: Attend = causal_attention) -> float:
    """Return the loss on fixed held-out windows, in nats per byte; `attend` determines the keys that a query sees."""
    batch = windows(text, 64, torch.Generator().manual_seed(1))
    return float(model(batch[:, :-1], targets=batch[:, 1:], attend=attend))


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Parse the command line: the text and the number of training steps."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", type=Path, help="a text file")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of each training")
    return parser.parse_args()


def main() -> None:
    """Train, grow, train further, and prune."""
    arguments = parse_arguments(__doc__)
    training, test = read(arguments.text)
    rows: dict[str, float] = {}

    print(f"a decoder of {SPEC.params():,} parameters")
    model = SPEC.build(seed=0)
    train(model, training, arguments.steps)
    rows["trained"] = held_out_loss(model, test)

    print("grown to twice its parameter tokens, and trained further")
    # With zero keys and unchanged tau, the grown model computes the same function. Training changes its new tokens.
    larger = grow(model, factor=2)
    rows["grown, not trained further"] = held_out_loss(larger, test)
    train(larger, training, arguments.steps)
    rows["grown, trained further"] = held_out_loss(larger, test)

    for budget in (0.4, 0.1):
        for policy in (Local(), Decay(alpha=0.2)):
            name = f"{budget:.0%} of the cache, {type(policy).__name__}"
            rows[name] = held_out_loss(larger, test, Simulation(policy, budget))

    print("\nheld-out loss, nats per byte")
    for name, loss in rows.items():
        print(f"  {name:32s} {loss:.4f}")
    print("averages over depth, block by block (weight of the embedding first):")
    for block in range(1, SPEC.layers + 1):
        weights = [weight for destination, _, weight in larger.mixer.weights() if destination == block]
        print(f"  {block}: " + " ".join(f"{weight:6.3f}" for weight in weights))


if __name__ == "__main__":
    main()
