"""What this project does on a machine's GPU: types, loss curves, speed, memory and restarts."""
