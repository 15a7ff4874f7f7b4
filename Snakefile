# The DAG of all studies. The rules run the jobs of the plan whose outputs are not up to date.
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
from formerlab.plan.staleness import Staleness, run_jobs
from formerlab.plan.locate import PLAN_VARIABLE, ensure_plan, read_plan, typed

# The rules call `python`. If the folder of Snakemake's interpreter is missing in PATH, put it first, so that `python` is
# this interpreter.
ENVIRONMENT_BIN = str(Path(sys.executable).parent)
if ENVIRONMENT_BIN not in os.get_exec_path():
    os.environ.update(PATH=os.pathsep.join([ENVIRONMENT_BIN, *os.get_exec_path()]))

# A job uses the plan with which it was submitted, even if files are edited while it waits. An environment variable
# passes the plan to jobs and to the Snakemake inside a cluster job.
ROOT = Path(workflow.basedir)
if workflow.is_main_process:
    HELD_LOCK = remove_stale_locks(Path(".snakemake"))
    try:  # `config` has the values of --config and of a profile's configfile; the plan reads config.yaml itself
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

# This prefix replaces Snakemake's prefix. With `pipefail`, the pipeline `stage | keep` fails if the stage fails. `keep`
# writes the output of a stage to its log, and in a cluster job also to the log of the scheduler.
REDIRECT = ">/dev/null" if workflow.is_main_process else ""
shell.prefix(f'set -euo pipefail; keep() (exec tee -i "$1" {REDIRECT}); ')


wildcard_constraints:
    id=r"[^/]+/[^/]+/seed\d+",
    study=r"[^/]+",


include: "workflow/rules/common.smk"


rule all:
    input:
        [file for job in PLAN["draw"].values() for file in job["outputs"]],
        record_files(*MAKING, *MEASURED, *TIMED),
        f"{FIGURES}/claims.csv",
        f"{FIGURES}/runs.csv",
        f"{RESULTS}/mlflow.json",


# A closed terminal ends Snakemake like Ctrl-C.
if workflow.is_main_process:
    for number, default_handler in (
        (signal.SIGINT, signal.default_int_handler),
        (
            signal.SIGHUP,
            signal.SIG_DFL,
        ),  # under nohup the handler is SIG_IGN and is not replaced
    ):
        if signal.getsignal(number) == default_handler:
            signal.signal(number, interrupt)


include: "workflow/rules/targets.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/draw.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/track.smk"


onstart:
    refuse_running_jobs()
    local_option = "--here" if workflow.local_exec else ""
    shell("python -m formerlab check {local_option}")


onerror:
    after_a_failure()


onsuccess:
    track_after_training()
    raise_for_failed_figures()
