"""Schemas of the YAML files: config.yaml, workflow/studies/*.yaml and workflow/scales/*.yaml."""

import re
from os.path import normpath
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from formerlab.data.any_data import Data
from formerlab.errors import near_misses, short_repr
from formerlab.evaluation.language.suites import Suite, check_names
from formerlab.evaluation.timing.speed import EqualTime
from formerlab.released import ReleasedModel
from formerlab.report.claims.registry import ClaimArms
from formerlab.results.stages import MEASURED, TIMED
from formerlab.spec import Seed, Spec

Item = TypeVar("Item")
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]

LONGEST_FOLDER = 200
"""Maximum length of the path of the results or figures folder in bytes."""


def _check_distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is listed twice; keep one")
    return values


def _check_folder(path: str) -> str:
    """Check that a path names a folder other than the project, with characters that shells and reports accept."""
    plain = re.fullmatch(r"(?!-)[\w ./+@=,-]+", path) and len(path.encode()) <= LONGEST_FOLDER
    if not plain or not path.strip() or set(normpath(path).split("/")) <= {"", ".", ".."}:
        allowed = f"{LONGEST_FOLDER} letters, digits, spaces and ./_-+@=, and no hyphen at the start (example: results)"
        raise ValueError(f"{short_repr(path)} is not a valid output folder; use at most {allowed}")
    return path


def _check_tracking_uri(uri: str) -> str:
    """Check that a tracking URI is valid and has no credentials, because plans and reports contain it."""
    address = urlsplit(uri)
    if "@" in address.netloc or address.query:
        raise ValueError(
            "contains credentials, which would be written into plans and reports; "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
        )
    file = uri.startswith("sqlite:///") and address.path.strip("/")
    server = address.scheme in ("http", "https") and address.hostname
    if (uri and not (file or server)) or not uri.isprintable():
        raise ValueError(f'{uri!r} is not a tracking URI; write sqlite:///mlflow.db, http(s)://server, or "" for none')
    return uri


OutputFolder = Annotated[str, AfterValidator(_check_folder)]
ResourceCount = Annotated[int, Field(gt=0, le=10**4)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_check_distinct)]
Studies = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_check_distinct)]


class Config(Spec):
    """config.yaml: the user's file."""

    scale: Name = "laptop"
    """Name of a file in workflow/scales."""
    studies: Studies | None = None
    """Studies to run (files in workflow/studies); null means the studies in the scale's file, or all studies in the
    order of their papers if the file has no studies."""
    seeds: Seeds | None = None
    """Seeds of every run; null means the seeds of the scale."""
    device: Literal["cpu", "cuda"] | None = None
    """Device for training and measurements; null means the scale's device."""
    threads: ResourceCount | None = None
    """CPU threads of a job; null means the scale's number, or a larger number for GPU jobs that load images."""
    data: dict[Name, dict[str, Any]] = {}
    """Your own data: keys merged over the scale's data sets of the same name."""
    suites: dict[Name, dict[str, Any]] = {}
    """Your own question suites: keys merged over the scale's suites of the same name."""
    released: dict[Name, dict[str, Any]] = {}
    """Your own released models: keys merged over the scale's models of the same name."""
    results: OutputFolder = "results"
    """Folder for results."""
    figures: OutputFolder = "figures"
    """Folder for figures and tables."""
    tracking_uri: Annotated[str, AfterValidator(_check_tracking_uri)] | None = "sqlite:///mlflow.db"
    """MLflow tracking URI: a sqlite file, an http(s) address, or empty for no tracking. Set credentials in the
    environment (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN)."""
    hardware: dict[str, dict[str, Any]] = {}
    """Keys merged over the table of processors for the estimates (plan/hardware.py)."""
    overlay: Annotated[str, Field(min_length=1)] | None = None
    """A YAML file merged over this one, with the same keys except `overlay`."""
    set: dict[str, Any] = {}
    """Values for single keys: <study>.<key of a run>, <study>.runs.<run>.<key>, scale.<key>, study.<study>.<key>, or a
    key of this file. They override config.yaml and the overlay. The same keys may also be written outside `set`, with
    lower priority than the `set` of any file."""


class ExecutionKeys(Spec):
    """Keys of a run that control its execution (seeds, GPUs, equal time)."""

    seeds: Seeds | None = None
    """Seeds of the run, if they differ from the seeds of its study."""
    gpus: ResourceCount | None = None
    """Number of GPUs of the run, if it differs from the number of the scale. It must divide task.accumulate."""
    equal_time: EqualTime | None = None
    """Train for the same time as another run; measured times determine the number of steps."""


class MeasuredRuns(Spec):
    """The runs that a stage measures."""

    runs: tuple[str, ...] = ()
    """Patterns of run names; empty means that no runs are measured."""
    by_run: dict[str, dict[str, Any]] = {}
    """Settings that differ for some runs, by pattern of run names."""


def _check_stages(measurements: dict[str, Item]) -> dict[str, Item]:
    for name in measurements.keys() - {*MEASURED, *TIMED}:
        raise ValueError(f"{name}: no such measurement{near_misses(name, [*MEASURED, *TIMED])}")
    return measurements


class Measures(Spec):
    """The measurements of a study; a scale can override them."""

    measure: Annotated[dict[str, dict[str, Any]], AfterValidator(_check_stages)] = {}
    """Settings by stage (results/stages.py), with the keys of `MeasuredRuns`."""


class StudyScale(Measures):
    """The settings of one study at a scale."""

    only: tuple[str, ...] = ("*",)
    """Patterns of run names that exist at this scale. scripts/evidence.py trains the runs in this order."""
    given: tuple[str, ...] = ()
    """Patterns of parent runs with committed weights, which stay up to date if the code changes."""
    seeds: Seeds | None = None
    """Seeds, if they differ from the seeds of the scale."""
    defaults: dict[str, Any] = {}
    """Keys of every trained run of the study; runs of released models use only `data`."""
    runs: dict[str, dict[str, Any]] = {}
    """Keys of single runs, by pattern, template (with its grid), or name, in order of increasing priority."""
    claims: dict[str, ClaimArms] = {}
    """Arms of claims, by claim id; a claim listed here replaces the claim in the study's file."""


class Scale(Spec):
    """A file of workflow/scales."""

    description: str
    """One line about the scale."""
    evidence: bool | Literal["rates"] = False
    """true: verdicts include the committed rows of the scale, and its figures are committed. rates: only the searches
    for learning rates are committed."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device for training and measurements."""
    threads: ResourceCount = 1
    """CPU threads of a job."""
    memory_mb: int = Field(default=2000, gt=0, le=10**8)
    """MiB of a training job in addition to the memory of its model; data, measuring and timing jobs get twice this."""
    hardware: str = "CPU"
    """Processor (plan/hardware.py) for the estimates of time and memory, which determine requests of cluster jobs."""
    gpus: ResourceCount = 1
    """Maximum number of GPUs (on a CPU, processes) of one run. A run uses the largest number that divides its
    task.accumulate; a run that would use only one must set `gpus: 1`. The number changes results only by rounding."""
    nodes: ResourceCount = 1
    """Machines of a run in a cluster job, each with the same number of GPUs; 1 without a cluster."""
    sharded: bool | None = None
    """Split weights, gradients and moments of a run over its GPUs; null: only if the run does not fit on one GPU."""
    runtime_minutes: int = Field(default=1440, gt=0, le=10**6)
    """Time limit of one cluster job in minutes; longer training continues in the next submission."""
    seeds: Seeds = (0,)
    """Seeds of every run."""
    data: dict[Name, Data]
    """Data sets by name."""
    labels: dict[Name, str] = {}
    """Labels of data sets in figures and tables, by name; the default label is the name."""
    suites: Annotated[dict[Name, Suite], AfterValidator(check_names)] = {}
    """Question suites by name, in addition to the embedded questions. Zero-shot jobs use all suites; `prune` jobs use
    the suites in their setting `suites`."""
    released: dict[Name, ReleasedModel] = {}
    """Released models by name."""
    draw_by_study: bool = False
    """Render all figures and tables of a study in one job, after all its runs. This is faster if runs take seconds."""
    defaults: dict[str, Any] = {}
    """Keys of every trained run."""
    studies: dict[Name, StudyScale] = {}
    """Settings by study."""


class Study(Measures):
    """A file of workflow/studies."""

    title: str
    """Title in reports."""
    paper: str
    """Paper that the study reproduces."""
    question: str
    """Research question, in one sentence."""
    defaults: dict[str, Any] = {}
    """Keys of every trained run; runs of released models use only `data`."""
    runs: dict[str, dict[str, Any]]
    """Keys of each run. A name with {fields} is a template; its key `grid` lists the values."""
    claims: dict[str, ClaimArms] = {}
    """Arms of the registered claims (report/claims/claims.yaml), by claim id."""
