"""From records to batches: order, lengths, masking at training time."""
