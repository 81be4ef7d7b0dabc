"""Short commands end as they should however often they start, ten at once on a busy machine.

A thread that a library leaves behind may take the process along as it ends: one run in thousands.
A thousand starts of each command take two cores an hour; `TPUDET_STARTS=COUNT` chooses another
number.
"""

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.inference.predictions_file import ImagePredictions, write_predictions

STARTS = int(os.environ.get("TPUDET_STARTS", "1000"))
AT_ONCE = 10
COMMANDS = {
    "join_predicted_parts {out}.parquet {in}_part_1_of_2.parquet {in}_part_2_of_2.parquet": 0,
    "gen_sub {in}_whole.parquet --out {out}.csv --hierarchy none": 0,
    "gen_sub {in}_broken.parquet --out {out}.csv": 2,
    "join_subs {out}.csv {in}_1.csv {in}_2.csv": 0,
    "merge_subs {out}.csv {in}_1.csv {in}_2.csv": 0,
    "trim_sub_by_threshold {out}.csv {in}_1.csv 0.3": 0,
    "trim_sub_by_num_of_predicts {out}.csv {in}_1.csv 2": 0,
    "filter_dataset {out}.csv {in}_boxes.csv": 0,
    "filter_dataset {out}.csv {in}_no_boxes.csv": 2,
    "list_runs {out}": 2,
    "show_config open_images_2019/retinanet_v3": 2,
    "--version": 0,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the inputs of the commands begin."""
    start = f"{tmp_path_factory.mktemp('inputs')}/p"
    parts = {f"part_{number}_of_2": {"number": number, "of": 2} for number in (1, 2)}
    for number, (name, shard) in enumerate({**parts, "whole": {}}.items(), 1):
        images = [_image(f"{number}{i}") for i in range(20)]
        metadata = {"fingerprint": "f", "image_list": {"count": 40}, "unreadable": {}}
        with Path(f"{start}_{name}.parquet").open("wb") as file:
            write_predictions(
                file,
                file.name,
                [images[:9], images[9:]],
                class_list_text="/m/01,cat\n/m/02,dog\n",
                metadata=metadata | ({"shard": shard} if shard else {}),
            )
        rows = [f"{i},/m/01 0.{number}5 0 0 0.5 0.5 /m/02 0.4 0.1 0.1 1 1" for i in range(20)]
        Path(f"{start}_{number}.csv").write_text("\n".join(["ImageId,PredictionString", *rows]))
    Path(f"{start}_broken.parquet").write_bytes(b"PAR1" * 9)
    columns = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf"
    boxes = [f"{i},/m/01,0,1,0,1,{i % 2}" for i in range(20)]
    Path(f"{start}_boxes.csv").write_text("\n".join([columns, *boxes]))
    Path(f"{start}_no_boxes.csv").write_text("\n".join([columns, '1,"/m/01,0,1']))
    return start


def _image(name: str) -> ImagePredictions:
    boxes = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
    return ImagePredictions(name, np.array([1, 2]), np.array([0.9, 0.5], np.float32), boxes)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_many_starts_end_alike(command: str, inputs: str, tmp_path: Path) -> None:
    def start(number: int) -> tuple[int, str]:
        places = {"out": f"{tmp_path}/{number}", "in": inputs}
        arguments = [part.format(**places) for part in command.split()]
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "tpudet", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(start, range(STARTS)))
    codes = Counter(code for code, _ in outcomes)
    others = [error for code, error in outcomes if code != COMMANDS[command]]
    assert codes == {COMMANDS[command]: STARTS}, others[:3]
