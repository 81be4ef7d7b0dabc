"""tpudet: object detection from raw boxes to a ranked submission, on TPU, GPU or CPU."""
