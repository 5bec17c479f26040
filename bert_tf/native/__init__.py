"""Operations in C++, compiled at set-up, that need few passes over memory."""
