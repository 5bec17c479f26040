"""Fetches one file over HTTP: resumed after interruptions, checked, never half under its name.

The bytes that have arrived are in ``NAME.part``, and ``NAME.part.json`` says of what: the address,
its size and the server's validator (an entity tag or a modification time). A later attempt, in this
process or another one, asks for the rest on condition that the validator is still the same (RFC
9110, sections 13.1.5 and 14.2), and starts from the beginning if the server sends everything.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, Callable

import requests
import urllib3

from bert_tf.util.errors import UserError
from bert_tf.util.files import explain_write_errors, read_json_object, write_json

DEFAULT_ATTEMPTS = 8
_CONNECT_SECONDS, _READ_SECONDS = 30, 60
_BLOCK_BYTES = 1 << 18
# An attempt that transfers this much does not count as a failure.
_PROGRESS_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 60.0
_LONGEST_RETRY_AFTER_SECONDS = 600.0
_WORTH_RETRYING = frozenset({408, 425, 429, 500, 502, 503, 504})
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416
_DIGESTS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}  # by hexadecimal digits
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)$")
_INTERRUPTIONS = (
    requests.ConnectionError,
    requests.Timeout,
    urllib3.exceptions.ProtocolError,
    urllib3.exceptions.TimeoutError,
)

# Some servers refuse requests without a name; Wikimedia asks for one that tells what it is.
_HEADERS = {"User-Agent": "bert_tf data_prep.download", "Accept-Encoding": "identity"}


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
      url: its address, http or https.
      name: its name on disk.
      size: bytes; None if unknown.
      checksum: hexadecimal MD5, SHA-1, SHA-256 or SHA-512, told apart by their lengths; None if
        unknown.
    """

    url: str
    name: str
    size: int | None = None
    checksum: str | None = None


@dataclasses.dataclass(frozen=True)
class Pace:
    """How patient a transfer is.

    Attributes:
      attempts: failures in a row before it gives up; an attempt that brings at least 1 MiB does
        not count.
      wait: sleeps for a number of seconds.
      arrived: called with the number of bytes of each block; negative if bytes are given up.
      stopped: whether another transfer has failed, so that this one should end.
    """

    attempts: int = DEFAULT_ATTEMPTS
    wait: Callable[[float], object] = time.sleep
    arrived: Callable[[int], object] = lambda _: None
    stopped: Callable[[], bool] = lambda: False


class _InterruptedError(Exception):
    """An attempt failed in a way that another one may not; ``after`` is the server's wish."""

    def __init__(self, reason: str, after: float | None = None):
        super().__init__(reason)
        self.after = after


class StoppedError(Exception):
    """The transfer ended because another one failed."""


def check_checksum(checksum: str) -> str:
    """The checksum in lower case; raises ValueError unless it is one of a known kind."""
    if len(checksum) not in _DIGESTS or re.fullmatch("[0-9a-fA-F]+", checksum) is None:
        raise ValueError(f"{checksum!r} is not a hexadecimal MD5, SHA-1, SHA-256 or SHA-512")
    return checksum.lower()


def read_text(url: str, *, pace: Pace, most_bytes: int) -> str | None:
    """The text at an address, such as a list of files; None if there is nothing (404).

    Raises UserError like :func:`fetch`, and if it is longer than ``most_bytes``.
    """

    def attempt() -> str | None:
        with _get(url, {}) as response:
            if response.status_code == requests.codes.not_found:
                return None
            _check_status(response)
            content = response.raw.read(most_bytes + 1, decode_content=True)
        if len(content) > most_bytes:
            raise UserError(
                f"{url} is longer than {most_bytes} bytes, so it is not the list that it should "
                "be; check the address."
            )
        return content.decode("utf-8", "replace")

    return _retrying(attempt, url, pace)


