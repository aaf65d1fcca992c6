"""Lists and opens the files of a Hugging Face repository at a commit, over the hub's HTTP interface.

The hub's own client (huggingface_hub 1.33) no longer continues a download that was killed: each try writes a file of a
new name. So the two requests that are needed are made here: the tree of the commit, which has each file's size and
digest, and the files, by ranges. Standard library alone.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from fetch_files import NoMore, Refused, Remote, Stream, Unsteady, digest_file

TIMEOUT_S = 60
# The hub says in Retry-After when it wants to be asked again; longer than this, a person should know.
LONGEST_WAIT_S = 120.0


class KeepToken(urllib.request.HTTPRedirectHandler):
    """Sends the token along to the hub itself and to nobody else: large files are on other hosts."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urllib.parse.urlsplit(newurl)[:2] == urllib.parse.urlsplit(req.full_url)[:2]:
            for name, value in req.unredirected_hdrs.items():
                if name == "Authorization":
                    new.add_unredirected_header(name, value)
        return new


class Hub:
    """A repository at a commit."""

    def __init__(self, endpoint: str, repository: str, revision: str, token: str) -> None:
        self._endpoint, self._repository, self._revision = endpoint.rstrip("/"), repository, revision
        self._token = token
        self._opener = urllib.request.build_opener(KeepToken)

    def list_files(self) -> list[Remote]:
        """Returns every file of the commit; raises Refused when the hub does not show it."""
        url: str | None = (
            f"{self._endpoint}/api/models/{self._repository}/tree/{self._revision}?recursive=true&expand=false"
        )
        remotes = []
        while url:
            with self._ask(url) as answer:
                entries: list[dict[str, Any]] = json.loads(answer.read())
                following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link") or "")
            url = urllib.parse.urljoin(url, following[1]) if following else None
            remotes += [self._describe(entry) for entry in entries if entry["type"] == "file"]
        if not remotes:
            raise Refused(f"{self._repository}@{self._revision}: no model: expected files, found none")
        return remotes

    def _describe(self, entry: dict[str, Any]) -> Remote:
        large = entry.get("lfs")
        size = int(large["size"] if large else entry["size"])
        digest = str(large["oid"] if large else entry["oid"])
        check = check_sha256 if large else check_git_blob
        return Remote(entry["path"], size, digest, partial(self._open, entry["path"]), partial(check, digest))

    def _open(self, path: str, offset: int) -> tuple[Stream, int]:
        url = f"{self._endpoint}/{self._repository}/resolve/{self._revision}/{urllib.parse.quote(path)}"
        answer = self._ask(url, offset)
        return answer, offset if answer.status == 206 else 0

    def _ask(self, url: str, offset: int = 0) -> Any:
        # A compressed answer would have another size and other ranges.
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "decamp"})  # noqa: S310
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            return self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise self._explain(error) from None

    def _explain(self, error: urllib.error.HTTPError) -> Exception:
        words = error.headers.get("X-Error-Message") or error.reason
        where = f"{self._repository}@{self._revision}"
        error.close()
        if error.code in (401, 403):
            state = "a token was given" if self._token else "no token was given"
            return Refused(
                f"{where}: the hub refuses: expected 200, found {error.code} {words} ({state}); "
                "run: export HF_TOKEN=... of an account that may read it, and look at the repository's name"
            )
        if error.code == 404:
            return Refused(
                f"{where}: the hub has no such repository, commit or file: found 404 {words}; "
                "run: look at the repository's name and its commit"
            )
        if error.code == 416:
            return NoMore()
        asked = error.headers.get("Retry-After") or ""
        return Unsteady(f"status {error.code} {words}", min(float(asked), LONGEST_WAIT_S) if asked.isdigit() else 0)


def check_sha256(digest: str, path: Path) -> str:
    found = digest_file(path, "sha256")
    return "" if found == digest else f"expected SHA-256 {digest}, found {found}"


def check_git_blob(digest: str, path: Path) -> str:
    """Small files are git objects: their id is the SHA-1 of a header with the size, and the content."""
    found = digest_file(path, "sha1", f"blob {path.stat().st_size}\0".encode())
    return "" if found == digest else f"expected git object {digest}, found {found}"
