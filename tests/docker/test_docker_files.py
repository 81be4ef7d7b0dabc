"""The image is built from what is there, and docker gets the right arguments; no engine needed."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
# Stands in for the engine: writes its arguments down, one per line.
FAKE_DOCKER = '#!/bin/sh\nprintf "%s\\n" "$@" > "$DOCKER_ARGUMENTS"\n'


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, continued lines joined, comments left out."""
    text = (DOCKER / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (i.partition(" ") for i in joined.splitlines() if i)]


@pytest.fixture
def run(tmp_path: Path):
    """Runs a script of docker/ in tmp_path/work with a PATH that has a `docker` in it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text(FAKE_DOCKER)
    (programs / "docker").chmod(0o755)
    (tmp_path / "work").mkdir()

    def run_script(
        name: str, *arguments: str, cwd: Path | None = None, **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        given = tmp_path / "arguments"
        given.unlink(missing_ok=True)
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": "/root",
            "USER": "me",
            "DOCKER_ARGUMENTS": str(given),
        }
        done = subprocess.run(
            [DOCKER / name, *arguments],
            cwd=cwd or tmp_path / "work",
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, given.read_text().splitlines() if given.exists() else []

    return run_script


def test_the_dockerfile_copies_what_exists_and_names_known_extras() -> None:
    copied = set()
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            *sources, _ = shlex.split(rest)
            copied.update(sources)
    assert {"models", "scripts", "pyproject.toml", "setup.py"} <= copied
    assert not [source for source in copied if not (ROOT / source).exists()]
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert {source.split("/")[0] for source in copied} <= let_in
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert {"cuda", "cpu", "cluster"} <= set(extras)
    assert any("tensorflow[and-cuda]" in requirement for requirement in extras["cuda"])
    (entrypoint,) = [rest for word, rest in instructions() if word == "ENTRYPOINT"]
    assert entrypoint == '["/opt/tpudet/entrypoint.sh"]'
    assert os.access(DOCKER / "entrypoint.sh", os.X_OK)
    python = [rest.split("=")[1] for word, rest in instructions() if "PYTHON_VERSION=" in rest]
    assert python == ["3.12"]  # not older than `requires-python`
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases == ["${BASE_IMAGE}"] * 2


def test_the_requirements_are_those_of_pyproject() -> None:
    """The Dockerfile's own command, run here."""
    command = [sys.executable, DOCKER / "list_requirements.py", ROOT / "pyproject.toml"]
    done = subprocess.run([*command, "cuda", "cluster"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "numpy" in lines
    assert "ray" in lines
    assert sum(line.startswith("tensorflow[and-cuda]") for line in lines) == 1
    assert not any(line.startswith(("tensorflow-cpu", "pytest")) for line in lines)
    done = subprocess.run([*command, "tpu"], capture_output=True, text=True, check=True)
    assert "etils[epath]" in done.stdout.splitlines()  # or JAX keeps nothing in a bucket
    done = subprocess.run([*command, "gpu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no extra gpu; known: cpu, cuda" in done.stderr


def test_the_build_command(run) -> None:
    done, arguments = run("docker_build.sh")
    assert done.returncode == 0, done.stderr
    assert arguments == [
        "build",
        "--build-arg",
        "EXTRA=cuda",
        "--file",
        f"{DOCKER}/Dockerfile",
        "--tag",
        "tpudet:cuda",
        str(ROOT),
    ]
    _, arguments = run("docker_build.sh", "cpu", "--no-cache")
    assert arguments[-3:] == ["tpudet:cpu", "--no-cache", str(ROOT)]
    done, arguments = run("docker_build.sh", "gpu")
    assert done.returncode == 2
    assert (
        "docker_build.sh: there is no image gpu\nusage: docker_build.sh [cuda|cpu]" in done.stderr
    )
    assert not arguments


def test_help_is_that_of_the_script(run) -> None:
    for arguments in (["--help"], ["-h"], ["cpu", "--help"]):
        done, given = run("docker_build.sh", *arguments)
        assert done.returncode == 0
        assert done.stdout.startswith("usage: docker_build.sh [cuda|cpu]")
        assert not given
    done, given = run("docker_run.sh", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: docker_run.sh COMMAND...")
    assert not given


def test_docker_without_buildx_is_one_sentence(run, tmp_path: Path) -> None:
    (tmp_path / "bin" / "docker").write_text('#!/bin/sh\n[ "$1" != buildx ]\n')
    done, _ = run("docker_build.sh", "cpu")
    assert done.returncode == 2
    assert done.stderr.startswith("docker has no buildx here: install docker-buildx-plugin")
    assert done.stderr.count("\n") == 1


def test_the_command_of_the_readme_as_typed(run, tmp_path: Path) -> None:
    data, storage = tmp_path / "data", tmp_path / "output"
    for folder in (data / "test", storage / "final" / "model"):
        folder.mkdir(parents=True)
    command = ["python", "inference.py", "p.parquet", "../output/final/model"]
    done, arguments = run("docker_run.sh", *command, DATA=str(data), STORAGE=str(storage))
    assert done.returncode == 0, done.stderr
    work = tmp_path / "work"
    assert arguments == [
        "run",
        "--rm",
        "--init",
        "--interactive",  # and no --tty without a terminal
        "--user",
        f"{os.getuid()}:{os.getgid()}",
        "--workdir",
        str(work),
        "--env",
        f"DATA={data}",
        "--env",
        f"STORAGE={storage}",
        "--env",
        "USER=me",
        "--mount",
        f"type=bind,source={work},target={work}",
        "--mount",
        f"type=bind,source={storage},target={storage}",
        "--mount",
        f"type=bind,source={storage}/predictions,target={storage}/predictions",
        "--mount",
        f"type=bind,source={data},target={data},readonly",
        "--mount",
        f"type=bind,source={storage}/final,target={storage}/final,readonly",
        "tpudet:cpu",
        *command,
    ]
    assert (storage / "predictions").is_dir()  # the user's own; docker would make it root's


@pytest.mark.parametrize(
    ("variables", "folders"),
    [
        ({"DATA": ".", "STORAGE": "./new/"}, ["work", "work/new", "work/new/predictions"]),
        (
            {"DATA": "../data/", "STORAGE": "../output", "MODELS": "../output/."},
            ["work", "output", "output/predictions", "data,readonly"],
        ),
    ],
)
def test_no_folder_is_mounted_twice(
    run, tmp_path: Path, variables: dict[str, str], folders: list[str]
) -> None:
    for name in ("data", "output"):
        (tmp_path / name).mkdir()
    done, arguments = run("docker_run.sh", "true", **variables)
    assert done.returncode == 0, done.stderr
    mounts = [argument for argument in arguments if argument.startswith("type=bind")]
    assert [mount.partition(",target=")[2] for mount in mounts] == [
        str(tmp_path / folder) for folder in folders
    ]


def test_where_there_is_a_gpu_the_image_for_it_is_taken(run, tmp_path: Path) -> None:
    variables = {"DATA": str(tmp_path), "STORAGE": "gs://bucket"}
    gpu = tmp_path / "bin" / "nvidia-smi"
    gpu.write_text("#!/bin/sh\nexit 0\n")
    gpu.chmod(0o755)
    _, arguments = run("docker_run.sh", "true", **variables)
    assert arguments[-2:] == ["tpudet:cuda", "true"]
    assert arguments[arguments.index("--gpus") + 1] == "all"
    assert "STORAGE=gs://bucket" in arguments
    assert not any("source=gs:" in argument for argument in arguments)
    _, arguments = run("docker_run.sh", "true", IMAGE="tpudet:cpu", **variables)
    assert "--gpus" not in arguments
    gpu.write_text("#!/bin/sh\nexit 9\n")  # installed, but no driver
    _, arguments = run("docker_run.sh", "true", DOCKER_FLAGS="--network=host -e A=1", **variables)
    assert "--gpus" not in arguments
    assert arguments[-5:] == ["--network=host", "-e", "A=1", "tpudet:cpu", "true"]


def test_wrong_use_is_explained(run, tmp_path: Path) -> None:
    variables = {"DATA": str(tmp_path), "STORAGE": "gs://bucket"}
    done, _ = run("docker_run.sh", **variables)
    assert done.returncode == 2
    assert "usage: docker_run.sh COMMAND..." in done.stderr
    for changed, message in (
        ({"DATA": "/no/data"}, "DATA: no folder /no/data"),
        ({"MODELS": "none"}, f"MODELS: no folder {tmp_path}/work/none"),
    ):
        done, arguments = run("docker_run.sh", "true", **variables | changed)
        assert done.returncode == 2
        assert message in done.stderr
        assert not arguments
    done, arguments = run("docker_run.sh", "true", cwd=Path("/"), **variables)
    assert done.returncode == 2
    assert "cannot mount / over the image" in done.stderr
    (tmp_path / "bin" / "docker").unlink()
    for name, argument in (("docker_run.sh", "true"), ("docker_build.sh", "cpu")):
        done, _ = run(name, argument, **variables)
        assert done.returncode == 2
        assert "docker is not installed" in done.stderr


def test_the_entrypoint_finds_scripts_by_name(tmp_path: Path) -> None:
    def answer_of(*command: str) -> str:
        done = subprocess.run(
            [DOCKER / "entrypoint.sh", *command],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "TPUDET_SCRIPTS": str(tmp_path / "scripts")},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() or f"exit {done.returncode}"

    (tmp_path / "scripts" / "inference").mkdir(parents=True)
    (tmp_path / "scripts/inference/inference.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "scripts/train.sh").write_text('#!/bin/sh\necho "train $*"\n')
    (tmp_path / "scripts/train.sh").chmod(0o755)
    assert answer_of("python", "inference.py", "a b", "*") == "['a b', '*']"
    assert answer_of("train.sh", "1") == "train 1"
    assert answer_of("python", "-c", "print('as it is')") == "as it is"
    assert answer_of("python", "none.py") == "exit 2"
    assert answer_of("false") == "exit 1"
    (tmp_path / "inference.py").write_text("print('the one of this directory')")
    assert answer_of("python", "inference.py") == "the one of this directory"
