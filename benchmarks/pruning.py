"""Simulated pruned attention, compared with full attention and with the row loop of the papers' code.

    python benchmarks/pruning.py [--lengths 32 64 256] [--rounds 15] [--device cuda --precision bfloat16]

The benchmark prints milliseconds per sequence and layer, from queries, keys and values to the output. The row loop has
batch size 1, as in the official evaluations. The other variants process a batch of sequences.
"""

import statistics
from unittest.mock import patch

from timing import Target, begin, interleaved_seconds, option_parser, ratio

from formerlab.kernels.native import keep_memory

TARGETS = (
    Target("compiled", "row loop", 0.20),
    Target("compiled", "full attention", 1.5),
    Target("fused", "full attention", 1.5),
    Target("torch", "row loop", 0.35),
)


def row_loop(q, k, v, budget, alpha):
    """Return the output of Decay on one sequence (heads, time, d_head), as in the papers' code for OPT.

    Query t attends to itself and to the `budget` earlier keys with the highest scores. Row t of a mask (heads, time,
    time) records these keys. The loop applies the mask to the whole matrix at the end.
    """
    import torch

    time = q.shape[1]
    smallest = torch.finfo(q.dtype).min
    weights = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2))
    weights = weights + torch.full((time, time), smallest, dtype=q.dtype).triu(1)
    attention = torch.softmax(weights, -1, dtype=torch.float32).to(q.dtype)
    ages = torch.arange(budget - 1, -1, -1).unsqueeze(1).to(q.dtype)
    scores = (attention[:, :budget] * alpha**ages).sum(-2)
    scores[:, budget:] = 0
    mask = torch.zeros_like(weights, dtype=torch.bool)
    mask[:, :budget, :budget] = True
    for query in range(budget, time):
        _, highest = scores.topk(budget, dim=-1)
        visible = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, highest, True)
        visible[:, query] = True
        mask[:, query] = visible
        row = weights[:, query].masked_fill(~visible, smallest)
        scores = (scores * alpha + torch.softmax(row, -1, dtype=torch.float32).to(q.dtype)) * visible
    weights[~mask.tril()] = smallest
    return torch.bmm(torch.softmax(weights, -1), v)


def with_warps(number, run):
    """Return a function that runs the fused kernel with `number` warps instead of the default of `launch_options`."""
    from formerlab.kernels import pruned_attention

    launch_options = pruned_attention.launch_options

    def tuned():
        launch_settings = {"num_warps": number, "maxnreg": pruned_attention.REGISTERS[number]}
        with patch.object(pruned_attention, "launch_options", lambda *sizes: launch_options(*sizes) | launch_settings):
            return run()

    return tuned


def variants(time, options):
    """Return functions that run the variants on a batch of random tensors; print differences from the row loop."""
    import torch
    from torch.nn import functional as F

    from formerlab.cache import H2O, Decay, Simulation, resolve_budget
    from formerlab.cache.engines import load_numba, load_triton, run_in_torch

    generator = torch.Generator().manual_seed(0)
    shape = options.batch, options.heads, time, options.d_head
    device_and_dtype = {"device": options.device, "dtype": getattr(torch, options.precision)}
    q, k, v = (torch.randn(shape, generator=generator, device="cpu").to(**device_and_dtype) for _ in range(3))
    count = resolve_budget(options.budget, time)

    def simulation(policy, engine):
        return lambda: Simulation(policy, options.budget, engine=engine)(0, q, k, v)

    runs = {
        "full attention": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "torch": simulation(Decay(), run_in_torch),
    }
    name, engine = ("fused", load_triton()) if options.device == "cuda" else ("compiled", load_numba())
    if engine is not None:
        runs |= {name: simulation(Decay(), engine.run), f"{name}, H2O": simulation(H2O(), engine.run)}
    if name == "fused":
        runs |= {f"fused, {number} warps": with_warps(number, runs["fused"]) for number in options.warps}
    expected = row_loop(q[0], k[0], v[0], count, 0.2)
    for kind in ("torch", name):
        if kind in runs:
            print(f"  {kind}: differs from the row loop by at most {(runs[kind]()[0] - expected).abs().max():.1e}")
    batch = {name: (lambda run=run: (run(), options.batch)[1]) for name, run in runs.items()}
    sequences = iter(range(10**9))

    def single_sequence():
        row = next(sequences) % options.batch
        row_loop(q[row], k[row], v[row], count, 0.2)
        return 1

    return {"row loop": single_sequence, **batch}


def main():
    """Print a table, and whether each target is met."""
    parser = option_parser(__doc__, rounds=15)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 256])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--d-head", type=int, default=80)
    parser.add_argument("--budget", type=float, default=0.4)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--warps",
        type=int,
        nargs="*",
        default=[],
        choices=(4, 8, 16),
        help="also time the fused kernel with these numbers of warps",
    )
    options = parser.parse_args()
    import torch

    begin(options, options.precision)
    for time in options.lengths:
        print(f"T = {time}: batch {options.batch}, {options.heads} heads of {options.d_head}, budget {options.budget}")
        with torch.inference_mode(), torch.device(options.device):
            times = interleaved_seconds(variants(time, options), options.rounds, options.device)
        for name, seconds in times.items():
            median, low, high = ratio(seconds, times["row loop"])
            milliseconds = 1000 * statistics.median(seconds)
            print(f"  {name:16}{milliseconds:8.3f} ms  {median:.3f} [{low:.3f}, {high:.3f}] x row loop")
        for target in TARGETS:
            if target.variant in times:
                print(f"  {target.describe(ratio(times[target.variant], times[target.baseline]))}")


if __name__ == "__main__":
    keep_memory()
    main()
