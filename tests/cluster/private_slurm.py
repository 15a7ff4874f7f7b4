"""A Slurm of its own on this machine: munge, a database, accounting, controller and one node with two pretended GPUs.

Everything lives in one folder and on free ports; nothing of a system installation is read or written, and `stop` leaves
no process behind. Node and jobs belong to root, which also makes the device files of the GPUs.
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
SEARCHED = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", os.environ.get("PATH", os.defpath)))
NVIDIA = 195
"""Major number of NVIDIA's character devices."""

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
# As with cgroups, and unlike linuxproc, what a job leaves behind is killed too when its parents are gone.
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
"""All nodes together have as many."""

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


def missing():
    """Say why no private Slurm can run here, or nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt-get install slurm-wlm slurmdbd munge mariadb-server"
    if os.geteuid() != 0:
        return "a private Slurm makes device files, which needs root"
    return None


class PrivateSlurm:
    """Start with `start`, end with `stop`; in between `run` calls Slurm's commands."""

    def __init__(self, folder, cpus=4, nodes=("localhost",)):
        self.folder, self.nodes = Path(folder), nodes
        controller, database, *ports = free_ports(2 + len(nodes))
        lines = [
            NODE.format(name=name, port=port, cpus=cpus, gpus=GPUS // len(nodes))
            for name, port in zip(nodes, ports, strict=True)
        ]
        self.places = {"folder": self.folder, "controller_port": controller, "database_port": database}
        self.places["nodes"] = "\n".join(lines)
        path = os.pathsep.join((str(self.folder / "bin"), SEARCHED))
        self.environment = os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}
        self.daemons = {}

    def variables(self):
        """Return what a process needs in its environment to use this Slurm."""
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
        self.wait_for_node("idle")

    def wait_for_node(self, *states, seconds=60):
        """Wait until all nodes are in one of the states, as sinfo writes them."""
        deadline = time.monotonic() + seconds
        wanted = set(states)
        while (found := set(self.run("sinfo", "--noheader", "--format=%T").split())) - wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nodes are {found}, not {wanted}; see {self.folder}/slurmctld.log")
            time.sleep(0.3)

    def kill_node(self):
        """Let the daemon of the only node and everything it runs die at once, as at a power failure."""
        slurmd = self.daemons.pop(f"slurmd {self.nodes[0]}")
        slurmd.kill()
        self._kill_jobs()
        slurmd.wait()

    def stop(self):
        """End every daemon, the last started first, and whatever its jobs left running."""
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
        """Kill what runs in jobs: the daemons of their steps, which outlive that of the node, and all they started."""
        import psutil

        mine = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # Such a daemon writes its title over the beginning of its environment, which psutil then cannot read.
                if "slurmstepd" in process.name() and mine in Path(f"/proc/{process.pid}/environ").read_bytes():
                    for one in (*process.children(recursive=True), process):
                        with contextlib.suppress(psutil.Error):
                            one.kill()

    def run(self, *words):
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def accounts(self, *fields):
        """Return a row of strings per job that the accounting knows, oldest first; also of requeued ones."""
        words = ("--noheader", "--parsable2", "--allocations", "--duplicates", f"--format={','.join(fields)}")
        return [line.split("|") for line in self.run("sacct", "--starttime=now-1days", *words).splitlines()]

    def start_again(self, job):
        """Have a requeued job run soon: by itself it would wait two minutes.

        Not at once: for some seconds the controller still hears of the job's end on a node that was lost, and Slurm
        22.05 crashes if it then counts that node off the new start (a segmentation fault in build_job_info_resp).
        """

        def shown():
            return self.run("squeue", "--noheader", "--format=%T %r", f"--jobs={job}").strip()

        self.wait_for(lambda: shown() == "PENDING BeginTime")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+10")
        self.wait_for(lambda: shown().startswith("RUNNING"))

    def wait_for(self, condition, seconds=240):
        """Wait until the condition returns something true, and return that."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds} s in vain\n{self.shown()}")
            time.sleep(0.2)
        return found

    def shown(self):
        """Return what Slurm shows of all jobs and nodes."""
        return self.run("squeue", "--long", "--states=all") + self.run("sinfo", "--long", "--Node")

    def clear(self):
        """Cancel all jobs and wait until nothing of them runs."""
        self.run("scancel", "--user=root")
        self.wait_for(lambda: not self.run("squeue", "--noheader"))

    def _write(self):
        for name in ("run", "state", "dev", "bin", "tables"):
            (self.folder / name).mkdir(parents=True)
        # Within a job the executor drops SLURM_CONF from the environment of srun and of the job itself.
        for name in ("srun", "squeue"):
            own, program = self.folder / "bin" / name, shutil.which(name, path=SEARCHED)
            own.write_text(f'#!/bin/sh\nSLURM_CONF="{self.folder}/slurm.conf" exec {program} "$@"\n')
            own.chmod(0o755)
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(**self.places))
        (self.folder / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(**self.places))
        (self.folder / "slurmdbd.conf").chmod(0o600)
        gpus = [self.folder / f"dev/gpu{index}" for index in range(GPUS)]
        for index, gpu in enumerate(gpus):
            os.mknod(gpu, 0o600 | 0o020000, os.makedev(NVIDIA, index))
        share = GPUS // len(self.nodes)
        owned = [f"NodeName={self.nodes[index // share]} Name=gpu File={gpu}\n" for index, gpu in enumerate(gpus)]
        (self.folder / "gres.conf").write_text("".join(owned))
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)

    def _munge(self):
        places = {"socket": "run/munge.sock", "key-file": "munge.key", "pid-file": "run/munge.pid"}
        places |= {"seed-file": "munge.seed", "log-file": "munge.log"}
        options = [f"--{name}={self.folder / place}" for name, place in places.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._until("munge", "munge", f"--socket={self.folder}/run/munge.sock", "--no-input")

    def _database(self):
        # A server that starts empties its folder of temporary tables: in /tmp, those of another test's server too.
        where = (f"--datadir={self.folder}/mysql", f"--tmpdir={self.folder}/tables")
        sock = f"--socket={self.folder}/run/mysql.sock"
        owner = ("--user=root", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
        self.run("mariadb-install-db", "--no-defaults", *where, *owner)
        small = ("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0")
        pid = f"--pid-file={self.folder}/run/mysql.pid"
        self._daemon(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", *where, sock, pid, "--skip-networking", *small
        )
        ask = ("mariadb", "--no-defaults", "--user=root", sock, "--execute")
        self._until("the database", *ask, "select 1")
        self.run(
            *ask, "create database slurm_acct_db; grant all on slurm_acct_db.* to slurm@localhost identified by 'slurm'"
        )
        self.environment["MYSQL_UNIX_PORT"] = f"{self.folder}/run/mysql.sock"

    def _daemon(self, name, *words):
        with open(self.folder / f"{name}.out", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                [shutil.which(words[0], path=SEARCHED), *words[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _until(self, what, *words, seconds=60):
        deadline = time.monotonic() + seconds
        while subprocess.run(words, env=self.environment, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not start within {seconds} s; see the logs in {self.folder}")
            time.sleep(0.2)


def _end_with_parent():
    """Have the kernel end this process when the one that started it is gone, however that ended."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
