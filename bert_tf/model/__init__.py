"""The BERT graph: precision policy, layers, encoder, heads and losses."""
