"""Reads Pascal VOC annotations (one XML file per image) into `Annotations`."""

import codecs
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat

import pandas as pd

from tpudet.detection.preparation.sources.annotation_values import (
    read_flag,
    read_number,
    read_size,
)
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    build_annotations,
    require_ordered,
    require_pixels,
)
from tpudet.detection.preparation.sources.input_files import (
    list_directory,
    match_image_list,
    plain_path,
    read_image_list,
    stem,
)
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.image_folder import is_hidden_copy, list_image_names

_READERS = 16  # threads, mostly waiting for files
_SIDES = ("ymin", "xmin", "ymax", "xmax")
_HEAD_BYTES = 200  # of a file, of which the XML declaration is the first line
# As Python names them, those of annotation tools. Others of its codecs take quadratic time.
_READ_ENCODINGS = re.compile(
    r"ascii|utf-8|utf-16(-[bl]e)?|gbk|gb2312|gb18030|big5|big5hkscs|cp9(32|36|49|50)|shift_jis|"
    r"euc_(jp|kr)|iso2022_jp|koi8-[ru]|iso8859-\d+|cp125\d|mac-roman"
)
_ENCODING = re.compile(rb"^\s*<\?xml[^>]*encoding=[\"']([A-Za-z0-9._-]+)[\"'][^>]*\?>")
_XML = ".xml"
_NO_BOX = (math.nan, math.nan, math.nan, math.nan)


class _VocBox(NamedTuple):
    label: str
    y1: float
    x1: float
    y2: float
    x2: float
    fault: str | None  # the coordinates that cannot be read
    is_difficult: bool = False


class _VocImage(NamedTuple):
    file_name: str
    height: float
    width: float
    boxes: tuple[_VocBox, ...]


def read_voc(
    directory: str,
    *,
    images: str,
    image_list: str | None = None,
    classes: str | None = None,
    ignore_difficult: bool = False,
) -> Annotations:
    """Reads a directory of XML files.

    Coordinates are used unchanged. The original VOC files count pixels from 1 and include the last
    one, so their boxes come out half a pixel off and one pixel too small. Most tools that write VOC
    XML today do not, and their boxes are exact.
    An <object> with several <bndbox> is several boxes of its class.

    Args:
        directory: the folder `Annotations`.
        images: folder of the images; an image is found by <filename> in the XML, else by the name
            of the XML file with any image extension.
        image_list: a file of `ImageSets/Main`; None takes every XML file.
        classes: a class list; None takes all names in all XML files of the directory, regardless of
            the image list, in alphabetical order, so that every split gets the same classes.
        ignore_difficult: boxes marked `difficult` become regions to ignore, as VOC's own rules have
            it, instead of ordinary boxes.

    Raises:
        UserError: a directory or list is missing, or XML files cannot be parsed; they are counted
            and the first five named.
    """
    available = _find_annotations(directory)
    present = list(available)
    wanted = present if image_list is None else _listed_names(image_list, present, directory)
    needed = [name for name in dict.fromkeys(wanted) if name in available]
    if not needed:
        raise UserError(
            f"--annotations {directory} has none of the {len(wanted)} images of --image_list "
            f"{image_list}, such as {wanted[0]}{_XML}."
        )
    parsed = _read_all(directory, available, needed if classes else present)
    files = _find_files(images, needed, parsed, available.keys())
    boxes = [(row, box) for row, name in enumerate(needed) for box in parsed[name].boxes]
    table = _boxes(boxes, ignore_difficult=ignore_difficult)
    where = f"--annotations {directory}"
    require_pixels(table, where, "multiply each <bndbox> by the size of its image")
    require_ordered(table, where, "<bndbox> holds corners: write x + width as xmax, so ymax.")
    return build_annotations(
        images=_images(needed, files, parsed),
        boxes=table,
        classes=read_classes(classes) if classes else _names_found(parsed.values()),
        normalized=False,
        findings=(
            *_list_findings(wanted, files),
            *_deeper_findings(directory),
            *_difficult_findings(directory, boxes, ignore_difficult=ignore_difficult),
        ),
    )


def _listed_names(image_list: str, present: Sequence[str], directory: str) -> list[str]:
    """Returns the names of the XML files, without extension, that an image list means."""
    listed = read_image_list(image_list)
    rows = match_image_list(listed, [f"{name}{_XML}" for name in present], directory)
    pairs = zip(listed, rows, strict=True)
    return [stem(entry) if row < 0 else present[row] for entry, row in pairs]


