"""tpudet predict on single images, URLs and videos, and --save_images."""

import http.server
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.commands.predict import main
from tpudet.detection.inference.predictions_file import Predictions, read_predictions
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.web import fetch, url_file_name
from tpudet.trainkit.image_folder import list_inputs, read_ahead
from tpudet.trainkit.images.video import FrameReader, frame_paths

FILES: dict[str, bytes] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves FILES; names say how a file is spoiled."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].strip("/")
        content = FILES.get(name.removeprefix("cut_").removeprefix("slow_"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if name.startswith("cut_"):
            self.wfile.write(content[: len(content) // 2])
            return
        if name.startswith("slow_"):
            self.wfile.write(content[:10])
            self.wfile.flush()
            time.sleep(1.5)
            return
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(jpegs: dict[str, bytes]) -> Iterator[str]:
    FILES.update({f"{name}.jpg": encoded for name, encoded in jpegs.items()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()
        thread.join()


@pytest.fixture
def video(tmp_path: Path) -> str:
    """Twelve gray frames, 0, 20, 40 and so on."""
    path = str(tmp_path / "clip.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for number in range(12):
        writer.write(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.release()
    return path


def read(path: Path) -> Predictions:
    with path.open("rb") as file:
        return read_predictions(file, path.name)


def test_images_of_every_origin_are_predicted_alike(
    saved_model: Path, jpegs: dict[str, bytes], server: str, tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name, encoded in jpegs.items():
        (folder / f"{name}.jpg").write_bytes(encoded)
    single = tmp_path / "tall.image"  # an extension that says nothing
    single.write_bytes(jpegs["tall"])
    (folder / "notes.txt").write_text("not an image")
    (folder / "b").write_bytes(jpegs["wide"])
    (folder / "more").mkdir()
    whole, mixed = tmp_path / "whole.parquet", tmp_path / "mixed.parquet"
    assert main([str(whole), str(saved_model), "--images", str(folder)]) == 0
    assert "not those of images: b, more/, notes.txt." in capsys.readouterr().out
    inputs = [single, f"{server}/wide.jpg?size=1.5", f"{server}/square.jpg", folder / "small.jpg"]
    flags = [flag for path in inputs for flag in ("--images", str(path))]
    assert main([str(mixed), str(saved_model), *flags]) == 0
    for expected, found in zip(read(whole).images, read(mixed).images, strict=True):
        assert found.image_id == expected.image_id
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


def test_urls_that_fail_are_left_out_with_the_reason(
    saved_model: Path, server: str, tmp_path: Path, capsys
) -> None:
    target = tmp_path / "p.parquet"
    urls = [f"{server}/wide.jpg", f"{server}/gone.jpg", f"{server}/cut_tall.jpg"]
    flags = [flag for url in urls for flag in ("--images", url)]
    assert main([str(target), str(saved_model), *flags]) == 0
    found = read(target)
    assert [image.image_id for image in found.images] == ["wide"]
    assert "the server says 404" in found.metadata["unreadable"]["gone.jpg"]
    assert "was cut off after" in found.metadata["unreadable"]["cut_tall.jpg"]
    assert "cut_tall.jpg: cannot be opened: the download was cut off" in capsys.readouterr().err


def test_a_slow_server_is_given_up(server: str) -> None:
    with pytest.raises(OSError, match=r"sent nothing for 0.2 s"):
        fetch(f"{server}/slow_wide.jpg", silence=0.2)
    with pytest.raises(OSError, match="cannot be reached"):
        fetch("http://127.0.0.1:1/a.jpg", silence=2)
    with pytest.raises(OSError, match="not usable|cannot be reached"):
        fetch("http://[/a.jpg")
    assert url_file_name("https://host/a%20b.jpg?x=1.5#top") == "a b.jpg"


def test_a_refusal_closes_its_connection(server: str) -> None:
    with pytest.raises(OSError, match="the server says 404") as caught:
        fetch(f"{server}/gone.jpg")
    refusal = caught.value.__cause__
    assert isinstance(refusal, urllib.error.HTTPError)
    assert refusal.closed


def test_frames_of_a_video_are_images_with_their_numbers(video: str) -> None:
    listed = list_inputs([video], None, every=5).images
    assert [image.image_id for image in listed] == ["clip_000000", "clip_000005", "clip_000010"]
    for image, encoded in read_ahead(listed, workers=2, ahead=2):
        assert isinstance(encoded, bytes)
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None
        assert abs(pixels.mean() - 20 * int(image.image_id[-2:])) < 4
    reader = FrameReader()
    last, first = frame_paths(video)[11], frame_paths(video)[0]
    assert reader.read(last) != reader.read(first)  # back to the start
    with pytest.raises(ValueError, match="ends after 12 frames"):
        reader.read(last.replace("000011", "000012"))


def test_predicted_images_are_saved_with_their_detections(
    saved_model: Path, jpegs: dict[str, bytes], video: str, tmp_path: Path, capsys
) -> None:
    photo = tmp_path / "wide.jpg"
    photo.write_bytes(jpegs["wide"])
    drawn = tmp_path / "drawn"
    command = [str(tmp_path / "p.parquet"), str(saved_model), "--images", str(photo)]
    command += ["--images", video, "--every", "6", "--save_images", str(drawn)]
    assert main([*command, "--min_score", "0.5"]) == 0
    assert "drawn: 3 images with their detections" in capsys.readouterr().out
    assert sorted(path.name for path in drawn.iterdir()) == [
        "clip_000000.jpg",
        "clip_000006.jpg",
        "wide.jpg",
        "written_images.json",  # lists the three
    ]
    before, after = (cv2.imread(str(path)) for path in (photo, drawn / "wide.jpg"))
    assert before is not None
    assert after is not None
    assert before.shape == after.shape
    changed = (np.abs(before.astype(int) - after).max(axis=2) > 60).mean()
    assert 0.005 < changed < 0.7
    assert main([*command, "-f", "--save_images", str(photo)]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: [f"{folder}/nowhere"], "no directory or file"),
        (lambda folder: [f"{folder}/empty"], "no image in"),
        (lambda folder: ["s4://host/a.jpg"], "scheme 's4' not implemented"),
        (lambda folder: ["https://host/"], "does not end with the name of a file"),
        (lambda folder: [f"{folder}/bad.mp4"], "bad.mp4: it does not begin as a video does"),
        (lambda folder: [f"{folder}/a/1.jpg", "http://h/1.png"], "http://h/1.png have one id"),
        (
            lambda folder: [f"{folder}/a/1.jpg", f"{folder}/b/1.jpg"],
            "/a/1.jpg and .*/b/1.jpg have one id",
        ),
    ],
)
def test_inputs_that_are_refused(
    tmp_path: Path, make: Callable[[Path], list[str]], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"x")
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    with pytest.raises((UserError, OSError), match=message):
        list_inputs(make(tmp_path), None)
