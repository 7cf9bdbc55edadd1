"""Programs that start processes of their own, which end with them."""

from __future__ import annotations

import os
import subprocess
import sys

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")


def launched(*arguments: str, seconds: float = 240, **environment: str) -> None:
    """Run Python with arguments and the paths of this process, and fail where it does.

    What takes longer gets SIGTERM, on which torchrun ends the processes that it has started. After
    SIGKILL, which ``subprocess.run`` sends, these would go on.
    """
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | paths | environment,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate(timeout=60)
        raise
    assert process.returncode == 0, (output + errors)[-5000:]
