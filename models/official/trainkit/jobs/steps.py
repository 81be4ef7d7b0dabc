"""Resumable steps: each runs once, and again only if something that it depends on has changed.

`<output>.step.json`, beside the first output of a step, records digests of its inputs, options and
code, its outputs and their sizes, and its summary. The record is written before the step begins,
marked as unfinished, and again after it ends. A step that was killed is therefore run again, and
what it left behind is known to be its own.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, remove_dead_claim
from tpudet.trainkit.files.digests import code_digest, file_digest
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.storage import list_names, read_text, remove_if_there, write_text

_NEW = "not made yet"
_RECORDED = {"inputs", "options", "code", "finished", "sizes", "summary"}  # of a finished step


class Step(NamedTuple):
    """A unit of work that produces outputs from inputs, options and code alone."""

    name: str  # imperative, with the file that it makes
    inputs: tuple[str, ...]  # files, compared by content; folders, by names and sizes of files
    options: Mapping[str, Any]  # everything else that the outputs depend on; stored as JSON
    outputs: tuple[str, ...]  # files or folders; the first one names the record
    run: Callable[[], str]  # writes each output atomically; returns a summary with counts
    code: tuple[str, ...]  # modules and packages whose sources the outputs depend on

    @property
    def step_path(self) -> str:
        """Path of the record."""
        return f"{self.outputs[0]}.step.json"

    @property
    def claim_path(self) -> str:
        """Path of the claim file of the process that runs the step."""
        return f"{self.outputs[0]}.claim.json"


def run_step(step: Step, *, overwrite: bool = False) -> bool:
    """Runs a step unless its outputs exist and are up to date; prints which, and the summary.

    Files that an earlier run of the step made and this one does not, because its options are
    others, are removed: later steps would take them for up to date.

    Args:
        step: the step.
        overwrite: replace outputs that were not made by a step.

    Returns:
        Whether the step was run.

    Raises:
        UserError: an input is missing, an output exists that was not made by a step, another run
            is making the same outputs, or an output cannot be written; or as the step raises.
    """
    state = _state(step)
    recorded = _read_record(step)
    reason = _difference(step, state, recorded) if recorded else _NEW
    if recorded and reason is None:
        remove_dead_claim(step.claim_path)
        print(f"{step.name}: up to date. {recorded['summary']}", flush=True)
        return False
    if recorded is None and not overwrite:
        _refuse_unknown_outputs(step)
    print(f"{step.name} ({reason}) ...", flush=True)
    for output in step.outputs:
        storage.make_folder(os.path.dirname(output) or ".")
    with Claim(step.claim_path, output=step.outputs[0]) as claim:
        made, own = _earlier_outputs(recorded), _output_names(step)
        begun = {"finished": False, "outputs": sorted({*made, *own})}
        write_text(step.step_path, _to_json(state | begun))
        try:
            summary = step.run()
            claim.verify()
        except OSError as error:
            _remove_record_without_outputs(step)
            raise UserError(f"{step.name}: {error}.") from error
        except BaseException:
            _remove_record_without_outputs(step)
            raise
        for name in sorted(set(made) - set(own)):
            _remove_file(os.path.join(os.path.dirname(step.step_path), name))
        sizes = [_size(output) for output in step.outputs]
        ended = {"finished": True, "outputs": own, "sizes": sizes, "summary": summary}
        finished = state | ended
        write_text(step.step_path, _to_json(finished))
    print(f"{step.name}: {summary}", flush=True)
    return True


def reason_to_run(step: Step) -> str | None:
    """Returns the reason why a step would be run; None if it is up to date.

    Raises:
        UserError: an input is missing.
    """
    state, recorded = _state(step), _read_record(step)
    return _NEW if recorded is None else _difference(step, state, recorded)


def run_steps(steps: Sequence[Step], *, overwrite: bool = False) -> int:
    """Runs steps in order as `run_step` does; returns how many were run."""
    num_run = 0
    for number, step in enumerate(steps, 1):
        numbered = step._replace(name=f"[{number}/{len(steps)}] {step.name}")
        num_run += run_step(numbered, overwrite=overwrite)
    return num_run


def list_steps(steps: Sequence[Step]) -> int:
    """Prints which steps `run_steps` would run and why; returns how many.

    Raises:
        UserError: an input is missing that no earlier step makes.
    """
    pending: dict[str, int] = {}  # number of the step to run, by output
    for number, step in enumerate(steps, 1):
        waiting = [path for path in step.inputs if path in pending]
        reason = f"depends on step {pending[waiting[0]]}" if waiting else reason_to_run(step)
        if reason is not None:
            pending |= dict.fromkeys(step.outputs, number)
        state = f"to do ({reason})" if reason else "up to date"
        print(f"[{number}/{len(steps)}] {step.name}: {state}")
    return len(set(pending.values()))


def _state(step: Step) -> dict[str, Any]:
    """Returns everything that the outputs depend on, as it is recorded."""
    inputs = [{"path": path, "sha256": file_digest(path)} for path in step.inputs]
    options = json.loads(json.dumps(dict(step.options)))  # tuples become lists, as when read again
    return {"inputs": inputs, "options": options, "code": code_digest(step.code)}


def _read_record(step: Step) -> dict[str, Any] | None:
    """Returns the record, None if there is none; a damaged one counts as unfinished."""
    text = read_text(step.step_path)
    if text is None:
        return None
    try:
        recorded = parse_json(text, any_text=True)  # of paths, in whatever encoding
    except (ValueError, RecursionError):
        return {"finished": False}
    if not isinstance(recorded, dict):
        return {"finished": False}
    is_whole = (
        recorded.keys() >= _RECORDED
        and isinstance(recorded["sizes"], list)
        and isinstance(recorded["inputs"], list)
        and all(isinstance(entry, dict) for entry in recorded["inputs"])
    )
    return recorded if is_whole else recorded | {"finished": False}


def _output_names(step: Step) -> list[str]:
    """The outputs relative to the folder of the record, so that both can be moved together."""
    folder = os.path.dirname(step.step_path) or "."
    return [os.path.relpath(output, folder) for output in step.outputs]


def _earlier_outputs(recorded: Mapping[str, Any] | None) -> list[str]:
    """The outputs below the folder of the record that it names; an older record names none."""
    names = (recorded or {}).get("outputs")
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    # Whoever hands on a folder with its record has no say over files elsewhere.
    return [name for name in texts if not os.path.isabs(name) and ".." not in name.split("/")]


def _remove_file(path: str) -> None:
    """Removes an output, but no folder, for that may hold files of the user."""
    if storage.is_file(path):
        storage.remove(path)


def _difference(step: Step, state: Mapping[str, Any], recorded: Mapping[str, Any]) -> str | None:
    """Returns why the recorded run is out of date; None if it is up to date."""
    if not recorded["finished"]:
        return "was not finished"
    for output, size in zip(step.outputs, recorded["sizes"], strict=False):
        if (present := _size(output)) != size:
            return f"{output} is {'missing' if present is None else 'changed'}"
    now = [entry["sha256"] for entry in state["inputs"]]
    then = [entry.get("sha256") for entry in recorded["inputs"]]
    if len(recorded["sizes"]) != len(step.outputs) or len(now) != len(then):
        return "has other inputs or outputs"
    changed = [path for path, a, b in zip(step.inputs, now, then, strict=True) if a != b]
    if changed:
        return f"{', '.join(changed)} changed"
    if state["options"] != recorded["options"]:
        return "has other options"
    return None if state["code"] == recorded["code"] else "the code changed"


def _size(path: str) -> int | None:
    """Returns the bytes of a file or the number of names in a folder; None if neither exists."""
    try:
        state = storage.stat(path)
    except FileNotFoundError:
        return None
    return len(list_names(path)) if state.is_folder else state.size


def _refuse_unknown_outputs(step: Step) -> None:
    present = [output for output in step.outputs if storage.exists(output)]
    if present:
        raise UserError(
            f"{', '.join(present)} already exists and was not made by this command. Pass "
            "--overwrite to replace it, or name another output."
        )


def _remove_record_without_outputs(step: Step) -> None:
    if not any(storage.exists(output) for output in step.outputs):
        remove_if_there(step.step_path)


def _to_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
