"""Child processes and stdio streams."""
