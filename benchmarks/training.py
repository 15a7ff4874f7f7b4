"""Training with formerlab, compared with minimal code and with other libraries.

    python benchmarks/training.py                                  # everything, about seven minutes of one core
    python benchmarks/training.py --only decoder --rounds 41

`decoder`: our plain decoder and a Tokenformer with about as many parameters, trained by `train()`, compared with a
model of nanoGPT's architecture in a plain loop (`loops.py`) and with transformers' GPT-2 and LLaMA in the same loop.
`vision`: our Vision Transformers compared with timm's. `translation`: our translator compared with
`torch.nn.Transformer`. `prefill`: prefill of 1,024 tokens with our decoder and with transformers' LLaMA on the same
weights. All variants use random tokens or images, one thread of the CPU and float32. A round runs every variant once;
the order rotates from round to round. A ratio compares times of the same round. The benchmark prints the median over
rounds and its 95 % interval by order statistics. Training times cover whole steps: batch, forward, backward,
clipping, optimizer, and for ours also the checks and metrics of `train()`. All times are processor times, which depend
less on other programs than wall times do. On one thread of an idle machine both are equal.
"""

import time

import numpy as np
import torch
from loops import Gpt, Loop, OurLoop, TorchTransformer, windows
from timing import Target, begin, interleaved_seconds, option_parser, report
from torch.nn import functional as F

from formerlab.cache import KVCache
from formerlab.data.images.batches import ImageBatch
from formerlab.data.pairs.streams import PairStream
from formerlab.integrations.huggingface.native import to_native
from formerlab.kernels.native import keep_memory
from formerlab.layers import LayerNorm, Mlp, Pattention, RMSNorm
from formerlab.models import Decoder, Translator
from formerlab.models.vision import VisionTransformer
from formerlab.tasks import Classification, LanguageModeling, Translation
from formerlab.tasks.translation import smoothed_loss
from formerlab.torchvision_shim import ensure_torchvision_imports
from formerlab.training.optimizer import LayerwiseAdamW

SMALL = {"vocabulary": 2048, "layers": 4, "width": 64, "heads": 4, "context": 128}
LARGE = {"vocabulary": 4096, "layers": 6, "width": 192, "heads": 6, "context": 256}
BATCH = 8
IMAGES = 32
PROMPT = 1024


