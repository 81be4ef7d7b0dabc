"""Steps timed on this machine and compiled for others: `tpudet benchmark_train`, `plan`."""
