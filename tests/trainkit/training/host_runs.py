"""Trains a small network as one of several hosts and prints what happened, as JSON.

`host_runs.py ADDRESS NUM_PROCESSES PROCESS_ID KILLED`: after the printing, process KILLED kills
itself in the middle of a step.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
from engine_runs import BATCH_SIZE, TRAIN, build, data

from tpudet.trainkit.command_line import start_logging
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_engine import choose_devices
from tpudet.trainkit.training.jax_hosts import several_hosts

NUM_RECORDS = 13
VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "accumulated": {"accumulate_steps": 2},
    "sharded": {"shard_state": True},
}
STATE = ("conv/kernel", "optimizer/conv/kernel/momentum", "ema/dense/kernel")


def main(killed: int) -> None:
    engine, task = build(None)
    devices = choose_devices(TRAIN)
    losses = [engine.train(1).losses for _ in range(6)]
    snapshot = engine.snapshot()

    batch_size = BATCH_SIZE // devices.num_processes
    own = (
        data(0).unbatch().take(NUM_RECORDS + 3).shard(devices.num_processes, devices.process_index)
    )
    predicted: dict[str, Any] = {}
    for _, out in devices.predict_batches(task.predict, own.batch(batch_size)):
        predicted |= dict(zip(map(str, out.records.tolist()), out.inputs.tolist(), strict=True))
    everything = {key: value for part in devices.gather(predicted) for key, value in part.items()}

    variants, changed = {}, engine
    for name, changes in VARIANTS.items():
        changed, _ = build(None, train=dataclasses.replace(TRAIN, **changes), with_norm=False)
        steps = [changed.train(1).losses for _ in range(4)]
        state = changed.snapshot()
        variants[name] = [steps, {key: state[key].ravel().tolist() for key in STATE}]

    if devices.process_index == devices.num_processes - 1:
        threading.Timer(0.3, engine.request_stop).start()
    engine.train(100_000)  # only the stop ends it
    agreement = []
    for change in (0.0, 1e-3):  # of the weights of the last host, as if its file were another
        arrays = engine.snapshot()
        if devices.process_index == devices.num_processes - 1:
            arrays["conv/kernel"] = arrays["conv/kernel"] + np.float32(change)
        engine.load(arrays)
        try:
            engine.agree_on_step()
            agreement.append("")
        except UserError as error:
            agreement.append(str(error))
    stopped = {"at": engine.step, "seen": engine.any_process(devices.process_index == 0)}
    result = {
        "losses": losses,
        "snapshot": {
            key: np.asarray(value).ravel()[:4].tolist() for key, value in snapshot.items()
        },
        "predicted": everything,
        "stopped": stopped,
        "agreement": agreement,
        "variants": variants,
        "chief": engine.is_chief,
    }
    print("RESULT", json.dumps(result), "END", flush=True)
    if devices.num_processes > 1:
        if devices.process_index == killed:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        changed.train(100_000)


if __name__ == "__main__":
    address, num_processes, process_id, killed = sys.argv[1:]
    several = int(num_processes) > 1
    hosts = argparse.Namespace(
        backend="jax",
        coordinator_address=address if several else None,
        num_processes=int(num_processes) if several else None,
        process_id=int(process_id) if several else None,
    )
    start_logging()
    with several_hosts(hosts):
        main(int(killed))
    sys.stdout.flush()
    os._exit(0)  # skips the teardown of two frameworks
