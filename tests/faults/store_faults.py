"""What can go wrong at or on the way to an S3 store, one small class each; a schedule says when it strikes."""

# ruff: noqa: ARG002 - every fault takes what it may need

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from tests.faults import signing
from tests.faults.exchange import (
    BODY_WRITES,
    LISTS,
    WRITES,
    Request,
    ResetOnPurposeError,
    Response,
    error,
    header,
    with_header,
)

Forward = Callable[[Request], Response]
CHECKSUM_ANSWERS = ("x-amz-checksum-",)


class Fault:
    """Strikes requests of some operations and keys: a share of them, after `start`, at most `count` times."""

    operations: Collection[str] = ()

    def __init__(
        self,
        share: float = 1.0,
        *,
        start: int = 0,
        count: int | None = None,
        operations: Collection[str] = (),
        key: str = "",
        least_bytes: int = 0,
    ) -> None:
        self.share = share
        self.start = start
        self.count = count
        self.operations = frozenset(operations or self.operations)
        self.key = re.compile(key, re.DOTALL) if key else None
        self.least_bytes = least_bytes
        self.seen = 0
        self.struck = 0

    def chooses(self, request: Request, draw: float) -> bool:
        """Whether this request is hit; `draw` is in [0, 1) and the same for the same request and seed."""
        if self.operations and request.operation not in self.operations:
            return False
        if self.key is not None and not self.key.search(request.key):
            return False
        if len(request.body) < self.least_bytes:
            return False
        self.seen += 1
        if self.seen <= self.start or (self.count is not None and self.struck >= self.count) or draw >= self.share:
            return False
        self.struck += 1
        return True

    def handle(self, request: Request, forward: Forward) -> Response:
        raise NotImplementedError

    def __repr__(self) -> str:
        said = [f"share={self.share:.2f}", f"start={self.start}", f"count={self.count}"]
        said += [f"operations={sorted(self.operations)}"] if self.operations else []
        return f"{type(self).__name__}({', '.join(said)}, struck={self.struck})"


class ServerError(Fault):
    """The store answers 500 InternalError without having done anything."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return error(500, "InternalError")


class Unavailable(Fault):
    """The store answers 503 ServiceUnavailable."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return error(503, "ServiceUnavailable")


class SlowDown(Fault):
    """The store answers 503 SlowDown, as S3 does above its request rate."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return error(503, "SlowDown", "Please reduce your request rate.")


class ResetBefore(Fault):
    """The connection is reset before the request reaches the store."""

    def handle(self, request: Request, forward: Forward) -> Response:
        raise ResetOnPurposeError


class LostResponse(Fault):
    """The store carries the request out; its answer is lost in a connection reset."""

    def handle(self, request: Request, forward: Forward) -> Response:
        forward(request)
        raise ResetOnPurposeError


class ErrorAfterSuccess(Fault):
    """The store carries the request out and answers 500 all the same."""

    def handle(self, request: Request, forward: Forward) -> Response:
        forward(request)
        return error(500, "InternalError")


class Delay(Fault):
    """The request reaches the store late."""

    seconds = 0.15

    def handle(self, request: Request, forward: Forward) -> Response:
        time.sleep(self.seconds)
        return forward(request)


class TruncatedResponse(Fault):
    """The answer ends in the middle of its body although its length was announced in full."""

    operations = frozenset({"GetObject", *LISTS})

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        if len(answer.body) < 2:
            raise ResetOnPurposeError
        return replace(answer, body=answer.body[: len(answer.body) // 2], length=len(answer.body))


class ShortGet(Fault):
    """A GET answers with a body that is shorter than the object, and a length that agrees with the body."""

    operations = frozenset({"GetObject"})

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        if answer.status not in (200, 206) or len(answer.body) < 2:
            return answer
        return replace(answer, body=answer.body[: len(answer.body) // 2])


class TruncatedRequest(Fault):
    """The connection breaks while the body is on its way: the store gets part of it, the client a reset."""

    operations = BODY_WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        if request.body:
            forward(replace(request, body=request.body[: len(request.body) // 2], announced=len(request.body)))
        raise ResetOnPurposeError


def flip(body: bytes, mask: int = 0x20) -> bytes:
    """Another content of the same length (empty stays empty); two masks, so that no change undoes another."""
    if not body:
        return body
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ mask]) + body[middle + 1 :]


class CorruptedUpload(Fault):
    """A body is changed on its way; its checksum headers travel on, and a signature that does not cover the body.

    So it is over TLS, where clients sign without the body: the checksum alone can tell.
    """

    operations = BODY_WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        return forward(request.changed(body=flip(request.body)))


def strip_answer(answer: Response) -> Response:
    """The answer less the checksums in it: what a store that keeps none sends."""
    kept = [(name, value) for name, value in answer.headers if not name.lower().startswith(CHECKSUM_ANSWERS)]
    return replace(answer, headers=kept)


class CorruptedUnchecked(Fault):
    """A store that ignores checksums keeps a changed body and says 200."""

    operations = BODY_WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        changed = request.changed(body=flip(request.body), headers=signing.without_checksums(request.headers))
        return strip_answer(forward(changed))


class ShortUpload(Fault):
    """A store that ignores checksums keeps the first half of a body and says 200."""

    operations = BODY_WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        half = request.body[: len(request.body) // 2]
        return strip_answer(forward(request.changed(body=half, headers=signing.without_checksums(request.headers))))


class IgnoresChecksums(Fault):
    """A store that neither checks nor keeps checksums: uploads lose theirs and no answer has one."""

    def handle(self, request: Request, forward: Forward) -> Response:
        if request.operation in WRITES:
            request = request.changed(headers=signing.without_checksums(request.headers))
        return strip_answer(forward(request))


class RefusesChecksums(Fault):
    """A store that answers 501 NotImplemented to any request with a checksum header."""

    operations = WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        if len(signing.without_checksums(request.headers)) < len(request.headers):
            return error(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
        return forward(request)


class WrongChecksumAnswer(Fault):
    """Answers carry a checksum that is not the object's."""

    operations = frozenset({"HeadObject", "GetObject"})

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        wrong = base64.b64encode(hashlib.sha256(b"another object").digest()).decode()
        if header(answer.headers, "x-amz-checksum-sha256"):
            return replace(answer, headers=with_header(answer.headers, "x-amz-checksum-sha256", wrong))
        return answer


