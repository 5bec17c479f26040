"""Reading other people's checkpoints, strictly and with a report."""
