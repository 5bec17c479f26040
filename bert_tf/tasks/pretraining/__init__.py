"""Pre-training on masked words and sentence pairs, in one run or in phases."""
