"""Processes with sharded tensors match one process and resume each other's checkpoints."""

import gc
import time
import warnings
from unittest.mock import patch

import pytest
import torch
from fixtures.forked import join_process_group, run_forked
from fixtures.ports import free_ports
from safetensors.torch import load_file
from small_runs import MODEL, TOKENFORMER, rows, small, train_run

from formerlab.errors import StoppedEarly
from formerlab.files import read_json
from formerlab.growth.stage import Growth
from formerlab.layers.depth.dwa import DepthWeightedAverage
from formerlab.plan.cost import BYTES_WEIGHT, STATE_ELEMENTS
from formerlab.tasks import LanguageModeling
from formerlab.training import processes
from formerlab.training.optimizer import AdamW
from formerlab.training.runtime import RuntimeConfig, StopRequest
from formerlab.training.schedule import Constant
from formerlab.training.stage import train_stage

pytestmark = pytest.mark.xdist_group("parallel")

TASK = LanguageModeling(context=8, batch=6, accumulate=6, valid_windows=6)
RUNS = (
    small(model=MODEL.model_copy(update={"dropout": 0.1, "depth": DepthWeightedAverage()}), task=TASK),
    small(model=TOKENFORMER, task=TASK, precision="bfloat16", checkpoint_activations=True),
)
TOLERANCES = ({"rel": 1e-4, "abs": 1e-6}, {"rel": 2e-3})
PHASES = ((2, 0, 4), (3, 4, 7), (1, 7, 9), (3, 9, None))
"""Number of processes, step from which they resume, and step after which they stop."""


def run_as_one_of_three(rank, ports, data, folder):
    """Take part in every phase that includes this rank.

    A phase begins when all processes have finished the previous phase.
    """
    for phase, (count, first, last) in enumerate(PHASES):
        for index, run in enumerate(RUNS):
            join_process_group(rank, count, ports[len(RUNS) * phase + index], sharded=True)
            if rank < count:
                train_until(last, first, run, data, folder / str(index))
        (folder / f"{first}-{rank}").touch()
        while len(list(folder.glob(f"{first}-*"))) < 3:
            time.sleep(0.05)


def train_until(last, first, run, data, out):
    if last is None:
        train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash="code"))
        return
    checks = iter(range(first, last + 1))
    stop = patch.object(StopRequest, "__call__", lambda self: "a test" if next(checks) == last else None)
    with stop, pytest.raises(StoppedEarly, match=f"after step {last} of 12"):
        train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash="code"))


def numbers(row):
    return [value for value in row.values() if not isinstance(value, str)]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_changing_numbers_of_processes_match_one_process(data, tmp_path):
    ports = free_ports(len(PHASES) * len(RUNS))
    run_forked(3, run_as_one_of_three, ports, data, tmp_path)
    for index in range(len(RUNS)):
        assert_matches_one_process(index, data, tmp_path / str(index), tmp_path / f"alone-{index}")


def assert_matches_one_process(index, data, together, alone):
    run = RUNS[index]
    train_run(run, data, alone)
    assert not (together / "checkpoint").exists()
    for name in ("train", "eval", "test"):
        for expected_row, row in zip(rows(alone, name), rows(together, name), strict=True):
            assert numbers(row) == pytest.approx(numbers(expected_row), **TOLERANCES[index]), name
    if run.precision == "float32":
        expected, actual = (load_file(out / "weights.safetensors") for out in (alone, together))
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def measure_as_one_of_two(rank, port, data, out):
    """Between two micro-batches a process stores only its shards of weights, gradients and moments."""
    join_process_group(rank, 2, port, sharded=True)
    gc.freeze()  # the tensors of other tests are not counted
    run = small(model=MODEL.model_copy(update={"layers": 4, "width": 64}), task=TASK, steps=2)
    sizes, micro_batch_context = [], processes.micro_batch_context

    def counting(model, *, last):
        sizes.append(tensor_bytes())
        return micro_batch_context(model, last=last)

    initial_bytes = tensor_bytes()
    with patch.object(processes, "micro_batch_context", counting):
        train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash="code"))
    assert max(sizes) - initial_bytes < 1.05 * run.model.params() * STATE_ELEMENTS * BYTES_WEIGHT / 2


def tensor_bytes():
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [actual for actual in gc.get_objects() if type(actual) in (torch.Tensor, torch.nn.Parameter)]
        tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and type(tensor.grad) is torch.Tensor]
    storages = {actual.untyped_storage().data_ptr(): actual.untyped_storage().nbytes() for actual in tensors}
    return sum(storages.values())


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_gradients_stay_sharded_between_micro_batches(data, tmp_path):
    run_forked(2, measure_as_one_of_two, *free_ports(1), data, tmp_path)


def diverge_as_one_of_two(rank, port, data, out):
    join_process_group(rank, 2, port, sharded=True)
    run = small(task=TASK, optimizer=AdamW(lr=10.0, weight_decay=10.0), schedule=Constant(), steps=60)
    train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash="code"))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_sharded_processes_agree_on_divergence(data, tmp_path):
    run_forked(2, diverge_as_one_of_two, *free_ports(1), data, tmp_path)
    assert read_json(tmp_path / "run.json")["status"] == "diverged"


def test_settings_that_need_full_tensors_are_refused():
    assert processes.unsupported_by_sharding(small()) is None
    assert "optimizer is carried over" in processes.unsupported_by_sharding(small(), carried=True)
    for key, changes in {
        "optimizer.mixing_start_step": {"optimizer": AdamW(mixing_start_step=2)},
        "growth.optimizer=carry": {"init": "parent", "growth": Growth(optimizer="carry")},
        "growth.old_tokens": {"init": "parent", "growth": Growth(old_tokens="freeze")},
    }.items():
        assert processes.unsupported_by_sharding(small(**changes)) == key
