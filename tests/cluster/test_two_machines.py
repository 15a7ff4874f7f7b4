"""A run on two nodes of a real Slurm, which are both this machine: the executor's tasks, srun and torchrun together."""

import csv

import pytest
from laboratory import Laboratory, history
from private_slurm import PrivateSlurm

pytestmark = pytest.mark.slow

TWO = """
scale.nodes: 2
scale.gpus: 2
scale.sharded: true
tokenformer.task.accumulate: 2
denseformer.task.accumulate: 2
decay.task.accumulate: 2
"""


@pytest.fixture(scope="module")
def two_nodes(installed, tmp_path_factory):
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"), nodes=("first", "second"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def laboratory(two_nodes, tmp_path, request):
    """Return a checkout with a run of two processes that has ended on so many of the nodes."""
    laboratory = Laboratory(tmp_path, TWO.replace("scale.nodes: 2", f"scale.nodes: {request.param}"))
    laboratory.start(two_nodes, laboratory.runs[:1])
    try:
        laboratory.ends()
    finally:
        laboratory.process.kill()
    return laboratory


def losses(folder):
    with open(folder / "train.csv", newline="") as file:
        return [float(row["loss_nats"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("laboratory", [2], indirect=True)
def test_a_run_split_over_two_nodes_learns_what_one_process_does(laboratory, two_nodes):
    run = laboratory.runs[0]
    assert history(two_nodes, laboratory, run, "State", "NNodes") == [("COMPLETED", "2")]
    laboratory.plan["train"][run]["gpus"] = 1
    laboratory.left_alone(run)
    alone = laboratory.root / "alone" / run
    assert losses(laboratory.results / run) == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.parametrize("laboratory", [1], indirect=True)
def test_several_processes_on_one_machine_are_asked_for_on_one_machine(laboratory, two_nodes):
    """Slurm would otherwise be free to give the GPUs of the job on both nodes."""
    run = laboratory.runs[0]
    ((job, state, machines),) = history(two_nodes, laboratory, run, "JobID", "State", "NNodes")
    assert (state, machines) == ("COMPLETED", "1")
    assert laboratory.plan["train"][run]["gpus"] == 2
    submitted = dict(two_nodes.accounts("JobID", "SubmitLine"))
    assert "--nodes=1" in submitted[job].split()
