"""The model of a finished run."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from formerlab.errors import UserError
from formerlab.training.record import load_record
from formerlab.training.run import Run
from formerlab.yaml_files import read_yaml


def load(run: str | Path) -> nn.Module:
    """Return the model of a finished run with its final weights, ready to use (in evaluation mode, on the CPU).

    `run` is a run's folder, or its id (`denseformer/plain-4/seed0`) where one scale in `results/live` has such a run
    (or in `live` of the folder that config.yaml, or its overlay, names as `results`).
    Raises UserError where there is none, or more than one, or where it diverged.
    """
    return load_model(found(run))[0]


def found(run: str | Path) -> Path:
    """Return the folder of a finished run, given that or its id. Raises UserError as `load` does.

    An id is looked for below the `results` of config.yaml in the working directory.
    """
    folder = Path(run)
    if not (folder / "run.json").is_file() and not folder.is_absolute():
        config = read_yaml(Path(), "config.yaml") if Path("config.yaml").is_file() else {}
        overlay = read_yaml(Path(), config["overlay"]) if config.get("overlay") else {}
        layers = (overlay.get("set") or {}, config.get("set") or {}, overlay, config)  # as a plan lays them
        named = [layer.get("results") for layer in layers]
        results = next(filter(None, named), "results")
        live = [path.parent for path in sorted(Path(results, "live").glob(f"*/{folder}/run.json"))]
        if len(live) > 1:
            raise UserError(f"{run}: more than one scale has this run; name {' or '.join(map(str, live))}")
        folder = live[0] if live else folder
    if not (folder / "run.json").is_file():
        raise UserError(f"{run}: no finished run there; python -m formerlab runs lists those of a scale")
    return folder


def load_model(folder: Path, kind: str | None = None) -> tuple[nn.Module, Run]:
    """Return the final model of a finished run, ready to evaluate, and the run.

    Raises UserError for another `kind`, and for a run that diverged: its weights are those before it did.
    """
    record = load_record(folder)
    if record["status"] == "diverged":
        raise UserError(f"{folder}: diverged in step {record['diverged_at_step']}; name a run that did not")
    run = Run.model_validate(record["spec"])
    if kind not in (None, run.model.kind):
        raise UserError(f"{folder}: a {run.model.kind}, but only a {kind} can do this; name another run")
    model = run.model.build(run.seed)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval(), run


def data_of(folder: Path, run: Run) -> Path:
    """Return the data folder of a run, given its own: results/<tree>/<scale>/<study>/<run>/seed<k>."""
    return (folder.resolve() / "../../.." / "data" / run.data).resolve()
