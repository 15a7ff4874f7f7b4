"""Decoding with cached keys and values against recomputing the prefix at every step, greedy, in one process.

    python benchmarks/translation.py [--length 64] [--batch 8] [--threads 1]

Both write the same tokens; the ratio is what counts, not the seconds.
"""

import argparse
import time

import torch

from formerlab.evaluation.translation.beam import TranslatorCache
from formerlab.models import Translator
from formerlab.models.translator_model import TranslatorModel

END = 0


@torch.no_grad()
def recomputed(model: TranslatorModel, source: torch.Tensor, length: int) -> torch.Tensor:
    """Return `length` tokens, each from the whole prefix and the source anew."""
    real = torch.ones_like(source, dtype=torch.bool)
    target = torch.full((len(source), 1), END)
    for _ in range(length):
        newest = model(source, real, target)[:, -1].argmax(dim=-1)
        target = torch.cat((target, newest[:, None]), dim=1)
    return target[:, 1:]


@torch.no_grad()
def cached(model: TranslatorModel, source: torch.Tensor, length: int) -> torch.Tensor:
    """Return the same tokens, each from the newest token and the keys and values kept."""
    real = torch.ones_like(source, dtype=torch.bool)
    encoded, cache = model.encode(source, real), TranslatorCache(model, len(source), length)
    newest, said = torch.full((len(source), 1), END), []
    for _ in range(length):
        newest = model.decode(newest, encoded, cache.length, cache.extend)[:, -1].argmax(dim=-1, keepdim=True)
        cache.advance()
        said.append(newest)
    return torch.cat(said, dim=1)


def fastest(decode: object, *inputs: object, repeats: int = 2) -> float:
    """Return the seconds of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        decode(*inputs)  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    spec = Translator(vocabulary=1000, layers=2, width=128, heads=4, context=options.length + 1, dropout=0.0)
    model = spec.build(0).eval()
    source = torch.randint(1, 1000, (options.batch, options.length), generator=torch.Generator().manual_seed(0))
    same = torch.equal(cached(model, source, options.length), recomputed(model, source, options.length))
    times = {name: fastest(decode, model, source, options.length) for name, decode in METHODS.items()}
    for name, seconds in times.items():
        print(f"{name:>10}: {seconds:.3f} s")
    print(f"same tokens: {same}; cached is {times['recomputed'] / times['cached']:.1f} x as fast")


METHODS = {"recomputed": recomputed, "cached": cached}

if __name__ == "__main__":
    main()
