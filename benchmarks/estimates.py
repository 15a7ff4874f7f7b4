"""Compare the plan's estimates for a GPU with counts that need no GPU, in one table.

    python benchmarks/estimates.py [--only memory saved bytes_moved launches]

`memory`: peak bytes of two uncompiled training steps at published sizes, counted by torch's MemTracker with fake
tensors. Both columns are for steps without compilation; compiled steps also store the logits.
`saved`: bytes of activations that the compiled forward pass saves, per token, block and channel, in small models with
the mixers of the 48-block runs of the scale `paper`.
`bytes_moved`: bytes per token that the kernels of a training step of six blocks read and write after inductor's
fusion, minus the bytes of the plain model. The plan computes the training hours of a depth mixer from its own estimate
of these bytes.
`launches` has two counts: kernel launches per decoded token without compilation, and kernels per layer of a compiled
static step (`cache/static.py`) after inductor's fusion for a CPU (a norm takes two). The plan does not estimate
launches.

The script measures no times, since bandwidth and launch times need a GPU.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jaxtyping
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._inductor.compile_fx import record_original_output_strides
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.cache.static import StaticStep
from formerlab.layers import Pattention
from formerlab.layers.block import activation_elements
from formerlab.models import Decoder, Translator
from formerlab.plan.build import build_plan
from formerlab.plan.cost import memory_bytes
from formerlab.plan.hardware import Hardware
from formerlab.tasks.translation import ASSUMED_LENGTH, SentenceBatch
from formerlab.training.run import Run

ROOT = Path(__file__).parents[1]
BATCH, TIME = 7, 31  # only activations have a multiple of 7 x 31 elements
WITHOUT_BASE_MEMORY = Hardware(memory_gb=80, float32_tflops=1, bfloat16_tflops=1, memory_base_mb=0, memory_factor=1)
"""Hardware without base memory, so that `memory_bytes` returns only the bytes of the training step."""


def tracked_bytes(run: Run) -> int:
    """Return the peak bytes of two training steps with one micro-batch each, as counted by MemTracker."""
    model = run.model
    count = run.task.micro_batch_tokens
    with FakeTensorMode():
        model_instance = model.build()
        optimizer = run.optimizer.build(model_instance)
        if isinstance(model, Translator):
            tokens = torch.zeros(count // ASSUMED_LENGTH, ASSUMED_LENGTH, dtype=torch.int64)
            inputs = (SentenceBatch(tokens, torch.ones_like(tokens, dtype=torch.bool), tokens, tokens, count, count),)
        elif isinstance(model, Decoder):
            inputs = (torch.zeros(count // run.task.context, run.task.context, dtype=torch.int64),)
        else:
            inputs = (torch.zeros(count, model.channels, model.image, model.image),)
        tracker = MemTracker()
        tracker.track_external(model_instance, optimizer, *(x for x in inputs if isinstance(x, torch.Tensor)))
        for _ in range(2):
            tracker.reset_mod_stats()
            with tracker:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=run.precision == "bfloat16"):
                    if isinstance(model, Translator):
                        loss, _ = run.task.losses(model_instance, *inputs)
                    elif isinstance(model, Decoder):
                        loss = model_instance(*inputs, targets=inputs[0])
                    else:
                        loss = model_instance(*inputs).float().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())


@contextmanager
def lowering(graph, inputs, *, is_inference: bool = False) -> Iterator[GraphLowering]:
    """Lower `graph` with inductor and yield the GraphLowering inside the required context managers."""
    record_original_output_strides(graph)
    with V.set_fake_mode(TracingContext.get().fake_mode):
        if is_inference:
            post_grad_passes(graph, True)
        kernels = GraphLowering(graph, is_inference=is_inference)
        with V.set_graph_handler(kernels), V.set_debug_handler(DebugContext()):
            kernels.run(*inputs)
            kernels._update_scheduler()
            yield kernels


def counted_bytes(spec: Decoder, *, bytes_moved: bool = True) -> tuple[float, float]:
    """Return the bytes per token that a compiled step saves for the backward pass, and that its kernels read and write.

    The second number is 0 without `bytes_moved`.
    """
    saved, traffic = [], [0]

    def lowered(graph, inputs):
        (outputs,) = graph.graph.find_nodes(op="output")
        values = {node: node.meta["val"] for node in outputs.args[0] if isinstance(node, torch.fx.Node)}
        tensors = (value for value in values.values() if isinstance(value, torch.Tensor))
        saved.append(sum(value.numel() * value.itemsize for value in tensors if value.numel() % (BATCH * TIME) == 0))
        if bytes_moved:
            with lowering(graph, inputs) as kernels:
                traffic[0] += kernels.count_bytes()[0]
        return graph

    backend = aot_autograd(
        fw_compiler=lowered,
        bw_compiler=lowered,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table() if bytes_moved else None,
    )
    torch._dynamo.reset()
    jaxtyping.config.update("jaxtyping_disable", True)  # jaxtyping's checks would break the graph
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = torch.compile(spec.build(), backend=backend)
        tokens = torch.zeros(BATCH, TIME, dtype=torch.int64)
        model(tokens, targets=tokens).backward()
    return saved[0] / (BATCH * TIME), traffic[0] / (BATCH * TIME)


WITHOUT_KERNEL = {torch.ops.aten._unsafe_view, torch.ops.aten.squeeze_, torch.ops.aten.promote_types}
"""Operations that launch no kernel although they are not marked as views."""


class Launches(TorchDispatchMode):
    """Counts operations that launch a kernel. Views launch no kernel."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += not (function.is_view or function.overloadpacket in WITHOUT_KERNEL)
        return function(*arguments, **(options or {}))


