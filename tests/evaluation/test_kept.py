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

    def forward(self, *given, **named):
        self.calls += 1
        if self.calls == self.stops_at:
            raise KeyboardInterrupt
        return self.model(*given, **named)


@pytest.fixture
def streams():
    tokens = torch.randint(50, (200,), generator=torch.Generator().manual_seed(0)).numpy()
    return {"valid": tokens, "test": tokens[::-1].copy()}


def done_in(folder, weights):
    return StoredRows(folder / "kept", weights, code_of=lambda sweep: "code")


def swept(streams, out, kept, sweep=SWEEP, stops_at=None):
    model = Counting(stops_at)
    prune(model, streams, None, sweep, out, stored=kept)
    return model.calls


def test_stored_rows_are_not_computed_again(streams, tmp_path):
    passes = swept(streams, tmp_path / "whole", None)
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        swept(streams, stopped, done_in(stopped, "weights"), stops_at=3)
    assert swept(streams, stopped, done_in(stopped, "weights")) == passes - 2, "two policies were done"
    for name in COLUMNS:
        assert (stopped / name).read_text() == (tmp_path / "whole" / name).read_text(), name
    assert swept(streams, stopped, done_in(stopped, "weights")) == 0
    more = SWEEP.model_copy(update={"policies": (Local(), TOVA()), "mask_windows": 0, "calibration_windows": 0})
    assert swept(streams, stopped, done_in(stopped, "weights"), more) == 1, "the new policy alone"
    assert swept(streams, stopped, done_in(stopped, "others"), more) == 4, "of other weights nothing"
