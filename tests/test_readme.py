"""The printed commands: the README's run on data of one's own, the others have flags that exist."""

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.cli import VERBS

README = Path(__file__).parents[1] / "README.md"
SCORING = ("evaluate_submission", "compare_submissions")
DOCS = [README, *sorted((README.parent / "docs").glob("*.md"))]
TWO_STEPS = "--set train.total_epochs=1 --set evaluation.schedule.every_steps=2"  # 16 images, by 8


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


def printed_commands(page: Path) -> list[list[str]]:
    """The words of every `tpudet VERB` in the page's blocks of shell."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [re.sub(r"^ *(\w+=\S+ +)*", "", line) for line in lines]
    return [shlex.split(command, comments=True) for command in commands if command[:7] == "tpudet "]


def known_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The flags in the help of a verb, for either task."""
    modules = [f"tpudet.{task}.commands.{verb}" for task in ("detection", "classification")]
    for module in filter(importlib.util.find_spec, modules):
        with pytest.raises(SystemExit):
            importlib.import_module(module).main(["--help"])
    return set(re.findall(r"(?<!\w)--?[a-z]\w*", capsys.readouterr().out))


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_printed_commands_have_verbs_and_flags_that_exist(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, *arguments in (words[1:] for words in printed_commands(page)):
        flags = {word.partition("=")[0] for word in arguments if word.startswith("-")}
        if not verb.startswith("-"):
            assert verb in VERBS
            assert not flags - known_flags(verb, capsys), verb


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_printed_scores_of_open_images_are_of_expanded_ground_truth() -> None:
    """The challenge's CSVs are not expanded: without their hierarchy a score is another number."""
    commands = [words for page in DOCS for words in printed_commands(page)]
    scoring = [words for words in commands if words[1] in SCORING]
    assert {words[1] for words in scoring} == set(SCORING)
    assert all("--hierarchy" in words for words in scoring)


@pytest.mark.slow
def test_the_commands_on_own_data_run_as_printed(tmp_path: Path) -> None:
    write_own_data(tmp_path)
    install, commands = block("bash", "make install").split("\n", 1)
    assert install.endswith("STORAGE=output")
    length = "--set train.total_epochs=20"
    assert commands.count(length) == 1
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": paths, "STORAGE": "output"}
    for program in (
        ["bash", "-euc", commands.replace(length, TWO_STEPS)],
        [sys.executable, "-c", block("python", "import tpudet")],
    ):
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    header, *rows = (tmp_path / "output/predictions/cats.csv").read_text().splitlines()
    assert header == "ImageId,PredictionString"
    assert sorted(row.split(",")[0] for row in rows) == ["1", "2", "3"]
