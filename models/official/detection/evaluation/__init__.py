"""Average precision of detections against ground truth."""