def fetch(file: RemoteFile, directory: Path, *, pace: Pace) -> Path:
    """Fetches a file into ``directory`` unless it is there already; returns its path.

    Raises:
      UserError: the server refuses it, keeps failing, or sends something else than was announced;
        the disk cannot be written.
      StoppedError: ``pace.stopped`` said so; what has arrived is kept.
    """
    path = directory / file.name
    if path.exists():
        pace.arrived(path.stat().st_size)
        return path
    partial = _Partial(file, directory)
    pace.arrived(partial.size)
    # A checksum that does not match may come from bytes of a transfer that was interrupted.
    for is_last in (False, True):
        _retrying(lambda: _attempt(file, partial, pace), file.url, pace, partial)
        problem = partial.problem()
        if problem is None:
            break
        pace.arrived(-partial.size)
        partial.discard()
        if is_last:
            raise UserError(
                f"{file.url} {problem}, twice in a row: the file there is damaged or has been "
                "replaced; try another address or mirror, or a new list of checksums."
            )
    with explain_write_errors(path, partial.path):
        os.replace(partial.path, path)
    partial.discard()
    return path


class _Partial:
    """What has arrived of a file, and of which version."""

    def __init__(self, file: RemoteFile, directory: Path):
        self.path = directory / f"{file.name}.part"
        self._file = file
        self._note = directory / f"{file.name}.part.json"
        self.facts: dict[str, Any] = {}
        if self._note.exists() and self.path.exists():
            self.facts = read_json_object(self._note, what="notes on a partial download")
        if self.facts.get("url") != file.url or not self._can_continue():
            self.discard()

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def expected_size(self) -> int | None:
        """Bytes of the whole file, if anybody has said so."""
        return self._file.size if self._file.size is not None else self.facts.get("size")

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived."""
        return self.size == self.expected_size and bool(self.facts)

    def _can_continue(self) -> bool:
        # Without a validator nobody notices that the rest belongs to another version, except by the
        # checksum.
        return bool(self.facts.get("validator") or self._file.checksum)

    def headers(self) -> dict[str, str]:
        """Asks for the rest of the file, or for all of it if that cannot be continued."""
        if not self.size or not self._can_continue():
            return {}
        validator = self.facts.get("validator")
        condition = {"If-Range": validator} if validator else {}
        return {"Range": f"bytes={self.size}-", **condition}

    def begin(self, response: requests.Response) -> None:
        """Starts from the beginning with the response's version of the file."""
        length = response.headers.get("Content-Length", "")
        size = int(length) if length.isdigit() else None
        if None not in (size, self._file.size) and size != self._file.size:
            raise UserError(
                f"{self._file.url} has {size} bytes on the server and {self._file.size} in the "
                "list of files; try another mirror, or later."
            )
        tag = response.headers.get("ETag", "")
        # Weak tags (W/"...") do not promise the same bytes.
        validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        self.discard()
        self.facts = {"url": self._file.url, "size": size, "validator": validator}
        with explain_write_errors(self.path):
            self.path.touch()
        write_json(self._note, self.facts)

    def discard(self) -> None:
        """Forgets what has arrived."""
        self._note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self.facts = {}

    def problem(self) -> str | None:
        """What is wrong with the whole file; None if nothing is."""
        if self._file.size is not None and self.size != self._file.size:
            return f"has {self.size} bytes and should have {self._file.size}"
        if self._file.checksum is None:
            return None
        name = _DIGESTS[len(self._file.checksum)]
        digest = hashlib.new(name, usedforsecurity=False)
        with open(self.path, "rb") as stream:
            while block := stream.read(_PROGRESS_BYTES):
                digest.update(block)
        if digest.hexdigest() == self._file.checksum:
            return None
        return f"has {name.upper()} {digest.hexdigest()} and should have {self._file.checksum}"


def _attempt(file: RemoteFile, partial: _Partial, pace: Pace) -> None:
    """One request; raises _InterruptedError unless the file is whole afterwards."""
    if partial.is_whole:
        return
    with _get(file.url, partial.headers()) as response:
        if response.status_code == _RANGE_NOT_SATISFIABLE:
            pace.arrived(-partial.size)
            partial.discard()
            raise _InterruptedError("the server does not have the rest of the file")
        _check_status(response)
        _choose_start(response, partial, pace)
        _receive(response, partial, pace)
    expected = partial.expected_size
    if expected is not None and partial.size < expected:
        raise _InterruptedError(f"the connection ended after {partial.size} of {expected} bytes")


