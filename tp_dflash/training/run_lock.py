"""One job a run folder: a lock that the system gives back when the process ends, however it ends.

In: the folder. Out: an open lock, or a RunFolderError that names who holds it. The first rank takes it for the whole job.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import TextIO

# A job that was started again may meet the last moments of its former self.
_PATIENCE_SECONDS = 10.0


class RunFolderError(RuntimeError):
    """The run folder cannot be used by this job."""


def lock_run(path: Path, patience_seconds: float = _PATIENCE_SECONDS) -> TextIO:
    """Take the lock file ``path``; it is held until the returned file is closed or the process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"{path.parent}: expected a folder that can be written, got: {error.strerror}; choose another "
            "training.run_folder or correct its rights"
        ) from None
    deadline = time.monotonic() + patience_seconds
    while not _taken(file):
        if time.monotonic() > deadline:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise RunFolderError(
                f"{path.parent}: expected a run folder of this job alone, got one in use by {holder}; stop that job or "
                "choose another training.run_folder"
            )
        time.sleep(0.2)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return file


def _taken(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
