"""What a compiled block keeps for the backward pass, against what the plan counts."""

import jaxtyping
import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from variation import settings

from formerlab.layers.block import activation_elements
from formerlab.layers.depth.union import DepthMixer
from formerlab.models import Decoder

WIDTH, BATCH, TIME = 64, 7, 31  # no weight has a multiple of 7 x 31 numbers
PLAIN = Decoder(vocabulary=32, width=WIDTH, heads=2, context=TIME)
NAMES = ("identity", "gains", "connect_to_last", "static_hyper_connections")
MODELS = {
    mixer.kind: PLAIN.model_copy(update={"depth": mixer}) for mixer in settings(DepthMixer) if mixer.kind in NAMES
}


def kept_bytes(spec, layers):
    """Return the bytes per token that the compiler's partition keeps of the forward pass, weights left out."""
    kept = []

    def forward(graph, inputs):
        (outputs,) = graph.graph.find_nodes(op="output")
        values = {node: node.meta["val"] for node in outputs.args[0] if isinstance(node, torch.fx.Node)}
        kept.append(
            sum(
                value.numel() * value.itemsize
                for value in values.values()
                if isinstance(value, torch.Tensor) and value.numel() % (BATCH * TIME) == 0
            )
        )
        return graph

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=lambda graph, _: graph, partition_fn=min_cut_rematerialization_partition
    )
    torch._dynamo.reset()
    model = torch.compile(spec.model_copy(update={"layers": layers}).build(), backend=backend)
    tokens = torch.zeros(BATCH, TIME, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens, targets=tokens)
    return max(kept) / (BATCH * TIME)


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_block_keeps_what_the_plan_counts(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the graph would break at its checks
    spec = MODELS[name]
    found = (kept_bytes(spec, 4) - kept_bytes(spec, 2)) / 2
    planned = 2 * activation_elements(WIDTH, spec.projection, spec.feedforward, spec.depth)
    assert planned == pytest.approx(found, rel=0.1)
