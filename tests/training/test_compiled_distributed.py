"""Two compiling processes, with DDP or FSDP, match one process for every family of mixers."""

import functools
from unittest.mock import patch

import pytest
import torch
from fixtures.forked import join_process_group, run_forked
from fixtures.ports import free_ports
from small_runs import MODEL, rows, small, train_run
from variation import defaults

from formerlab.layers import DepthWeightedAverage
from formerlab.layers.depth.union import DepthMixer
from formerlab.tasks import LanguageModeling
from formerlab.training.runtime import RuntimeConfig
from formerlab.training.stage import train_stage

pytestmark = pytest.mark.xdist_group("parallel")

LAYERS = 10  # more than the compiler's limit of graphs per function
EVERY_MIXER = [*defaults(DepthMixer), DepthWeightedAverage()]  # DenseFormer last, so that it stands for the averages
MIXERS = list({type(mixer.build(2, 8)).mro()[-4:][0]: mixer for mixer in EVERY_MIXER}.values())
"""One mixer of every direct subclass of Mixer, and Mixer itself."""
TASK = LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=2)


def runs(sharded):
    model = MODEL.model_copy(update={"layers": LAYERS if sharded else 2})
    changes = {"task": TASK, "steps": 2, "log_every": 1, "evaluate_every": 2, "compile": True}
    mixers = MIXERS[::2] if sharded else MIXERS[1::2]
    return [small(name=mixer.kind, model=model.model_copy(update={"depth": mixer}), **changes) for mixer in mixers]


def one_of_two(rank, ports, sharded, data, folder):
    for run, port in zip(runs(sharded), ports, strict=True):
        join_process_group(rank, 2, port, sharded=sharded)
        if not sharded:
            torch._dynamo.reset()
        with (
            patch.object(torch, "compile", functools.partial(torch.compile, backend="eager")),
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        ):
            train_stage(run, data, folder / run.name, parent=None, runtime=RuntimeConfig(code_hash="code"))
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
@pytest.mark.parametrize("sharded", [False, True])
def test_mixers_compile_under_ddp_and_fsdp(sharded, data, tmp_path):
    run_forked(2, one_of_two, free_ports(len(runs(sharded))), sharded, data, tmp_path)
    for run in runs(sharded):
        alone = run.model_copy(update={"compile": False})
        train_run(alone, data, tmp_path / "alone" / run.name)
        actual, expected = (rows(folder / run.name, "train") for folder in (tmp_path, tmp_path / "alone"))
        assert [row["loss_nats"] for row in actual] == pytest.approx([row["loss_nats"] for row in expected], rel=1e-4)
