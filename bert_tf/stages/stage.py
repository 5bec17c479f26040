"""Builds a data directory once: skips finished work, installs atomically, locks out other writers.

A stage writes to ``output_dir/.partial``. Once this is complete, the files of an earlier run are
removed, the new ones moved into place and ``manifest.json`` is written, in that order, so a
directory with a manifest is always complete. Meanwhile, ``.stale.json`` lists the files being
replaced, so that a later run can clean up if this one is killed.

Calls that each add files to the same directory (``SharedDirectory``) write to separate
``.partial-*`` directories, possibly at the same time, and take turns to move files into place and
rewrite the manifest, which in the meantime does not list the files being replaced.

If a stage with a journal (journal.py) is stopped by a kill, a full disk or a lost worker, the next
call with equal parameters, inputs, vocabulary and versions resumes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from bert_tf.stages.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    VocabularyEntry,
    describe_files,
    find_manifest,
    has_size,
    intact_manifest,
    require_output_names,
    write_manifest,
)
from bert_tf.util.console import report, warn
from bert_tf.util.directory_lock import hold_directory, is_abandoned
from bert_tf.util.errors import RepairableError, UserError
from bert_tf.util.files import (
    SIDE_FILE_SUFFIXES,
    PathLike,
    explain_write_errors,
    hash_of_json,
    make_output_dir,
    read_json,
    write_json,
)
from bert_tf.util.progress import Progress

if TYPE_CHECKING:
    from bert_tf.stages.journal import Journal
    from bert_tf.text.unknown_share import UnknownTokens

# What to do with output made by other versions of the program or its libraries.
REMAKE, KEEP = "remake", "keep"

_PARTIAL_NAME = ".partial"
_STALE_NAME = ".stale.json"


@dataclasses.dataclass(frozen=True)
class Built:
    """The output of a stage.

    Attributes:
      outputs: file names, each with its number of units (documents, records) or None.
      counts: totals for the manifest.
      unknown: the unknown tokens of the text, if it was tokenized.
    """

    outputs: Mapping[str, int | None]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown: UnknownTokens | None = None


@dataclasses.dataclass(frozen=True)
class SharedDirectory:
    """What a call writes to a directory that it shares with other calls of its stage.

    Attributes:
      flag: the flag that names the files.
      names: the outputs of this call; it replaces an earlier call whose outputs are a subset.
      must_agree: parameters that, like the vocabulary, must be the same in all calls.
      may_differ: parameters that cause a warning if they differ between calls.
      common: outputs other than ``names`` that are byte-identical in every call that has them.
    """

    flag: str
    names: tuple[str, ...]
    must_agree: tuple[str, ...]
    may_differ: tuple[str, ...] = ()
    common: tuple[str, ...] = ()


def run_stage(
    stage: str,
    output_dir: PathLike,
    *,
    parameters: Mapping[str, Any],
    inputs: Sequence[Path],
    build: Callable[..., Built],
    vocabulary: VocabularyEntry | None = None,
    made_by: Mapping[str, str],
    other_versions: str = REMAKE,
    shared: SharedDirectory | None = None,
    journaled: bool = False,
) -> Path:
    """Fills ``output_dir`` with ``build(directory)``, unless its manifest shows it is up to date.

    Args:
      stage: name of the stage, for the manifest and for messages.
      output_dir: used by this stage only; files that the stage did not write are kept.
      parameters: JSON values that, with the inputs and the vocabulary, determine every output byte.
      inputs: files, in the order in which they are read.
      build: writes the outputs to the directory passed to it, which is empty; with a journal, that
        is passed too, and tells which output of an earlier call is there.
      vocabulary: the vocabulary of the ids in the outputs; None if there are no ids.
      made_by: the versions that also determine the output; see ``versions.maker``.
      other_versions: what to do with finished output of other versions: REMAKE or KEEP.
      shared: keeps other calls' files in the directory; None replaces all files.
      journaled: whether to keep a journal.

    Returns: ``output_dir``.

    Raises:
      UserError: the directory cannot be written, is in use or contains another stage's output, or
        its manifest is damaged or lists something that is not a file in it; calls that share it
        contradict each other; an input differs from its entry in the manifest next to it, or
        changes meanwhile; or most tokens are unknown to the vocabulary.
    """
    flag = shared.flag if shared else "output_dir"
    directory = make_output_dir(output_dir, flag=flag)
    unchanged = UnchangedFiles(inputs)
    with unchanged.explain():
        entries = _describe(inputs, f"{stage}, checksums of the input")
    require_as_listed(dict(zip(inputs, entries)))
    call = Manifest(stage, parameters, entries, (), {}, vocabulary, made_by=made_by)
    # Without the lock, since readers of a finished directory need not wait for each other.
    earlier = finished_call(directory, call, any_call=shared is not None)
    if earlier is not None and _may_stay(
        earlier, call, _named(directory, shared), keeps=other_versions == KEEP
    ):
        _remove_leftovers(directory, call, shared, flag)
        _say_remark(earlier, inputs)
        return directory
    with explain_write_errors(directory), contextlib.ExitStack() as stack:
        if shared is None:
            stack.enter_context(hold_directory(directory, flag=flag))
        kept = _calls_to_keep(directory, call, shared)
        if shared is None:
            _files_of_earlier_runs(directory, kept)  # raises its errors before the work
        identity = _identity(call) if journaled else None
        partial, journal = stack.enter_context(_partial_directory(directory, shared, identity))
        with unchanged.explain():
            built = build(partial, journal) if journaled else build(partial)
        unchanged.require()
        if built.unknown is not None:
            built.unknown.require_known(_named_inputs(inputs))
            call = dataclasses.replace(call, remark=built.unknown.remark)
        written = [partial / name for name in built.outputs]
        described = _describe(written, f"{stage}, checksums of the output")
        counts = built.outputs.values()
        outputs = (dataclasses.replace(e, count=count) for e, count in zip(described, counts))
        call = dataclasses.replace(call, outputs=tuple(outputs), counts=built.counts)
        if shared is not None:
            stack.enter_context(hold_directory(directory, flag=flag, wait=True))
            kept = _calls_to_keep(
                directory, call, shared
            )  # other calls may have finished meanwhile
            _note_differences(directory, call, kept, shared)
        old = _files_of_earlier_runs(directory, kept)
        _install(call, kept=kept, old=old, partial=partial, directory=directory, flag=flag)
    _say_remark(call, inputs)
    return directory


def _say_remark(call: Manifest, inputs: Sequence[Path]) -> None:
    if call.remark:
        warn(f"{_named_inputs(inputs)}: {call.remark}", part="text")


def _named_inputs(inputs: Sequence[Path]) -> str:
    others = len(inputs) - 1
    return f"{inputs[0]}{f' and {others:,} other files' if others else ''}"


def merge_manifests(calls: Iterable[Manifest]) -> Manifest:
    """Merges the manifests of several calls of a stage that filled one directory.

    The result does not depend on the order of the calls. Its parameters are those common to all.
    """
    parts = tuple(sorted(calls, key=lambda call: sorted(call.output_names)))
    first = parts[0]
    if len(parts) == 1:
        return first
    names = {name for part in parts for name in part.counts}
    return dataclasses.replace(
        first,
        parameters=_shared([part.parameters for part in parts]),
        inputs=tuple(entry for part in parts for entry in part.inputs),
        # A file written by several calls is identical in all of them.
        outputs=tuple({e.name: e for part in parts for e in part.outputs}.values()),
        counts={name: sum(part.counts.get(name, 0) for part in parts) for name in sorted(names)},
        parts=parts,
        made_by=_shared([part.made_by for part in parts]),
        remark="",
    )


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries common to all mappings."""
    first, *others = mappings
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def require_as_listed(files: Mapping[Path, FileEntry]) -> None:
    """Compares the size and digest of files that were read with the manifests next to them.

    A broken manifest counts as none. Raises UserError if a file differs from its entry.
    """
    listed = {
        directory: {entry.name: entry for entry in manifest.outputs}
        for directory in {path.parent for path in files}
        if (manifest := intact_manifest(directory)) is not None
    }
    for path, entry in files.items():
        known = listed.get(path.parent, {}).get(path.name, entry)
        if (known.bytes, known.sha256) != (entry.bytes, entry.sha256):
            raise UserError(
                f"{path} is not the file that {path.with_name(MANIFEST_NAME)} lists; make or copy "
                f"it again, or delete {MANIFEST_NAME} if the file was changed intentionally."
            )


