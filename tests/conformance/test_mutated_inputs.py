"""A thousand damaged files through the commands: a message, or a result, and never more than that.

`TPUDET_MUTATIONS="SEED COUNT"` chooses others. A find is run again by `mutated_inputs.py FOLDER
--seed SEED --only NUMBER`; each kind of it became a small test beside what it is about.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("mutated_inputs.py")
SEED, COUNT = os.environ.get("TPUDET_MUTATIONS", "0 1000").split()


@pytest.mark.slow
def test_damaged_inputs_end_with_a_message_or_a_result(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "inputs"), "--seed", SEED]
    done = subprocess.run([*command, "--count", COUNT], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-3000:]