def decoders(size):
    """Return one function per decoder that runs a training step; all decoders have the given size."""
    import transformers

    stream = np.random.default_rng(0).integers(0, size["vocabulary"], 200_000).astype(np.uint16)
    width, context = size["width"], size["context"]
    task = LanguageModeling(context=context, batch=BATCH, valid_windows=1)
    pattention_layers = {"projection": Pattention(tokens=width // 2), "feedforward": Pattention(tokens=4 * width)}
    tokenformer = Decoder(**size, norm=LayerNorm(gain=False, bias=False), **pattention_layers)
    assert tokenformer.params(embedding=False) == Decoder(**size).params(embedding=False) - 4 * width * size["layers"]
    common = {"vocab_size": size["vocabulary"], "tie_word_embeddings": True}
    gpt2 = transformers.GPT2Config(
        n_positions=context, n_embd=width, n_layer=size["layers"], n_head=size["heads"], **common,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip

    def loss(model):
        x, y = windows(stream, BATCH, context)
        logits = model(x)
        return F.cross_entropy(getattr(logits, "logits", logits).flatten(0, 1), y.flatten())

    return {
        "plain loop": Loop(Gpt(**size), loss),
        "ours": OurLoop(Decoder(**size), task, stream),
        "ours, Tokenformer": OurLoop(tokenformer, task, stream),
        "transformers' GPT-2": Loop(transformers.GPT2LMHeadModel(gpt2), loss),
        "transformers' LLaMA": Loop(transformers.LlamaForCausalLM(llama(size)), loss),
    }


def llama(size):
    """Return the configuration of a LLaMA for transformers."""
    import transformers

    return transformers.LlamaConfig(
        vocab_size=size["vocabulary"],
        hidden_size=size["width"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        intermediate_size=Mlp(activation="swiglu").width(size["width"]),
        max_position_embeddings=size["context"],
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
    )


class FixedImages(Classification):
    """Classification with the same images at every step, so that the variants differ only in model and loop."""

    def valid_batches(self, data):
        """Return no batches."""
        return []

    def step_batches(self, data, seed, step, start, shard):
        """Return the same images at every step."""
        return [data]


def vision():
    """Return one function per image model (32 x 32 pixels) that runs a training step."""
    import timm

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    spec = VisionTransformer(image=32, patch=4, classes=10, layers=6, width=192, heads=6)
    pattention_layers = {"projection": Pattention(tokens=96), "feedforward": Pattention(tokens=768)}
    tokenformer = spec.model_copy(update={"norm": LayerNorm(gain=False, bias=False), **pattention_layers})
    timm_model = timm.models.VisionTransformer(
        img_size=32, patch_size=4, num_classes=10, depth=6, embed_dim=192, num_heads=6
    )
    task, batch = FixedImages(batch=IMAGES, augmentation=None), ImageBatch(images, labels)
    return {
        "timm's": Loop(timm_model, lambda model: F.cross_entropy(model(images), labels)),
        "ours": OurLoop(spec, task, batch, LayerwiseAdamW()),
        "ours, Tokenformer": OurLoop(tokenformer, task, batch, LayerwiseAdamW()),
    }


def translation():
    """Return one function per translator that runs a training step."""
    random = np.random.default_rng(0)
    sentences = [ids for _ in range(4000) for ids in (random.integers(1, 2048, random.integers(5, 40)), [0])]
    pairs = PairStream(np.concatenate(sentences).astype(np.uint16), 0)
    task = Translation(tokens=1024, valid_pairs=1)
    size = {"vocabulary": 2048, "layers": 3, "width": 128, "heads": 4, "context": 64, "dropout": 0.1}
    steps = iter(range(10**9))

    def loss(model):
        (batch,) = task.step_batches(pairs, 0, next(steps))
        logits = model(batch.source, batch.source_mask, batch.target_in)
        return smoothed_loss(logits.flatten(0, 1), batch.target_out.flatten(), 0.1, "vocabulary") / batch.loss_divisor

    ours = OurLoop(Translator(**size), task, pairs)
    return {"torch.nn.Transformer": Loop(TorchTransformer(**size), loss), "ours": ours}


def prefill():
    """Return two functions that run prefill with the same weights and return the logits of the last token."""
    import transformers

    size = {"vocabulary": 8192, "layers": 12, "width": 512, "heads": 8, "context": PROMPT}
    reference = transformers.LlamaForCausalLM(llama(size)).eval()
    ours = Decoder(**size, norm=RMSNorm(), final_norm=RMSNorm(), feedforward=Mlp(activation="swiglu")).build(0).eval()
    reference.load_state_dict(to_native(ours).state_dict())
    tokens = torch.randint(8192, (1, PROMPT), generator=torch.Generator().manual_seed(0))

    def read():
        return ours(tokens, attend=KVCache(capacity=PROMPT), last=1)[:, -1]

    def read_reference():
        cache = transformers.DynamicCache()
        return reference(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    with torch.inference_mode():
        torch.testing.assert_close(read(), read_reference(), rtol=1e-3, atol=1e-3)
    return {"transformers' LLaMA": torch.inference_mode()(read_reference), "ours": torch.inference_mode()(read)}


OURS = "ours"
OUR_TOKENFORMER = "ours, Tokenformer"
BENCHMARKS = {
    "decoder 4 x 64": (lambda: decoders(SMALL), [
        Target(OURS, "plain loop", 1.10), Target(OUR_TOKENFORMER, "plain loop", 1.28)]),
    "decoder 6 x 192": (lambda: decoders(LARGE), [
        Target(OURS, "plain loop", 1.05), Target(OUR_TOKENFORMER, "plain loop", 1.12)]),
    "vision 6 x 192": (vision, [Target(OURS, "timm's", 1.02)]),
    "translation 3 x 128": (translation, []),
    "prefill of 1024 tokens, 12 x 512": (prefill, [
        Target(OURS, "transformers' LLaMA", 1.00)]),
}  # fmt: skip
"""The benchmarks by title: a function that returns the variants, and the targets. `--only` takes the first word."""


def main():
    """Print tables, and whether each target is met."""
    keep_memory()
    names = list(dict.fromkeys(title.split()[0] for title in BENCHMARKS))
    parser = option_parser(__doc__, rounds=21, threads=1)
    parser.add_argument("--only", choices=names, action="append", help="may be repeated; default: all")
    options = parser.parse_args()
    if options.device != "cpu":
        parser.error("--device: this benchmark runs on the CPU only")
    ensure_torchvision_imports()
    begin(options)
    for title, (steps, targets) in BENCHMARKS.items():
        if title.split()[0] in (options.only or names):
            seconds = interleaved_seconds(steps(), options.rounds, clock=time.process_time)
            report(title, seconds, dict.fromkeys(seconds, next(iter(seconds))).__getitem__, targets)


if __name__ == "__main__":
    main()
