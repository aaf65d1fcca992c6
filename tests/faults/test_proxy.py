"""Each fault does to a plain boto3 client exactly what its docstring says, and nothing else is disturbed."""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, IncompleteReadError, ResponseStreamingError

from tests.faults import listing_faults, store_faults
from tests.faults.conftest import BUCKET
from tests.faults.exchange import Request, error
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.seaweed import SeaweedServer

BODY = bytes(range(256)) * 40


class Pair:
    """A client through the proxy, one straight to the store, and a prefix of one's own."""

    def __init__(self, seaweed: SeaweedServer, proxy: FaultProxy) -> None:
        self.through = seaweed.client(proxy.endpoint_url)
        self.straight = seaweed.client()
        self.prefix = f"proxy/{uuid.uuid4().hex}"
        self.proxy = proxy

    def strike(self, *faults: store_faults.Fault, seed: int = 1) -> Schedule:
        self.proxy.schedule = Schedule(seed, faults)
        return self.proxy.schedule

    def put(self, name: str = "a", body: bytes = BODY, checked: bool = True) -> dict[str, Any]:
        more = {"ChecksumSHA256": base64.b64encode(hashlib.sha256(body).digest()).decode()} if checked else {}
        answer: dict[str, Any] = self.through.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=body, **more)
        return answer

    def stored(self, name: str = "a") -> bytes | None:
        try:
            body: bytes = self.straight.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()
        except ClientError:
            return None
        return body

    def get(self, name: str = "a") -> bytes:
        body: bytes = self.through.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()
        return body

    def head(self, name: str = "a") -> dict[str, Any]:
        answer: dict[str, Any] = self.through.head_object(
            Bucket=BUCKET, Key=f"{self.prefix}/{name}", ChecksumMode="ENABLED"
        )
        return answer

    def keys(self, **more: Any) -> list[str]:
        answer = self.through.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.prefix}/", **more)
        return [entry["Key"].rpartition("/")[2] for entry in answer.get("Contents", [])]


@pytest.fixture()
def pair(seaweed: SeaweedServer, proxy: FaultProxy) -> Pair:
    return Pair(seaweed, proxy)


def test_without_faults_everything_passes_unchanged(pair: Pair) -> None:
    name = "odd name+%41&=?~ü\u200b"
    assert "ChecksumSHA256" in pair.put(name)
    assert pair.get(name) == BODY == pair.stored(name)
    assert pair.head(name)["ContentLength"] == len(BODY)
    assert pair.keys() == [name]
    with pytest.raises(ClientError, match="404"):
        pair.head("absent")


def test_a_wrong_signature_is_refused_through_the_proxy(seaweed: SeaweedServer, proxy: FaultProxy) -> None:
    client = seaweed.client(proxy.endpoint_url)
    client._request_signer._credentials.secret_key = "not the secret"
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client.put_object(Bucket=BUCKET, Key="never", Body=b"x")


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (store_faults.ServerError, 500),
        (store_faults.Unavailable, 503),
        (store_faults.SlowDown, 503),
        (store_faults.StoreFull, 507),
        (store_faults.Denied, 403),
        (store_faults.ClockSkew, 403),
        (store_faults.RefusesChecksums, 501),
    ],
)
def test_refusals_reach_the_client_and_nothing_is_stored(
    pair: Pair, fault: type[store_faults.Fault], status: int
) -> None:
    pair.strike(fault(count=1))
    with pytest.raises(ClientError) as caught:
        pair.put()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert pair.stored() is None
    pair.strike()
    pair.put()
    assert pair.stored() == BODY


def test_a_reset_before_stores_nothing_and_a_lost_response_stores_all(pair: Pair) -> None:
    pair.strike(store_faults.ResetBefore())
    with pytest.raises(ConnectionClosedError):
        pair.put("before")
    pair.strike(store_faults.LostResponse())
    with pytest.raises(ConnectionClosedError):
        pair.put("after")
    pair.strike(store_faults.ErrorAfterSuccess())
    with pytest.raises(ClientError, match="InternalError"):
        pair.put("wrongly refused")
    pair.strike(store_faults.TruncatedRequest())
    with pytest.raises(ConnectionClosedError):
        pair.put("half", checked=False)
    found = [pair.stored(name) for name in ("before", "after", "wrongly refused", "half")]
    assert found == [None, BODY, BODY, None]


