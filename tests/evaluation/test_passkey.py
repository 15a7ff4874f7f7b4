"""Passkey retrieval: the position of the number, and which policies can retrieve it."""

import pytest
import torch

from formerlab.cache import TOVA, Local
from formerlab.errors import UserError
from formerlab.evaluation.measurement import StoredRows
from formerlab.evaluation.pruning.passkey import FILLER, QUESTION, Passkey, make_text, passkey_rows
from formerlab.models.decoder import Decoder


def test_the_number_is_hidden_at_the_requested_depth(tokenizer):
    for depth, lines_before, lines_after in ((0.0, 0, None), (0.5, None, None), (1.0, None, 0)):
        key, prompt, answer = make_text(tokenizer, 400, depth, number=1)
        tokens = [*prompt, *answer]
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        assert text.count(key) == 3
        assert text.endswith(f"{QUESTION} {key}")
        first, last = text.split("The pass key is " + key)[0], text.split("Remember it. ")[1]
        assert lines_before is None or first.count(FILLER) == lines_before
        assert lines_after is None or last.count(FILLER) == lines_after
        assert 400 - len(tokenizer.encode(FILLER).ids) < len(tokens) <= 400
    assert make_text(tokenizer, 400, 0.5, 0) != make_text(tokenizer, 400, 0.5, 1)
    with pytest.raises(UserError, match="lengths: 60 tokens leave no room"):
        make_text(tokenizer, 60, 0.5, 0)


class Copier(torch.nn.Module):
    """An induction model.

    It finds the earlier occurrences of the last 2 to 8 tokens whose next token is visible, and copies the token after
    the longest occurrence.
    """

    def __init__(self, vocabulary):
        super().__init__()
        self.spec = Decoder(vocabulary=vocabulary, layers=1, width=16, heads=1, context=4096)
        self.embedding = torch.nn.Parameter(torch.zeros(vocabulary, 16))
        self.position = None

    def forward(self, tokens, attend=None, last=None):
        time = tokens.shape[1]
        one_hot = torch.eye(time)[None, None]
        visible = attend(0, torch.zeros(1, 1, time, time), torch.zeros(1, 1, time, time), one_hot)[0, 0] > 0
        logits = torch.zeros(1, time, self.spec.vocabulary)
        row = tokens[0].tolist()
        for query in range(time - last, time):
            for key in range(query - 1, 8, -1):
                matches = next((n for n in range(8) if row[key - 1 - n] != row[query - n]), 8)
                if matches >= 2 and visible[query, key]:
                    logits[0, query, row[key]] += 10.0**matches
        return logits[:, -last:]


SETTINGS = Passkey(policies=(Local(),), budgets=(0.3,), lengths=(420,), depths=(0.1, 1.0), numbers=1)


def test_a_policy_retrieves_retained_numbers(tokenizer):
    policies, _, _, _, cache_sizes, _, depths, _, correct, _ = zip(
        *passkey_rows(Copier(tokenizer.get_vocab_size()), tokenizer, SETTINGS), strict=True
    )
    assert policies == ("full", "full", "local", "local")
    assert depths == (0.1, 1.0, 0.1, 1.0)
    assert correct == (1, 1, 0, 1), "a window evicts the beginning of the text"
    assert cache_sizes == pytest.approx((1.0, 1.0, 0.3, 0.3), abs=0.01)


def test_a_stopped_stage_continues(tokenizer, tmp_path):
    class Stopped(Copier):
        left = 3

        def forward(self, *args, **kwargs):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return super().forward(*args, **kwargs)

    def measured_rows(model, settings):
        return passkey_rows(
            model, tokenizer, settings, stored=StoredRows(tmp_path, "weights", code_hash=lambda settings: "code")
        )

    expected = passkey_rows(Copier(tokenizer.get_vocab_size()), tokenizer, SETTINGS)
    model = Stopped(tokenizer.get_vocab_size())
    with pytest.raises(KeyboardInterrupt):
        measured_rows(model, SETTINGS)
    model.left = 2  # the rows of the full cache were stored
    assert measured_rows(model, SETTINGS) == expected
    model.left = 2
    more_policies = SETTINGS.model_copy(update={"policies": (Local(), TOVA())})
    assert len(measured_rows(model, more_policies)) == 6, "only the new policy is computed"
