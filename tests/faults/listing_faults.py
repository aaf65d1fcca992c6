"""Stores that list wrongly: missing keys, keys that are gone, broken or repeating continuation tokens, a cap."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import replace

from tests.faults.exchange import LISTS, Request, Response, error
from tests.faults.store_faults import Fault, Forward

CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
TOKEN = re.compile(rb"<NextContinuationToken>.*?</NextContinuationToken>", re.DOTALL)
TRUNCATED = re.compile(rb"<IsTruncated>\s*true\s*</IsTruncated>")


def with_query(request: Request, **values: str | None) -> Request:
    """The listing request with query parameters set or (None) left out, signed again."""
    query = {**request.query, **{name.replace("_", "-"): value for name, value in values.items()}}
    pairs = [(name, value) for name, value in query.items() if value is not None]
    text = urllib.parse.urlencode(pairs, quote_via=urllib.parse.quote, errors="surrogateescape")
    return request.changed(target=f"{request.target.partition('?')[0]}?{text}")


class ListingFault(Fault):
    """A fault of ListObjects and ListObjectsV2."""

    operations = LISTS


class MissingKeys(ListingFault):
    """A listing leaves out every third key and says that it is complete."""

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        kept = CONTENTS.findall(answer.body)[2::3]
        body = answer.body
        for entry in kept:
            body = body.replace(entry, b"", 1)
        return replace(answer, body=body)


class CutListing(ListingFault):
    """A listing stops after `cap` keys and says that it is complete."""

    cap = 3

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        if answer.status != 200:
            return answer
        body = answer.body
        for entry in CONTENTS.findall(body)[self.cap :]:
            body = body.replace(entry, b"", 1)
        body = TOKEN.sub(b"", TRUNCATED.sub(b"<IsTruncated>false</IsTruncated>", body))
        return replace(answer, body=body)


class CutAtThousand(CutListing):
    """A listing stops after 1,000 keys and says that it is complete."""

    cap = 1000


class SmallPages(ListingFault):
    """Pages of two keys, correct: a client that follows the tokens sees everything."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return forward(with_query(request, max_keys="2"))


class RepeatingToken(ListingFault):
    """Every page is the first page again, with a token that promises more."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return forward(with_query(request, max_keys="2", continuation_token=None, start_after=None, marker=None))


class BrokenToken(ListingFault):
    """Pages of two keys, and the token of the next page is refused."""

    def handle(self, request: Request, forward: Forward) -> Response:
        if "continuation-token" in request.query or request.query.get("marker"):
            return error(400, "InvalidArgument", "The continuation token provided is incorrect")
        return forward(with_query(request, max_keys="2"))


class ForgottenToken(ListingFault):
    """Pages of two keys that say there is more but give no token to get it."""

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(with_query(request, max_keys="2"))
        return replace(answer, body=TOKEN.sub(b"", answer.body))


class EmptyListing(ListingFault):
    """A listing that shows nothing and says that it is complete."""

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        body = TOKEN.sub(b"", TRUNCATED.sub(b"<IsTruncated>false</IsTruncated>", CONTENTS.sub(b"", answer.body)))
        return replace(answer, body=body)


class StaleListing(ListingFault):
    """A listing from before: what it showed the first time, again and again."""

    def __init__(self, *args: float, **when: object) -> None:
        super().__init__(*args, **when)  # type: ignore[arg-type]
        self._first: dict[str, Response] = {}

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        return self._first.setdefault(request.target, answer)
