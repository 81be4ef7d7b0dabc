"""Ground truth from CSV files: expansion, verified classes, and what is refused."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.evaluation.open_images.truth import LabelledTruth, read_truth
from tpudet.detection.evaluation.open_images.truth_csv import TruthFileError, read_box_rows

HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,"
HEADER += "IsGroupOf,IsDepiction,IsInside"
# An amphibious car is a kind of car and of boat; both are vehicles; a wheel is but a part.
TREE = {
    "LabelName": "/root",
    "Subcategory": [
        {
            "LabelName": "/vehicle",
            "Subcategory": [
                {
                    "LabelName": "/car",
                    "Subcategory": [{"LabelName": "/amphibious"}],
                    "Part": [{"LabelName": "/wheel"}],
                },
                {"LabelName": "/boat", "Subcategory": [{"LabelName": "/amphibious"}]},
            ],
        },
        {"LabelName": "/wheel"},
    ],
}


def row(image: str, label: str, box: str = "0.1,0.5,0.2,0.6", group: str = "0") -> str:
    return f"{image},xclick,{label},1,{box},0,0,{group},0,0"


@pytest.fixture
def write(tmp_path: Path):
    def write_file(name: str, *lines: str) -> str:
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    write_file("tree.json", json.dumps(TREE))
    return write_file


def boxes_of(labelled: LabelledTruth) -> set[tuple[str, str]]:
    truth = labelled.truth
    return {
        (labelled.image_ids[image].decode(), labelled.classes[class_id - 1].identifier)
        for image, class_id in zip(truth.image_indices, truth.classes, strict=True)
    }


def verified_of(labelled: LabelledTruth, image: str) -> set[str]:
    place = labelled.image_ids.tolist().index(image.encode())
    flags = labelled.truth.verified[place]
    return {c.identifier for c, flag in zip(labelled.classes, flags, strict=True) if flag}


def test_boxes_are_repeated_for_every_ancestor_once(write, tmp_path: Path) -> None:
    path = write("truth.csv", HEADER, row("b", "/amphibious", group="1"), row("a", "/wheel"))
    found = read_truth(path, hierarchy=str(tmp_path / "tree.json"))
    kinds = ("/amphibious", "/car", "/boat", "/vehicle")  # no root, and no part
    assert boxes_of(found) == {("a", "/wheel"), *(("b", kind) for kind in kinds)}
    assert len(found.truth.classes) == 5  # the vehicle is reached twice, and there once
    assert found.truth.is_group_of.sum() == 4
    np.testing.assert_allclose(found.truth.boxes, [[0.2, 0.1, 0.6, 0.5]] * 5)  # y1 x1 y2 x2
    assert verified_of(found, "b") == set(kinds)
    assert verified_of(found, "a") == {"/wheel"}
    assert boxes_of(read_truth(path)) == {("a", "/wheel"), ("b", "/amphibious")}


def test_positive_labels_expand_up_and_negative_ones_down(write, tmp_path: Path) -> None:
    path = write("truth.csv", HEADER, row("a", "/wheel"))
    labels = write(
        "labels.csv",
        "ImageID,Source,LabelName,Confidence",
        "a,verification,/car,1",
        "b,verification,/car,0",
        "c,machine,/boat,0.7",
    )
    found = read_truth(path, hierarchy=str(tmp_path / "tree.json"), image_labels=labels)
    assert verified_of(found, "a") == {"/wheel", "/car", "/vehicle"}
    assert verified_of(found, "b") == {"/car", "/amphibious"}
    assert found.image_ids.tolist() == [b"a", b"b"]
    assert any("1 labels by machines" in note for note in found.notes)
    only_source = write("source.csv", "ImageID,LabelName,Source", "b,/boat,verification")
    found = read_truth(path, hierarchy=str(tmp_path / "tree.json"), image_labels=only_source)
    assert verified_of(found, "b") == {"/boat", "/vehicle"}


def test_a_class_list_maps_names_and_restricts_what_is_scored(write, tmp_path: Path) -> None:
    path = write("truth.csv", HEADER, row("a", "Amphibious car"), row("a", "/wheel"))
    classes = write("classes.csv", "/vehicle,Vehicle", "/amphibious,Amphibious car")
    found = read_truth(path, hierarchy=str(tmp_path / "tree.json"), classes=classes)
    assert boxes_of(found) == {("a", "/vehicle"), ("a", "/amphibious")}
    assert any("1 labels of 1 boxes are not in the class list" in note for note in found.notes)


def test_a_row_without_box_is_an_image_and_columns_may_be_few(write) -> None:
    header = "ImageID,LabelName,XMin,XMax,YMin,YMax"
    path = write("truth.csv", header, "a,Cat,0,1,0,1", "empty,,,,,")
    found = read_truth(path)
    assert found.image_ids.tolist() == [b"a", b"empty"]
    assert len(found.truth.classes) == 1
    assert any("no column IsGroupOf" in note for note in found.notes)


def test_ground_truth_that_is_expanded_already_is_told(write, tmp_path: Path) -> None:
    rows = [row("a", label) for label in ("/amphibious", "/car", "/boat", "/vehicle")]
    path = write("truth.csv", HEADER, *rows)
    found = read_truth(path, hierarchy=str(tmp_path / "tree.json"))
    assert any(note.startswith("WARNING: 5 of the 5 boxes") for note in found.notes)
    raw = read_truth(write("raw.csv", HEADER, rows[0]), hierarchy=str(tmp_path / "tree.json"))
    assert not any("WARNING" in note for note in raw.notes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row("a", "/car", "0.5,0.4,0.2,0.6"), "XMax < XMin"),
        (row("a", "/car", "0.1,nan,0.2,0.6"), "a coordinate is not a number"),
        (row("a", "/car", "0.1,x,0.2,0.6"), "a coordinate is not a number"),
        (row("", "/car"), "no ImageID"),
        (row("a", ""), "no LabelName"),
        (row("a", "/car", group="2"), "IsGroupOf is not"),
    ],
)
def test_bad_rows_are_named_with_file_and_line(write, bad: str, message: str) -> None:
    path = write("truth.csv", HEADER, row("a", "/car"), "", bad)
    with pytest.raises(TruthFileError, match=rf"(?s)1 bad row.*truth\.csv, line 4: {message}"):
        read_truth(path)


def test_ten_bad_rows_are_shown_and_all_counted(write) -> None:
    path = write("truth.csv", HEADER, *(row("a", "/car", "0.5,0.4,0,1") for _ in range(12)))
    with pytest.raises(TruthFileError, match=r"(?s)12 bad rows.*line 11: .*… and 2 more"):
        read_truth(path)


def test_other_files_are_refused(write) -> None:
    with pytest.raises(TruthFileError, match="lacks XMin, XMax"):
        read_truth(write("wrong.csv", "ImageID,LabelName,YMin,YMax", "a,/car,0,1"))
    with pytest.raises(TruthFileError, match="has no box"):
        read_truth(write("blank.csv", HEADER, "a,,,,,,,,,,,,"))
    with pytest.raises(TruthFileError, match="has the column 'XMin' twice in its header"):
        read_truth(write("twice.csv", f"{HEADER}, XMin", f"{row('a', '/car')},1"))
    with pytest.raises(TruthFileError, match="has 1,013 columns or more, and 1,000 at most"):
        read_truth(write("wide.csv", HEADER + "," * 1000, row("a", "/car") + "," * 1000))
    good = write("truth.csv", HEADER, row("a", "/car"))
    with pytest.raises(TruthFileError, match=r"line 2: Confidence is neither 1"):
        read_truth(
            good, image_labels=write("labels.csv", "ImageID,LabelName,Confidence", "a,/car,0.7")
        )
    with pytest.raises(TruthFileError, match="neither Confidence nor Source"):
        read_truth(good, image_labels=write("labels.csv", "ImageID,LabelName", "a,/car"))
    with pytest.raises(
        TruthFileError, match=r"none .* its first is 'Car', that of the classes is '/car'"
    ):
        read_truth(
            good, image_labels=write("labels.csv", "ImageID,LabelName,Confidence", "a,Car,0")
        )
    with pytest.raises(TruthFileError, match="no box is of a class that is scored"):
        read_truth(good, classes=write("classes.csv", "/boat,Boat"))


def test_rows_with_more_fields_than_the_header_are_refused(write) -> None:
    with pytest.raises(TruthFileError, match="rows with more fields than its header"):
        read_truth(write("gt.csv", HEADER, row("a", "/car") + ",1", row("b", "/car") + ",1"))
    with pytest.raises(TruthFileError, match="Expected 13 fields in line 3, saw 14"):
        read_truth(write("gt.csv", HEADER, row("a", "/car"), row("b", "/car") + ",1"))


def test_a_file_that_was_cut_in_its_last_row_is_refused(write) -> None:
    good, labels = row("a", "/car"), "ImageID,LabelName,Confidence"
    message = r"1 bad row:\n  .*{}, line 3: fewer fields than the {} of the header$"
    for count in range(1, 13):
        path = write("truth.csv", HEADER, good, ",".join(row("b", "/car").split(",")[:count]))
        with pytest.raises(TruthFileError, match=message.format(r"truth\.csv", 13)):
            read_truth(path)
    quoted = write("truth.csv", HEADER, row('"a"', '"/car, or ""boat"""'), "", row("a", "/car"))
    assert len(read_truth(quoted).truth.classes) == 2
    path = write("labels.csv", labels, "a,/car,1", "b,/car")
    with pytest.raises(TruthFileError, match=message.format(r"labels\.csv", 3)):
        read_truth(write("truth.csv", HEADER, good), image_labels=path)


