"""Downloads from a real server that cuts connections, lies and fails."""

from __future__ import annotations

import hashlib
import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.durable.manifest import read_manifest
from bert_tf.util.errors import UserError
from data_prep.downloads import download
from data_prep.downloads.download import Settings, run
from tests.helpers.mediawiki import publish
from tests.helpers.web_server import announce, cut_after, send_instead, status, web_server

CONTENT = random.Random(0).randbytes(3_000_000)
MIB = 1 << 20


@pytest.fixture
def web():
    with web_server() as server:
        yield server


class Pauses(list):
    """The pauses that were asked for; nobody waits."""

    def __call__(self, seconds):
        self.append(seconds)


def fetch_all(web, tmp_path, *paths, pauses=None, **options):
    urls = [web.address + path for path in paths]
    wait = Pauses() if pauses is None else pauses
    return run(Settings(str(tmp_path / "out"), url=urls, **options), wait=wait)


def checksums(tmp_path, kind=hashlib.sha256, **content):
    lines = [
        f"{kind(data).hexdigest()}  {name.replace('_', '.')}\n" for name, data in content.items()
    ]
    path = tmp_path / "SUMS"
    path.write_text("".join(lines))
    return str(path)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_files_get_their_names_and_a_manifest(web, tmp_path):
    web.files = {"/a/one.txt": CONTENT, "/b/two%20.gz?x=1": b"two"}
    out = fetch_all(web, tmp_path, *web.files)
    assert names_in(out) == ["manifest.json", "one.txt", "two .gz"]
    assert (out / "one.txt").read_bytes() == CONTENT
    entries = {entry.name: entry.digest for entry in read_manifest(out).outputs}
    assert entries["one.txt"] == hashlib.sha256(CONTENT).hexdigest()


