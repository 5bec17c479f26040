"""Text itself: markup, languages, sentences, blocks of documents."""
