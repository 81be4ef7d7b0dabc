"""Files that are written without -f: they replace their own kind, and nothing else."""

import os
from argparse import ArgumentParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.trainkit.command_line import add_json_argument
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import file_kinds
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.files.file_kinds import FileKind, file_of_kind, refuse_other_kind
from tpudet.trainkit.files.json_text import json_text
from tpudet.trainkit.pages.drawing import encode_png
from tpudet.trainkit.pages.html import page
from tpudet.trainkit.training.tpu_plan import CompiledStep

BLACK = np.zeros((4, 4, 3), np.uint8)
OWN = {
    "PAGE": page("runs", []).encode(),
    "DRAWING": encode_png(BLACK),
    "PLAN": json_text([dict.fromkeys(CompiledStep._fields, 1)]).encode(),
    "RATE_TABLE": b"learning_rate,loss,smoothed\n0.1,2,2\n",
}
FOREIGN = {
    "page": b"<!DOCTYPE html>\n<html><body>My thesis on tpudet</body></html>\n",
    "picture": cv2.imencode(".png", BLACK)[1].tobytes(),
    "settings": b"train: {batch_size: 8}\n",
    "manifest": b'{\n  "split": "train"\n}\n',
    "table": b"step,loss\n1,2\n",
}


@pytest.mark.parametrize("name", OWN)
def test_a_kind_replaces_itself_and_an_empty_file_only(name: str, tmp_path: Path) -> None:
    kind: FileKind = getattr(file_kinds, name)
    path = tmp_path / "out"
    for before in (None, b"", OWN[name]):
        if before is not None:
            path.write_bytes(before)
        refuse_other_kind(str(path), kind)
        with file_of_kind(str(path), "wb", kind) as file:
            file.write(OWN[name])
        assert path.read_bytes() == OWN[name]
    others = {**FOREIGN, **{other: OWN[other] for other in OWN if other != name}}
    for content in others.values():
        path.write_bytes(content)
        message = f"out exists and is not {kind.name}, so it is not replaced: name another file"
        with pytest.raises(UserError, match=message):
            refuse_other_kind(str(path), kind)
        with pytest.raises(UserError, match=message), file_of_kind(str(path), "wb", kind) as file:
            file.write(OWN[name])
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["out"]


def test_a_drawing_that_says_who_made_it_is_a_sound_png(tmp_path: Path) -> None:
    """libpng checks the sum of the added chunk and warns of a wrong one."""
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    encoded = encode_png(image)
    assert encoded[33:].startswith(b"\0\0\0\x0ftEXtSoftware\0tpudet")
    decoded = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decoded, image)


def test_one_process_writes_and_failures_are_in_words(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.html")
    with (
        file_of_kind(path, "w", file_kinds.PAGE),
        pytest.raises(ClaimError, match=f"is being written by process {os.getpid()} on"),
    ):
        file_of_kind(path, "w", file_kinds.PAGE).__enter__()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder cannot be written: it is a folder, not a file"):
        file_of_kind(f"{tmp_path}/folder", "w", file_kinds.PAGE).__enter__()


def test_another_file_is_refused_before_the_work(tmp_path: Path, capsys) -> None:
    parser = ArgumentParser()
    add_json_argument(parser, "what was found", file_kinds.PLAN)
    (tmp_path / "manifest.json").write_bytes(FOREIGN["manifest"])
    (tmp_path / "plan.json").write_bytes(OWN["PLAN"])
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", f"{tmp_path}/manifest.json"])
    assert "--json: " in (message := capsys.readouterr().err)
    assert "manifest.json exists and is not a plan of tpudet" in message
    assert parser.parse_args(["--json", f"{tmp_path}/plan.json"]).json == f"{tmp_path}/plan.json"
