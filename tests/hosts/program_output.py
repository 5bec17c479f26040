"""What a program on hosts prints, as it prints it."""

import re
import threading

LIMIT = 600  # seconds


class Output:
    """What a process prints, line by line, read by a thread: its pipe may outlive it."""

    def __init__(self, process):
        self.lines = []
        self._news = threading.Condition()
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=[stream], daemon=True).start()

    def _read(self, stream):
        for line in stream:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()

    def matching(self, pattern):
        return [line for line in self.lines if re.search(pattern, line)]

    def wait_for(self, pattern, number=1):
        with self._news:
            found = self._news.wait_for(lambda: len(self.matching(pattern)) >= number, LIMIT)
        assert found, self.lines