def _find_annotations(directory: str) -> dict[str, str]:
    """Returns the file of each annotation by its name without extension, sorted."""
    files: dict[str, list[str]] = {}
    for file in list_directory(directory, "--annotations"):
        name, extension = os.path.splitext(file)
        if extension.lower() == _XML and not is_hidden_copy(file):
            files.setdefault(name, []).append(file)
    if not files:
        deeper = [finding.file for finding in _deeper_findings(directory)]
        advice = f" Name the folder that has: {listing(deeper)}." if deeper else ""
        raise UserError(f"--annotations {directory} has no {_XML} file.{advice}")
    several = [" and ".join(same) for same in files.values() if len(same) > 1]
    if several:
        raise UserError(
            f"--annotations {directory}: it is not known which of two files of one name describes "
            f"its image: {listing(several)}. Keep one."
        )
    return {name: same[0] for name, same in files.items()}


def _deeper_findings(directory: str) -> Iterator[Finding]:
    """Yields the folders of XML files within the directory, which are not read."""
    for folder, _, names in storage.walk(directory):
        count = sum(name.lower().endswith(_XML) and not is_hidden_copy(name) for name in names)
        if count and os.path.normpath(folder) != os.path.normpath(directory):
            yield Finding(folder, "folder in the folder of annotations", f"{count} {_XML}", False)


def _list_findings(wanted: Sequence[str], files: Mapping[str, str]) -> Iterator[Finding]:
    """Yields findings about the image list; `files` has the images with an XML file."""
    seen: set[str] = set()
    for name in wanted:
        if name not in files:
            yield Finding(name, "annotation file missing", f"{name}.xml", repaired=False)
        elif name in seen:
            yield Finding(files[name], "image listed twice: taken once", "", repaired=True)
        seen.add(name)


def _difficult_findings(
    directory: str, boxes: Sequence[tuple[int, _VocBox]], *, ignore_difficult: bool
) -> Iterator[Finding]:
    """Yields one finding for all boxes that are marked difficult."""
    count = sum(box.is_difficult for _, box in boxes)
    if count:
        kept = "regions to ignore" if ignore_difficult else "ordinary boxes; see --ignore_difficult"
        detail = f"{count} of {len(boxes)} boxes"
        yield Finding(directory, f"marked difficult: taken as {kept}", detail, repaired=True)


def _images(
    names: Sequence[str], files: Mapping[str, str], parsed: Mapping[str, _VocImage]
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "source_id": names,
            "file": [files[name] for name in names],
            "height": [parsed[name].height for name in names],
            "width": [parsed[name].width for name in names],
        }
    )


