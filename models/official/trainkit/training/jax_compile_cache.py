"""Keeps what JAX compiles beside the checkpoints, so that a restart compiles nothing."""

import logging
from importlib.util import find_spec

import jax

from tpudet.trainkit.files import storage

logger = logging.getLogger(__name__)


def use_compile_cache(directory: str) -> None:
    """Makes JAX look for compiled programs in a folder, and put there what took over a second.

    JAX tells programs of other sizes, code, devices and versions apart. With several hosts process
    0 writes them and all read them. Hosts of CPUs cannot: JAX takes the place of a CPU among the
    hosts for part of a program, so each of them writes and reads a folder of its own.

    Args:
        directory: any folder; a bucket needs the package etils, without which nothing is kept.
    """
    if storage.is_remote(directory) and find_spec("etils") is None:
        logger.warning(
            "Compiled steps are not kept, and a restart compiles again: JAX needs a package to "
            "write to %s: pip install 'etils[epath]'",
            directory,
        )
        return
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        directory = f"{directory}/host-{jax.process_index()}"
        _write_on_this_host()
    jax.config.update("jax_compilation_cache_dir", directory)


def _write_on_this_host() -> None:
    """Lets JAX write the cache here too; only process 0 does, which no public option changes."""
    from jax._src import distributed

    distributed.global_state.process_id = 0  # on CPUs nothing but the cache reads it by now


def cache_hits() -> int:
    """Returns how many programs of this process came from the cache so far."""
    return len(_hits)


def _listen(event: str, **details: object) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _hits.append(event)


_hits: list[str] = []
jax.monitoring.register_event_listener(_listen)
