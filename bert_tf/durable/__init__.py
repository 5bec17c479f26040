"""What survives kills and flipped bits: stages, manifests, journals, parts, sealed JSON."""
