"""Accents of one character or two, in annotations, lists, label files and folders."""

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from tpudet.detection.commands import check_data
from tpudet.detection.preparation.sources.input_files import find_image_files, match_image_list
from tpudet.detection.preparation.sources.yolo import read_yolo
from tpudet.detection.preparation.sources.yolo_layout import find_yolo_set

Form = Literal["NFC", "NFD"]
FORMS = [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC"), ("NFD", "NFD")]
IMAGE, LABEL = "images/\u00e9t\u00e9/caf\u00e9.jpg", "labels/\u00e9t\u00e9/caf\u00e9.txt"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("labels", ["NFC", "NFD"])
@pytest.mark.parametrize(("listed", "images"), FORMS)
@pytest.mark.parametrize("split", ["train.txt", "images"])
def test_label_files_are_found(
    tmp_path: Path, split: str, listed: Form, images: Form, labels: Form
) -> None:
    image = unicodedata.normalize(images, IMAGE)
    write(tmp_path / image)
    write(tmp_path / "images/a.jpg")
    write(tmp_path / unicodedata.normalize(labels, LABEL), "0 0.5 0.5 0.2 0.2\n")
    write(tmp_path / "labels/a.txt", "0 0.5 0.5 0.2 0.2\n")
    lines = ["./images/a.jpg", unicodedata.normalize(listed, IMAGE)]
    write(tmp_path / "train.txt", "\n".join(lines) + "\n")
    write(tmp_path / "data.yaml", f"train: {split}\nnames: [cup]\n")
    found = read_yolo(find_yolo_set(str(tmp_path / "data.yaml"), ["train"]))
    files = found.images["file"].tolist()
    assert sorted(files) == sorted(["a.jpg", image.removeprefix("images/")])
    assert found.boxes["image"].tolist() == [0, 1]
    assert found.findings == ()


@pytest.mark.parametrize(("named", "on_disk"), FORMS)
def test_names_without_extension_are_found(tmp_path: Path, named: Form, on_disk: Form) -> None:
    file = unicodedata.normalize(on_disk, IMAGE.replace(".jpg", ".png"))
    write(tmp_path / file)
    name = unicodedata.normalize(named, IMAGE.removesuffix(".jpg"))
    assert find_image_files(str(tmp_path), [name, "gone"]) == [file, "gone.jpg"]


def test_of_both_forms_in_a_folder_the_exact_name_is_taken(tmp_path: Path) -> None:
    files = [unicodedata.normalize(form, "caf\u00e9.png") for form in ("NFC", "NFD")]
    for file in files:
        write(tmp_path / file)
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("This disk does not tell them apart.")
    names = [file.removesuffix(".png") for file in files]
    assert find_image_files(str(tmp_path), names) == files


@pytest.mark.parametrize(("listed", "named"), FORMS)
def test_image_lists_match_either_form(listed: Form, named: Form) -> None:
    files = [unicodedata.normalize(named, name) for name in (IMAGE, "b.jpg")]
    entries = [unicodedata.normalize(listed, name) for name in ("b", IMAGE, "caf\u00e9")]
    assert match_image_list(entries[:2], files, "home") == [1, 0]
    assert match_image_list(entries[2:], files, "home") == [0]


def test_both_forms_of_a_name_are_one_image(
    tmp_path: Path, encoded_image, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [unicodedata.normalize(form, "caf\u00e9.jpg") for form in ("NFC", "NFD")]
    (tmp_path / names[1]).write_bytes(encoded_image(40, 60))
    rows = [f"{name},{x},1,{x + 8},9" for name, x in zip(names, (1, 20), strict=True)]
    write(tmp_path / "boxes.csv", "\n".join(["id,x1,y1,x2,y2", *rows]) + "\n")
    columns = "image=id,x1=x1,y1=y1,x2=x2,y2=y2"
    arguments = ["--format", "table", "--annotations", f"{tmp_path}/boxes.csv", "--workers", "1"]
    check_data.main([*arguments, "--columns", columns, "--images", str(tmp_path)])
    assert "image listed twice: its boxes joined" in capsys.readouterr().out