def test_ground_truth_in_pixels_is_refused(write) -> None:
    rows = [row("a", "/car", "10,500,20,600"), row("b", "/car", "0,40,0,30"), row("c", "/car")]
    with pytest.raises(TruthFileError, match="is in pixels: 2 of 3 boxes reach beyond 1.5"):
        read_truth(write("gt.csv", HEADER, *rows))


def test_long_ids_and_labels_are_refused_and_long_masks_cost_their_own_length(write) -> None:
    long = "x" * 256
    path = write("truth.csv", HEADER, row("a", "/car"), row(long, "/car"), row("é" * 128, long))
    with pytest.raises(TruthFileError, match=r"(?s)2 bad rows.*line 3: ImageID is longer than 255"):
        read_truth(path)
    with pytest.raises(TruthFileError, match=r"line 4: ImageID .* bytes; LabelName is longer"):
        read_truth(path)
    good = write("good.csv", HEADER, row("x" * 255, "/car"), row("a", "é" * 127))
    assert [len(name) for name in read_truth(good).image_ids.tolist()] == [1, 255]
    labels = write("labels.csv", "ImageID,LabelName,Confidence", "a,/car,1", f"a,{long},1")
    with pytest.raises(TruthFileError, match="line 3: LabelName is longer than 255 bytes"):
        read_truth(good, image_labels=labels)
    fields = "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf,ImageWidth,ImageHeight,Mask"
    rows = [f"{k},/car,0,1,0,1,0,9,9,m" for k in range(10_000)]
    masks = f"{fields}\n" + "\n".join(rows) + f"\nz,/car,0,1,0,1,0,9,9,{'m' * 20_000}\n"
    tracemalloc.start()
    found = read_box_rows(masks.encode(), "masks.csv", with_masks=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.masks is not None
    assert [len(text) for text in found.masks.texts[[0, -1]]] == [1, 20_000]
    assert peak < 50e6  # 10,001 strings of NumPy would be 800 MB
