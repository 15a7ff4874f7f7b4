"""The exact claim about Tokenformer's vision models (arXiv:2410.23168)."""

import torch

from formerlab.models.published import create_model

PRINTED = {"b16_matched": 86e6, "b16": 109e6, "l16_matched": 307e6, "l16": 407e6}
"""Parameters in Table 9; the 768 feed-forward tokens printed for the matched L/16 are read as 3072."""


def parameter_counts() -> dict[str, float]:
    """Count the parameters of models built without storage, beside the printed ones."""
    numbers: dict[str, float] = {}
    for item, printed in PRINTED.items():
        with torch.device("meta"):
            model = create_model(f"tokenformer-{item.replace('_', '-')}")
        counted = sum(weight.numel() for weight in model.parameters())
        numbers |= {f"{item}/parameters_total": float(counted), f"{item}/parameters_printed": printed}
    return numbers
