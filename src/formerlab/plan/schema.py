"""What the YAML files may say: config.yaml, workflow/studies/*.yaml and workflow/scales/*.yaml."""

import re
from os.path import normpath
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from formerlab.data.any_data import Data
from formerlab.errors import near_misses, shown
from formerlab.evaluation.language.suites import Suite, check_names
from formerlab.evaluation.timing.speed import EqualTime
from formerlab.released import ReleasedModel
from formerlab.report.claims.registry import ClaimArms
from formerlab.results.stages import MEASURED, TIMED
from formerlab.spec import Seed, Spec

Item = TypeVar("Item")
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$")]

LONGEST_FOLDER = 200
"""Bytes of the name of a folder of results or figures, so that every file system has room for the names below it."""


def _distinct(values: tuple[Item, ...]) -> tuple[Item, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} stands here twice; keep one")
    return values


def _folder(path: str) -> str:
    """Refuse an empty name, the root, the project, and names that a shell, a report or a file system misreads."""
    plain = re.fullmatch(r"(?!-)[\w ./+@=,-]+", path) and len(path.encode()) <= LONGEST_FOLDER
    if not plain or not path.strip() or set(normpath(path).split("/")) <= {"", ".", ".."}:
        allowed = "letters, digits, spaces and ./_-+@=, that begin with no hyphen, such as results"
        raise ValueError(f"{shown(path)} is no folder to write into; use at most {LONGEST_FOLDER} {allowed}")
    return path


def _tracking(uri: str) -> str:
    """Refuse what is not a server address, and credentials, which plans, logs and reports would show."""
    parts = urlsplit(uri)
    if "@" in parts.netloc or parts.query:
        raise ValueError(
            "holds credentials, which would be written into plans and reports; "
            "give MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
        )
    file = uri.startswith("sqlite:///") and parts.path.strip("/")
    server = parts.scheme in ("http", "https") and parts.hostname
    if (uri and not (file or server)) or not uri.isprintable():
        raise ValueError(f'{uri!r} is no tracking server; write sqlite:///mlflow.db, http(s)://server, or "" for none')
    return uri


Folder = Annotated[str, AfterValidator(_folder)]
Processors = Annotated[int, Field(gt=0, le=10**4)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_distinct)]
Studies = Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_distinct)]
ScaleName = Literal["smoke", "laptop", "released", "pilot", "overnight", "pretrained", "workstation", "paper"]


class Config(Spec):
    """config.yaml: the user's file."""

    scale: ScaleName = "laptop"
    """How big the runs are and which data they read: a file of workflow/scales."""
    studies: Studies = ("transformer", "tokenformer", "denseformer", "decay", "combined", "vision")
    """Which studies run: files of workflow/studies."""
    seeds: Seeds | None = None
    """Seeds of every run; null means those of the scale."""
    device: Literal["cpu", "cuda"] | None = None
    """Where models train; null means the scale's device."""
    threads: Processors | None = None
    """CPU threads of a job; null means the scale's number, and of a GPU job that decodes images as many as keep up."""
    data: dict[Name, dict[str, Any]] = {}
    """Your own data: keys laid over the scale's data sets of the same name."""
    suites: dict[Name, dict[str, Any]] = {}
    """Your own question suites: keys laid over the scale's suites of the same name."""
    released: dict[Name, dict[str, Any]] = {}
    """Your own released models: keys laid over the scale's models of the same name."""
    results: Folder = "results"
    """Folder of the result tree."""
    figures: Folder = "figures"
    """Folder of figures and tables."""
    tracking_uri: Annotated[str, AfterValidator(_tracking)] | None = "sqlite:///mlflow.db"
    """MLflow tracking server: a sqlite file, an http(s) address, or empty for none. Credentials belong into the
    environment (MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN)."""
    hardware: dict[str, dict[str, Any]] = {}
    """Laid over the table of processors that the estimates know (plan/hardware.py): measured utilisation, your
    own machine."""
    overlay: Annotated[str, Field(min_length=1)] | None = None
    """A YAML file laid over this one; it takes the same keys, but for `overlay`."""
    set: dict[str, Any] = {}
    """Values laid over single keys of config.yaml and of the overlay: <study>.<key of a run>,
    <study>.runs.<run>.<key>, scale.<key>, study.<study>.<key>, or a key of this file. They may also be written beside
    `set`; then the `set` of any file wins over them."""


