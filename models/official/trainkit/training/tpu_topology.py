"""Compiles a training step and a prediction for a TPU that is not there; runs beside libtpu.

As MaxText's train_compile does for language models. Everything but the devices is real: the step is
the one that `JaxEngine` runs, over a mesh of the topology's devices.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import topologies

from tpudet.trainkit.training.build_optimizer import build_optimizer, l2_in_loss
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.freezing import freeze
from tpudet.trainkit.training.jax_devices import JaxDevices
from tpudet.trainkit.training.jax_engine import STEPS_AHEAD
from tpudet.trainkit.training.jax_state import divided_sharding
from tpudet.trainkit.training.jax_step import JaxStep, State
from tpudet.trainkit.training.optimizers import decayed_variables
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.training.tpu_machines import TpuMachine
from tpudet.trainkit.training.tpu_plan import CompiledStep, layer_path
from tpudet.trainkit.training.tpu_program import read_program


def topology_devices(machine: TpuMachine, num_devices: int | None = None) -> JaxDevices:
    """Returns the devices of a machine, to compile for.

    Args:
        machine: which.
        num_devices: how many to use, the first ones; None means all.
    """
    options: dict[str, Any] = {"chips_per_host_bounds": machine.host_layout}
    if machine.generation.cores_per_chip > machine.generation.devices_per_chip:
        options["chip_config_name"] = "megacore"
    topology = topologies.get_topology_desc(machine.topology_name, "tpu", **options)
    return JaxDevices(list(topology.devices)[:num_devices])


def lower_training(task: Task, train: TrainConfig, devices: JaxDevices, batch: Any) -> Any:
    """Traces the training step; returns what `compile_traced` takes.

    Args:
        task: with a model that is built.
        train: the config of the run.
        devices: from `topology_devices`.
        batch: arrays, of which only shapes and dtypes are used.
    """
    freeze(task.model, train.freeze)
    decayed = decayed_variables(task.model)
    step = JaxStep(
        task=task,
        optimizer=build_optimizer(train, decayed),
        decayed=decayed,
        l2_weight_decay=l2_in_loss(train),
        gradient_clip_norm=train.gradient_clip_norm,
        ema_decay=train.ema_decay,
        accumulate_steps=train.accumulate_steps,
        num_devices=devices.num_replicas,
    )
    weights, others, optimizer, averages = step.variables
    shards = train.shard_state
    state = State(
        trained=_variable_shapes(weights, devices),
        others=_variable_shapes(others, devices),
        optimizer=_variable_shapes(optimizer, devices, divided=shards),
        averages=_variable_shapes(averages, devices, divided=shards),
    )
    shardings = State(*([shape.sharding for shape in shapes] for shapes in state))
    take = jax.jit(step.take, donate_argnums=0, out_shardings=(shardings, devices.replicated))
    with without_values():
        return take.trace(state, _batch_shapes(batch, devices))


def lower_prediction(task: Task, devices: JaxDevices, batch: Any) -> Any:
    """Traces the prediction of evaluation; the arguments are those of `lower_training`."""
    variables = task.model.variables

    def run(values: list[jax.Array], batch: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return task.predict(batch)

    values = _variable_shapes(variables, devices)
    jitted = jax.jit(run, out_shardings=devices.split)
    with without_values():
        return jitted.trace(values, _batch_shapes(batch, devices))


def compile_traced(
    step: str, trace: Callable[[], Any], batch: Any, devices: JaxDevices, *, parts: int = 1
) -> dict[str, Any]:
    """Traces and compiles a step; returns the event that reports it.

    Args:
        step: its name.
        trace: traces it.
        batch: as for `trace`.
        devices: as for `trace`.
        parts: of a batch, computed one after another. The operations, bytes and cycles of a loop
            are counted once, so they are multiplied, and those of the optimizer with them.
    """
    batch_size = len(jax.tree.leaves(batch)[0])
    failed = {"step": step, "batch_size": batch_size}
    begin = time.monotonic()
    traced = trace()
    try:
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    except NotImplementedError as error:  # no rule for a primitive on a TPU
        layer = _layer_of_primitive(traced.jaxpr, str(error))
        return {"event": "failed", "step": {**failed, "message": str(error), "layer": layer}}
    except jax.errors.JaxRuntimeError as error:
        return {"event": "failed", "step": {**failed, "message": str(error)}}
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    program = read_program(compiled.as_text())
    one_batch = sum(np.asarray(field).nbytes for field in jax.tree.leaves(batch))
    facts = CompiledStep(
        step=step,
        batch_size=batch_size,
        compile_seconds=time.monotonic() - begin,
        flops=parts * cost.get("flops", 0.0),
        moved_bytes=parts * program.memory_bytes,
        cycles={part: parts * number for part, number in program.cycles.items()},
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        aliased_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        waiting_bytes=STEPS_AHEAD * one_batch // devices.num_replicas if step == "train" else 0,
    )
    return {"event": "compiled", "step": facts._asdict()}


def without_values() -> keras.StatelessScope:
    """Returns the scope to build the model in: its variables get shapes and no values.

    JAX would compile a program to draw each shape of kernel, which takes longer than all else that
    is done before the step is compiled.
    """
    return keras.StatelessScope(initialize_variables=False)


def _variable_shapes(
    variables: Sequence[Any], devices: JaxDevices, *, divided: bool = False
) -> list[jax.ShapeDtypeStruct]:
    """As `TrainingState` puts them on the devices."""
    shapes = [tuple(variable.shape) for variable in variables]
    return [
        jax.ShapeDtypeStruct(
            shape,
            variable.dtype,
            sharding=divided_sharding(shape, devices) if divided else devices.replicated,
        )
        for shape, variable in zip(shapes, variables, strict=True)
    ]


def _batch_shapes(batch: Any, devices: JaxDevices) -> Any:
    """As `JaxDevices.place` puts them on the devices: int64 becomes int32."""

    def shape(field: np.ndarray) -> jax.ShapeDtypeStruct:
        dtype = np.dtype(np.int32) if field.dtype == np.int64 else field.dtype
        return jax.ShapeDtypeStruct(field.shape, dtype, sharding=devices.split)

    return jax.tree.map(shape, batch)


def _layer_of_primitive(jaxpr: Any, message: str) -> str:
    """The layers around the first use of the primitive that a message names in quotes."""
    names = {part for part in message.split("'")[1::2]}
    for equation in _equations(jaxpr.jaxpr):
        if equation.primitive.name in names:
            return layer_path(str(equation.source_info.name_stack))
    return ""


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _equations(getattr(value, "jaxpr", value))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")
