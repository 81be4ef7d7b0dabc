"""Image files without annotations: images without objects, or annotated ones under another name."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tpudet.detection.preparation.sources.annotations import Annotations
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.table import read_table

Format = str


def read(folder: Path, kind: Format, names: Sequence[str], **more: str) -> Annotations:
    """Reads a box of each of `names`, and the other files of the folder."""
    header = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf"
    rows = [f"{name},cat,0,{number / 10},0,1,0" for number, name in enumerate(names, 1)]
    path = folder / "boxes.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    if kind == "open_images":
        return read_open_images(str(path), images=str(folder), include_unlabeled=True, **more)
    columns = {"image": "ImageID", "class": "LabelName"}
    columns |= {"x1": "XMin", "y1": "YMin", "x2": "XMax", "y2": "YMax"}
    return read_table(
        str(path),
        columns=columns,
        coordinates="fractions",
        images=str(folder),
        include_unlabeled=True,
        **more,
    )


@pytest.mark.parametrize("kind", ["open_images", "table"])
@pytest.mark.parametrize(
    ("names", "on_disk", "files", "left_out"),
    [
        (["x"], ["x.png", "y.png"], ["x.png", "y.png"], []),
        (["x"], ["x.JPG"], ["x.JPG"], []),
        (["X"], ["x.png"], ["x.png"], []),
        (["e\u0301"], ["\u00c9.png"], ["\u00c9.png"], []),
        (["caf\u00e9.png"], ["cafe\u0301.png"], ["cafe\u0301.png"], []),
        (["cafe\u0301.png"], ["caf\u00e9.png", "y.png"], ["caf\u00e9.png", "y.png"], []),
        (["X"], ["x.png", "x.tif", "y.png"], ["X.jpg", "y.png"], ["x.png", "x.tif"]),
        (["x", "X"], ["x.Jpg", "X.Jpg"], ["x.Jpg", "X.Jpg"], []),
        (["Ax", "aX"], ["ax.png"], ["Ax.jpg", "aX.jpg"], ["ax.png"]),
        (["x.jpg"], ["x.png"], ["x.jpg"], ["x.png"]),  # it is called x.jpg, so x.png is another
        (["a/x"], ["x.png"], ["a/x.jpg"], ["x.png"]),
        (["x.jpg"], ["x.jpg", "x.png"], ["x.jpg", "x.png"], []),  # nothing is missing
    ],
)
def test_a_file_that_may_be_that_of_an_annotated_image_is_no_image_without_objects(
    tmp_path: Path,
    kind: Format,
    names: list[str],
    on_disk: list[str],
    files: list[str],
    left_out: list[str],
) -> None:
    if kind == "open_images" and names == ["x", "X"]:
        # It looks for x.jpg and X.jpg only; which of the two others is whose is not known.
        files, left_out = ["x.jpg", "X.jpg"], ["X.Jpg", "x.Jpg"]
    for name in on_disk:
        (tmp_path / name).write_bytes(b"")
    found = read(tmp_path, kind, names)
    assert found.images["file"].tolist() == files
    assert found.boxes["image"].tolist() == list(range(len(names)))
    assert found.boxes["x2"].tolist() == [number / 10 for number in range(1, len(names) + 1)]
    assert [finding.file for finding in found.findings if not finding.repaired] == left_out
    assert {finding.file for finding in found.findings if finding.repaired} <= set(files)


def test_findings_are_those_of_the_listed_images(tmp_path: Path) -> None:
    for name in ("x.JPG", "Y.jpg", "z.jpg"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "list.txt").write_text("y\nz\n")
    found = read(tmp_path, "table", ["X", "y"], image_list=str(tmp_path / "list.txt"))
    assert found.images["file"].tolist() == ["Y.jpg", "z.jpg"]
    (finding,) = found.findings
    assert (finding.file, finding.detail, finding.repaired) == ("Y.jpg", "y.jpg", True)
