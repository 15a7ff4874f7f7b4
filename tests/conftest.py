"""What every test shares: the same random numbers and the same order of sums on every machine."""

import pytest


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(0)