def test_the_same_call_again_asks_for_nothing(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    fetch_all(web, tmp_path, "/one.txt")
    fetch_all(web, tmp_path, "/one.txt")
    assert len(web.requests) == 1


def test_a_cut_connection_is_continued_where_it_stopped(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [cut_after(2_000_000), cut_after(500_000)]
    pauses = Pauses()
    out = fetch_all(web, tmp_path, "/one.txt", pauses=pauses)
    assert (out / "one.txt").read_bytes() == CONTENT
    assert web.ranges("/one.txt") == [None, "bytes=2000000-", "bytes=2500000-"]
    assert pauses == [1, 2]


@given(cuts=st.lists(st.integers(0, MIB), max_size=6))
@settings(max_examples=15, deadline=None)
def test_any_cuts_give_the_same_bytes(tmp_path_factory, cuts):
    with web_server() as web:
        web.files = {"/one.txt": CONTENT}
        web.faults["/one.txt"] = [cut_after(cut) for cut in cuts]
        out = fetch_all(web, tmp_path_factory.mktemp("cuts"), "/one.txt")
        assert (out / "one.txt").read_bytes() == CONTENT


def test_a_later_call_continues_and_nothing_has_the_final_name_before(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [cut_after(1_500_000), *[status(503)] * 7]
    with pytest.raises(UserError, match=r"1500000 bytes that have arrived are kept"):
        fetch_all(web, tmp_path, "/one.txt")
    assert names_in(tmp_path / "out") == [".download"]
    web.requests.clear()
    out = fetch_all(web, tmp_path, "/one.txt")
    assert web.ranges("/one.txt") == ["bytes=1500000-"]
    assert (out / "one.txt").read_bytes() == CONTENT
    assert names_in(out) == ["manifest.json", "one.txt"]


def test_a_file_that_has_changed_meanwhile_is_not_mixed(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [cut_after(2_000_000), status(500)]
    changed = CONTENT[::-1]

    def change(seconds):
        web.files["/one.txt"] = changed

    out = fetch_all(web, tmp_path, "/one.txt", pauses=change)
    assert (out / "one.txt").read_bytes() == changed


@pytest.mark.parametrize("has_checksum", [False, True])
def test_without_a_validator_only_a_checksum_permits_to_continue(web, tmp_path, has_checksum):
    web.files, web.tags = {"/one.txt": CONTENT}, {"/one.txt": ""}
    web.faults["/one.txt"] = [cut_after(2_000_000), *[status(503)] * 7]
    sums = checksums(tmp_path, one_txt=CONTENT) if has_checksum else None
    with pytest.raises(UserError):
        fetch_all(web, tmp_path, "/one.txt", checksum_file=sums)
    rest = "bytes=2000000-" if has_checksum else None
    assert web.ranges("/one.txt") == [None, *[rest] * 7]
    out = fetch_all(web, tmp_path, "/one.txt", checksum_file=sums)
    assert web.ranges("/one.txt") == [None, *[rest] * 8]
    assert (out / "one.txt").read_bytes() == CONTENT


def test_a_damaged_copy_is_fetched_again_once(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [send_instead(CONTENT[:-1] + b"?")]
    sums = checksums(tmp_path, hashlib.md5, one_txt=CONTENT)
    out = fetch_all(web, tmp_path, "/one.txt", checksum_file=sums)
    assert (out / "one.txt").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "line",
    ["{sum}  one.txt", "{sum} *./one.txt", "{sum}  books/one.txt", "SHA256 (one.txt) = {sum}"],
)
def test_a_list_of_checksums_may_name_other_files(web, tmp_path, line):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [send_instead(CONTENT[:-1] + b"?")]
    path = tmp_path / "SHA256SUMS"
    lines = [
        "# books",
        f"{'0' * 64}  two.txt",
        line.format(sum=hashlib.sha256(CONTENT).hexdigest()),
    ]
    path.write_text("\n".join([*lines, f"{'1' * 64}  other/three.txt", ""]))
    out = fetch_all(web, tmp_path, "/one.txt", checksum_file=str(path))
    assert (out / "one.txt").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", [hashlib.md5, hashlib.sha1, hashlib.sha256, hashlib.sha512])
def test_a_wrong_checksum_is_named_and_nothing_is_left(web, tmp_path, kind):
    web.files = {"/one.txt": CONTENT}
    sums = checksums(tmp_path, kind, one_txt=b"other")
    with pytest.raises(UserError, match=rf"/one.txt has {kind().name.upper()} .*twice in a row"):
        fetch_all(web, tmp_path, "/one.txt", checksum_file=sums)
    assert names_in(tmp_path / "out" / ".download") == []


def test_a_length_that_is_never_reached_ends(web, tmp_path):
    web.files = {"/one.txt": CONTENT}
    web.faults["/one.txt"] = [announce(len(CONTENT) + 10)] * 50
    web.tags["/one.txt"] = ""
    with pytest.raises(UserError, match=r"times in a row"):
        fetch_all(web, tmp_path, "/one.txt")
    assert not (tmp_path / "out" / "one.txt").exists()


@pytest.mark.parametrize("code", [408, 429, 500, 503])
def test_failures_that_pass(web, tmp_path, code):
    web.files = {"/one.txt": b"text"}
    web.faults["/one.txt"] = [status(code), status(code, Retry_After="7")]
    pauses = Pauses()
    fetch_all(web, tmp_path, "/one.txt", pauses=pauses)
    assert pauses == [1, 7]


@pytest.mark.parametrize("code", [401, 403, 404, 410, 204])
def test_failures_that_do_not_pass(web, tmp_path, code):
    web.files = {"/one.txt": b"text"}
    web.faults["/one.txt"] = [status(code)]
    with pytest.raises(UserError, match=f"one.txt cannot be fetched .*{code}"):
        fetch_all(web, tmp_path, "/one.txt")
    assert len(web.requests) == 1


def test_pauses_grow_and_end(web, tmp_path):
    web.files = {"/one.txt": b"text"}
    web.faults["/one.txt"] = [status(503)] * 100
    pauses = Pauses()
    with pytest.raises(UserError, match="503 Service Unavailable, 8 times in a row"):
        fetch_all(web, tmp_path, "/one.txt", pauses=pauses)
    assert pauses == [1, 2, 4, 8, 16, 32, 60]


def test_a_server_that_wants_hours_is_not_waited_for(web, tmp_path):
    web.faults["/one.txt"] = [status(503, Retry_After="7200")]
    with pytest.raises(UserError, match="asks to wait 7200 s"):
        fetch_all(web, tmp_path, "/one.txt")


def test_nobody_answers(tmp_path):
    with web_server() as web:
        pass
    with pytest.raises(UserError, match=r"no connection \(ConnectionError\)"):
        fetch_all(web, tmp_path, "/one.txt")


def test_one_failure_ends_the_others_and_they_are_kept(web, tmp_path):
    web.files = {"/one.txt": CONTENT, "/two.txt": CONTENT}
    web.faults["/two.txt"] = [cut_after(MIB), status(404)]
    with pytest.raises(UserError, match=r"two\.txt cannot be fetched"):
        fetch_all(web, tmp_path, "/one.txt", "/two.txt", num_connections=1)
    web.requests.clear()
    out = fetch_all(web, tmp_path, "/one.txt", "/two.txt")
    assert web.ranges("/one.txt") == []
    assert web.ranges("/two.txt") == [f"bytes={MIB}-"]
    assert (out / "two.txt").read_bytes() == CONTENT


def test_a_disk_without_hard_links(web, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(download.os, "link", refuse)
    web.files = {"/one.txt": CONTENT}
    assert (fetch_all(web, tmp_path, "/one.txt") / "one.txt").read_bytes() == CONTENT


def wikipedia(web, tmp_path, **options):
    options = {"language": "de", "mirror": web.address, **options}
    settings_ = Settings(str(tmp_path / "out"), source="wikipedia", **options)
    return run(settings_, wait=Pauses())


def test_the_latest_dump_that_is_finished(web, tmp_path):
    publish(web, "20240501", {"dewiki-20240501-pages-articles.xml.bz2": b"old"})
    publish(web, "20240520", {"a.bz2": b"new", "b.bz2": CONTENT})
    publish(web, "20240601", {"dewiki-20240601-pages-articles.xml.bz2": b"?"}, state="in-progress")
    out = wikipedia(web, tmp_path)
    assert names_in(out) == ["a.bz2", "b.bz2", "manifest.json"]
    assert (out / "b.bz2").read_bytes() == CONTENT


def test_a_named_date_from_another_mirror_is_up_to_date(web, tmp_path):
    publish(web, "20240501", {"a.bz2": b"text"})
    wikipedia(web, tmp_path, date="20240501")
    with web_server() as other:
        other.files = web.files
        wikipedia(other, tmp_path, date="20240501")
        assert [path for path, _ in other.requests] == ["/dewiki/20240501/dumpstatus.json"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"date": "20240601"}, r"is not finished \(in-progress\)"),
        ({"date": "20240701"}, "has no dumpstatus.json"),
        ({"language": "aa"}, "lists no dumps"),
    ],
)
def test_dumps_that_are_not_there(web, tmp_path, options, sentence):
    publish(web, "20240601", {"a.bz2": b"text"}, state="in-progress")
    with pytest.raises(UserError, match=sentence):
        wikipedia(web, tmp_path, **options)
    assert names_in(tmp_path / "out") == []


def test_no_dump_is_finished(web, tmp_path):
    publish(web, "20240601", {"a.bz2": b"text"}, state="in-progress")
    with pytest.raises(UserError, match=r"none of the dumps .* is finished"):
        wikipedia(web, tmp_path)


@pytest.mark.parametrize(
    "content", [b"<html>", b"[]", b'{"jobs": {"articlesdump": 1}}', b'{"jobs": {}}']
)
def test_a_list_that_is_none(web, tmp_path, content):
    publish(web, "20240601", {"a.bz2": b"text"})
    web.files["/dewiki/20240601/dumpstatus.json"] = content
    with pytest.raises(UserError, match=r"dumpstatus.json does not list"):
        wikipedia(web, tmp_path, date="20240601")


def test_names_in_a_list_stay_in_the_directory(web, tmp_path):
    publish(web, "20240601", {"../../.evil": b"text"})
    with pytest.raises(UserError, match="does not end with a file name"):
        wikipedia(web, tmp_path)


def test_a_file_of_another_size_than_listed(web, tmp_path):
    publish(web, "20240601", {"a.bz2": CONTENT})
    web.files["/dewiki/20240601/a.bz2"] = CONTENT[:-5]
    with pytest.raises(UserError, match="2999995 bytes on the server and 3000000 in the list"):
        wikipedia(web, tmp_path)


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(web, tmp_path, monkeypatch):
    publish(web, "20240601", {"a.bz2": CONTENT})
    usage = shutil.disk_usage(tmp_path)._replace(free=2_999_999)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match="still to be downloaded"):
        wikipedia(web, tmp_path)
    assert not web.ranges("/dewiki/20240601/a.bz2")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "either --source"),
        ({"source": "wikipedia", "url": ["http://a/b"]}, "either --source"),
        ({"source": "wikipedia", "language": "../de"}, "--language"),
        ({"source": "wikipedia", "date": "2024-06-01"}, "--date"),
        ({"source": "wikipedia", "mirror": "dumps.example.org"}, "--mirror"),
        ({"source": "wikipedia", "checksum_file": "x"}, "belongs to --url"),
        ({"url": ["ftp://a/b"]}, "not an address"),
        ({"url": ["http://a/"]}, "does not end with a file name"),
        ({"url": ["http://a/.lock"]}, "does not end with a file name"),
        ({"url": ["http://a/manifest.json"]}, "does not end with a file name"),
        ({"url": ["http://a/b", "http://c/b"]}, "have the same name"),
        ({"url": ["http://a/b"], "num_connections": 0}, "--num_connections"),
    ],
)
def test_wrong_flags(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        run(Settings(str(tmp_path / "out"), **options))


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("xyz  one.txt\n", "line 1 .* is not a checksum"),
        (f"{'0' * 32}  two.txt\n", "has no checksum for one.txt, which --url=http.* needs"),
        (
            f"{'0' * 32}  a/one.txt\n{'1' * 32}  b/one.txt\n",
            "has 2 different checksums for one.txt",
        ),
    ],
)
def test_wrong_checksum_files(web, tmp_path, lines, sentence):
    path = tmp_path / "SUMS"
    path.write_text(lines)
    with pytest.raises(UserError, match=sentence):
        fetch_all(web, tmp_path, "/one.txt", checksum_file=str(path))
