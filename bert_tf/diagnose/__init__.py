"""What a run needs, and what happens in it: memory, disks, layers, values that are not finite."""
