"""A sweep does not repeat stored results."""

import pytest
import torch

from formerlab.cache import TOVA, Local
from formerlab.evaluation.measurement import StoredRows
from formerlab.evaluation.pruning.prune import COLUMNS, PruneSweep, prune
from formerlab.models.decoder import Decoder

CONTEXT = 16
COUNTS = {"windows": 3, "mask_windows": 1, "calibration_windows": 1}
SWEEP = PruneSweep(policies=(Local(),), alphas=(0.2,), budgets=(0.5,), questions=False, **COUNTS)


class Counting(torch.nn.Module):
    """A decoder that counts its forward passes and can stop at a given pass."""

    def __init__(self, stops_at=None):
        super().__init__()
        self.model = Decoder(vocabulary=50, layers=1, width=16, heads=2, context=CONTEXT).build().eval()
        self.spec, self.embedding, self.position = self.model.spec, self.model.embedding, self.model.position
        self.calls, self.stops_at = 0, stops_at

    def forward(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.stops_at:
            raise KeyboardInterrupt
        return self.model(*args, **kwargs)


@pytest.fixture
def streams():
    tokens = torch.randint(50, (200,), generator=torch.Generator().manual_seed(0)).numpy()
    return {"valid": tokens, "test": tokens[::-1].copy()}


def test_stored_rows_are_not_computed_again(streams, tmp_path):
    def forward_passes(out, weights, sweep=SWEEP, stops_at=None):
        model = Counting(stops_at)
        stored = StoredRows(tmp_path / out / "stored", weights, code_hash=lambda sweep: "code")
        prune(model, streams, None, sweep, tmp_path / out, stored=stored)
        return model.calls

    passes = forward_passes("expected", "weights")
    with pytest.raises(KeyboardInterrupt):
        forward_passes("stopped", "weights", stops_at=3)
    assert forward_passes("stopped", "weights") == passes - 2, "the rows of two policies were stored"
    for name in COLUMNS:
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "expected" / name).read_text(), name
    assert forward_passes("stopped", "weights") == 0
    more = SWEEP.model_copy(update={"policies": (Local(), TOVA()), "mask_windows": 0, "calibration_windows": 0})
    assert forward_passes("stopped", "weights", more) == 1, "only the new policy is computed"
    assert forward_passes("stopped", "other weights", more) == 4, "no rows are stored for these weights"
