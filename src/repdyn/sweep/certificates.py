"""The certificates of a published store: who measured which files, with their checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repdyn.checkpoints.reuse import CERTIFICATES
from repdyn.store import Store
from repdyn.store.keys import step_name
from repdyn.store.run_files import RunFiles, with_run_files


@dataclass(frozen=True)
class Certificate:
    """One certificate, as a push writes it."""

    author: str | None
    """Who measured; None where nobody is named."""
    last: str
    """The time of the last measurement, ISO 8601."""
    digests: Mapping[str, str]
    """The sha256 of each file, by its name in the store."""


@dataclass
class Certified:
    """The files of a store beside its certificates."""

    certificates: list[Certificate]
    by_file: dict[str, Certificate] = field(default_factory=dict)
    """The certificate with the checksum of each file that has one."""
    changed: list[str] = field(default_factory=list)
    """Files that certificates name, all with other checksums."""
    n_files: int = 0

    @property
    def described(self) -> str:
        """A line for people."""
        if not self.certificates:
            return "no certificates"
        authors = sorted({one.author for one in self.certificates if one.author})
        by = f" by {', '.join(authors)}" if authors else ""
        changed = f"; {len(self.changed)} have another content than certified" if self.changed else ""
        others = self.n_files - len(self.by_file) - len(self.changed)
        later = f"; {others} have none, they were written or joined later" if others else ""
        return f"{len(self.by_file)} of {self.n_files} files have a certified checksum{by}{changed}{later}"

    def of_checkpoint(self, store: Store, run: str, step: int) -> list[Certificate | None]:
        """Return the certificates of the files with the rows of a step, None for a file without."""
        begin = f"{step_name(step)}-"

        def paths(files: RunFiles) -> list[Path]:
            single = [path for name, path in files.single.items() if name.startswith(begin)]
            return single + [path for path, names in files.compact.items() if any(n.startswith(begin) for n in names)]

        found = with_run_files(store.folder_of(run), paths)
        return [self.by_file.get(path.relative_to(store.path).as_posix()) for path in found]


def check_certificates(store: Store) -> Certified:
    """Compare the checksums of all files of a store with its certificates.

    A file that was written again after the last certificate that names it counts as changed: the certificate says
    nothing of its rows.

    Raises:
        ValueError: a certificate cannot be read.
    """
    found = Certified([_read(path) for path in sorted((store.path / CERTIFICATES).glob("*.json"))])
    named: dict[str, dict[str, Certificate]] = {}
    for certificate in found.certificates:
        for name, digest in certificate.digests.items():
            named.setdefault(name, {})[digest] = certificate
    for path in sorted(store.path.glob("*/step*.parquet")):
        name = path.relative_to(store.path).as_posix()
        found.n_files += 1
        if name in named:
            certificate = named[name].get(_digest(path))
            if certificate is None:
                found.changed.append(name)
            else:
                found.by_file[name] = certificate
    return found


def _read(path: Path) -> Certificate:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digests = {str(name): str(digest) for name, digest in content["sha256"].items()}
        author = content["author"]
        return Certificate(None if author is None else str(author), str(content["measured"][1]), digests)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a certificate of a push, cannot read {path}: {error!r}; move it away") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
