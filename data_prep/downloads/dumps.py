"""Where the dumps of Wikipedia are, and what their files should be.

Wikimedia publishes a dump of each wiki once or twice a month, in a directory with its date.
``dumpstatus.json`` in it lists the files of each job with their sizes and checksums
(https://meta.wikimedia.org/wiki/Data_dumps/Status_format). The articles, without talk pages and
without older revisions, are the job ``articlesdump``: one file, or several for a large wiki.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any, Callable, NamedTuple, Optional

from bert_tf.util.errors import UserError
from data_prep.downloads.transfer import RemoteFile
from data_prep.text.languages import validate_language

MIRROR = "https://dumps.wikimedia.org"
LATEST = "latest"
_JOB = "articlesdump"
_DATE = re.compile(r"20\d{6}")

# The text at an address, None if there is none.
ReadText = Callable[[str], Optional[str]]


class Dump(NamedTuple):
    """A finished dump: the wiki's name, such as ``dewiki``, its date and its files."""

    wiki: str
    date: str
    files: list[RemoteFile]


def check_dump_flags(language: str, date: str, mirror: str) -> None:
    """Raises UserError for values that cannot be."""
    validate_language(language)
    if date != LATEST and not _DATE.fullmatch(date):
        raise UserError(f"--date={date} is neither {LATEST} nor a date such as 20240601.")
    if not re.match("https?://[^/]", mirror):
        raise UserError(f"--mirror={mirror} is not an address that begins with https://.")


def find_dump(language: str, date: str, mirror: str, read_text: ReadText) -> Dump:
    """The files of the dump of a date, or of the latest one that is finished.

    Raises UserError if there is no such dump, or it is not finished.
    """
    wiki = f"{language.replace('-', '_')}wiki"
    root = f"{mirror.rstrip('/')}/{wiki}"
    if date != LATEST:
        status = read_text(f"{root}/{date}/dumpstatus.json")
        if status is None:
            raise UserError(
                f"--date={date}: {root}/{date} has no dumpstatus.json; see {root} for the dates "
                "that are kept."
            )
        return Dump(wiki, date, _files(status, f"{root}/{date}", mirror))
    index = read_text(f"{root}/")
    dates = sorted(set(re.findall(rf'href="(?:[^"]*/)?({_DATE.pattern})/?"', index or "")))
    if not dates:
        raise UserError(f"--language={language}: {root} lists no dumps; check --mirror.")
    for candidate in reversed(dates):
        status = read_text(f"{root}/{candidate}/dumpstatus.json")
        if status is not None and _is_done(_job(status, f"{root}/{candidate}")):
            return Dump(wiki, candidate, _files(status, f"{root}/{candidate}", mirror))
    raise UserError(
        f"--date={LATEST}: none of the dumps at {root} is finished ({', '.join(dates)}); try again "
        "later, or another --mirror."
    )


def _files(status: str, where: str, mirror: str) -> list[RemoteFile]:
    job = _job(status, where)
    if not _is_done(job):
        raise UserError(
            f"{where}: the dump of the articles is not finished ({job.get('status', 'unknown')}); "
            "give an earlier --date."
        )
    try:
        return [
            RemoteFile(
                url=f"{mirror.rstrip('/')}/{entry['url'].lstrip('/')}",
                name=posixpath.basename(name),
                size=int(entry["size"]),
                checksum=entry.get("sha1") or entry.get("md5"),
            )
            for name, entry in sorted(job["files"].items())
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _not_a_status(where) from error


def _job(status: str, where: str) -> dict[str, Any]:
    try:
        return dict(json.loads(status)["jobs"][_JOB])
    except (KeyError, TypeError, ValueError) as error:
        raise _not_a_status(where) from error


def _is_done(job: dict[str, Any]) -> bool:
    return job.get("status") == "done" and bool(job.get("files"))


def _not_a_status(where: str) -> UserError:
    return UserError(
        f"{where}/dumpstatus.json does not list the files of {_JOB}; try another --mirror or "
        "--date."
    )
