"""Faults of a command: its processes killed, its files damaged, its disk full."""

import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

EXIT_PREEMPTED, EXIT_INTERRUPTED = 75, 130  # of training, and of other commands
# The gradient of oneDNN's max pooling has two roundings, see docs/restart.md.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
LOSS_SECONDS = 120  # in which a host notices that the other is gone


class Job(NamedTuple):
    """A command that writes below a folder."""

    name: str
    words: tuple[str, ...]  # {out} is the folder
    results: tuple[str, ...]  # patterns of the files that count, below the folder
    begun: str  # pattern of a file that appears when the work itself begins
    compiled: str = (
        ""  # folder of what its undisturbed run compiled, which every other one is given
    )


class Row(NamedTuple):
    """The outcomes of one kind of fault."""

    fault: str
    command: str
    times: int
    ends: int  # all with the same bytes
    note: str = ""


class Fault(Exception):
    """Something that must not happen; says what."""


def start(job: Job, out: Path, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command in a process group of its own; its output is appended to a log."""
    words = [word.replace("{out}", str(out)) for word in job.words]
    with open(out.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tpudet", *words, *more],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | ENVIRONMENT | environment,
        )


def digests(job: Job, out: Path) -> dict[str, str]:
    """The SHA-256 of every result, by its path below the folder."""
    found = sorted({path for pattern in job.results for path in out.glob(pattern)})
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
        if path.is_file() and "temporary" not in path.name and ".claim" not in path.name
    }


class Reference(NamedTuple):
    """An undisturbed run."""

    results: dict[str, str]
    work_seconds: float  # from the first file of its work to its end


def run_undisturbed(job: Job, folder: Path) -> Reference:
    """Runs a command once."""
    out = _fresh(folder / "undisturbed")
    process = start(job, out)
    begun = _wait_for_work(job, out, process)
    if process.wait():
        raise Fault(f"{job.name} fails undisturbed: {_log(out)}")
    return Reference(digests(job, out), time.monotonic() - begun)


def _wait_for_work(job: Job, out: Path, process: subprocess.Popen[bytes]) -> float:
    while process.poll() is None and not any(out.glob(job.begun)):
        time.sleep(0.002)
    return time.monotonic()


def _fresh(out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".log").unlink(missing_ok=True)
    out.mkdir(parents=True)
    return out


def _compiled(job: Job, folder: Path, name: str) -> Path:
    """A fresh output that holds only what was compiled; to compile takes half a run."""
    out = _fresh(folder / name)
    if job.compiled:
        shutil.copytree(folder / "undisturbed" / job.compiled, out / job.compiled)
    return out


def _log(out: Path) -> str:
    return out.with_suffix(".log").read_text(errors="replace")[-1500:]


def _check_final_names(job: Job, out: Path, reference: Reference) -> None:
    """A file that a killed command left under a final name is whole."""
    if job.name.startswith("train"):
        return  # its checkpoints of earlier steps are judged by the run that restores them
    for name, digest in digests(job, out).items():
        if name in reference.results and digest != reference.results[name]:
            raise Fault(f"{job.name} left another {name}")


def _check_end(job: Job, out: Path, reference: Reference, code: int) -> None:
    if code:
        raise Fault(f"{job.name} ended with {code} after a fault: {_log(out)}")
    found = digests(job, out)
    if found != reference.results:
        wrong = sorted(dict(found.items() ^ reference.results.items()))
        raise Fault(f"{job.name} ended with other {', '.join(wrong[:5])}")
    left = [str(path) for path in out.rglob("*") if "temporary" in path.name]
    if left:
        raise Fault(f"{job.name} left {', '.join(left[:5])}")


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    os.killpg(process.pid, number)


def interrupt_at_random(
    job: Job,
    folder: Path,
    reference: Reference,
    *,
    times: int,
    rng: random.Random,
    stop: Callable[[subprocess.Popen[bytes]], int],
) -> int:
    """Starts and stops a command until that was done `times`; each run then continues to its end.

    Four in five are stopped while they work, the rest while they start.

    Args:
        job: the command.
        folder: for its outputs.
        reference: its undisturbed run.
        times: how often it is stopped.
        rng: chooses the moments.
        stop: ends a process; returns its exit code, 0 if it had finished.

    Returns:
        The number of runs that came to their end.
    """
    stops = ends = 0
    while stops < times:
        out = _compiled(job, folder, "stopped")
        code = None
        while code != 0 and stops < times:
            process = start(job, out)
            works = rng.random() < 0.8
            if works:
                _wait_for_work(job, out, process)
            try:
                code = process.wait(rng.uniform(0, reference.work_seconds if works else 3))
                if code:
                    raise Fault(f"{job.name} ends with {code} by itself: {_log(out)}")
            except subprocess.TimeoutExpired:
                stops += 1
                code = stop(process)
                _check_final_names(job, out, reference)
                if digests(job, out) == reference.results:
                    code = 0  # between its last file and its end; started again it would refuse
        _check_end(job, out, reference, start(job, out).wait() if code else 0)
        ends += 1
    return ends


def kill_at_random(
    job: Job, folder: Path, reference: Reference, *, times: int, rng: random.Random
) -> Row:
    """SIGKILL to all processes of a command, or to its first one alone."""

    def stop(process: subprocess.Popen[bytes]) -> int:
        if rng.random() < 0.3:
            process.kill()
        else:
            _signal_group(process, signal.SIGKILL)
        return process.wait()

    ends = interrupt_at_random(job, folder, reference, times=times, rng=rng, stop=stop)
    return Row("SIGKILL at a random moment", job.name, times, ends)


def terminate_at_random(
    job: Job,
    folder: Path,
    reference: Reference,
    *,
    times: int,
    rng: random.Random,
    grace_seconds: int,
) -> Row:
    """SIGTERM, and SIGKILL `grace_seconds` later."""
    seconds = []

    def stop(process: subprocess.Popen[bytes]) -> int:
        sent = time.monotonic()
        process.terminate()
        try:
            code = process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            raise Fault(f"{job.name} lives {grace_seconds} s after SIGTERM") from None
        seconds.append(time.monotonic() - sent)
        if code not in (0, EXIT_PREEMPTED, EXIT_INTERRUPTED, -signal.SIGTERM):
            raise Fault(f"{job.name} ends with {code} after SIGTERM")
        return code

    ends = interrupt_at_random(job, folder, reference, times=times, rng=rng, stop=stop)
    fault = f"SIGTERM with {grace_seconds} s to live"
    return Row(fault, job.name, times, ends, f"stopped within {max(seconds):.1f} s")


def _flip_a_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut_off(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def _rename_half(path: Path, rng: random.Random) -> None:
    path.rename(path.with_name(path.name + ".elsewhere"))


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "newest checkpoint, a bit flipped": _flip_a_bit,
    "newest checkpoint, cut": _cut_off,
    "newest checkpoint, one of its files missing": _rename_half,
}


def damage_newest(
    job: Job, folder: Path, reference: Reference, *, times: int, rng: random.Random
) -> Iterator[Row]:
    """The newest checkpoint of a finished run becomes unreadable; the one before continues it."""
    for fault, damage in DAMAGES.items():
        for _ in range(times):
            out = _fresh(folder / "damaged")
            shutil.copytree(folder / "undisturbed", out, dirs_exist_ok=True)
            newest = (out / "run/checkpoint").read_text().split('"')[1]
            damage(rng.choice(sorted((out / "run").glob(f"{newest}.*"))), rng)
            code = start(job, out).wait()
            for path in (out / "run").glob("*.elsewhere"):
                path.unlink()
            _check_end(job, out, reference, code)
        yield Row(fault, job.name, times, times)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of so many bytes at a folder, in memory; needs the right to mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_the_disk(
    job: Job, folder: Path, reference: Reference, *, times: int, rng: random.Random
) -> Row | None:
    """A disk that is full at a random place of the output, and then is not."""
    out = _fresh(folder / "full")
    files = [path for path in (folder / "undisturbed").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    for _ in range(times):
        try:
            with small_disk(out, max(int(rng.uniform(0.05, 0.9) * size), 8192)):
                code = start(job, out).wait()
                if code not in (1, 2):
                    raise Fault(f"{job.name} ends with {code} on a full disk: {_log(out)}")
                log = out.with_suffix(".log").read_text(errors="replace")
                is_said = "No space left" in log or "ENOSPC" in log
                if not is_said or "Traceback" in log:
                    raise Fault(f"{job.name} does not say that the disk is full: {_log(out)}")
                _check_final_names(job, out, reference)
                remount = ["mount", "-o", f"remount,size={10 * size + (1 << 24)}", str(out)]
                subprocess.run(remount, check=True)
                _check_end(job, out, reference, start(job, out).wait())
        except subprocess.CalledProcessError as error:
            print(f"no small disk, left out: {error.stderr.decode().strip()}", file=sys.stderr)
            return None
        _fresh(out)
    return Row("disk full, then not", job.name, times, times)


def lose_a_host(job: Job, folder: Path, *, times: int, rng: random.Random) -> Row:
    """One of two JAX hosts is killed; the other ends by itself, and both are started again."""
    reference = None
    longest = 0.0
    for number in range(times + 1):
        out = _fresh(folder / "hosts")
        if number:
            hosts = _start_hosts(job, out)
            _wait_for_work(job, out, hosts[0])
            time.sleep(rng.uniform(0, reference.work_seconds if reference else 1))
            lost = rng.randrange(2)
            _signal_group(hosts[lost], signal.SIGKILL)
            killed = time.monotonic()
            try:
                code = hosts[1 - lost].wait(LOSS_SECONDS)
            except subprocess.TimeoutExpired:
                _signal_group(hosts[1 - lost], signal.SIGKILL)
                raise Fault(f"a host lives {LOSS_SECONDS} s after the other") from None
            longest = max(longest, time.monotonic() - killed)
            if code not in (0, 75):
                raise Fault(f"a host ends with {code} after the other was lost: {_log(out)}")
        hosts = _start_hosts(job, out)
        begun = _wait_for_work(job, out, hosts[0])
        codes = [host.wait() for host in hosts]
        if any(codes):
            raise Fault(f"two hosts end with {codes}: {_log(out)}")
        if reference is None:
            reference = Reference(digests(job, out), time.monotonic() - begun)
        else:
            _check_end(job, out, reference, codes[0])
    note = f"the other ended within {longest:.1f} s"
    return Row("one of two hosts lost", job.name, times, times, note)


def _start_hosts(job: Job, out: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    hosts = ["--coordinator_address", address, "--num_processes", "2", "--process_id"]
    return [start(job, out, *hosts, str(index), JAX_PLATFORMS="cpu") for index in (0, 1)]
