"""What every test shares: the same random numbers and order of sums on every machine, and what would take seconds."""

import hypothesis
import pytest

from formerlab.files import write_json
from formerlab.plan import locate

hypothesis.settings.register_profile("formerlab", max_examples=30, deadline=None)
hypothesis.settings.load_profile("formerlab")


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    try:
        import torch
    except ImportError:  # drawing needs none, nor do its tests
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _plans_are_made_here():
    """Make plans in this process: another one would import torch for each. tests/plan/test_locate.py starts it."""

    def make(root, given, path):
        from formerlab.plan.build import build_plan

        write_json(path, build_plan(root.resolve(), given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locate, "_make", make)
        yield
