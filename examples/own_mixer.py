#!/usr/bin/env python3
"""Train your own depth mixer, and compare it with a plain decoder and with DenseFormer's averages.

    python examples/own_mixer.py [TEXT] [--steps 300]

All three models start from the same weights and read the same batches (`train` of one_decoder.py). CONTRIBUTING.md
shows how to add a mixer that configurations can select by name.
"""

import torch
from one_decoder import SPEC, held_out_loss, parse_arguments, read, train
from torch import Tensor, nn

from formerlab.layers import DepthWeightedAverage, Identity, Mixer


class Anchor(Mixer):
    """Y_i = X_i + beta_i X_0: add a learned multiple of the embedding after every block."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.betas = nn.Parameter(torch.zeros(layers))  # zeros: training starts from a plain Transformer

    def begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return X_0 (batch, time, width) as the input of the first block and as the history for `mix`."""
        return x, x

    def mix(self, index: int, x: Tensor, history: Tensor) -> Tensor:
        """Return the input (batch, time, width) of block index + 1; x is the output of block `index`, from 1."""
        return x + self.betas[index - 1] * history


def main() -> None:
    """Train three models and print their held-out losses."""
    arguments = parse_arguments(__doc__)
    training, test = read(arguments.text)
    spec = SPEC.model_copy(update={"depth": Identity(), "layers": 8})
    mixers = {
        "none": Mixer(),
        "multiple of the embedding": Anchor(spec.layers),
        "DenseFormer": DepthWeightedAverage(dilation=1, period=1).build(spec.layers),
    }
    losses = {}
    for name, mixer in mixers.items():
        print(name)
        model = spec.build(seed=0)
        model.mixer = mixer
        train(model, training, arguments.steps)
        losses[name] = held_out_loss(model, test)
    print("\nheld-out loss, nats per byte (one seed, so only a first impression)")
    for name, loss in losses.items():
        print(f"  {name:26s} {loss:.4f}")


if __name__ == "__main__":
    main()
