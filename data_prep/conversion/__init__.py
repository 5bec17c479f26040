"""Records of other programs' formats, in and out."""