class MissingChecksumAnswer(Fault):
    """Answers lack the checksum that the store was given."""

    operations = frozenset({"HeadObject", "GetObject", *WRITES})

    def handle(self, request: Request, forward: Forward) -> Response:
        return strip_answer(forward(request))


class KeepsTrailer(Fault):
    """A store that keeps the aws-chunked framing or a checksum trailer inside the object it stores."""

    operations = BODY_WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        headers = with_header(signing.without_checksums(request.headers), "Content-Encoding", None)
        body = request.body
        if "aws-chunked" not in header(request.headers, "Content-Encoding"):
            body += b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
        return strip_answer(forward(request.changed(body=body, headers=headers)))


class CorruptedGet(Fault):
    """A GET delivers a changed body with the headers of the true one."""

    operations = frozenset({"GetObject"})

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = forward(request)
        return replace(answer, body=flip(answer.body, 0x01)) if answer.status in (200, 206) else answer


class AcknowledgedButLost(Fault):
    """A store says that it has kept an object, checksum and all, and has not."""

    operations = frozenset({"PutObject"})

    def handle(self, request: Request, forward: Forward) -> Response:
        headers = [("ETag", f'"{hashlib.md5(request.body, usedforsecurity=False).hexdigest()}"')]
        headers += [(n, v) for n, v in request.headers if n.lower() == "x-amz-checksum-sha256"]
        return Response(200, headers)


class Denied(Fault):
    """403 AccessDenied, as after a change of permissions; HEAD answers without a document."""

    def handle(self, request: Request, forward: Forward) -> Response:
        return (
            replace(error(403, "AccessDenied", "Access Denied."), body=b"")
            if request.method == "HEAD"
            else (error(403, "AccessDenied", "Access Denied."))
        )


class StoreFull(Fault):
    """507: no room for another byte; reading and deleting still work."""

    operations = WRITES

    def handle(self, request: Request, forward: Forward) -> Response:
        return error(507, "InsufficientStorage", "no space left")


class ClockSkew(Fault):
    """The store's clock is 20 minutes away from the client's and it refuses every signature."""

    def handle(self, request: Request, forward: Forward) -> Response:
        answer = error(403, "RequestTimeTooSkewed", "The difference between the request time and the server's time")
        late = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1200))
        return replace(answer, headers=[*answer.headers, ("Date", late)])


class Action(Fault):
    """Calls a function just before the request travels on: a kill, a change to a file, a tampered object."""

    def __init__(self, act: Callable[[Request], None], *, after: bool = False, **when: object) -> None:
        super().__init__(**when)  # type: ignore[arg-type]
        self.act = act
        self.after = after

    def handle(self, request: Request, forward: Forward) -> Response:
        if self.after:
            answer = forward(request)
            self.act(request)
            return answer
        self.act(request)
        return forward(request)
