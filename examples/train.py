#!/usr/bin/env python3
"""Train a small decoder on a text file, using only the layers of formerlab and PyTorch.

    python examples/train.py README.md [--steps 300] [--projection linear|pattention] [--depth plain|dwa]

The model predicts bytes. The script prints the held-out loss in nats per byte, the first 128 bytes of the
text, and 80 sampled bytes.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers import DepthWeightedAverage, Identity, Linear, Pattention, RMSNorm, Rotary, causal_attention

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 4, 128, 16


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer; `projection` builds most of their layers.

    It builds the layers for q, k and v, the attention output and the first feed-forward layer. The second feed-forward
    layer is nn.Linear.
    """

    def __init__(self, projection: Linear | Pattention) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm().build(WIDTH) for _ in range(2))
        self.qkv = projection.build(WIDTH, 3 * WIDTH)
        self.output = projection.build(WIDTH, WIDTH, layers=LAYERS, residual=True)
        self.feedforward = nn.Sequential(projection.build(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, position: nn.Module, layer: int) -> Tensor:
        """Return the residual stream (batch, time, width) after attention and feed-forward."""
        batch, time, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, time, 3 * HEADS, -1).transpose(1, 2)  # (batch, 3 heads, time, d)
        q, k, v = heads.chunk(3, dim=1)  # (batch, heads, time, d) each
        attended = causal_attention(layer, position.rotate(q, 0), position.rotate(k, 0), v)  # (batch, heads, time, d)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.feedforward(self.norms[1](x))


class Decoder(nn.Module):
    """Bytes (batch, time) -> logits (batch, time, 256)."""

    def __init__(self, projection: Linear | Pattention, depth: Identity | DepthWeightedAverage) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = Rotary().build(CONTEXT, WIDTH, WIDTH // HEADS)
        self.blocks = nn.ModuleList(Block(projection) for _ in range(LAYERS))
        self.mixer = depth.build(LAYERS, WIDTH)
        self.norm, self.head = RMSNorm().build(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte at every position."""
        x, history = self.mixer.begin(self.embedding(tokens))  # (batch, time, width)
        for index, block in enumerate(self.blocks):
            x = self.mixer.mix(index + 1, block(x, self.position, index), history)
        return self.head(self.norm(x))


def loss(model: Decoder, windows: Tensor) -> Tensor:
    """Return the mean loss in nats per byte of windows (batch, CONTEXT + 1)."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def generate(model: Decoder, text: bytes, count: int) -> str:
    """Return `text` with `count` sampled bytes appended."""
    tokens = list(text)
    for _ in range(count):
        logits = model(torch.tensor([tokens[-CONTEXT:]]))[0, -1]  # (256,)
        tokens.append(int(torch.multinomial(logits.softmax(-1), 1)))
    return bytes(tokens).decode(errors="replace")


def main() -> None:
    """Train, report the held-out loss, and sample a continuation of the first 128 bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--projection", choices=("linear", "pattention"), default="pattention")
    parser.add_argument("--depth", choices=("plain", "dwa"), default="dwa")
    arguments = parser.parse_args()
    data = torch.tensor(list(arguments.text.read_bytes()))  # (bytes,)
    train, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    if len(held_out) <= CONTEXT:
        parser.error(f"{arguments.text} has {len(data)} bytes; give a text of more than {10 * CONTEXT} bytes")
    torch.manual_seed(0)
    projection = Pattention(tokens=128) if arguments.projection == "pattention" else Linear()
    model = Decoder(projection, DepthWeightedAverage() if arguments.depth == "dwa" else Identity())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    valid = held_out[: len(held_out) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)  # (windows, CONTEXT + 1)
    for step in range(1, arguments.steps + 1):
        starts = torch.randint(len(train) - CONTEXT, (BATCH, 1))
        batch = train[starts + torch.arange(CONTEXT + 1)]  # (BATCH, CONTEXT + 1)
        optimizer.zero_grad()
        training_loss = loss(model, batch)
        training_loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == arguments.steps:
            with torch.no_grad():
                print(f"step {step}: loss {training_loss:.3f}, held-out loss {loss(model, valid):.3f} nats per byte")
    print(generate(model, arguments.text.read_bytes()[:CONTEXT], 80))


if __name__ == "__main__":
    main()
