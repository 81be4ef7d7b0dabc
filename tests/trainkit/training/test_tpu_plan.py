"""The table of TPUs, the roofline's arithmetic, and the words and exit codes of a plan."""

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import tpu_plan
from tpudet.trainkit.training.tpu_machines import GIB, MACHINES, find_machine
from tpudet.trainkit.training.tpu_plan import CompiledStep, FailedStep, Step
from tpudet.trainkit.training.tpu_planner import search_batch

V5E = find_machine("v5e-8")
STEP = CompiledStep(
    step="train",
    batch_size=64,
    compile_seconds=211.0,
    flops=4.58e12,
    moved_bytes=60_500_000_000,
    cycles={"backbone": 77_000_000, "head": 39_000_000, "neck": 1_000_000},
    argument_bytes=1 * GIB,
    output_bytes=1 * GIB,
    aliased_bytes=1 * GIB,
    temporary_bytes=4 * GIB,
    code_bytes=0,
    waiting_bytes=0,
)
# As libtpu 0.0.52 words it, and an older one.
TOO_LARGE = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (20.50G) exceeds available HBM (15.75G). HLO module: jit_take."
)
OLDER = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
)


@pytest.mark.parametrize(
    ("name", "chips", "cores", "devices", "gib", "tflops", "hosts"),
    [
        ("v2-8", 4, 8, 8, 8, 22.5, 1),
        ("v3-8", 4, 8, 8, 16, 61.5, 1),
        ("v3-64", 32, 64, 64, 16, 61.5, 8),
        ("v4-8", 4, 8, 4, 32, 275.0, 1),
        ("v5e-1", 1, 1, 1, 16, 197.0, 1),
        ("v5e-8", 8, 8, 8, 16, 197.0, 1),
        ("v5e-32", 32, 32, 32, 16, 197.0, 8),
        ("v5p-8", 4, 8, 4, 95, 459.0, 1),
        ("v6e-8", 8, 8, 8, 32, 918.0, 1),
    ],
)
def test_names_count_cores_or_chips_and_devices_are_told_apart(
    name: str, chips: int, cores: int, devices: int, gib: int, tflops: float, hosts: int
) -> None:
    machine = find_machine(name)
    assert (machine.num_chips, machine.num_cores, machine.num_devices) == (chips, cores, devices)
    assert machine.memory_bytes == (gib - 0.25) * GIB
    assert machine.peak_flops == tflops * 1e12
    assert machine.num_hosts == hosts


def test_every_machine_has_at_most_32_chips_and_the_hosts_divide_it() -> None:
    assert len(MACHINES) == 23
    for machine in MACHINES.values():
        assert machine.num_chips <= 32
        assert machine.num_devices % machine.num_hosts == 0


def test_an_unknown_tpu_is_answered_with_the_list() -> None:
    with pytest.raises(UserError, match="no TPU named `v5e-9`.*Did you mean v5e-8") as caught:
        find_machine("v5e-9")
    assert all(name in str(caught.value) for name in MACHINES)
    assert find_machine("v5litepod-8") == V5E
    assert V5E.accelerator_type == "v5litepod-8"
    assert V5E.topology_name == "v5e:2x4"


def test_the_slower_of_arithmetic_and_memory_binds() -> None:
    """4.58 TFLOP at 197 TFLOP/s are 23 ms, 60.5 GB at 819 GB/s 74 ms: 64 images in 74 ms."""
    line = tpu_plan.roofline(STEP, V5E)
    assert line.arithmetic == pytest.approx(0.02325, rel=1e-3)
    assert line.memory == pytest.approx(0.07387, rel=1e-3)
    assert (line.bound, line.binds) == (line.memory, "memory traffic")
    text = tpu_plan.describe(STEP, V5E, 8)
    assert "73.9 ms per step, bound by memory traffic" in text
    assert "866 images/s on 8 device(s)" in text
    assert "5.00 of 15.75 GiB (10.75 GiB free)" in text
    assert "78.0 ms, 821 images/s: backbone 66 %, head 33 %" in text
    assert "neck" not in text
    assert "prepare 821 images/s on each of 1 host(s)" in text
    fast = STEP._replace(moved_bytes=1_000_000_000)
    assert tpu_plan.roofline(fast, V5E).binds == "arithmetic"


@pytest.mark.parametrize(
    ("cycles", "seconds"),
    [(0, None), (30_000_000, None), (117_000_000, 0.078), (3_000_000_000, 2.0)],
)
def test_the_compilers_estimate_is_shown_only_where_it_can_be_one(
    cycles: int, seconds: float | None
) -> None:
    """117 million cycles at 1.5 GHz are 78 ms; no step is done in 20 ms whose bytes take 74."""
    estimate = tpu_plan.sane_estimate(STEP._replace(cycles={"head": cycles}), V5E)
    assert estimate == (seconds and pytest.approx(seconds))


