"""Reads what a program for a TPU costs from its text, as `Compiled.as_text()` of JAX gives it.

XLA's own count of "bytes accessed" takes every operand of every operation, although a TPU keeps
much of it in the memory of the core (128 MiB on v5e). What moves between the core and the device's
memory is in the text: a layout names its memory space, `S(1)` for the core's and nothing for the
device's, and the tiles to which an array is padded, so that 64 channels take the bytes of 128.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tpudet.trainkit.training.tpu_plan import layer_path

_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|true_computation|false_computation|branch_computations)="
    r"\{?((?:%[\w.\-]+(?:, )?)+)"
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_STACK = re.compile(r'\bop_name="([^"]*)"')

# Views, and what the core makes up by itself; the second halves of copies that run beside other
# operations end with `-done`.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
    *("partition-id", "replica-id", "opt-barrier"),
}
_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "AsyncCollective")
_CALLERS = {"while", "conditional", "call", "async-start"}
_READS_A_PART = {"slice", "dynamic-slice", "gather"}
OTHER_PARTS = "the rest"  # the input, losses, optimizer, suppression


class ProgramCost(NamedTuple):
    """The cost of one run of a program on a device; of a loop, one pass counts."""

    memory_bytes: int  # between the core and the device's memory
    cycles: dict[str, int]  # of the core, by the compiler's own model, of each part of the network


class _Operation(NamedTuple):
    name: str
    shape: str  # of the result, an array or a tuple, with layouts
    kind: str
    arguments: str
    attributes: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        return _NAME.findall(self.arguments)

    @property
    def called(self) -> list[str]:
        return [name for found in _CALLED.findall(self.attributes) for name in _NAME.findall(found)]


_Computation = Mapping[str, _Operation]  # in the order of the text, by name
_Program = Mapping[str, _Computation]


def read_program(text: str) -> ProgramCost:
    """Adds up the traffic and the cycles of the operations of a program.

    An operation reads its operands once and writes its results once. Of an operand that is only
    sliced, also inside a fusion, the slices count, and of an update in place the update.

    Raises:
        ValueError: the text is not that of a compiled program.
    """
    program, entry = _parse(text)
    moved, cycles = 0, Counter[str]()
    for one, computation in _executed(program, entry):
        moved += _moved(one, program, computation)
        if found := _CYCLES.search(one.attributes):
            cycles[_part(one)] += int(found[1])
    return ProgramCost(moved, dict(cycles.most_common()))


def _part(one: _Operation) -> str:
    """The part of the network that an operation is of: `head` of `jvp(retinanet)/head/conv/add`."""
    stack = _STACK.search(one.attributes)
    names = layer_path(stack[1]).split("/") if stack else []
    # The last name is that of the operation; a loop is one of suppression.
    return names[1] if len(names) > 2 and names[0] != "while" else OTHER_PARTS


def _parse(text: str) -> tuple[_Program, str]:
    program: dict[str, dict[str, _Operation]] = {}
    entry = ""
    current: dict[str, _Operation] = {}
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY %")) and line.endswith("{"):
            name = _NAME.findall(line)[0]
            entry = name if line.startswith("ENTRY") else entry
            current = program[name] = {}
        elif line.startswith("  ") and " = " in line:
            operation = _parse_operation(line)
            current[operation.name] = operation
    if not entry:
        raise ValueError("the text has no ENTRY, so it is not that of a compiled program")
    return program, entry


def _parse_operation(line: str) -> _Operation:
    """Reads `  ROOT %name = shape kind(%operand, ...), attribute=..., ...`."""
    left, _, right = line.partition(" = ")
    end = _end_of_group(right) if right.startswith("(") else right.index(" ")
    kind, _, rest = right[end:].strip().partition("(")
    close = _end_of_group(f"({rest}") - 1
    return _Operation(
        name=_NAME.findall(left)[0],
        shape=right[:end],
        kind=kind,
        arguments=rest[: close - 1],
        attributes=rest[close:],
        is_root=left.lstrip().startswith("ROOT"),
    )


def _end_of_group(text: str) -> int:
    """The number of characters up to the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place + 1
    raise ValueError(f"a parenthesis is not closed in {text[:80]}")