def _boxes(boxes: Sequence[tuple[int, _VocBox]], *, ignore_difficult: bool) -> pd.DataFrame:
    rows = [
        (row, *box[:-1], ignore_difficult and box.is_difficult, float("nan")) for row, box in boxes
    ]
    columns = ["image", "label", "y1", "x1", "y2", "x2", "fault", "is_crowd", "area"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _names_found(images: Iterable[_VocImage]) -> tuple[ClassEntry, ...]:
    names = sorted({box.label for image in images for box in image.boxes} - {""})
    return tuple(ClassEntry(identifier=name, name=name) for name in names)


def _read_all(
    directory: str, files: Mapping[str, str], names: Sequence[str]
) -> dict[str, _VocImage]:
    def read(name: str) -> _VocImage | str:
        path = os.path.join(directory, files[name])
        content = b""
        try:
            with storage.open_bytes(path) as file:
                content = file.read()
            return _parse(content)
        except OSError as error:
            return f"{files[name]}: {storage.reason(error)}"
        except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
            is_foreign = isinstance(error, expat.ExpatError) and not _is_utf8(content)
            return f"{files[name]}: {error}{'; save it as UTF-8' if is_foreign else ''}"

    with ThreadPoolExecutor(_READERS) as pool:
        results = dict(zip(names, pool.map(read, names), strict=True))
    broken = [result for result in results.values() if isinstance(result, str)]
    if broken:
        shown = "\n  ".join(broken[:5])
        raise UserError(
            f"--annotations {directory}: {len(broken)} of {len(names)} files cannot be read as "
            f"Pascal VOC XML:\n  {shown}"
        )
    return {name: result for name, result in results.items() if isinstance(result, _VocImage)}


def _parse(content: bytes) -> _VocImage:
    text = _decoded(content)
    _require_no_declarations(text)
    root = ElementTree.fromstring(text)
    if root.tag != "annotation":
        raise UserError(f"the root element is <{root.tag}>, expected <annotation>")
    boxes = []
    for thing in root.iter("object"):
        name = (thing.findtext("name") or "").strip()
        is_difficult = bool(read_flag(thing.findtext("difficult")))
        found = [_parse_box(name, box) for box in thing.findall("bndbox")]
        found = found or [_VocBox(name, *_NO_BOX, "no <bndbox>")]
        boxes += [box._replace(is_difficult=is_difficult) for box in found]
    size = root.find("size")
    height, width = (_size(size, key) for key in ("height", "width"))
    if math.isnan(height + width):
        height = width = math.nan
    return _VocImage((root.findtext("filename") or "").strip(), height, width, tuple(boxes))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(content: bytes) -> str | bytes:
    """The text of a file that declares its encoding; else the content, which the parser decodes."""
    declared = _ENCODING.match(content[:_HEAD_BYTES])
    if declared is None:
        return content
    # The parser knows no encoding of several bytes but UTF-8 and UTF-16.
    encoding = declared[1].decode()
    if not _READ_ENCODINGS.fullmatch(codecs.lookup(encoding).name):
        raise UserError(f"its encoding {encoding} is not read; convert it to UTF-8")
    return content[declared.end() :].decode(encoding)


def _require_no_declarations(text: str | bytes) -> None:
    """Refuses what a document type declares: entities and attributes may grow to gigabytes."""

    def check(name: str, system: str | None, public: str | None, has_declarations: bool) -> None:
        if has_declarations:
            raise UserError(
                f"<!DOCTYPE {name[:80]} [...]> contains declarations, which are not read; delete it"
            )

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = check
    parser.Parse(text, True)


def _parse_box(name: str, box: ElementTree.Element) -> _VocBox:
    y1, x1, y2, x2 = (_number(box, side) for side in _SIDES)
    texts = {side: (box.findtext(side) or "").strip() for side in _SIDES}
    unread = [
        f"{side} '{texts[side]}'"
        for side, corner in zip(_SIDES, (y1, x1, y2, x2), strict=True)
        if math.isnan(corner) and texts[side].lower() != "nan"
    ]
    return _VocBox(name, y1, x1, y2, x2, " ".join(unread) or None)


def _number(parent: ElementTree.Element, key: str) -> float:
    """Returns the number in a child element; without one NaN."""
    number = read_number(parent.findtext(key) or "")
    return math.nan if number is None else number


def _size(parent: ElementTree.Element | None, key: str) -> float:
    """Returns the pixels of a side; NaN where they are not known."""
    size = None if parent is None else read_size((parent.findtext(key) or "").strip())
    return math.nan if size is None else size


def _find_files(
    directory: str, names: Sequence[str], parsed: dict[str, _VocImage], annotated: Collection[str]
) -> dict[str, str]:
    """Returns the image of each XML file; `annotated` has the names of all XML files."""
    present = list_image_names(directory)
    by_stem: dict[str, str] = {}
    for file in present:
        by_stem.setdefault(stem(file), file)
    known = set(present)
    files = {}
    for name in names:
        path = plain_path(parsed[name].file_name)
        declared = os.path.basename(path)
        if stem(declared) != name and stem(declared) in annotated:
            declared = ""  # left over from the image of another XML file
        if declared in known and (stem(declared) == name or name not in by_stem):
            files[name] = declared
        elif declared != path and _is_inside(directory, path) and stem(declared) == name:
            files[name] = path  # in a subfolder
        else:  # <filename> is often left over from another image: the name of the XML decides
            files[name] = by_stem.get(name, declared or f"{name}.jpg")
    return files


def _is_inside(directory: str, path: str) -> bool:
    """Whether a relative path, as annotations have it, leads to a file within the directory."""
    is_relative = not (os.path.isabs(path) or path.startswith("..") or storage.is_remote(path))
    return is_relative and storage.exists(os.path.join(directory, path))
