"""What every test shares: the same random numbers and the same order of sums on every machine."""

import pytest


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    try:
        import torch
    except ImportError:  # drawing needs none, nor do its tests
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