def finished_call(
    directory: PathLike, call: Manifest, *, name: str = MANIFEST_NAME, any_call: bool = False
) -> Manifest | None:
    """An earlier call of the same request, according to a directory's manifest; None without one.

    Inputs are compared by order, size and digest (not by name, so a moved corpus still matches);
    outputs by name and size, so that skipping need not read them. Versions are not compared: see
    :func:`version_differences`. A broken manifest does not match.

    Args:
      directory: its outputs must be in place.
      call: stage, parameters, inputs and vocabulary.
      name: name of the manifest.
      any_call: whether it suffices that one of the calls that filled the directory matches.

    Raises UnsafeNameError.
    """
    manifest = intact_manifest(directory, name=name)
    if manifest is None:
        return None

    def matches(earlier: Manifest) -> bool:
        return (
            (earlier.stage, earlier.vocabulary) == (call.stage, call.vocabulary)
            and hash_of_json(earlier.parameters) == hash_of_json(call.parameters)
            and [(e.bytes, e.sha256) for e in earlier.inputs]
            == [(e.bytes, e.sha256) for e in call.inputs]
            and all(has_size(Path(directory) / e.name, e.bytes) for e in earlier.outputs)
        )

    return next(filter(matches, manifest.calls if any_call else [manifest]), None)


