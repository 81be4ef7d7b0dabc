"""Readers of annotations: COCO, VOC, YOLO, Open Images, tables; their checks and repairs."""
