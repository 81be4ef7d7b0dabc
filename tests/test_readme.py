"""The README's commands on data of one's own, as they are printed, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"
FEW_STEPS = " --set train.total_steps=2 --set evaluation.schedule.every_steps=2"


def write_own_data(folder: Path) -> None:
    """Twenty images with a red or a green rectangle, COCO annotations, and images to predict."""
    images, annotations = [], []
    for number in range(1, 21):
        y, x = 3 * number, 5 * number
        image = np.full((120, 160, 3), 60, np.uint8)
        image[y : y + 30, x : x + 35] = (40, 60, 230) if number % 2 else (40, 230, 60)
        for name in ("images", "test") if number < 4 else ("images",):
            (folder / name).mkdir(exist_ok=True)
            cv2.imwrite(str(folder / name / f"{number}.jpg"), image)
        images.append({"id": number, "file_name": f"{number}.jpg", "width": 160, "height": 120})
        own = {"id": number, "image_id": number, "category_id": 1 + number % 2}
        annotations.append(own | {"bbox": [x, y, 35, 30], "area": 1050, "iscrowd": 0})
    categories = [{"id": 1, "name": "green"}, {"id": 2, "name": "red"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(content))


def block(kind: str, begin: str) -> str:
    """The README's first block of code of a kind that begins so."""
    (found,) = re.findall(rf"^```{kind}\n({begin}.*?)^```", README.read_text(), re.M | re.S)
    return found


@pytest.mark.slow
def test_the_commands_on_own_data_run_as_printed(tmp_path: Path) -> None:
    write_own_data(tmp_path)
    install, commands = block("bash", "make install").split("\n", 1)
    assert install.endswith("STORAGE=output")
    train = "--set data.directory=$STORAGE/converted/cats"
    assert commands.count(train) == 1
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": paths, "STORAGE": "output"}
    for program in (
        ["bash", "-euc", commands.replace(train, train + FEW_STEPS)],
        [sys.executable, "-c", block("python", "import tpudet")],
    ):
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    header, *rows = (tmp_path / "output/predictions/cats.csv").read_text().splitlines()
    assert header == "ImageId,PredictionString"
    assert sorted(row.split(",")[0] for row in rows) == ["1", "2", "3"]