def test_a_truncated_answer_breaks_the_read_and_a_short_one_does_not(pair: Pair) -> None:
    pair.put()
    pair.strike(store_faults.TruncatedResponse())
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        pair.get()
    pair.strike(store_faults.ShortGet())
    assert pair.get() == BODY[: len(BODY) // 2]


def test_a_corrupted_upload_is_refused_where_a_checksum_travels_and_kept_where_none_does(pair: Pair) -> None:
    pair.strike(store_faults.CorruptedUpload())
    with pytest.raises(ClientError):
        pair.put()
    assert pair.stored() is None
    pair.strike(store_faults.CorruptedUnchecked())
    assert "ChecksumSHA256" not in pair.put()
    kept = pair.stored()
    assert kept != BODY and kept is not None and len(kept) == len(BODY)
    pair.strike(store_faults.ShortUpload())
    pair.put()
    assert pair.stored() == BODY[: len(BODY) // 2]


def test_a_store_without_checksums_shows_none(pair: Pair) -> None:
    pair.strike(store_faults.IgnoresChecksums())
    assert "ChecksumSHA256" not in pair.put()
    assert "ChecksumSHA256" not in pair.head()
    assert pair.stored() == BODY
    pair.strike()
    pair.put()
    assert "ChecksumSHA256" in pair.head()
    pair.strike(store_faults.MissingChecksumAnswer())
    assert "ChecksumSHA256" not in pair.head()
    pair.strike(store_faults.WrongChecksumAnswer())
    assert pair.head()["ChecksumSHA256"] != base64.b64encode(hashlib.sha256(BODY).digest()).decode()


def test_a_kept_trailer_makes_the_object_longer(pair: Pair) -> None:
    pair.strike(store_faults.KeepsTrailer())
    pair.put()
    kept = pair.stored()
    assert kept is not None and kept.startswith(BODY) and len(kept) > len(BODY)


def test_a_corrupted_get_leaves_the_object_alone(pair: Pair) -> None:
    pair.put()
    pair.strike(store_faults.CorruptedGet())
    assert pair.get() != BODY
    assert pair.head()["ContentLength"] == len(BODY)
    assert pair.stored() == BODY


def test_an_acknowledged_object_can_be_lost(pair: Pair) -> None:
    pair.strike(store_faults.AcknowledgedButLost())
    answer = pair.put()
    assert (
        answer["ETag"].strip('"') == hashlib.md5(BODY, usedforsecurity=False).hexdigest() and answer["ChecksumSHA256"]
    )
    assert pair.stored() is None


def test_listing_faults_hide_repeat_and_break(pair: Pair) -> None:
    names = [f"k{number}" for number in range(7)]
    for name in names:
        pair.put(name, b"x")
    pair.strike(listing_faults.MissingKeys())
    assert pair.keys() == ["k0", "k1", "k3", "k4", "k6"]
    pair.strike(listing_faults.CutListing())
    assert pair.keys() == names[:3]
    pair.strike(listing_faults.EmptyListing())
    assert pair.keys() == []
    pair.strike(listing_faults.SmallPages())
    pages = pair.through.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{pair.prefix}/")
    assert [entry["Key"].rpartition("/")[2] for page in pages for entry in page["Contents"]] == names
    pair.strike(listing_faults.ForgottenToken())
    answer = pair.through.list_objects_v2(Bucket=BUCKET, Prefix=f"{pair.prefix}/")
    assert answer["IsTruncated"] and "NextContinuationToken" not in answer
    pair.strike(listing_faults.RepeatingToken())
    assert pair.keys(ContinuationToken="k3") == names[:2]
    pair.strike(listing_faults.BrokenToken())
    assert pair.keys() == names[:2]
    with pytest.raises(ClientError, match="InvalidArgument"):
        pair.keys(ContinuationToken="k1")
    pair.strike(listing_faults.StaleListing())
    assert pair.keys() == names
    pair.put("k7", b"x")
    assert pair.keys() == names


def test_actions_run_before_or_after_the_request(pair: Pair) -> None:
    found: list[bytes | None] = []
    pair.strike(store_faults.Action(lambda _: found.append(pair.stored()), operations={"PutObject"}))
    pair.put()
    pair.strike(store_faults.Action(lambda _: found.append(pair.stored()), after=True, operations={"PutObject"}))
    pair.put(body=BODY + b"more")
    assert found == [None, BODY + b"more"]


def test_the_same_seed_strikes_the_same_requests_in_any_order() -> None:
    def struck(seed: int, names: list[str]) -> set[str]:
        schedule = Schedule(seed, [store_faults.ServerError(0.3)])
        requests = [Request("PUT", f"/bucket/{name}", [], b"") for name in names]
        return {request.key for request in requests if schedule.admit(request)[1]}

    names = [f"key{number}" for number in range(200)]
    first = struck(7, names)
    assert first == struck(7, names[::-1])
    assert 30 < len(first) < 90
    assert first != struck(8, names)


def test_start_and_count_bound_a_fault() -> None:
    schedule = Schedule(1, [store_faults.ServerError(start=2, count=3)])
    hit = [bool(schedule.admit(Request("GET", f"/bucket/{number}", [], b""))[1]) for number in range(8)]
    assert hit == [False, False, True, True, True, False, False, False]


def test_an_error_document_carries_its_code() -> None:
    assert b"<Code>SlowDown</Code>" in error(503, "SlowDown").body
