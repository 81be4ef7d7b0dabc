"""Bytes and cycles of small programs, counted by hand."""

import pytest

from tpudet.trainkit.training.tpu_program import ProgramCost, read_program

# A fusion that reads 8 of 64 rows, whole tiles of which are 1,024 numbers, and keeps its result in
# the core; a copy of 16x64 numbers, padded to 16x128, which arrives there too; what adds them reads
# nothing of the memory and writes 16x128 numbers. The loop writes its 1,024 numbers once a pass.
PROGRAM = """HloModule jit_take, is_scheduled=true, entry_computation_layout={()->f32[2]{0}}

FileNames
1 "/a = b.py"

%rows (param_0: f32[64,128]) -> f32[8,128] {
  %param_0 = f32[64,128]{1,0:T(8,128)} parameter(0)
  %view = f32[64,128]{1,0:T(8,128)} bitcast(%param_0)
  ROOT %slice.1 = f32[8,128]{1,0:T(8,128)S(1)} slice(%view), slice={[0:8], [0:128]}
}

%body (state: (f32[8,128])) -> (f32[8,128]) {
  %state = (f32[8,128]{1,0:T(8,128)}) parameter(0)
  %now = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state), index=0
  %next = f32[8,128]{1,0:T(8,128)S(1)} negate(%now), backend_config={"estimated_cycles":"5"}
  %out = f32[8,128]{1,0:T(8,128)} copy(%next), metadata={op_name="jit(run)/while/body/copy"}, backend_config={"estimated_cycles":"6"}
  ROOT %again = (f32[8,128]{1,0:T(8,128)}) tuple(%out)
}

%more (state: (f32[8,128])) -> pred[] {
  %state = (f32[8,128]{1,0:T(8,128)}) parameter(0)
  ROOT %constant.1 = pred[]{:T(512)S(6)} constant(false)
}

ENTRY %main (a: f32[64,128], b: bf16[16,64]) -> f32[8,128] {
  %a = f32[64,128]{1,0:T(8,128)} parameter(0)
  %b = bf16[16,64]{1,0:T(8,128)(2,1)} parameter(1)
  %fusion.1 = f32[8,128]{1,0:T(8,128)S(1)} fusion(%a), kind=kLoop, calls=%rows, metadata={op_name="jit(take)/transpose(jvp(net))/head/slice"}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %copy-start = (bf16[16,64]{1,0:T(8,128)(2,1)S(1)}, bf16[16,64]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%b)
  %copy-done = bf16[16,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %add.1 = bf16[16,64]{1,0:T(8,128)(2,1)} add(%copy-done, %copy-done), backend_config={"estimated_cycles":"20"}
  %slice-start = ((bf16[16,64]{1,0:T(8,128)(2,1)}), bf16[8,64]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) slice-start(%add.1), slice={[0:8], [0:64]}
  %slice-done = bf16[8,64]{1,0:T(8,128)(2,1)S(1)} slice-done(%slice-start)
  %init = (f32[8,128]{1,0:T(8,128)}) tuple(%fusion.1)
  %while.1 = (f32[8,128]{1,0:T(8,128)}) while(%init), condition=%more, body=%body
  ROOT %result = f32[8,128]{1,0:T(8,128)} get-tuple-element(%while.1), index=0
}
"""  # noqa: E501


def test_traffic_and_cycles_are_those_of_the_device_memory() -> None:
    fusion, copy, add, part, loop = 8 * 128 * 4, 16 * 128 * 2, 16 * 128 * 2, 8 * 128 * 2, 2 * 4096
    assert read_program(PROGRAM) == ProgramCost(
        fusion + copy + add + part + loop, {"head": 100, "the rest": 31}
    )


def in_place(update: str) -> str:
    return f"""ENTRY %main (a: f32[64,128], u: f32[8,128]) -> f32[64,128] {{
  %a = f32[64,128]{{1,0:T(8,128)}} parameter(0)
  %u = f32[8,128]{{1,0:T(8,128)}} parameter(1)
  %zero = s32[]{{:T(128)S(6)}} constant(0)
  ROOT %all = f32[64,128]{{1,0:T(8,128)}} {update}
}}
"""


FUSED = """%write (param_0: f32[64,128], param_1: f32[8,128]) -> f32[64,128] {
  %param_0 = f32[64,128]{1,0:T(8,128)} parameter(0)
  %param_1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %update = f32[64,128]{1,0:T(8,128)} dynamic-update-slice(%param_0, %param_1, %zero, %zero)
}

"""


@pytest.mark.parametrize(
    "text",
    [
        in_place("dynamic-update-slice(%a, %u, %zero, %zero)"),
        FUSED + in_place("fusion(%a, %u), kind=kLoop, calls=%write"),
    ],
)
def test_an_update_in_place_reads_and_writes_the_update(text: str) -> None:
    assert read_program(text).memory_bytes == 2 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("bf16[8,160,160,64]{3,0,2,1:T(8,128)(2,1)}", 160 * 160 * 8 * 128 * 2),
        ("f32[8,10,4]{0,1,2:T(8,128)}", 4 * 16 * 128 * 4),
        ("f32[100]{0:T(128)}", 128 * 4),
        ("pred[5,7]{1,0:T(8,128)(4,1)}", 8 * 128),
        ("f32[5,7]{1,0}", 35 * 4),
        ("s64[]", 8),
        ("(f32[2]{0}, bf16[3]{0:S(1)}, u8[4]{0})", 8 + 4),
        ("f8e4m3fn[16]{0}", 16),
    ],
)
def test_arrays_are_padded_to_their_tiles(shape: str, size: int) -> None:
    text = f"ENTRY %main () -> {shape} {{\n  ROOT %made = {shape} rng()\n}}\n"
    assert read_program(text).memory_bytes == size


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        read_program("module @jit_take {\n}\n")
