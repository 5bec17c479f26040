"""Builds a data directory once: skips finished work, installs atomically, locks out other writers.

A stage writes to ``output_dir/.partial``. Once this is complete, the files of an earlier run are
removed, the new ones moved into place and ``manifest.json`` is written, in that order, so a
directory with a manifest is always complete. Meanwhile, ``.stale.json`` lists the files being
replaced, so that a later run can clean up if this one is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from bert_tf.durable.manifest import (
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
from bert_tf.util.digest import digest_of_json
from bert_tf.util.directory_lock import hold_directory, is_abandoned
from bert_tf.util.errors import UserError
from bert_tf.util.files import (
    PathLike,
    explain_write_errors,
    make_output_dir,
    read_json,
    write_json,
)
from bert_tf.util.progress import Progress

if TYPE_CHECKING:
    from bert_tf.text.unknown_share import UnknownTokens

# What to do with output made by other versions of the program or its libraries.
REMAKE, KEEP = "remake", "keep"

PARTIAL_NAME = ".partial"
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


class OwnDirectory:
    """How a call uses its output directory: no other call writes there, or keeps files there.

    ``data_prep.stages.shared_directory.SharedDirectory`` lets several calls fill a directory.

    Attributes:
      flag: the flag that names the outputs.
      any_call: whether one of several calls that filled the directory can be up to date.
    """

    flag: str = "output_dir"
    any_call: bool = False

    def named(self, directory: Path) -> str:
        """What the call makes, for messages."""
        return f"{directory}"

    def partial(self, directory: Path) -> Path:
        """Where the call writes its outputs before they are moved into place."""
        return directory / PARTIAL_NAME

    @contextlib.contextmanager
    def working(self, directory: Path, identity: str) -> Iterator[tuple[Any, ...]]:
        """Yields the arguments of ``build``: an empty directory, which is removed at the end.

        ``identity`` is a digest of everything that determines the call's output.
        """
        del identity
        partial = self.partial(directory)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield (partial,)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def has_work_of_another_call(self, directory: Path, identity: str) -> bool:
        """Whether a call of another identity can resume from what is in :meth:`partial`."""
        del directory, identity
        return False

    def building(self, directory: Path) -> AbstractContextManager[object]:
        """Locks out other writers of :meth:`partial`."""
        return hold_directory(directory, flag=self.flag)

    def installing(self, directory: Path) -> AbstractContextManager[object]:
        """Locks out other writers of the directory, in addition to :meth:`building`."""
        del directory
        return contextlib.nullcontext()

    def others(self, directory: Path, call: Manifest) -> tuple[Manifest, ...]:
        """The other calls, whose files are kept.

        Raises UserError if ``call`` contradicts them, and for a damaged manifest.
        """
        self.require_stage(directory, call)
        return ()

    def require_stage(self, directory: Path, call: Manifest) -> Manifest | None:
        """The directory's manifest; UserError if it is another stage's."""
        manifest = find_manifest(directory)
        if manifest is not None and manifest.stage != call.stage:
            raise UserError(
                f"--{self.flag}: {directory} holds the output of {manifest.stage}; choose another "
                f"directory for {call.stage}."
            )
        return manifest

    def say_differences(self, directory: Path, call: Manifest, others: Sequence[Manifest]) -> None:
        """Warns about settings in which other calls differ."""

    def merged(self, calls: Sequence[Manifest]) -> Manifest:
        """The manifest of a directory that these calls filled, the only one here."""
        [call] = calls
        return call


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
    use: OwnDirectory | None = None,
) -> Path:
    """Fills ``output_dir`` with ``build(directory)``, unless its manifest shows it is up to date.

    Args:
      stage: name of the stage, for the manifest and for messages.
      output_dir: used by this stage only; files that the stage did not write are kept.
      parameters: JSON values that, with the inputs and the vocabulary, determine every output byte.
      inputs: files, in the order in which they are read.
      build: writes the outputs to the directory passed to it; see ``OwnDirectory.working``.
      vocabulary: the vocabulary of the ids in the outputs; None if there are no ids.
      made_by: the versions that also determine the output; see ``versions.maker``.
      other_versions: what to do with finished output of other versions: REMAKE or KEEP.
      use: how the directory is used; None for one of this stage and call alone.

    Returns: ``output_dir``.

    Raises:
      UserError: the directory cannot be written, is in use or contains another stage's output, or
        its manifest is damaged or lists something that is not a file in it; calls that share it
        contradict each other; an input differs from its entry in the manifest next to it, or
        changes meanwhile; or most tokens are unknown to the vocabulary.
    """
    use = use or OwnDirectory()
    directory = make_output_dir(output_dir, flag=use.flag)
    unchanged = UnchangedFiles(inputs)
    with unchanged.explain():
        entries = _describe(inputs, f"{stage}, checksums of the input")
    require_as_listed(dict(zip(inputs, entries)))
    call = Manifest(stage, parameters, entries, (), {}, vocabulary, made_by=made_by)
    # Without the lock, since readers of a finished directory need not wait for each other.
    earlier = finished_call(directory, call, any_call=use.any_call)
    keeps = other_versions == KEEP
    if earlier is not None and _may_stay(earlier, call, use.named(directory), keeps=keeps):
        _remove_leftovers(directory, call, use)
        _say_remark(earlier, inputs)
        return directory
    with explain_write_errors(directory), contextlib.ExitStack() as stack:
        stack.enter_context(use.building(directory))
        # Both raise their errors before the work.
        _files_of_earlier_runs(directory, use.others(directory, call))
        arguments = stack.enter_context(use.working(directory, _identity(call)))
        with unchanged.explain():
            built = build(*arguments)
        unchanged.require()
        if built.unknown is not None:
            built.unknown.require_known(_named_inputs(inputs))
        written = [use.partial(directory) / name for name in built.outputs]
        described = _describe(written, f"{stage}, checksums of the output")
        counts = built.outputs.values()
        outputs = (dataclasses.replace(e, count=count) for e, count in zip(described, counts))
        call = dataclasses.replace(
            call,
            outputs=tuple(outputs),
            counts=built.counts,
            remark=built.unknown.remark if built.unknown is not None else "",
        )
        stack.enter_context(use.installing(directory))
        others = use.others(directory, call)  # other calls may have finished meanwhile
        use.say_differences(directory, call, others)
        _install(call, others=others, directory=directory, use=use)
    _say_remark(call, inputs)
    return directory


def _say_remark(call: Manifest, inputs: Sequence[Path]) -> None:
    if call.remark:
        warn(f"{_named_inputs(inputs)}: {call.remark}", part="text")


def _named_inputs(inputs: Sequence[Path]) -> str:
    others = len(inputs) - 1
    return f"{inputs[0]}{f' and {others:,} other files' if others else ''}"


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
        if (known.bytes, known.digest) != (entry.bytes, entry.digest):
            raise UserError(
                f"{path} is not the file that {path.with_name(MANIFEST_NAME)} lists; make or copy "
                f"it again, or delete {MANIFEST_NAME} if the file was changed intentionally."
            )


def finished_call(
    directory: PathLike, call: Manifest, *, any_call: bool = False
) -> Manifest | None:
    """An earlier call of the same request, according to a directory's manifest; None without one.

    Inputs are compared by order, size and digest (not by name, so a moved corpus still matches);
    outputs by name and size, so that skipping need not read them. Versions are not compared: see
    :func:`version_differences`. A broken manifest does not match.

    Args:
      directory: its outputs must be in place.
      call: stage, parameters, inputs and vocabulary.
      any_call: whether it suffices that one of the calls that filled the directory matches.

    Raises UnsafeNameError.
    """
    manifest = intact_manifest(directory)
    if manifest is None:
        return None

    def matches(earlier: Manifest) -> bool:
        return (
            (earlier.stage, earlier.vocabulary) == (call.stage, call.vocabulary)
            and digest_of_json(earlier.parameters) == digest_of_json(call.parameters)
            and [(e.bytes, e.digest) for e in earlier.inputs]
            == [(e.bytes, e.digest) for e in call.inputs]
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


def _remove_leftovers(directory: Path, call: Manifest, use: OwnDirectory) -> None:
    """Removes leftovers of a call that was killed after it had finished its output.

    Removes nothing while another call is running there, and nothing that another call may resume.
    """
    partial, stale = use.partial(directory), directory / _STALE_NAME
    locked = dict.fromkeys((directory, partial.parent))
    if not any(map(is_abandoned, locked)):
        return
    with contextlib.suppress(UserError, OSError), contextlib.ExitStack() as stack:
        stack.callback(remove_if_empty, partial.parent)
        for place in locked:
            stack.enter_context(hold_directory(place, flag=use.flag))
        manifest = find_manifest(directory)
        unlisted = _stale_names(stale) - (manifest.output_names if manifest else set())
        if not any((directory / name).exists() for name in unlisted):
            stale.unlink(missing_ok=True)
        if partial.exists() and not use.has_work_of_another_call(directory, _identity(call)):
            shutil.rmtree(partial)


def _describe(paths: Sequence[Path], label: str) -> tuple[FileEntry, ...]:
    progress = Progress(label, sum(path.stat().st_size for path in paths) / 1e6, "MB")
    entries = []
    for entry in describe_files(paths):
        entries.append(entry)
        progress.advance(entry.bytes / 1e6)
    return tuple(entries)


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


def _identity(call: Manifest) -> str:
    """A hash of everything that determines a call's output."""
    return digest_of_json(call.to_dict())


def remove_if_empty(directory: Path) -> None:
    """Removes a directory unless it has content."""
    with contextlib.suppress(OSError):
        directory.rmdir()


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
    others: Sequence[Manifest],
    directory: Path,
    use: OwnDirectory,
) -> None:
    """Replaces the files of earlier calls, but of ``others``, in ``directory`` by a call's."""
    old, new = _files_of_earlier_runs(directory, others), call.output_names
    of_others = {name for other in others for name in other.output_names}
    for name in sorted(new.difference(old, of_others)):
        if (directory / name).exists():
            raise UserError(
                f"--{use.flag}: {directory / name} exists and was not made by {call.stage}; "
                "move it away or choose another directory."
            )
    write_json(directory / _STALE_NAME, sorted(new.union(old) - of_others))
    if others and old:  # without old files, it lists only kept ones
        write_manifest(directory, use.merged(others))
    elif not others:
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
    for name in set(old) - new:
        (directory / name).unlink(missing_ok=True)
    for name in sorted(new):
        os.replace(use.partial(directory) / name, directory / name)
    write_manifest(directory, use.merged([*others, call]))
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
