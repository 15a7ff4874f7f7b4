import numpy as np
import pytest
import torch

from formerlab.cache import Decay, Full, Simulation
from formerlab.errors import UserError
from formerlab.models.decoder import Decoder
from formerlab.tasks.window_losses import mean_loss, spread_windows, window_count, window_losses


def naive_losses(model, stream, context):
    """Return the losses of tokens that are predicted one by one from the earlier tokens of their window."""
    tokens = torch.from_numpy(stream.astype(np.int64))
    losses = {}
    for target in range(1, len(tokens)):
        first = (target - 1) // context * context
        with torch.no_grad():
            logits = model(tokens[None, first:target])[0, -1]
        losses[target] = -logits.double().log_softmax(0)[tokens[target]].item()
    return losses


@pytest.mark.parametrize("length", [2, 7, 25, 26, 30])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_token_except_the_first_is_predicted_once(model, stream, length, batch):
    context, stream = 8, stream[:length]
    naive = naive_losses(model, stream, context)
    rows = window_losses(model, stream, context, batch=batch)
    assert sum(row.tokens for row in rows) == length - 1
    assert [row.window for row in rows] == list(range(window_count(length, context)))
    assert [row.tokens for row in rows[:-1]] == [context] * (len(rows) - 1)
    for row in rows:
        expected = [naive[row.window * context + 1 + offset] for offset in range(row.tokens)]
        assert row.loss_nats == pytest.approx(np.mean(expected), abs=1e-5)
    assert mean_loss(rows) == pytest.approx(np.mean(list(naive.values())), abs=1e-5)


def test_pruned_losses_have_the_measured_cache_size(model, stream):
    rows = window_losses(model, stream, 20, attend_for=lambda lengths: Simulation(Decay(), 0.4, lengths))
    assert [row.realised_budget for row in rows[:-1]] == [0.4] * (len(rows) - 1)
    plain = window_losses(model, stream, 20)
    full = window_losses(model, stream, 20, attend_for=lambda lengths: Simulation(Full(), 1.0, lengths))
    assert [row.realised_budget for row in full] == [row.realised_budget for row in plain] == [1.0] * len(plain)
    assert [row.loss_nats for row in full] == pytest.approx([row.loss_nats for row in plain], abs=1e-5)
    assert [row.loss_nats for row in rows] != pytest.approx([row.loss_nats for row in plain], abs=1e-3)


def test_spread_windows_are_distinct_and_include_both_ends(stream):
    assert spread_windows(stream, 16, 3) == [0, 6, 11]  # 199 predictions: 12 full windows and a partial one
    assert spread_windows(stream, 16, 100) == list(range(12))
    assert spread_windows(stream[:5], 16, 3) == [0]


def test_the_mode_and_gradients_of_the_model_are_restored(stream):
    model = Decoder(vocabulary=290, layers=1, width=8, heads=1, context=16, dropout=0.5).build()
    model.train()
    model.blocks[0].eval()  # a layer in evaluation mode
    modes = [module.training for module in model.modules()]
    first, second = (window_losses(model, stream, 16) for _ in range(2))
    assert first == second  # no dropout
    assert [module.training for module in model.modules()] == modes
    assert model(torch.zeros(1, 2, dtype=torch.int64)).requires_grad


def test_a_stream_without_predictions_is_refused(model):
    with pytest.raises(UserError, match="1 tokens"):
        window_losses(model, np.zeros(1, dtype=np.uint16), 8)
