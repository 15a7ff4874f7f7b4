# The DAG of all studies. It decides nothing: the plan says which jobs exist, the judge which of their products are what
# the plan asks for, and the rules run the others.
import os
import signal
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from formerlab.errors import UserError
from formerlab.results.notes import SAFE
from formerlab.results.schema import CLAIMS
from formerlab.results.stages import MAKING, MEASURED, STAGES, TIMED
from formerlab.plan.attempts import remove_stale_locks
from formerlab.plan.staleness import Staleness, made_runs
from formerlab.plan.locate import PLAN_VARIABLE, ensure_plan, read_plan, typed

# The rules call python by its plain name; where no environment is active, it is the one beside Snakemake's.
BESIDE = str(Path(sys.executable).parent)
if BESIDE not in os.get_exec_path():
    os.environ.update(PATH=os.pathsep.join([BESIDE, *os.get_exec_path()]))

# Jobs work from the very plan that they were submitted with, however long they wait and whatever is edited meanwhile:
# the environment hands it on, also to the Snakemake that runs inside a cluster job, which reads no configuration.
ROOT = Path(workflow.basedir)
if workflow.is_main_process:
    LIVES = remove_stale_locks(Path(".snakemake"))
    try:  # `config` holds what the command line says beside config.yaml, which the plan reads itself
        os.environ[PLAN_VARIABLE] = str(ensure_plan(ROOT, typed(config)))
    except UserError as error:
        raise WorkflowError(f"{error}") from None


envvars:
    PLAN_VARIABLE,


try:
    PLAN = read_plan(Path(os.environ[PLAN_VARIABLE]))
except UserError as error:
    raise WorkflowError(f"{error}") from None
RESULTS, FIGURES, LOGS = PLAN["results"], PLAN["figures"], f"logs/{PLAN['scale']}"

# A prefix takes the place of Snakemake's own, without which a stage that fails or stops would pass for done in front of
# `| keep`. What a stage says is kept in its log; a cluster job says it to Slurm's log as well, while the terminal shows
# the whole (logger plugin formerlab) and how the log of a job that fails ends.
ASIDE = ">/dev/null" if workflow.is_main_process else ""
shell.prefix(f'set -euo pipefail; keep() (exec tee -i "$1" {ASIDE}); ')


wildcard_constraints:
    id=r"[^/]+/[^/]+/seed\d+",
    study=r"[^/]+",


include: "workflow/rules/common.smk"


rule all:
    input:
        [file for job in PLAN["draw"].values() for file in job["outputs"]],
        records(*MAKING, *MEASURED, *TIMED),
        f"{FIGURES}/claims.csv",
        f"{FIGURES}/runs.csv",
        f"{RESULTS}/mlflow.json",


# A closed terminal ends Snakemake as Ctrl-C does: jobs are stopped, which saves their work, and its lock is freed.
if workflow.is_main_process:
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),  # not under nohup
    ):
        if signal.getsignal(number) == usual:
            signal.signal(number, interrupt)


include: "workflow/rules/targets.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/draw.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/track.smk"


onstart:
    start_nothing_twice()
    here = "--here" if workflow.local_exec else ""
    shell("python -m formerlab check {here}")


onerror:
    after_a_failure()


onsuccess:
    track_if_left_out()
    count_failed_drawings()
