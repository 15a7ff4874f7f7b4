"""How a run starts: what it needs is checked, and its state is made: fresh, grown from a parent, or resumed."""

import sys
from contextlib import nullcontext
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.files import read_json, sha256
from formerlab.growth.optimizer import grow_optimizer_state, hold_old_tokens
from formerlab.growth.tokens import continued_spec, grow_into, grown_spec
from formerlab.kernels.native import kernel_path
from formerlab.layers.initial import without_values
from formerlab.results.stages import OPTIMIZER
from formerlab.training import processes, provenance
from formerlab.training.checkpoint import Content, differences, load_tensors
from formerlab.training.finish import FILES, WEIGHTS, tidy
from formerlab.training.record import Record, load_record
from formerlab.training.run import Run
from formerlab.training.runtime_config import RuntimeConfig
from formerlab.training.state import State


def record_of_parent(run: Run, parent: Path | None) -> Record | None:
    """Return the record of the run that this one starts from, checked with its weights; raise UserError without one."""
    if run.init is None:
        return None
    if parent is None:
        raise UserError(f"{run.id}: init={run.init} needs the folder of that run")
    if not (parent / "run.json").exists():
        raise UserError(f"{run.id}: init={run.init} is not finished, {parent / 'run.json'} is missing; train it first")
    record = load_record(parent)
    if "read" not in record:
        raise UserError(
            f"{run.id}: init={run.init} is of an older version that did not note what it read; train it again"
        )
    if record["status"] != "finished":
        raise UserError(f"{run.id}: init={run.init} {record['status']}; change its settings (lower optimizer.lr) first")
    return record


def identity(spec_hash: str, data: Record, code_hash: str, init: Record | None) -> dict[str, str]:
    """Return what decides the results of a run; `data` and `init` are records of its data and of its parent."""
    found = {"spec": spec_hash, "data": data["fingerprint"], "code": code_hash}
    return found if init is None else found | {"init": init["weights_sha256"]}


def is_finished(run: Run, out: Path, belongs_to: dict[str, str], runtime: RuntimeConfig) -> bool:
    """Say whether `out` holds this very run, whole; another one is replaced only if the settings say so."""
    path = out / "run.json"
    if not path.exists():
        return False
    record = read_json(path)
    found = identity(record["spec_hash"], record["data"], record["code_hash"], record["init"])
    if differing := differences(found, belongs_to):
        reason = f"{path}: result of another run ({differing})"
        if runtime.on_mismatch != "restart":
            raise UserError(f"{reason}; replace it with --on-mismatch restart")
        print(f"training anew: {reason}", file=sys.stderr)
        return False
    names = (*FILES, OPTIMIZER) if runtime.keep_optimizer else FILES
    damaged = [name for name in names if not (out / name).exists()]
    stated = record.get("rows_sha256", {}) | {WEIGHTS: record["weights_sha256"]}
    damaged = damaged or [name for name, digest in stated.items() if sha256(out / name) != digest]
    if damaged:
        print(f"training again: {out} has no whole {', '.join(damaged)}", file=sys.stderr)
        return False
    print(f"{run.id}: already {record['status']}", file=sys.stderr)
    tidy(out, record["status"])
    return True


def initial_state(run: Run, parent: Path | None, record: Record | None, content: Content | None, device: str) -> State:
    """Build model and optimizer at step 0, from the weights of the parent where there is one, with its record.

    Where the content of a checkpoint follows, nothing is drawn or copied before: the model is built without values.
    """
    growth, weights, spec = run.growth, dict[str, Tensor](), run.model
    if parent is not None and record is not None:
        weights, old = load_file(parent / WEIGHTS), Run.model_validate(record["spec"]).model
        spec = continued_spec(old, spec) if growth is None else grown_spec(old, spec, growth)
    model: nn.Module
    if content is None and growth is not None:
        model = grow_into(weights, old, spec, growth, run.seed)
    else:
        with nullcontext() if content is None else without_values():
            model = spec.build(run.seed)
        if weights and content is None:
            model.load_state_dict(weights)
    model = processes.placed(model, device, run.precision)
    state = State(model, run.optimizer.build(model), started=provenance.now())
    if growth is not None:
        hold_old_tokens(state.optimizer, model, weights, growth.old_tokens)
    if content is not None:
        state.restore(content)
    elif parent is not None and growth is not None and growth.optimizer == "carry":
        remedy = f"train {run.init_id} again, which then keeps it"
        carried = load_tensors(parent / OPTIMIZER, {"state", "param_groups"}, remedy)
        state.optimizer.load_state_dict(grow_optimizer_state(carried, state.optimizer))
    return state


def note_kernels(state: State) -> None:
    """Note on which path of kernels the next steps are computed; say so where it is another one than before."""
    now, before = kernel_path(), state.kernels[-1:]
    if before and before != [now] and processes.rank() == 0:
        differing = f"the steps before were computed with kernels '{before[0]}', the next ones with '{now}'"
        print(f"{differing}: the bits differ from those of a run on one path", file=sys.stderr)
    state.kernels += [now] if before != [now] else []