def version_differences(earlier: Manifest, call: Manifest) -> str:
    """How the versions that made an earlier call's output differ; empty if they do not.

    Directories made before versions were recorded have none, and count as equal.
    """
    names = sorted({*earlier.made_by, *call.made_by}) if earlier.made_by else ()
    return ", ".join(
        f"{name} {earlier.made_by.get(name, 'none')} (now {call.made_by.get(name, 'none')})"
        for name in names
        if earlier.made_by.get(name) != call.made_by.get(name)
    )


def _remove_leftovers(
    directory: Path, call: Manifest, shared: SharedDirectory | None, flag: str
) -> None:
    """Removes leftovers of a call that was killed after it had finished its output.

    Removes nothing while another call is running there, and nothing that another call may resume.
    """
    partial, stale = _partial_path(directory, shared), directory / _STALE_NAME
    locked = dict.fromkeys((directory, partial.parent))
    if not any(map(is_abandoned, locked)):
        return
    with contextlib.suppress(UserError, OSError), contextlib.ExitStack() as stack:
        stack.callback(_remove_if_empty, partial.parent)
        for place in locked:
            stack.enter_context(hold_directory(place, flag=flag))
        manifest = find_manifest(directory)
        unlisted = _stale_names(stale) - (manifest.output_names if manifest else set())
        if not any((directory / name).exists() for name in unlisted):
            stale.unlink(missing_ok=True)
        if partial.exists() and not _is_of_another_call(partial, call):
            shutil.rmtree(partial)


def _describe(paths: Sequence[Path], label: str) -> tuple[FileEntry, ...]:
    progress = Progress(label, sum(path.stat().st_size for path in paths) / 1e6, "MB")
    entries = []
    for entry in describe_files(paths):
        entries.append(entry)
        progress.advance(entry.bytes / 1e6)
    return tuple(entries)


def _named(directory: Path, shared: SharedDirectory | None) -> str:
    return f"{directory / shared.names[0]}" if shared else f"{directory}"