class BesideSpec(Spec):
    """Keys of a run that do not belong to its spec: how it is carried out."""

    seeds: Seeds | None = None
    """Seeds of the run, where they differ from its study's."""
    gpus: Processors | None = None
    """GPUs of the run, where they differ from the scale's; they share out its task.accumulate parts evenly."""
    equal_time: EqualTime | None = None
    """The run trains for the time of another: its steps follow from it."""


class Which(Spec):
    """Of which runs something is measured."""

    runs: tuple[str, ...] = ()
    """Patterns of run names; none: nothing is measured."""
    by_run: dict[str, dict[str, Any]] = {}
    """Settings that differ for some of them, by pattern of run names."""


def _stages(asked: dict[str, Item]) -> dict[str, Item]:
    for name in asked.keys() - {*MEASURED, *TIMED}:
        raise ValueError(f"{name}: nothing is measured by this name{near_misses(name, [*MEASURED, *TIMED])}")
    return asked


class Measures(Spec):
    """What is measured beside training: a key of a study, and what a scale lays over it."""

    measure: Annotated[dict[str, dict[str, Any]], AfterValidator(_stages)] = {}
    """By stage (results/stages.py): `runs`, its settings, and `by_run`, settings that differ for some runs."""


class StudyScale(Measures):
    """The settings of one study at a scale."""

    only: tuple[str, ...] = ("*",)
    """Patterns of run names that exist at this scale, the most wanted first: in this order they run where time is
    short (scripts/evidence.py)."""
    given: tuple[str, ...] = ()
    """Patterns of runs whose committed weights others start from; any version of the code may have made them."""
    seeds: Seeds | None = None
    """Seeds, where they differ from the scale's."""
    defaults: dict[str, Any] = {}
    """Keys of every run of the study."""
    runs: dict[str, dict[str, Any]] = {}
    """Keys of single runs, by name, pattern, or template (with its grid)."""
    claims: dict[str, ClaimArms] = {}
    """Claims whose arms are other runs than the study says."""


class Scale(Spec):
    """A file of workflow/scales: sizes and data."""

    description: str
    """One line for people."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where models train."""
    threads: Processors = 1
    """CPU threads of a job."""
    memory_mb: int = Field(default=2000, gt=0, le=10**8)
    """Memory of a job beside what its model needs, MiB."""
    hardware: str = "CPU"
    """Processor that the estimates, and from them the requests of cluster jobs, are made for."""
    flops_per_s: float | None = Field(default=None, ge=1.0, le=1e21)
    """Measured speed of matrix products in training, FLOP/s of one job; null means that of the hardware."""
    gpus: Processors = 1
    """Most GPUs (on a CPU, processes) that train one run together: as many as its task.accumulate parts can be shared
    out to evenly. Results do not depend on it but for the order of sums."""
    nodes: Processors = 1
    """Machines that the GPUs of a run are on, as many on each, in a cluster job; elsewhere all are on one."""
    sharded: bool | None = None
    """Split weights, gradients and moments of a run over its GPUs; null means where it does not fit on one of them."""
    runtime_minutes: int = Field(default=1440, gt=0, le=10**6)
    """Longest time of one cluster job; training that takes longer goes on in the next submission."""
    seeds: Seeds = (0,)
    """Seeds of every run."""
    data: dict[Name, Data]
    """Data sets by name."""
    suites: Annotated[dict[Name, Suite], AfterValidator(check_names)] = {}
    """Question suites by name, beside the embedded questions; zero-shot jobs answer all, sweeps those they name."""
    released: dict[Name, ReleasedModel] = {}
    """Released models by name, for runs that name one in place of training."""
    draw_by_study: bool = False
    """Draw all figures and tables of a study in one job, as where its runs take seconds; one figure alone then waits
    for all runs of its study."""
    defaults: dict[str, Any] = {}
    """Keys of every run that is trained."""
    studies: dict[Name, StudyScale] = {}
    """What differs by study."""


class Study(Measures):
    """A file of workflow/studies: which runs exist."""

    title: str
    """Title for people."""
    paper: str
    """Where the study's ideas are published."""
    question: str
    """What the study asks, in one sentence."""
    defaults: dict[str, Any] = {}
    """Keys of every run."""
    runs: dict[str, dict[str, Any]]
    """Keys of each run. A name with {fields} is a template: its `grid` lists the values."""
    claims: dict[str, ClaimArms] = {}
    """Which runs stand for the arms of the registered claims (report/claims/claims.yaml), by the claim's id."""
