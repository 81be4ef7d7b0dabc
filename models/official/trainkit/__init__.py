"""The parts that every task shares; nothing here knows of boxes."""
