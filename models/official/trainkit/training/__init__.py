"""Devices, engines, schedules, optimizers, checkpoints and the train-and-evaluate loop."""
