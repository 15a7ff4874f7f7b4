import os

import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from formerlab.errors import UserError
from formerlab.evaluation.language.generate import generate, sample, sample_token


def test_greedy_tokens_equal_full_forward_passes(model):
    prompt = [5, 17, 8]
    expected = list(prompt)
    for _ in range(20):
        with torch.no_grad():
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert list(sample(model, prompt, tokens=20, temperature=0.0)) == expected[3:]


def test_top_k_and_temperature_change_the_samples():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.0])
    generator = torch.Generator().manual_seed(0)
    sampled = [int(sample_token(logits, 0.5, 2, generator)) for _ in range(2000)]
    fraction = sampled.count(1) / len(sampled)
    assert set(sampled) == {1, 2}
    assert fraction == pytest.approx(torch.tensor([6.0, 4.0]).softmax(0)[0].item(), abs=0.03)
    assert {int(sample_token(logits, 0.0, None, generator)) for _ in range(5)} == {1}
    assert {int(sample_token(logits, 100.0, None, generator)) for _ in range(200)} == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_equals_the_sample_of_multinomial(seed):
    logits = torch.randn(300)
    sampled = sample_token(logits, 0.8, 40, torch.Generator().manual_seed(seed))
    values, ids = logits.topk(40)
    probabilities = (values.double() / 0.8).softmax(0).float()
    assert sampled == ids[torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))]


def test_streamed_pieces_join_to_the_text_and_depend_on_the_seed(model, tokenizer):
    pieces: list[str] = []
    text = generate(model, tokenizer, "the cat", tokens=30, seed=1, stream=pieces.append)
    assert "".join(pieces) == text
    assert text == generate(model, tokenizer, "the cat", tokens=30, seed=1)
    assert text != generate(model, tokenizer, "the cat", tokens=30, seed=2)


def test_the_end_of_the_document_ends_the_text(model, tokenizer):
    ending = model.register_forward_hook(lambda module, inputs, logits: logits.index_fill(2, torch.tensor([0]), 1e9))
    try:
        assert generate(model, tokenizer, "the cat", tokens=10) == ""
    finally:
        ending.remove()


def test_the_text_stops_at_the_end_of_the_context_with_a_note(model, tokenizer):
    prompt, notes = "the cat sat on the mat", []
    remaining_tokens = 48 - len(tokenizer.encode(prompt).ids) + 1
    continuation = generate(model, tokenizer, prompt, tokens=remaining_tokens, seed=1, warn=notes.append)
    assert notes == []
    assert generate(model, tokenizer, prompt, tokens=remaining_tokens + 1, seed=1, warn=notes.append) == continuation
    assert notes == [
        f"stopped after {remaining_tokens} of {remaining_tokens + 1} tokens, at the end of the model's context of 48"
    ]
    with pytest.raises(UserError, match="shorten the prompt"):
        generate(model, tokenizer, "the cat sat " * 40, tokens=1)


def test_a_prompt_that_is_not_utf8_is_refused(model, tokenizer):
    with pytest.raises(UserError, match=r"prompt: 'caf.*is not UTF-8"):
        generate(model, tokenizer, os.fsdecode(b"caf\xe9"))


def test_an_empty_prompt_starts_a_document(model, tokenizer):
    assert generate(model, tokenizer, "", tokens=5, seed=4) == tokenizer.decode(
        list(sample(model, [0], tokens=5, seed=4))
    )


FAMILIES = {
    "metaspace": (["▁the", "▁cat"], decoders.Metaspace()),
    "llama": (
        ["▁the", "▁cat"],
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1)]),
    ),
    "pieces": (["the", "cat"], decoders.WordPiece()),
    "suffix": (["the</w>", "cat</w>"], decoders.BPEDecoder("</w>")),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_space_between_prompt_and_text_is_preserved(family, model, monkeypatch):
    words, decoder = FAMILIES[family]
    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, words[0]: 1, words[1]: 2}, unk_token=words[0]))
    tokenizer.decoder = decoder
    monkeypatch.setattr("formerlab.evaluation.language.generate.sample_token", lambda *_: torch.tensor(2))
    pieces: list[str] = []
    assert generate(model, tokenizer, "the", tokens=3, stream=pieces.append) == " cat cat cat"
    assert "".join(pieces) == " cat cat cat"
    assert generate(model, tokenizer, "", tokens=1, end_of_text=0).strip() == "cat"


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39])
def test_a_temperature_near_zero_chooses_the_most_probable_token(temperature):
    generator = torch.Generator().manual_seed(0)
    for logits in ([1.0, 3.0, 2.0], [-5.0, -1.0, -9.0], [0.0, 80.0, -torch.inf]):
        assert sample_token(torch.tensor(logits), temperature, None, generator) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", -1),
        ("top_k", 0),
        *(("temperature", value) for value in (-0.5, float("nan"), float("inf"))),
        *(("seed", value) for value in (2**64, -(2**63) - 1)),
    ],
)
def test_invalid_options_are_refused(name, value, model, tokenizer):
    remedy = "torch accepts seeds of 64 bits" if name == "seed" else "give a finite number of at least [01]$"
    with pytest.raises(UserError, match=f"^{name}={value}: {remedy}"):
        generate(model, tokenizer, "the cat", **{name: value})
    generate(model, tokenizer, "the cat", tokens=1, seed=2**64 - 1)
