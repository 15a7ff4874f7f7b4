"""Decoding with an evicting cache, compared with our full cache and with transformers' DynamicCache.

    python benchmarks/decoding.py [--prompt 1024] [--batch 1] [--budgets 0.4 0.1] [--device cuda] [--compile]

The benchmark prints tokens per second after a prompt, cache bytes, and the prefill time. In every round each variant
decodes the same slice of --slice tokens. A ratio compares times of the same slice. DynamicCache runs in our decoder, so
that only the cache differs. With --transformers it also runs in a GPT-NeoX of the same size. DynamicCache allocates
memory for every token, so the allocator affects its speed. Static variants decode with constant shapes
(`cache/static.py`); on a GPU a CUDA graph replays each step.
"""

import statistics
import sys
from functools import partial
from itertools import islice

from timing import Target, begin, cache_bytes, interleaved_seconds, option_parser, ratio

from formerlab.kernels.native import keep_memory


class Transformers:
    """A GPT-NeoX and a DynamicCache, both of transformers."""

    def __init__(self, spec, device):
        from formerlab.torchvision_shim import ensure_torchvision_imports

        ensure_torchvision_imports()
        from transformers import DynamicCache, GPTNeoXConfig, GPTNeoXForCausalLM

        config = GPTNeoXConfig(
            vocab_size=spec.vocabulary,
            hidden_size=spec.width,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            intermediate_size=4 * spec.width,
            max_position_embeddings=spec.context,
            rotary_pct=1.0,
        )
        self.model = GPTNeoXForCausalLM(config).eval().to(device)
        self.cache = DynamicCache()

    def __call__(self, tokens, **unused):
        """Feed tokens and return the logits of the last token."""
        return self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits

    def bytes(self):
        """Return the bytes of keys and values."""
        return cache_bytes(self.cache)


def make_step(name, model, cache, count, compiled):
    """Return a function `feed(tokens, position)` that feeds one token of every sequence."""
    import torch

    from formerlab.cache.static import StaticStep

    if "static" not in name:
        return lambda token, position: model(token, attend=cache, start=position)
    step = StaticStep(model, cache, count)
    if compiled:
        step.compute = torch.compile(step.compute, fullgraph=True, dynamic=False)
    return lambda token, position: step(token)


def measure(options):
    """Return the seconds per token, the cache and the prefill time of every variant."""
    import torch

    from formerlab.cache import Decay, KVCache, PrunedCache
    from formerlab.evaluation.timing.decode import DynamicKVCache
    from formerlab.evaluation.timing.timing import seconds
    from formerlab.models import Decoder

    total = options.prompt + (options.rounds + 1) * options.slice
    spec = Decoder(vocabulary=options.vocabulary, layers=12, width=512, heads=8, context=total)
    model = spec.build(seed=0).eval().to(options.device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(spec.vocabulary, (options.batch, total), generator=generator).to(options.device)
    caches = {"DynamicCache": DynamicKVCache(), "full cache": KVCache(capacity=total)}
    caches["full cache, static"] = KVCache()
    for budget in options.budgets:
        caches[f"Decay {budget:.0%}"] = PrunedCache(Decay(), budget)
        caches[f"Decay {budget:.0%}, static"] = PrunedCache(Decay(), budget)
    models = dict.fromkeys(caches, model)
    if options.transformers:
        models["transformers' model"] = caches["transformers' model"] = Transformers(spec, options.device)
    prefill_seconds = {}
    for name, cache in caches.items():
        prompt = partial(models[name], tokens[:, : options.prompt], attend=cache)
        prefill_seconds[name] = seconds(prompt, tokens.device)

    def decode(name):
        feed = make_step(name, models[name], caches[name], total - options.prompt, options.compile)
        positions = iter(range(options.prompt, total))

        def run():
            for position in islice(positions, options.slice):
                feed(tokens[:, position : position + 1], position)
            return options.slice * options.batch

        return run

    steps = {name: decode(name) for name in caches}
    return interleaved_seconds(steps, options.rounds, options.device), caches, prefill_seconds


def main():
    """Print a table, and whether each target is met."""
    parser = option_parser(__doc__, rounds=16)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.4, 0.1])
    parser.add_argument("--slice", type=int, default=16, help="decoded tokens per round and variant")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--compile", action="store_true", help="compile the static steps")
    parser.add_argument("--transformers", action="store_true", help="also measure a model of transformers")
    parser.add_argument(
        "--default-allocator", action="store_true", help="use malloc with its default settings, as most programs do"
    )
    options = parser.parse_args()
    import torch

    size = f"prompt {options.prompt}, batch {options.batch}, vocabulary {options.vocabulary}"
    begin(options, "12 layers, d = 512, 8 heads", size)
    with torch.inference_mode():
        times, caches, prefill_seconds = measure(options)
    for name, seconds in times.items():
        median, low, high = ratio(times["full cache"], seconds)
        print(
            f"  {name:20}{1 / statistics.median(seconds):8.1f} tokens/s  {median:.2f} [{low:.2f}, {high:.2f}] x full"
            f"  {caches[name].bytes() / 2**20:7.1f} MiB  prompt {prefill_seconds[name]:.2f} s"
        )
    required_ratio = 1.2 if options.prompt >= 8192 or options.batch >= 16 else 1.0
    targets = [
        Target("full cache", "DynamicCache", 1.2, "speed"),
        Target("Decay 40%", "full cache", required_ratio, "speed"),
    ]
    targets += [Target("full cache", "transformers' model", 1.2, "speed")] if options.transformers else []
    for target in targets:
        if target.variant in times:
            print(f"  {target.describe(ratio(times[target.baseline], times[target.variant]))}")
    for name in times:
        if (eager := name.removesuffix(", static")) != name:
            median, low, high = ratio(times[eager], times[name])
            print(f"  {name}: {median:.2f} [{low:.2f}, {high:.2f}] x the speed without static steps")


if __name__ == "__main__":
    if "--default-allocator" not in sys.argv:
        keep_memory()
    main()
