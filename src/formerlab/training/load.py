"""Load the model of a finished run."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from formerlab.errors import UserError
from formerlab.training.record import load_record
from formerlab.training.run import Run
from formerlab.yaml_files import read_yaml


def load(run: str | Path) -> nn.Module:
    """Return the model of a finished run with its final weights, in evaluation mode on the CPU.

    `run` is the folder of a run or its id, such as `denseformer/plain-4/seed0`, which is searched in all scales below
    `<results>/live`. `<results>` is the key `results` of config.yaml or of its overlay (default: `results`). Raises
    UserError if the run does not exist, exists in several scales, or diverged.
    """
    return load_model(find_finished_run(run))[0]


def find_finished_run(run: str | Path) -> Path:
    """Return the folder of a finished run, given its folder or id; see `load`."""
    folder = Path(run)
    if not (folder / "run.json").is_file() and not folder.is_absolute():
        config = read_yaml(Path(), "config.yaml") if Path("config.yaml").is_file() else {}
        overlay = read_yaml(Path(), config["overlay"]) if config.get("overlay") else {}
        # The first setting has the highest precedence, as in a plan.
        configs = (overlay.get("set") or {}, config.get("set") or {}, overlay, config)
        results = next(filter(None, (settings.get("results") for settings in configs)), "results")
        matches = [path.parent for path in sorted(Path(results, "live").glob(f"*/{folder}/run.json"))]
        if len(matches) > 1:
            raise UserError(f"{run}: several scales have this run; give the folder {' or '.join(map(str, matches))}")
        folder = matches[0] if matches else folder
    if not (folder / "run.json").is_file():
        raise UserError(f"{run}: no finished run; python -m formerlab runs lists the runs of a scale")
    return folder


def load_model(folder: Path, kind: str | None = None) -> tuple[nn.Module, Run]:
    """Return the final model of a finished run in evaluation mode on the CPU, and the run.

    Raises UserError if the run diverged, or if its model is not of this `kind`; None accepts all kinds.
    """
    record = load_record(folder)
    if record["status"] == "diverged":
        raise UserError(f"{folder}: diverged in step {record['diverged_at_step']}; choose a run that finished")
    run = Run.model_validate(record["spec"])
    if kind not in (None, run.model.kind):
        raise UserError(f"{folder}: model.kind is {run.model.kind}, must be {kind}; choose another run")
    model = run.model.build(run.seed)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    return model.eval(), run


def data_folder(folder: Path, run: Run) -> Path:
    """Return the data folder of a run, given the run's folder results/<tree>/<scale>/<study>/<run>/seed<k>."""
    return (folder.resolve() / "../../.." / "data" / run.data).resolve()
