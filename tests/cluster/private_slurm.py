"""A private Slurm on this machine: munge, a database, accounting, controller, and nodes that share two fake GPUs.

All files are in one folder, and all ports are free ports. The files of a system's Slurm are neither read nor written.
`stop` ends all processes. Daemons and jobs run as root, because only root can create the device files of the GPUs.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from fixtures.ports import free_ports

PROGRAMS = (
    "munged",
    "mariadb-install-db",
    "mariadbd",
    "mariadb",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
    "sacctmgr",
)
SEARCH_PATH = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", os.environ.get("PATH", os.defpath)))
NVIDIA = 195
"""Major device number of NVIDIA's character devices."""

SLURM_CONF = """
ClusterName=private
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# Like cgroups, proctrack/pgid also kills job processes whose parent process has ended; linuxproc leaves them.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
SlurmdTimeout=10
OverTimeLimit=0
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0,defer_batch
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={database_port}
AccountingStoragePass={folder}/run/munge.sock
AccountingStorageTRES=gres/gpu
GresTypes=gpu
DefMemPerCPU=500
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE DefaultTime=10
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE DefaultTime=10
"""

NODE = "NodeName={name} NodeHostname=localhost Port={port} CPUs={cpus} RealMemory=16000 Gres=gpu:{gpus}"
GPUS = 2
"""Number of GPUs of all nodes together."""

SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost=localhost
DbdPort={database_port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


def reason_unavailable():
    """Return the reason why no private Slurm can run here, or None."""
    missing_programs = [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing_programs:
        return f"no {', '.join(missing_programs)} here: apt-get install slurm-wlm slurmdbd munge mariadb-server"
    if os.geteuid() != 0:
        return "a private Slurm makes device files, which needs root"
    return None


class PrivateSlurm:
    """A private Slurm: `start` starts it, `run` calls a command of Slurm, `stop` stops it."""

    def __init__(self, folder, cpus=4, nodes=("localhost",)):
        self.folder, self.nodes = Path(folder), nodes
        controller, database, *ports = free_ports(2 + len(nodes))
        lines = [
            NODE.format(name=name, port=port, cpus=cpus, gpus=GPUS // len(nodes))
            for name, port in zip(nodes, ports, strict=True)
        ]
        self.template_values = {"folder": self.folder, "controller_port": controller, "database_port": database}
        self.template_values["nodes"] = "\n".join(lines)
        path = os.pathsep.join((str(self.folder / "bin"), SEARCH_PATH))
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}
        self.daemons = {}

    def variables(self):
        """Return the environment variables with which a process uses this Slurm."""
        python = os.path.dirname(sys.executable)
        return {"SLURM_CONF": self.environment["SLURM_CONF"], "PATH": f"{python}:{self.environment['PATH']}"}

    def start(self):
        self._write()
        self._munge()
        self._database()
        self._daemon("slurmdbd", "slurmdbd", "-D")
        self._until("the accounting", "sacctmgr", "--noheader", "show", "cluster")
        self.run("sacctmgr", "--immediate", "add", "cluster", "private")
        self.run("sacctmgr", "--immediate", "add", "account", "people")
        self.run("sacctmgr", "--immediate", "add", "user", "root", "account=people")
        self._daemon("slurmctld", "slurmctld", "-D", "-i")
        self._until("the controller", "scontrol", "ping")
        self.start_node()

    def start_node(self):
        for name in self.nodes:
            self._daemon(f"slurmd {name}", "slurmd", "-D", "-N", name)
        self.wait_for(lambda: set(self.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"}, seconds=60)

    def kill_node(self):
        """Kill the daemon and all jobs of the only node, as in a power failure."""
        slurmd = self.daemons.pop(f"slurmd {self.nodes[0]}")
        slurmd.kill()
        self._kill_jobs()
        slurmd.wait()

    def stop(self):
        """Stop all daemons in reverse order, and kill remaining processes of their jobs."""
        for process in reversed(self.daemons.values()):
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.daemons.clear()
        self._kill_jobs()

    def _kill_jobs(self):
        """Kill the step daemons (slurmstepd), which survive the daemon of the node, and all their child processes."""
        import psutil

        entry = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # slurmstepd overwrites the start of its environment, so psutil cannot read it. Read /proc instead.
                if "slurmstepd" in process.name() and entry in Path(f"/proc/{process.pid}/environ").read_bytes():
                    for job_process in (*process.children(recursive=True), process):
                        with contextlib.suppress(psutil.Error):
                            job_process.kill()

    def run(self, *command):
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def accounts(self, *fields):
        """Return one row of strings per job in the accounting, oldest first, including requeued jobs."""
        options = ("--noheader", "--parsable2", "--allocations", "--duplicates", f"--format={','.join(fields)}")
        return [line.split("|") for line in self.run("sacct", "--starttime=now-1days", *options).splitlines()]

    def start_again(self, job):
        """Start a requeued job after 10 s; by default Slurm waits two minutes.

        An immediate start can crash Slurm 22.05 (segmentation fault in build_job_info_resp): for some seconds the
        failed node still sends the completion message of the job.
        """

        def state_of_job():
            return self.run("squeue", "--noheader", "--format=%T %r", f"--jobs={job}").strip()

        self.wait_for(lambda: state_of_job() == "PENDING BeginTime")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+10")
        self.wait_for(lambda: state_of_job().startswith("RUNNING"))

    def wait_for(self, condition, seconds=240):
        """Wait until `condition()` returns a true value, and return this value."""
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the condition is false after {seconds} s\n{self.queue_and_nodes()}")
            time.sleep(0.2)
        return result

    def queue_and_nodes(self):
        """Return the output of squeue and sinfo for all jobs and nodes."""
        return self.run("squeue", "--long", "--states=all") + self.run("sinfo", "--long", "--Node")

    def clear(self):
        """Cancel all jobs, and wait until the queue is empty."""
        self.run("scancel", "--user=root")
        self.wait_for(lambda: not self.run("squeue", "--noheader"))

    def _write(self):
        for name in ("run", "state", "dev", "bin", "tables"):
            (self.folder / name).mkdir(parents=True)
        # Inside jobs, Snakemake's executor removes SLURM_CONF from the environment, so wrap srun and squeue.
        for name in ("srun", "squeue"):
            wrapper, program = self.folder / "bin" / name, shutil.which(name, path=SEARCH_PATH)
            wrapper.write_text(f'#!/bin/sh\nSLURM_CONF="{self.folder}/slurm.conf" exec {program} "$@"\n')
            wrapper.chmod(0o755)
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(**self.template_values))
        (self.folder / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(**self.template_values))
        (self.folder / "slurmdbd.conf").chmod(0o600)
        gpus = [self.folder / f"dev/gpu{index}" for index in range(GPUS)]
        for index, gpu in enumerate(gpus):
            os.mknod(gpu, 0o600 | 0o020000, os.makedev(NVIDIA, index))
        gpus_per_node = GPUS // len(self.nodes)
        lines = [
            f"NodeName={self.nodes[index // gpus_per_node]} Name=gpu File={gpu}\n" for index, gpu in enumerate(gpus)
        ]
        (self.folder / "gres.conf").write_text("".join(lines))
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    def _munge(self):
        files = {"socket": "run/munge.sock", "key-file": "munge.key", "pid-file": "run/munge.pid"}
        files |= {"seed-file": "munge.seed", "log-file": "munge.log"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._until("munge", "munge", f"--socket={self.folder}/run/munge.sock", "--no-input")

    def _database(self):
        # MariaDB empties its temporary folder at start; in /tmp this would delete files of another test's server.
        folders = (f"--datadir={self.folder}/mysql", f"--tmpdir={self.folder}/tables")
        socket = f"--socket={self.folder}/run/mysql.sock"
        install = ("--user=root", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
        self.run("mariadb-install-db", "--no-defaults", *folders, *install)
        sizes = ("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0")
        pid = f"--pid-file={self.folder}/run/mysql.pid"
        self._daemon(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", *folders, socket, pid, "--skip-networking", *sizes
        )
        client = ("mariadb", "--no-defaults", "--user=root", socket, "--execute")
        self._until("the database", *client, "select 1")
        self.run(
            *client,
            "create database slurm_acct_db; grant all on slurm_acct_db.* to slurm@localhost identified by 'slurm'",
        )
        self.environment["MYSQL_UNIX_PORT"] = f"{self.folder}/run/mysql.sock"

    def _daemon(self, name, *command):
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                [shutil.which(command[0], path=SEARCH_PATH), *command[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _until(self, service, *command, seconds=60):
        deadline = time.monotonic() + seconds
        while subprocess.run(command, env=self.environment, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{service} did not start within {seconds} s; see the logs in {self.folder}")
            time.sleep(0.2)


def _end_with_parent():
    """Ask the kernel to terminate this process when its parent process ends, for any reason."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
