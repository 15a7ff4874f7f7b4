"""Have the Snakemake of a copied checkout ask Slurm for its jobs every two seconds.

The executor asks after 2, 12, 22, ... seconds as long as no job succeeds, which suits jobs of hours; these tests would
spend most of their time waiting for it.
"""

ASKING = """
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
RemoteExecutor.next_seconds_between_status_checks = property(lambda executor: 2, lambda executor, seconds: None)
"""


def ask_often(checkout):
    """Change the checkout's Snakefile."""
    with open(checkout.root / "Snakefile", "a") as file:
        file.write(ASKING)
