"""The job script for Slurm in the documentation, run with stand-ins for Slurm's commands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
(SCRIPT,) = re.findall(r"^```bash\n(#!/bin/bash\n#SBATCH.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = {
    "srun": 'exec "$@"',
    "repdyn": 'echo "$@" > sweep; exit $STATUS',
    "scontrol": 'echo "$@" > requeued',
}


@pytest.mark.process
@pytest.mark.parametrize(("status", "requeued"), [(0, None), (1, None), (130, "requeue 77_2\n")])
def test_a_stopped_shard_goes_back_into_the_queue(tmp_path, status, requeued):
    for name, content in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{content}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job").write_text(SCRIPT)
    job = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "8", "STATUS": str(status)}
    environment = os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "job"], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "")
    assert (tmp_path / "sweep").read_text().endswith(" --max-disk 50GB --shard 3/8\n")
    assert ((tmp_path / "requeued").read_text() if requeued else None) == requeued
    assert (tmp_path / "requeued").exists() is (requeued is not None)
