"""The image for CPUs, built from the Dockerfile and run as another user, without a daemon.

buildah builds it in a chroot, on a base made by debootstrap: of servers, only those of packages are
needed.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpudet.detection.inference.predictions_file import read_predictions

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SUITE = "bookworm"  # Python 3.11
USER = 1234
# A virtual environment, because Debian's own Python refuses to install packages.
BASE = """\
FROM scratch
COPY rootfs /
RUN python3 -m venv /opt/python
ENV PATH=/opt/python/bin:/usr/bin:/bin:/usr/sbin:/sbin
"""


def command(*arguments: object) -> str:
    """Runs a program; returns what it printed, and shows all of it where it fails."""
    text = [str(argument) for argument in arguments]
    done = subprocess.run(text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(text)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_volumes(folder: Path) -> list[str]:
    """Flags that give the image pip's configuration of this machine, and the paths in it."""
    lines = command(sys.executable, "-m", "pip", "config", "list").splitlines()
    pairs = (line.split("=", 1) for line in lines)
    settings = {key.rpartition(".")[2]: value.strip("'") for key, value in pairs}
    text = "".join(f"{key} = {value}\n" for key, value in settings.items())
    (folder / "pip.conf").write_text(f"[global]\n{text}")
    words = {word for value in settings.values() for word in value.split()}
    # The pages of an index link to files beside its folder.
    indices = {
        os.path.dirname(word[7:].rstrip("/")) for word in words if word.startswith("file://")
    }
    paths = indices | {word for word in words if word.startswith("/") and os.path.exists(word)}
    mounts = [f"{folder}/pip.conf:/etc/pip.conf", *(f"{path}:{path}" for path in sorted(paths))]
    return [flag for mount in mounts for flag in ("--volume", f"{mount}:ro")]


@pytest.fixture(scope="module")
def buildah() -> Iterator[Callable[..., str]]:
    """Runs buildah with a storage of its own, which is removed in the end."""
    if os.getuid() != 0 or not all(map(shutil.which, ("buildah", "debootstrap"))):
        pytest.skip("needs root, buildah and debootstrap: image test")
    with tempfile.TemporaryDirectory(prefix="image", ignore_cleanup_errors=True) as folder:
        storage = ["--root", f"{folder}/root", "--runroot", f"{folder}/run"]
        yield lambda *arguments: command("buildah", "--storage-driver", "vfs", *storage, *arguments)


@pytest.fixture(scope="module")
def image(buildah: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the image."""
    folder = tmp_path_factory.mktemp("base")
    include = "--include=python3-venv,ca-certificates"
    command("debootstrap", "--variant=minbase", include, SUITE, folder / "rootfs")
    (folder / "Containerfile").write_text(BASE)
    build = ["bud", "--isolation", "chroot", "--pull-never", "--layers=false"]
    buildah(*build, "--tag", "base", folder)
    shutil.rmtree(folder / "rootfs")
    name = "localhost/tpudet:cpu"
    flags = ["--build-arg", "BASE_IMAGE=localhost/base", "--build-arg", "EXTRA=cpu"]
    flags += ["--ignorefile", ROOT / "docker/Dockerfile.dockerignore", *pip_volumes(folder)]
    buildah(*build, *flags, "--file", ROOT / "docker/Dockerfile", "--tag", name, ROOT)
    return name


def test_the_image_trains_and_predicts_as_another_user(
    buildah: Callable[..., str], image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (about,) = json.loads(buildah("images", "--json", image))
    with capsys.disabled():
        print(f"\n{image}: {about['size']}")
    container = buildah("from", "--pull-never", image).strip()
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    work = tmp_path / "work"
    work.mkdir()
    os.chown(work, USER, USER)

    def run(*arguments: str) -> None:
        flags = ["--isolation", "chroot", "--user", f"{USER}:{USER}", "--workingdir", "/work"]
        flags += ["--volume", f"{work}:/work", "--env", "STORAGE=/work/output"]
        buildah("run", *flags, container, "--", *config["Entrypoint"], *arguments)

    sets = ["train.weights=null", "train.freeze=[]", "train.total_steps=5"]
    sets += ["evaluation.schedule.every_steps=5", "train.iterations_per_loop=5"]
    overrides = [flag for value in sets for flag in ("--set", value)]
    run("tpudet", "demo", "--num_images", "20", *overrides)
    (model,) = (work / "output/final").glob("demo-sample-*")
    flags = ["--images", "output/images/val"]
    run("python", "inference.py", "p.parquet", f"output/final/{model.name}", *flags)
    with (work / "p.parquet").open("rb") as file:
        predicted = read_predictions(file, "p.parquet").images
    names = {path.stem for path in (work / "output/images/val").iterdir()}
    assert {prediction.image_id for prediction in predicted} == names
    assert {path.stat().st_uid for path in (work / "output").rglob("*")} == {USER}
