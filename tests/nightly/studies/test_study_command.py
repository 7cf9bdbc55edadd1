"""The command ``repdyn study``: its list of kinds, its help, and how every mistake ends."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.process
def test_the_list_of_kinds_does_not_wait_for_torch():
    code = (
        "import sys; from repdyn.cli.main import main\n"
        "try: main(['study', '--help'])\n"
        "except SystemExit: print(sorted({'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
