"""A Slurm of one node on this machine, for one test: its own munge, controller and node daemon, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")


def can_start() -> bool:
    """Whether Debian's packages are installed (munge, slurmctld, slurmd, slurm-client) and the daemons may run."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in (*DAEMONS, "sbatch", "scontrol", "scancel"))


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch and its kin reach the cluster; all of it is gone afterwards."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(_configuration(folder))
    environment = os.environ | {"SLURM_CONF": str(conf)}
    commands = [
        ["munged", "--foreground", "--force", *(f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed"))],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ]  # fmt: skip
    commands[0].append(f"--socket={folder}/munge.socket")
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
            time.sleep(0.5)
        _until_idle(environment, folder)
        yield environment
    finally:
        subprocess.run(["scancel", "--state=RUNNING"], env=environment, timeout=20, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)


def _until_idle(environment: dict[str, str], folder: Path, limit: float = 60.0) -> None:
    deadline = time.monotonic() + limit
    while True:
        found = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True, timeout=20)
        if found.stdout.strip() == "idle":
            return
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("slurm*.out"))
        assert time.monotonic() < deadline, f"the node is {found.stdout.strip()!r}: {found.stderr}\n{logs}"
        time.sleep(0.3)


def _configuration(folder: Path) -> str:
    """A requeued job is started again once its old credential has expired: after 5 s here, 2 minutes by default."""
    node, ports = socket.gethostname().partition(".")[0], _free_ports(2)
    cores = os.cpu_count() or 1
    return f"""\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
ReturnToService=2
KillWait=60
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
NodeName={node} NodeAddr=127.0.0.1 CPUs={cores} CoresPerSocket={cores} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
