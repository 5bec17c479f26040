"""Operations of an update in C++, compiled at set-up: one pass over memory for all variables."""
