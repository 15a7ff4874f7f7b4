"""What every test shares: the same random numbers, the same order of sums on every machine, and the order of files."""

import pytest


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    try:
        import torch
    except ImportError:  # drawing needs none, nor do its tests
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: of several workers none is left with one of them when all else is done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
