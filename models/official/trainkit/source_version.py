"""The git commit of this toolkit."""

import subprocess
from pathlib import Path


def git_commit() -> str:
    """Returns the commit, with `+changes` if the working tree differs; "unknown" without git."""
    here = Path(__file__).parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)  # not another's repository
        commit = _git(here, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(here, "status", "--porcelain", "-uno") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
