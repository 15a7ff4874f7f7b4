"""Make Snakemake in a copied checkout poll the states of its Slurm jobs every two seconds.

Until the first job succeeds, the executor polls after 2, 12, 22, ... seconds. This suits jobs of hours, but these tests
would spend most of their time waiting.
"""

POLLING = """
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
RemoteExecutor.next_seconds_between_status_checks = property(lambda executor: 2, lambda executor, seconds: None)
"""


def poll_often(checkout):
    """Append a polling interval of two seconds to the Snakefile of the checkout."""
    with open(checkout.root / "Snakefile", "a") as file:
        file.write(POLLING)
