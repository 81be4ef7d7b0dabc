"""Which CPUs multiply in bfloat16, by what Linux tells of them."""

import pytest

from tpudet.trainkit.cpu import has_bfloat16_flags


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2 avx2 avx512f", False),
        ("fpu avx512f avx512_bf16 avx512_vnni", True),
        ("fpu amx_tile amx_bf16", True),
        ("fpu avx512_bf16_of_another_kind", False),
    ],
)
def test_flags_of_a_processor(flags: str, expected: bool) -> None:
    text = f"processor\t: 0\nmodel name\t: any\nflags\t\t: {flags}\nbugs\t\t: avx512_bf16\n"
    assert has_bfloat16_flags(text) is expected


def test_a_machine_that_tells_no_flags_has_none() -> None:
    assert not has_bfloat16_flags("Features : asimd bf16\n")
