"""Pascal VOC files that would take gigabytes or hours, and those that only look like them."""

import time
from pathlib import Path

import pytest

from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.trainkit.errors import UserError

OBJECT = (
    "<object><name>猫</name><bndbox><xmin>4</xmin><ymin>5</ymin><xmax>24</xmax><ymax>35</ymax>"
    "</bndbox></object>"
)


def labels(folder: Path, content: bytes) -> list[str]:
    (folder / "1.xml").write_bytes(content)
    (folder / "1.jpg").touch()
    found = read_voc(str(folder), images=str(folder))
    assert found.boxes[["y1", "x1", "y2", "x2"]].to_numpy().tolist() == [[5, 4, 35, 24]]
    return [entry.identifier for entry in found.classes]


@pytest.mark.parametrize("encoding", ["UTF-8", "utf-16", "GBK", "gb2312", "GB18030", "Big5hkscs"])
def test_a_document_type_without_declarations_and_asian_encodings_are_read(
    tmp_path: Path, encoding: str
) -> None:
    head = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    for kind in ("", "<!DOCTYPE annotation>", '<!DOCTYPE annotation SYSTEM "voc.dtd">\n'):
        text = f"{head}{kind}<annotation>{OBJECT}</annotation>"
        assert labels(tmp_path, text.encode(encoding)) == ["猫"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "declared",
    [
        f'<!ATTLIST z q CDATA "{"A" * 20_000}">',
        '<!ENTITY name "cat">',
        "<!ELEMENT annotation ANY>",
        "",
    ],
)
def test_declarations_are_refused(tmp_path: Path, declared: str, encoding: str) -> None:
    """An attribute's default is copied to each element: of 281 KB it made 4.6 GB."""
    text = f"<!DOCTYPE annotation [{declared}]><annotation>{OBJECT}{'<z/>' * 2000}</annotation>"
    with pytest.raises(
        UserError, match=r"1\.xml: <!DOCTYPE annotation \[\.\.\.\]> contains declarations"
    ):
        labels(tmp_path, text.encode(encoding))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'<?xml version="1.0" encoding="punycode"?><annotation/>', "encoding punycode is not"),
        (b'<?xml version="1.0" encoding="utf-7"?><annotation/>', "encoding utf-7 is not read"),
        (b'<?xml version="1.0" encoding="none"?><annotation/>', "unknown encoding: none"),
        ("<annotation>für</annotation>".encode("latin-1"), "invalid token.*; save it as UTF-8"),
        (b"<?xml " + b'encoding="a"' * 80_000, "unclosed token"),
    ],
)
def test_encodings_are_those_of_a_list_and_declared_at_the_start(
    tmp_path: Path, content: bytes, message: str
) -> None:
    start = time.perf_counter()
    with pytest.raises(UserError, match=message):
        labels(tmp_path, content)
    assert time.perf_counter() - start < 5  # searching the last one for a declaration took minutes
