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


def losses(folder):
    with open(folder / "train.csv", newline="") as file:
        return [float(row["loss_nats"]) for row in csv.DictReader(file)]


def test_a_run_split_over_two_nodes_learns_what_one_process_does(two_nodes, tmp_path):
    laboratory = Laboratory(tmp_path, TWO)
    run = laboratory.runs[0]
    laboratory.start(two_nodes, [run])
    try:
        laboratory.ends()
    finally:
        laboratory.process.kill()
    assert history(two_nodes, laboratory, run, "State", "NNodes") == [("COMPLETED", "2")]
    laboratory.plan["train"][run]["gpus"] = 1
    laboratory.left_alone(run)
    alone = laboratory.root / "alone" / run
    assert losses(laboratory.results / run) == pytest.approx(losses(alone), rel=1e-4)
