"""What the comparisons of speed share: who takes part, taking turns, and the results."""
