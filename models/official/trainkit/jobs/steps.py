"""Steps of a preparation: each is done once, and again only when something it depends on changed.

Beside the first output of a step lies `<output>.step.json`: digests of what the step read, its
options and the code, the sizes of what it wrote, and its summary. It is written twice, unfinished
before the step begins and whole after its end, so that a killed run leaves a step that is begun
anew, and whose leftovers count as the toolkit's own.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, remove_dead_claim
from tpudet.trainkit.files.digests import code_digest, file_digest
from tpudet.trainkit.files.storage import list_names, read_text, remove_if_there, write_text

_SIGN_OF_LIFE_SECONDS = 5
_NEW = "not made yet"


class Step(NamedTuple):
    """One thing to make: a function of its inputs and options that leaves its outputs."""

    name: str  # in the imperative, with the file that it makes
    inputs: tuple[str, ...]  # files, by content, or folders, by the names and sizes of their files
    options: Mapping[str, Any]  # what else the outputs depend on; goes to JSON
    outputs: tuple[str, ...]  # files or folders; the first gives the step file its name
    run: Callable[[], str]  # writes the outputs, each whole; returns the summary, counts in words

    @property
    def step_path(self) -> str:
        """Path of the step file."""
        return f"{self.outputs[0]}.step.json"

    @property
    def claim_path(self) -> str:
        """Path of the file that says which process runs the step."""
        return f"{self.outputs[0]}.claim.json"


def run_step(step: Step, *, overwrite: bool = False) -> bool:
    """Runs a step, unless its outputs are there and up to date; says which, with the counts.

    Args:
        step: what to make.
        overwrite: replace outputs that no step has made.

    Returns:
        Whether it had to be run.

    Raises:
        UserError: an input is missing, an output is there that no step has made, another
            run is making the same, or the step itself failed.
        OSError: an output cannot be written.
    """
    state = _state(step)
    recorded = _recorded(step)
    reason = _difference(step, state, recorded) if recorded else _NEW
    if recorded and reason is None:
        remove_dead_claim(step.claim_path)
        print(f"{step.name}: up to date. {recorded['summary']}", flush=True)
        return False
    if recorded is None and not overwrite:
        _refuse_foreign(step)
    print(f"{step.name} ({reason}) ...", flush=True)
    for output in step.outputs:
        storage.make_folder(os.path.dirname(output) or ".")
    with Claim(step.claim_path) as claim, _signs_of_life(claim):
        write_text(step.step_path, _to_json(state | {"finished": False}))
        try:
            summary = step.run()
            claim.verify()
        except OSError as error:
            _forget_if_nothing_was_made(step)
            raise UserError(f"{step.name}: {error}.") from error
        except BaseException:
            _forget_if_nothing_was_made(step)
            raise
        sizes = [_size(output) for output in step.outputs]
        finished = state | {"finished": True, "sizes": sizes, "summary": summary}
        write_text(step.step_path, _to_json(finished))
    print(f"{step.name}: {summary}", flush=True)
    return True


def to_do(step: Step) -> str | None:
    """Why a step would be run, in words; None where it is up to date.

    Raises:
        UserError: an input is missing.
    """
    recorded = _recorded(step)
    return _NEW if recorded is None else _difference(step, _state(step), recorded)


def run_steps(steps: Sequence[Step], *, overwrite: bool = False) -> int:
    """Runs the steps in order, as `run_step` does; returns how many had to be run."""
    made = 0
    for number, step in enumerate(steps, 1):
        numbered = step._replace(name=f"[{number}/{len(steps)}] {step.name}")
        made += run_step(numbered, overwrite=overwrite)
    return made


def list_steps(steps: Sequence[Step]) -> int:
    """Prints which steps `run_steps` would run, and why; returns how many.

    Raises:
        UserError: an input is missing that no step before makes.
    """
    remade: dict[str, int] = {}  # output of a step to be run -> its number
    for number, step in enumerate(steps, 1):
        behind = [path for path in step.inputs if path in remade]
        reason = f"reads what step {remade[behind[0]]} makes" if behind else to_do(step)
        if reason is not None:
            remade |= dict.fromkeys(step.outputs, number)
        state = f"to do ({reason})" if reason else "up to date"
        print(f"[{number}/{len(steps)}] {step.name}: {state}")
    return len(set(remade.values()))


def _state(step: Step) -> dict[str, Any]:
    """What the outputs depend on."""
    inputs = [{"path": path, "sha256": file_digest(path)} for path in step.inputs]
    options = json.loads(json.dumps(dict(step.options)))  # tuples become lists, as when read again
    return {"inputs": inputs, "options": options, "code": code_digest()}


def _recorded(step: Step) -> dict[str, Any] | None:
    """The step file, or None where there is none; one that cannot be read counts as unfinished."""
    text = read_text(step.step_path)
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"finished": False}


def _difference(step: Step, state: Mapping[str, Any], recorded: Mapping[str, Any]) -> str | None:
    """Why what is recorded is not up to date, in words; None where it is."""
    if not recorded["finished"]:
        return "was not finished"
    for output, size in zip(step.outputs, recorded["sizes"], strict=False):
        if (present := _size(output)) != size:
            return f"{output} is {'missing' if present is None else 'changed'}"
    now = [entry["sha256"] for entry in state["inputs"]]
    then = [entry["sha256"] for entry in recorded["inputs"]]
    if len(recorded["sizes"]) != len(step.outputs) or len(now) != len(then):
        return "has other inputs or outputs"
    changed = [path for path, a, b in zip(step.inputs, now, then, strict=True) if a != b]
    if changed:
        return f"{', '.join(changed)} changed"
    if state["options"] != recorded["options"]:
        return "has other options"
    return None if state["code"] == recorded["code"] else "the code changed"


def _size(path: str) -> int | None:
    """Bytes of a file, or the number of names in a folder; None where there is neither."""
    try:
        state = storage.stat(path)
    except FileNotFoundError:
        return None
    return len(list_names(path)) if state.is_folder else state.size


def _refuse_foreign(step: Step) -> None:
    present = [output for output in step.outputs if storage.exists(output)]
    if present:
        raise UserError(
            f"{', '.join(present)}: there already, and no step has made it. Pass --overwrite to "
            "replace it, or name another output."
        )


def _forget_if_nothing_was_made(step: Step) -> None:
    if not any(storage.exists(output) for output in step.outputs):
        remove_if_there(step.step_path)


@contextmanager
def _signs_of_life(claim: Claim) -> Iterator[None]:
    """Refreshes the claim while the block runs: a long step does not know of it."""
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(_SIGN_OF_LIFE_SECONDS):
            claim.refresh()

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _to_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