def _choose_start(response: requests.Response, partial: _Partial, pace: Pace) -> None:
    """Continues what has arrived if the server sends the rest, otherwise begins again."""
    if response.status_code == _PARTIAL_CONTENT:
        found = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        wholes = ("*", f"{partial.expected_size}")
        if found and 0 < partial.size == int(found[1]) and found[2] in wholes:
            return
        pace.arrived(-partial.size)
        partial.discard()
        raise _InterruptedError("the server sent another part of the file than the one asked for")
    pace.arrived(-partial.size)
    partial.begin(response)


def _receive(response: requests.Response, partial: _Partial, pace: Pace) -> None:
    limit = partial.expected_size
    with explain_write_errors(partial.path), open(partial.path, "ab") as stream:
        # Not iter_content, which would unpack a file that is sent with a content encoding.
        for block in response.raw.stream(_BLOCK_BYTES, decode_content=False):
            if pace.stopped():
                raise StoppedError
            stream.write(block)
            pace.arrived(len(block))
            if limit is not None and stream.tell() > limit:
                return  # of another size than announced, which the check of the whole file tells


def _get(url: str, headers: dict[str, str]) -> requests.Response:
    try:
        return requests.get(
            url,
            headers={**_HEADERS, **headers},
            stream=True,
            timeout=(_CONNECT_SECONDS, _READ_SECONDS),
        )
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise UserError(f"{url} is not an address of a web server ({error}).") from error
    except requests.TooManyRedirects as error:
        raise UserError(f"{url} is redirected without an end; check the address.") from error


def _check_status(response: requests.Response) -> None:
    """Raises _InterruptedError for failures that may pass, UserError for others."""
    status = response.status_code
    if status in (requests.codes.ok, _PARTIAL_CONTENT):
        return
    reason = f"{status} {response.reason}".strip()
    if status in _WORTH_RETRYING:
        raise _InterruptedError(f"the server says {reason}", _retry_after(response))
    raise UserError(
        f"{response.request.url} cannot be fetched (the server says {reason}); check the address."
    )


def _retry_after(response: requests.Response) -> float | None:
    """The seconds that a server wants us to wait, from a number or a date (RFC 9110, 10.2.3)."""
    given = response.headers.get("Retry-After", "").strip()
    if given.isdigit():
        return float(given)
    try:
        then = email.utils.parsedate_to_datetime(given)
    except (TypeError, ValueError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, then.timestamp() - time.time())


def _retrying(
    attempt: Callable[[], Any], url: str, pace: Pace, partial: _Partial | None = None
) -> Any:
    """The result of ``attempt``, made again after interruptions, with growing pauses."""
    # Only what has not arrived before counts as progress: a server that always begins again and
    # never ends would otherwise be asked for ever.
    failures, most = 0, partial.size if partial else 0
    while True:
        if pace.stopped():
            raise StoppedError
        try:
            return attempt()
        except _INTERRUPTIONS as error:
            problem, after = _reason(error), None
        except _InterruptedError as error:
            problem, after = str(error), error.after
        now = partial.size if partial else 0
        failures = 1 if now - most >= _PROGRESS_BYTES else failures + 1
        most = max(most, now)
        if failures >= pace.attempts:
            kept = f"; the {now} bytes that have arrived are kept" if now else ""
            raise UserError(
                f"{url} cannot be fetched: {problem}, {failures} times in a row{kept}; check the "
                "connection and the address, then start again."
            )
        if after is not None and after > _LONGEST_RETRY_AFTER_SECONDS:
            raise UserError(
                f"{url} cannot be fetched now: {problem}, and asks to wait {after:.0f} s; start "
                "again after that."
            )
        pace.wait(after if after is not None else min(2.0 ** (failures - 1), _LONGEST_WAIT_SECONDS))


def _reason(error: Exception) -> str:
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return "the server does not answer"
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "the connection was cut"
    return f"no connection ({type(error).__name__})"
