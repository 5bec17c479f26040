"""What survives kills and flipped bits: stages, manifests, parts, sealed JSON."""
