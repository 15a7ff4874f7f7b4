"""Training on a fake GPU: all tensors are on it, and results match the CPU."""

import json
from itertools import count

import pytest
import torch
from fixtures.fake_device import DEVICE, fake_device
from fixtures.separate_process import separate_process
from small_runs import RUN, TOKENFORMER, rows, small
from test_golden_trajectories import RUNS, data_of

from formerlab.errors import StoppedEarly
from formerlab.growth.stage import Growth
from formerlab.layers import Pattention
from formerlab.training.loop import Hooks, train
from formerlab.training.runtime import RuntimeConfig, StopRequest
from formerlab.training.stage import train_stage
from formerlab.training.state import State

KINDS = (
    "decoder learned swiglu dropout",
    "tokenformer bfloat16",
    "dwa 2x3 late",
    "softmax average",
    "last k",
    "connect to last",
    "random sparse",
    "attention residuals",
    "mudd",
    "hyper-connections static",
    "hyper-connections dynamic",
    "hyper-connections manifold",
    "gains",
    "translator pre pattention dwa",
    "vision pattention",
)
"""Together these runs cover every depth mixer and task, and bfloat16."""


@pytest.fixture(scope="module")
def on_device():
    """Return a function that calls a test function in a process with the fake device."""
    with separate_process(fake_device) as call:
        yield call


def losses(run, model, examples, valid, stop=lambda: None):
    """Train a model and return the losses."""
    state, device = State(model, run.optimizer.build(model)), model.state_dict().popitem()[1].device
    assert train(run, state, examples, valid, Hooks(save=lambda state: None, stop=stop)) is None
    assert {tensor.device for tensor in model.state_dict().values()} == {device}
    return [row[2] for row in state.rows["train"]] + [row[4] for row in state.rows["eval"]]


def check_kind(name, folder):
    run = RUNS[name].model_copy(update={"steps": 6, "log_every": 100, "evaluate_every": 100})
    examples, valid = data_of(run, folder)
    expected, counts = losses(run, run.model.build(run.seed), examples, valid), []
    with fake_device() as device:
        model = run.model.build(run.seed).to(DEVICE)
        device.synchronisations.clear()
        actual = losses(run, model, examples, valid, lambda: counts.append(len(device.synchronisations)))
    assert actual == pytest.approx(expected, abs=0.05 if "bfloat16" in name else 1e-4)
    # reading the mixing weights for depth.csv also synchronises
    validation = [line for line in device.synchronisations[: counts[0]] if "formerlab/layers/" not in line]
    assert len(validation) == 1, validation  # one synchronisation for all batches
    # the first and the last step are logged, so they synchronise
    assert device.synchronisations[counts[1] : counts[5]] == []


@pytest.mark.parametrize("name", KINDS)
def test_models_match_the_cpu_and_do_not_synchronise_between_logged_steps(on_device, name, tmp_path):
    on_device(check_kind, name, tmp_path)


def run_stage(run, data, out, device, parent=None, stop_at=None, **settings):
    """Run the stage, interrupted at step `stop_at` if it is given; return the folder."""
    checks = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "__call__", lambda self: "a test" if next(checks) == stop_at else None)
        runtime = RuntimeConfig(code_hash="code", device=device, **settings)
        if stop_at is not None:
            with pytest.raises(StoppedEarly):
                train_stage(run, data, out, parent=parent, runtime=runtime)
        train_stage(run, data, out, parent=parent, runtime=runtime)
    return out


def check_stage(data, folder):
    """Train, stop, resume, and grow with the optimizer's state and frozen old tokens."""
    first = small(model=TOKENFORMER, steps=6, schedule=RUN.schedule)
    larger_layers = {"projection": Pattention(tokens=9), "feedforward": Pattention(tokens=16)}
    growth = Growth(keys="zero", tau="keep", optimizer="carry", old_tokens="freeze")
    second = small(model=TOKENFORMER.model_copy(update=larger_layers), steps=4, init="first", growth=growth)
    folders = {}
    for device in ("cpu", DEVICE):
        with fake_device():
            parent = run_stage(first, data, folder / device / "first", device, stop_at=3, keep_optimizer=True)
            folders[device] = [parent, run_stage(second, data, folder / device / "second", device, parent)]
    for expected, actual in zip(*folders.values(), strict=True):
        assert json.loads((actual / "run.json").read_text())["status"] == "finished"
        for name in ("train", "eval", "test"):
            pairs = zip(rows(expected, name), rows(actual, name), strict=True)
            assert all(b["loss_nats"] == pytest.approx(a["loss_nats"], abs=1e-4) for a, b in pairs)


def test_a_stage_that_stops_resumes_and_grows_matches_the_cpu(on_device, data, tmp_path):
    on_device(check_stage, data, tmp_path)


def check_wrong_device():
    with fake_device():
        model = RUN.model.build(0).to(DEVICE)
        with pytest.raises(RuntimeError, match="on the CPU and on the fake device"):
            model(torch.zeros(1, 4, dtype=torch.long))


def test_a_tensor_on_the_wrong_device_is_refused(on_device):
    on_device(check_wrong_device)
