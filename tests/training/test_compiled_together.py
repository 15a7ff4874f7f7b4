"""Two processes learn what one does alone where they compile their model, whole or split, with every depth mixer."""

import functools
import os
from unittest.mock import patch

import pytest
import torch
from fixtures.forked import forked
from fixtures.ports import free_ports
from small_runs import MODEL, rows, small, trained
from variation import defaults

from formerlab.layers.depth.union import DepthMixer
from formerlab.tasks import LanguageModeling
from formerlab.training.runtime import SHARDED, RuntimeConfig
from formerlab.training.stage import train_stage

pytestmark = pytest.mark.xdist_group("parallel")

LAYERS = 10  # more than the compiler makes graphs of one function
MIXERS = list({type(mixer.build(2, 8)): mixer for mixer in defaults(DepthMixer)}.values())
"""One of every kind of module."""
TASK = LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=2)


def runs(split):
    model = MODEL.model_copy(update={"layers": LAYERS if split else 2})
    changes = {"task": TASK, "steps": 2, "log_every": 1, "evaluate_every": 2, "compile": True}
    return [small(name=mixer.kind, model=model.model_copy(update={"depth": mixer}), **changes) for mixer in MIXERS]


def one_of_two(rank, ports, split, data, folder):
    torch.set_num_threads(1)
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, SHARDED: int(split), "MASTER_ADDR": "localhost"}
    for run, port in zip(runs(split), ports, strict=True):
        os.environ.update({name: str(value) for name, value in environment.items()}, MASTER_PORT=str(port))
        if not split:  # what is compiled of a split model does not depend on the mixer
            torch._dynamo.reset()
        with (
            patch.object(torch, "compile", functools.partial(torch.compile, backend="aot_eager")),
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        ):
            train_stage(run, data, folder / run.name, parent=None, runtime=RuntimeConfig(code_hash="code"))
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
@pytest.mark.parametrize("split", [False, True])
def test_every_mixer_is_compiled_in_processes_that_hold_the_model_whole_or_split(split, data, tmp_path):
    forked(2, one_of_two, free_ports(len(MIXERS)), split, data, tmp_path)
    for run in runs(split):
        alone = run.model_copy(update={"compile": False})
        trained(alone, data, tmp_path / "alone" / run.name)
        found, expected = (rows(folder / run.name, "train") for folder in (tmp_path, tmp_path / "alone"))
        assert [row["loss_nats"] for row in found] == pytest.approx([row["loss_nats"] for row in expected], rel=1e-4)
