"""Training instances, made of the sentences of documents."""