def _executed(program: _Program, name: str) -> Iterator[tuple[_Operation, _Computation]]:
    """Yields the operations of a computation and of those that it calls; a fusion is one."""
    for one in program[name].values():
        if one.kind in _CALLERS:
            for called in one.called:
                yield from _executed(program, called)
        else:
            yield one, program[name]


def _moved(one: _Operation, program: _Program, around: _Computation) -> int:
    """Bytes that an operation moves from and to the device's memory."""
    if one.kind in _FREE or one.kind.endswith("-done"):
        return 0
    if one.kind == "custom-call" and any(target in one.attributes for target in _FREE_CALLS):
        return 0
    operands = [around[name] for name in one.operands]
    if one.kind in ("copy-start", "slice-start", "dynamic-slice-start"):
        # (to, from, context) of a copy, ((from), to, context) of a slice: `to` is as large as what
        # is read of `from`.
        arrays = list(_arrays(one.shape))
        to = arrays[0] if one.kind == "copy-start" else arrays[len(operands)]
        return (to.size if to.in_memory else 0) + (to.size if _in_memory(operands[0]) else 0)
    if one.kind == "fusion":
        inside = program[one.called[0]]
        parameters = {int(p.arguments): p for p in inside.values() if p.kind == "parameter"}
        read = sum(
            _read(parameters[number], operand, inside) for number, operand in enumerate(operands)
        )
        (root,) = (operation for operation in inside.values() if operation.is_root)
        return read + _written(root, one.shape, inside)
    read = sum(_read_by(one, operand) for operand in operands)
    return read + _written(one, one.shape, around)


def _read(parameter: _Operation, operand: _Operation, inside: _Computation) -> int:
    """Bytes that a fusion reads of an operand, which is a parameter inside."""
    if not _in_memory(operand):
        return 0
    views, parts = [parameter.name], 0
    for one in inside.values():  # whoever uses a view comes after it
        if not set(views).intersection(one.operands):
            continue
        if one.kind == "bitcast":
            views.append(one.name)
        elif one.kind in _READS_A_PART and one.operands[0] in views:
            parts += _size(one.shape)
        elif one.kind != "dynamic-update-slice" or one.operands[0] not in views:
            return _size(operand.shape)
    return min(parts, _size(operand.shape))


def _read_by(one: _Operation, operand: _Operation) -> int:
    """Bytes that an operation that is no fusion reads of an operand."""
    if not _in_memory(operand):
        return 0
    if operand.name == one.operands[0]:
        if one.kind in _READS_A_PART:
            return _size(one.shape)
        if one.kind in ("dynamic-update-slice", "scatter"):
            return 0
    return _size(operand.shape)


def _written(one: _Operation, shape: str, around: _Computation) -> int:
    """Bytes that an operation, or a fusion with this root, writes of a result of this shape."""
    if one.kind == "dynamic-update-slice":
        update = _size(around[one.operands[1]].shape)
        return sum(update for array in _arrays(shape) if array.in_memory)
    return sum(array.size for array in _arrays(shape) if array.in_memory)


class _Array(NamedTuple):
    size: int  # bytes, with padding
    in_memory: bool  # of the device


def _in_memory(operation: _Operation) -> bool:
    return any(array.in_memory for array in _arrays(operation.shape))


def _size(shape: str) -> int:
    return sum(array.size for array in _arrays(shape))


def _arrays(shape: str) -> Iterator[_Array]:
    """Reads `bf16[8,160,64]{2,0,1:T(8,128)(2,1)S(1)}`, and tuples of such shapes."""
    for bits, sides, layout in _ARRAY.findall(shape):
        order, _, tiling = layout.partition(":")
        padded = _padded([int(side) for side in sides.split(",") if side], order, tiling)
        yield _Array(math.prod(padded) * int(bits or 8) // 8, "S(" not in tiling)


def _padded(sides: Sequence[int], order: str, tiling: str) -> list[int]:
    """Returns the sides in memory, from the one that varies fastest."""
    inward = [sides[int(axis)] for axis in order.split(",")] if order else list(sides[::-1])
    found = _TILE.search(tiling)
    tile = [int(side) for side in found[1].split(",")][::-1] if found else []
    return [
        -(-side // tile[axis]) * tile[axis] if axis < len(tile) else side
        for axis, side in enumerate(inward)
    ]
