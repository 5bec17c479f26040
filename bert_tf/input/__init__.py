"""From records to batches: order, lengths, and masking at training time."""
