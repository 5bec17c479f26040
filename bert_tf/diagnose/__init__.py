"""What a run needs, and what goes on in it: memory, disks, layers, values that are not finite."""
