import importlib
import os
from pathlib import Path

import pytest

from tpudet.trainkit.files.digests import code_digest, file_digest


def test_a_folder_counts_by_names_and_sizes(tmp_path) -> None:
    before = file_digest(str(tmp_path))
    (tmp_path / "a").write_text("1")
    one = file_digest(str(tmp_path))
    (tmp_path / "a").write_text("12")
    two = file_digest(str(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({before, one, two, file_digest(str(tmp_path))}) == 4


def test_the_files_of_its_folders_count_too(tmp_path: Path) -> None:
    """The masks of Open Images lie in sixteen folders, whose own sizes stay."""
    for first in "0f":
        (tmp_path / f"train-masks-{first}").mkdir()
        (tmp_path / f"train-masks-{first}/{first}a.png").write_text("mask")
    seen = [file_digest(str(tmp_path)), file_digest(str(tmp_path))]
    (tmp_path / "train-masks-f/fa.png").write_text("another mask")
    seen.append(file_digest(str(tmp_path)))
    (tmp_path / "train-masks-f/fa.png").rename(tmp_path / "train-masks-0/fa.png")
    seen.append(file_digest(str(tmp_path)))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_code_counts_in_every_file_of_a_package(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "digested"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/module.py", "kernel.pyx"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def digest(*modules: str) -> str:
        code_digest.cache_clear()
        importlib.invalidate_caches()
        return code_digest(modules)

    seen = {digest("digested"), digest("digested.inner"), digest("digested.inner.module")}
    assert len(seen) == 3
    (package / "notes.txt").write_text("not code")
    assert digest("digested") in seen
    (package / "inner/module.py").write_text("x = 1")
    assert (
        not {digest("digested"), digest("digested.inner"), digest("digested.inner.module")} & seen
    )
    before = digest("digested"), digest("digested.inner")
    (package / "kernel.pyx").write_text("y = 2")
    assert digest("digested") != before[0]
    assert digest("digested.inner") == before[1]
    with pytest.raises(ModuleNotFoundError, match="missing"):
        digest("digested.missing")


def test_a_fifo_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is a device or FIFO"):
        file_digest(str(tmp_path / "fifo"))
