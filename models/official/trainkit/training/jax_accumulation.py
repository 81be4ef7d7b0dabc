"""A batch in parts, one after another, with the gradient of the whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

_add: ContextVar[Callable[[Any], Any] | None] = ContextVar("_add", default=None)


def sum_over_parts(value: Any) -> Any:
    """Returns the sum of a value over the parts of the batch; the value itself if it is whole."""
    add = _add.get()
    return value if add is None else add(value)


def split_batch(batch: Any, num_parts: int, num_devices: int) -> Any:
    """Splits arrays [B, ...] into [parts, B / parts, ...], so that no row leaves its device.

    Args:
        batch: arrays, or None, whose first dimension is divided evenly among the devices.
        num_parts: in how many; times the number of devices it divides B.
        num_devices: how many hold the batch.
    """

    def split(field: jax.Array) -> jax.Array:
        rest = field.shape[1:]
        by_device = field.reshape(num_devices, num_parts, -1, *rest)
        return by_device.swapaxes(0, 1).reshape(num_parts, -1, *rest)

    return jax.tree.map(split, batch)


def totals_of_parts(run: Callable[[Any, Any], Any], state: Any, parts: Any) -> list[jax.Array]:
    """Returns what each `sum_over_parts` in `run` has to return, in their order.

    It runs every part once. What does not contribute to these sums, the network as a rule, is
    removed by the compiler.

    Args:
        run: (state, part) -> the state after the part, such as the seeds that the next one draws
            with.
        state: before the first part.
        parts: from `split_batch`.
    """

    def collect_values(state: Any, part: Any) -> tuple[Any, list[jax.Array]]:
        values: list[jax.Array] = []

        def note(value: jax.Array) -> jax.Array:
            values.append(value)
            return value

        with _adding(note):
            state = run(state, part)
        return state, values

    _, values = jax.lax.scan(collect_values, state, parts)
    return [jnp.sum(value, axis=0) for value in values]


@contextmanager
def known_totals(totals: list[jax.Array]) -> Iterator[None]:
    """In this context each `sum_over_parts` returns the next of the totals, as a constant."""
    remaining = iter(totals)
    with _adding(lambda value: next(remaining)):
        yield


@contextmanager
def _adding(add: Callable[[Any], Any]) -> Iterator[None]:
    token = _add.set(add)
    try:
        yield
    finally:
        _add.reset(token)
