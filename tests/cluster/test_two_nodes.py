"""Train on two nodes of a private Slurm; both nodes are this machine.

The test covers the executor, srun and torchrun.
"""

import csv

import pytest
from gated_checkout import GatedCheckout, history
from private_slurm import PrivateSlurm

pytestmark = pytest.mark.slow

TWO_NODES = """
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
def checkout(two_nodes, tmp_path, request):
    """Return a checkout in which a run of two processes has finished on `request.param` nodes."""
    checkout = GatedCheckout(tmp_path, TWO_NODES.replace("scale.nodes: 2", f"scale.nodes: {request.param}"))
    checkout.start(two_nodes, checkout.runs[:1])
    try:
        checkout.wait_for_end()
    finally:
        checkout.process.kill()
    return checkout


def losses(folder):
    with open(folder / "train.csv", newline="") as file:
        return [float(row["loss_nats"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("checkout", [2], indirect=True)
def test_a_run_on_two_nodes_has_the_losses_of_one_process(checkout, two_nodes):
    run = checkout.runs[0]
    assert history(two_nodes, checkout, run, "State", "NNodes") == [("COMPLETED", "2")]
    checkout.plan["train"][run]["gpus"] = 1
    checkout.uninterrupted_hashes(run)
    uninterrupted = checkout.root / "alone" / run
    assert losses(checkout.results / run) == pytest.approx(losses(uninterrupted), rel=1e-4)


@pytest.mark.parametrize("checkout", [1], indirect=True)
def test_a_job_with_several_gpus_requests_one_node(checkout, two_nodes):
    """Without --nodes=1, Slurm may allocate the GPUs of the job on both nodes."""
    run = checkout.runs[0]
    ((job, state, machines),) = history(two_nodes, checkout, run, "JobID", "State", "NNodes")
    assert (state, machines) == ("COMPLETED", "1")
    assert checkout.plan["train"][run]["gpus"] == 2
    submitted = dict(two_nodes.accounts("JobID", "SubmitLine"))
    assert "--nodes=1" in submitted[job].split()
