"""Record layouts and the files that hold them: TFRecords with random access, manifests, stages."""
