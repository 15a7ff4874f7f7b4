#!/usr/bin/env python3
"""A depth mixer of your own in a training run, beside none and beside DenseFormer's averages.

    python examples/own_mixer.py [TEXT] [--steps 300]

All three models start from the same weights and read the same batches (those of one_decoder.py). A mixer that should
also be chosen by name in a configuration is one more file of the package: CONTRIBUTING.md.
"""

import torch
from one_decoder import SPEC, held_out, parsed, read, train
from torch import Tensor, nn

from formerlab.layers import DepthWeightedAverage, Identity, Mixer


class Anchor(Mixer):
    """Y_i = X_i + beta_i X_0: after every block a learned share of the embedding."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.betas = nn.Parameter(torch.zeros(layers))  # the plain Transformer at the start

    def begin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Remember X_0, which the first block reads."""
        return x, x

    def mix(self, index: int, x: Tensor, history: Tensor) -> Tensor:
        """Return what block index + 1 reads."""
        return x + self.betas[index - 1] * history


def main() -> None:
    """Train three models."""
    arguments = parsed(__doc__)
    training, test = read(arguments.text)
    spec = SPEC.model_copy(update={"depth": Identity(), "layers": 8})
    mixers = {
        "none": Mixer(),
        "a share of the embedding": Anchor(spec.layers),
        "DenseFormer": DepthWeightedAverage(dilation=1, period=1).build(spec.layers),
    }
    losses = {}
    for name, mixer in mixers.items():
        print(name)
        model = spec.build(seed=0)
        model.mixer = mixer
        train(model, training, arguments.steps)
        losses[name] = held_out(model, test)
    print("\nheld-out loss, nats per byte; one seed, so no more than a first look")
    for name, loss in losses.items():
        print(f"  {name:26s} {loss:.4f}")


if __name__ == "__main__":
    main()