def _may_stay(earlier: Manifest, call: Manifest, what: str, *, keeps: bool) -> bool:
    """Whether finished output is what the call would make, or is kept anyway; reports which."""
    difference = version_differences(earlier, call)
    if not difference:
        unknown = call.made_by and not earlier.made_by
        note = " (the versions that made it are not recorded)" if unknown else ""
        report(f"{call.stage}: {what} is up to date, skipped{note}")
    elif keeps:
        report(f"{call.stage}: {what} is kept, though it was made by {difference}")
    else:
        report(
            f"{call.stage}: {what} was made by {difference}, and is made again "
            "(--other_versions=keep keeps it)"
        )
    return keeps or not difference


def _is_of_another_call(partial: Path, call: Manifest) -> bool:
    from bert_tf.stages.journal import continues_another_call

    return continues_another_call(partial, _identity(call))


def _identity(call: Manifest) -> str:
    """A hash of everything that determines a call's output."""
    return hash_of_json(call.to_dict())


@contextlib.contextmanager
def _partial_directory(
    directory: Path, shared: SharedDirectory | None, identity: str | None
) -> Iterator[tuple[Path, Journal | None]]:
    """Yields a directory inside ``directory`` that is removed at the end.

    It is empty, but with an ``identity`` it contains the work of an earlier call's journal, and is
    kept after a failure that can be repaired if there is a journal.
    """
    with contextlib.ExitStack() as stack:
        partial = _partial_path(directory, shared)
        if shared is not None:
            stack.callback(_remove_if_empty, partial.parent)
            stack.enter_context(hold_directory(partial.parent, flag=shared.flag))
        journal = None
        if identity is None:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        else:
            from bert_tf.stages.journal import Journal

            journal = Journal(partial, identity)
        stack.push(functools.partial(_remove_unless_continued, partial, journal))
        yield partial, journal


def _partial_path(directory: Path, shared: SharedDirectory | None) -> Path:
    """Where a call writes; calls that may run at the same time have a locked directory each."""
    if shared is None:
        return directory / _PARTIAL_NAME
    return directory / f"{_PARTIAL_NAME}-{hash_of_json(sorted(shared.names))[:16]}" / "files"


def _remove_unless_continued(
    partial: Path, journal: Journal | None, _: object, error: BaseException | None, __: object
) -> None:
    is_final = isinstance(error, UserError) and not isinstance(error, RepairableError)
    if error is not None and not is_final and journal is not None and journal.exists:
        report(f"finished work is kept in {partial}; the same command will resume from there")
    else:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _calls_to_keep(
    directory: Path, call: Manifest, shared: SharedDirectory | None
) -> tuple[Manifest, ...]:
    """The other calls, whose files are kept.

    Raises UserError if ``call`` contradicts them, and for a damaged manifest.
    """
    manifest = find_manifest(directory)
    if manifest is not None and manifest.stage != call.stage:
        raise UserError(
            f"--{shared.flag if shared else 'output_dir'}: {directory} holds the output of "
            f"{manifest.stage}; choose another directory for {call.stage}."
        )
    if shared is None or manifest is None:
        return ()
    replaced = set(shared.names)
    kept = []
    for other in manifest.calls:
        names = other.output_names.difference(shared.common)
        rest = names - replaced
        if rest and rest != names:
            raise UserError(
                f"--{shared.flag}: {directory / min(replaced & names)} was made in one call with "
                f"{min(rest)} and cannot be replaced alone; give the same files again, or choose "
                "another name."
            )
        if rest:
            _refuse_contradiction(directory, call, other, shared)
            kept.append(other)
    return tuple(kept)


def _note_differences(
    directory: Path, call: Manifest, kept: Sequence[Manifest], shared: SharedDirectory
) -> None:
    """Warns about settings in which other calls differ."""
    for name in shared.may_differ:
        now = call.parameters.get(name)
        others = (other for other in kept if other.parameters.get(name) != now)
        for other in itertools.islice(others, 1):
            report(
                f"warning: {directory / _example(other)} was made "
                f"{_with_setting(name, other.parameters.get(name))}, {shared.names[0]} "
                f"{'without' if now is None else f'with {now}'}"
            )


