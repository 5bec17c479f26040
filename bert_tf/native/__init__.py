"""Operations in C++, compiled at set-up, that make few passes over memory."""