@pytest.mark.parametrize(
    ("name", "multipliers"),
    [
        ("v2-8", 128**2),
        ("v3-8", 2 * 128**2),
        ("v4-8", 2 * 4 * 128**2),
        ("v5e-1", 4 * 128**2),
        ("v5p-8", 2 * 4 * 128**2),
        ("v6e-1", 4 * 256**2),
    ],
)
def test_clocks_agree_with_the_peaks(name: str, multipliers: int) -> None:
    """A peak is a product and a sum of each multiplier of a device's matrix units in a cycle."""
    machine = find_machine(name)
    assert 2 * multipliers * machine.clock_hz == pytest.approx(machine.peak_flops, rel=0.02)


@pytest.mark.parametrize("message", [TOO_LARGE, OLDER])
def test_a_message_about_memory_says_by_how_much(message: str) -> None:
    failed = tpu_plan.read_failure("train", 256, message)
    assert failed.kind == "memory"
    assert failed.needed_bytes == round(20.5 * GIB)
    assert "20.50 GiB per device, 4.75 GiB more than there are" in tpu_plan.describe(failed, V5E, 8)


def test_another_message_names_the_layer() -> None:
    message = 'UNIMPLEMENTED: no Eig on TPU {op_name="jit(take)/jvp(RetinaNet/head)/conv/eig"}'
    failed = tpu_plan.read_failure("train", 8, message)
    assert failed.kind == "unsupported"
    assert "does not compile, in RetinaNet/head/conv/eig" in tpu_plan.describe(failed, V5E, 8)


def test_layer_paths_leave_out_what_jax_adds() -> None:
    assert tpu_plan.layer_path("jit(take)/transpose(jvp(net))/fpn/conv") == "net/fpn/conv"
    assert tpu_plan.layer_path("net/fpn") == "net/fpn"


def test_exit_codes_are_told_apart() -> None:
    too_large = STEP._replace(temporary_bytes=40 * GIB)
    memory = FailedStep("train", 64, "memory", "")
    unsupported = FailedStep("train", 64, "unsupported", "")
    crash = FailedStep("train", 64, "compiler", "")
    codes = [
        tpu_plan.exit_code([STEP, step], V5E)
        for step in (STEP, too_large, memory, unsupported, crash)
    ]
    assert codes == [0, 3, 3, 4, 5]


def test_the_largest_batch_lies_on_the_line_through_two() -> None:
    """2 GiB and 0.25 GiB an image: 56 images fill 16 GiB."""
    points = (8, 4 * GIB), (16, 6 * GIB)
    assert tpu_plan.largest_batch(*points, capacity=16 * GIB, multiple=8) == 56
    assert tpu_plan.largest_batch(*points, capacity=16 * GIB, multiple=16) == 48
    assert tpu_plan.largest_batch(*points, capacity=1 * GIB, multiple=8) == 0


class Compiler:
    """Needs 2 GiB and 1/32 GiB an image on each device, from a limit on twice as much an image."""

    def __init__(self, surprise_from: int = 1 << 30) -> None:
        self.tried: list[int] = []
        self.surprise_from = surprise_from

    def __call__(self, batch: int) -> Step:
        self.tried.append(batch)
        size = 2 * GIB + batch * GIB // (32 if batch < self.surprise_from else 16)
        if size <= 16 * GIB:
            return STEP._replace(batch_size=batch, argument_bytes=0, output_bytes=0,
                                 aliased_bytes=0, temporary_bytes=size)  # fmt: skip
        return FailedStep("train", batch, "memory", TOO_LARGE, size)


def test_a_search_takes_two_compilations_and_a_third_that_confirms() -> None:
    compiler = Compiler()
    first = compiler(256)
    best = search_batch(compiler, first, machine=V5E, divisor=8)
    assert compiler.tried == [256, 128, 384]  # 13.75 GiB are left for 440 images, 8 x 48 of them
    assert best is not None
    assert best.batch_size == 384


def test_a_search_starts_from_a_batch_that_does_not_fit() -> None:
    compiler = Compiler()
    best = search_batch(compiler, compiler(1024), machine=V5E, divisor=8)
    assert compiler.tried == [1024, 512, 384]
    assert best is not None
    assert best.batch_size == 384


def test_a_search_believes_only_what_was_compiled() -> None:
    compiler = Compiler(surprise_from=300)
    best = search_batch(compiler, compiler(256), machine=V5E, divisor=8)
    assert compiler.tried == [256, 128, 384, 320]
    assert best is not None
    assert best.batch_size == 256


def test_a_search_tries_only_batches_that_devices_and_parts_divide() -> None:
    compiler = Compiler()
    best = search_batch(compiler, compiler(96), machine=V5E, divisor=8 * 4)
    assert compiler.tried == [96, 32, 416]  # half of 96 is 48; of 440 images 13 x 32
    assert best is not None
    assert best.batch_size == 416