def _refuse_contradiction(
    directory: Path, call: Manifest, other: Manifest, shared: SharedDirectory
) -> None:
    """Raises UserError if the files of two calls cannot be used together."""
    found = [("vocabulary", call.vocabulary, other.vocabulary)]
    found += [
        (name, call.parameters.get(name), other.parameters.get(name)) for name in shared.must_agree
    ]
    for name, now, before in found:
        if now != before:
            how = f"with a different {name}"
            if name in shared.must_agree:
                how = f"{_with_setting(name, before)}, not {'without' if now is None else now}"
            raise UserError(
                f"--{shared.flag}: {directory / _example(other)} was made {how}; "
                "use the same settings for all files in a directory, or choose another directory."
            )


def _with_setting(name: str, value: Any) -> str:
    """How a call was made; a manifest may omit parameters that are off."""
    return f"without {name}" if value is None else f"with {name} {value}"


def _example(call: Manifest) -> str:
    return min(name for name in call.output_names if not name.endswith(SIDE_FILE_SUFFIXES))


def remove_outputs(stage: str, output_dir: PathLike) -> None:
    """Removes the outputs of an earlier run of the stage from a directory, if there are any."""
    directory = Path(output_dir)
    manifest = intact_manifest(directory)
    if manifest is not None and manifest.stage != stage:
        return
    if not _files_of_earlier_runs(directory):
        return
    with hold_directory(directory, flag="output_dir"):
        names = _files_of_earlier_runs(directory)
        write_json(directory / _STALE_NAME, sorted(names))
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        for name in names:
            (directory / name).unlink(missing_ok=True)
        (directory / _STALE_NAME).unlink()


def _stale_names(path: Path) -> set[str]:
    """The names in a list of files that were being replaced; empty if there is no list."""
    if not path.exists():
        return set()
    listed = read_json(path, what="list of replaced files")
    if not isinstance(listed, list):
        raise UserError(f"{path} is not a list of file names; delete it and try again.")
    require_output_names(listed, listed_in=path)
    return set(listed)


def _install(
    call: Manifest,
    *,
    kept: Sequence[Manifest],
    old: Collection[str],
    partial: Path,
    directory: Path,
    flag: str,
) -> None:
    """Replaces the files of earlier calls, except ``kept``, in ``directory`` by a call's files."""
    new = call.output_names
    of_others = {name for other in kept for name in other.output_names}
    for name in sorted(new.difference(old, of_others)):
        if (directory / name).exists():
            raise UserError(
                f"--{flag}: {directory / name} exists and was not made by {call.stage}; "
                "move it away or choose another directory."
            )
    write_json(directory / _STALE_NAME, sorted(new.union(old) - of_others))
    if kept and old:  # without old files, it lists only kept ones
        write_manifest(directory, merge_manifests(kept))
    elif not kept:
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
    for name in set(old) - new:
        (directory / name).unlink(missing_ok=True)
    for name in sorted(new):
        os.replace(partial / name, directory / name)
    write_manifest(directory, merge_manifests([*kept, call]))
    (directory / _STALE_NAME).unlink()


def _files_of_earlier_runs(directory: Path, kept: Sequence[Manifest] = ()) -> set[str]:
    """Names of the files that may be replaced or removed, except those of the calls ``kept``."""
    manifest = intact_manifest(directory)
    names = manifest.output_names if manifest else set()
    names = (names | _stale_names(directory / _STALE_NAME)).difference(
        *(call.output_names for call in kept)
    )
    for name in names:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            raise UserError(
                f"--output_dir: {path} is a directory, but listed as a file written by an earlier "
                "run; move it away."
            )
    return names


class UnchangedFiles:
    """Remembers the size, modification time and identity of files, to compare them later."""

    def __init__(self, files: Sequence[Path]):
        self._seen = {path: _status(path) for path in files}

    @contextlib.contextmanager
    def explain(self) -> Iterator[None]:
        """Converts errors from reading a changed file to a UserError that says so."""
        try:
            yield
        except (OSError, UserError):
            self.require()
            raise

    def require(self) -> None:
        """Raises UserError if a file has changed."""
        for path, status in self._seen.items():
            if _status(path) != status:
                raise UserError(
                    f"{path} changed while it was read; start again when it is complete."
                )


def _status(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); start again.") from error
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino
