"""Baselines of the training benchmarks (a minimal decoder, translator and loop), and `train()` as one step per call.

The decoder has nanoGPT's architecture: one projection for query, key and value, torch's attention, learned positions,
LayerNorm and GeLU. The loop samples a batch, runs the forward and backward pass, clips gradients, and takes a step of
fused AdamW.
"""

import math
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from formerlab.training.loop import Hooks, train
from formerlab.training.optimizer import AdamW
from formerlab.training.run import Run
from formerlab.training.schedule import Constant
from formerlab.training.state import State

LR = 1e-4


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        """Apply the block."""
        batch, time, width = x.shape
        q, k, v = self.qkv(self.first(x)).split(width, dim=2)
        q, k, v = (x.view(batch, time, self.heads, -1).transpose(1, 2) for x in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A decoder with learned positions and a tied head."""

    def __init__(self, vocabulary, layers, width, heads, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        """Return the logits."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer`, completed by an embedding, sinusoidal positions and a tied head."""

    def __init__(self, vocabulary, layers, width, heads, context, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.core = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout, activation="relu", batch_first=True
        )
        angles = torch.arange(context)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, source, source_mask, target):
        """Return logits (batch, target, vocabulary) of the next target tokens.

        `source_mask` (batch, source) is False at padding.
        """
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        out = self.core(
            self._embed(source),
            self._embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=~source_mask,
            memory_key_padding_mask=~source_mask,
        )
        return F.linear(out, self.embedding.weight)

    def _embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.shape[1]])


def windows(stream, count, context, device="cpu"):
    """Return random windows of a token stream, sampled as in nanoGPT, and their targets (the next tokens).

    Both have the shape (count, context).
    """
    starts = torch.randint(len(stream) - context, (count,))
    x, y = (
        torch.stack([torch.from_numpy(stream[i + offset : i + offset + context].astype(np.int64)) for i in starts])
        for offset in (0, 1)
    )
    if device == "cpu":
        return x, y
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


def adamw(model):
    """Return nanoGPT's optimizer: fused AdamW with weight decay of matrices only."""
    groups = [[p for p in model.parameters() if (p.ndim >= 2) == matrix] for matrix in (True, False)]
    decays = [{"params": group, "weight_decay": decay} for group, decay in zip(groups, (0.1, 0.0), strict=True)]
    return torch.optim.AdamW(decays, lr=LR, betas=(0.9, 0.95), fused=True)


class Loop:
    """A step of the plain loop: forward, backward, clipping, optimizer. `loss(model)` also samples the batch."""

    def __init__(self, model, loss, optimizer=None):
        self.model, self.loss = model, loss
        self.optimizer = optimizer or adamw(model)

    def __call__(self):
        """Run a step."""
        self.loss(self.model).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class OurLoop:
    """`train()` in a separate thread, which runs one step at each call and never validates."""

    def __init__(self, model, task, data, optimizer=None, device="cpu", **settings):
        run = Run(
            study="benchmark",
            name="ours",
            model=model,
            task=task,
            optimizer=(optimizer or AdamW()).model_copy(update={"lr": LR}),
            schedule=Constant(),
            steps=10**6,
            evaluate_every=10**6,
            **settings,
        )
        built = model.build(0).to(device)
        state = State(built, run.optimizer.build(built))
        state.rows["eval"].append([])  # skips the validation before the first step
        self.step_requested, self.step_done = threading.Semaphore(0), threading.Semaphore(0)
        hooks = Hooks(lambda state: None, self._wait, float("inf"))
        threading.Thread(target=train, args=(run, state, data, data, hooks), daemon=True).start()
        self.step_done.acquire()

    def _wait(self):  # `train()` calls this hook before every step
        self.step_done.release()
        self.step_requested.acquire()

    def __call__(self):
        """Run a step."""
        self.step_requested.release()
        self.step_done.acquire()