def launches(cache, layers, **settings) -> int:
    """Return the number of kernel launches of the last of four decoded tokens, counted on the meta device."""
    with torch.device("meta"):
        model = Decoder(vocabulary=64, width=32, heads=2, context=64, layers=layers, **settings).build().eval()
        token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        for start in range(4):
            with Launches() as counter:
                model(token, attend=cache, start=start)
    return counter.count


def static_launches(cache, **model_settings) -> int:
    """Return the number of kernels, including matrix products, of a compiled static step after nine prompt tokens."""
    counts = []

    def lowered(graph, inputs):
        with lowering(graph, inputs, is_inference=True) as kernels:
            counts.append(sum(not isinstance(node, NopKernelSchedulerNode) for node in kernels.scheduler.nodes))
        return make_boxed_func(graph.forward)

    settings = {"decompositions": select_decomp_table(), "keep_inference_input_mutations": True}
    backend = aot_autograd(fw_compiler=lowered, **settings)
    torch._dynamo.reset()
    jaxtyping.config.update("jaxtyping_disable", True)
    with torch.no_grad():
        model = (
            Decoder(vocabulary=64, width=32, heads=2, context=64, **model_settings).build().eval().requires_grad_(False)
        )
        model(torch.zeros(1, 9, dtype=torch.int64), attend=cache)
        step = StaticStep(model, cache, 1)
        step.compute = torch.compile(step.compute, backend=backend, fullgraph=True, dynamic=False)
        step(torch.zeros(1, 1, dtype=torch.int64))
    return counts[0]


MEMORY = [f"tokenformer/{kind}-1" for kind in ("transformer", "tokenformer")]
MEMORY += [f"tokenformer/transformer-{size}" for size in (2, 4)] + ["denseformer/plain-48", "vision/tokenformer-large"]
MEMORY += ["transformer/base"]
"""Models of 124M, 354M and 1.4B parameters, and one model each of the studies denseformer, vision and transformer.

Models with a depth mixer are left out, because their uncompiled steps save far more activations than compiled steps.
"""
MIXERS = ["plain", "gains", "connect-to-last", "dwa-4x5", "dwa-1x1", "last-4-window", "softmax", "mudd"]
MIXERS += ["attention-residuals", "attention-residuals-block"]
MIXERS += [f"hyper-connections-{kind}" for kind in ("static", "dynamic", "manifold")]


def rows(quantities, runs):
    """Yield tuples (quantity, case, unit, estimate of the plan or None, count)."""
    for name in MEMORY if "memory" in quantities else ():
        run = runs[name].model_copy(update={"compile": False})
        yield "memory", name, "GB", memory_bytes(run, WITHOUT_BASE_MEMORY) / 1e9, tracked_bytes(run) / 1e9
    models = {name: runs[f"denseformer/{name}-48"].model for name in MIXERS}
    for name, model in models.items() if "saved" in quantities else ():
        small = model.model_copy(update={"vocabulary": 32, "width": 64, "heads": 2, "context": TIME})
        two, four = (counted_bytes(small.model_copy(update={"layers": n}), bytes_moved=False)[0] for n in (2, 4))
        elements = activation_elements(64, small.projection, small.feedforward, small.depth)
        yield "saved", name, "bytes per token, block and channel", 2 * elements / 64, (four - two) / 128
    bytes_of_plain = None
    for name, model in models.items() if "bytes_moved" in quantities else ():
        small = model.model_copy(update={"vocabulary": 32, "width": 64, "heads": 2, "context": TIME, "layers": 6})
        bytes_per_token = counted_bytes(small)[1]
        bytes_of_plain = bytes_per_token if bytes_of_plain is None else bytes_of_plain
        yield (
            "bytes_moved",
            name,
            "kB per token",
            small.depth.bytes_moved(6, 64) / 1e3,
            (bytes_per_token - bytes_of_plain) / 1e3,
        )
    for name in ("plain", "dwa-4x5", "dwa-1x1", "attention-residuals", "mudd") if "launches" in quantities else ():
        for cache in (KVCache(), PrunedCache(Decay(), 2)):
            count = launches(cache, 48, depth=models[name].depth)
            yield "launches", f"{name}-48, {type(cache).__name__}", "", None, count
    pattention_layers = {"projection": Pattention(tokens=64), "feedforward": Pattention(tokens=128)}
    for name, layers_of_model in (("plain", {}), ("Pattention", pattention_layers)) if "launches" in quantities else ():
        for cache in (KVCache, partial(PrunedCache, Decay(), 2)):
            two, four = (static_launches(cache(), layers=layers, **layers_of_model) for layers in (2, 4))
            yield "launches", f"{name}, static {type(cache()).__name__}", "per layer", None, (four - two) / 2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quantities = ["memory", "saved", "bytes_moved", "launches"]
    parser.add_argument("--only", nargs="+", choices=quantities, default=quantities)
    jobs = build_plan(ROOT, {"scale": "paper", "tracking_uri": ""})["train"]
    runs = {name.removesuffix("/seed0"): Run.model_validate(job["spec"]) for name, job in jobs.items()}
    print("| quantity | case | unit | plan | counted | counted / plan |\n|---|---|---|---|---|---|")
    for quantity, case, unit, plan, count in rows(parser.parse_args().only, runs):
        cells = f"{plan:.1f} | {count:.1f} | {count / plan:.2f}" if plan else f" | {count:.1f} | "
        print(f"| {quantity} | {case} | {unit} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
