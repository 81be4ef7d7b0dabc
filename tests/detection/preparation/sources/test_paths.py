"""Paths of images as other systems and programs write them, and files in deeper folders."""

import json
import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from tpudet.detection.commands import check_data
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.input_files import spelled_as_in_folder
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.table import read_table
from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.trainkit.errors import UserError


def write_xml(path: Path, file_name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = "<xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax>"
    thing = f"<object><name>cat</name><bndbox>{sides}</bndbox></object>"
    path.write_text(f"<annotation><filename>{file_name}</filename>{thing}</annotation>")


def coco_files(tmp_path: Path, *names: str) -> list[str]:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    return read_coco(str(path)).images["file"].tolist()


def test_coco_paths_of_windows(tmp_path) -> None:
    assert coco_files(tmp_path, "a\\1.jpg", ".\\2.jpg") == ["a/1.jpg", "2.jpg"]


def test_one_file_under_two_names_is_one_image(tmp_path) -> None:
    assert coco_files(tmp_path, "1.jpg", "./1.jpg", "a//2.jpg") == ["1.jpg", "a/2.jpg"]


def test_table_paths_of_windows(tmp_path) -> None:
    (tmp_path / "2.png").write_bytes(b"")
    path = tmp_path / "boxes.csv"
    path.write_text("id,box\na\\1.jpg,4 5 24 35\n.\\2,4 5 24 35\n")
    columns = {"image": "id", "xyxy": "box"}
    table = read_table(str(path), columns=columns, coordinates="pixels", images=str(tmp_path))
    assert table.images["file"].tolist() == ["a/1.jpg", "2.png"]


def test_open_images_paths_of_windows(tmp_path, write_box_csv) -> None:
    path = write_box_csv(tmp_path / "boxes.csv", ("a\\1.jpg", "/m/a", 0, 1, 0, 1, 0))
    assert read_open_images(path, images=str(tmp_path)).images["file"].tolist() == ["a/1.jpg"]


def test_voc_file_names_of_windows(tmp_path) -> None:
    (tmp_path / "2.jpg").write_bytes(b"")
    write_xml(tmp_path / "annotations" / "x.xml", "C:\\data\\2.jpg")
    annotations = read_voc(str(tmp_path / "annotations"), images=str(tmp_path))
    assert annotations.images["file"].tolist() == ["2.jpg"]


def test_voc_images_in_deeper_folders_are_found_by_their_file_name(tmp_path) -> None:
    (tmp_path / "cam1").mkdir()
    (tmp_path / "cam1/2.png").write_bytes(b"")
    (tmp_path / "3.png").write_bytes(b"")
    for number, name in enumerate(("cam1/2.png", "cam1/3.png", "../cam1/4.png"), 2):
        write_xml(tmp_path / "annotations" / f"{number}.xml", name)
    annotations = read_voc(str(tmp_path / "annotations"), images=str(tmp_path))
    assert annotations.images["file"].tolist() == ["cam1/2.png", "3.png", "4.png"]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_are_found_in_either_form(tmp_path, form: Literal["NFC", "NFD"]) -> None:
    other = "NFD" if form == "NFC" else "NFC"
    wanted = ["caf\u00e9/\u00e9.png", "caf\u00e9/gone\u00e9.png", "\u00fc.png", "plain.png"]
    on_disk = [unicodedata.normalize(form, name) for name in wanted]
    for name in (on_disk[0], on_disk[2], on_disk[3]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    named = [unicodedata.normalize(other, name) for name in wanted]
    found = spelled_as_in_folder(str(tmp_path), named)
    assert (found[0], found[2], found[3]) == (on_disk[0], on_disk[2], on_disk[3])
    assert unicodedata.normalize(form, found[1]) == on_disk[1]
    assert spelled_as_in_folder(str(tmp_path), on_disk) == on_disk  # what is there stays
    coco_files(tmp_path, *named)
    command = ["--format", "coco", "--annotations", str(tmp_path / "instances.json")]
    source = [*command, "--images", str(tmp_path), "--workers", "1"]
    report = tmp_path / "report.json"
    assert check_data.main([*source, "--report", str(report)]) == 1
    reasons = [entry["reason"] for entry in json.loads(report.read_text())["left_out"]]
    assert sorted(reasons) == ["empty file", "empty file", "empty file", "missing file"]


def test_voc_files_in_deeper_folders_are_named(tmp_path) -> None:
    write_xml(tmp_path / "more" / "1.XML")
    with pytest.raises(UserError, match=r"has no .xml file. Name the folder that has: .*/more\."):
        read_voc(str(tmp_path), images=str(tmp_path))
    write_xml(tmp_path / "2.xml")
    annotations = read_voc(str(tmp_path), images=str(tmp_path))
    (finding,) = annotations.findings
    assert finding == (f"{tmp_path}/more", "folder in the folder of annotations", "1 .xml", False)
    assert len(annotations.images) == 1
