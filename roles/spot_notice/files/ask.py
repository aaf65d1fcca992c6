#!/usr/bin/env python3
"""Asks the instance metadata service whether EC2 takes this node back; prints one JSON document, always ends with 0.

Only that both questions were answered means that there is no notice: everything else is `unknown` with its reason.
Needs the standard library alone.
"""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from typing import Any

# EC2 User Guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations" (2025): each is
# 404 until there is one.
NOTICE = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"  # noqa: S105 - a path
TOKEN_TTL_S = 60
MAX_BYTES = 4096


class NoAnswer(Exception):
    """The service did not say what was asked."""


class Service:
    """The service at an address, asked by IMDSv2."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # The service is on the machine itself: a proxy would answer for another.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, path: str, headers: dict[str, str], method: str = "GET") -> str | None:
        """Returns what it says; None for 404.

        Raises:
            NoAnswer: any other answer, or none.
        """
        request = urllib.request.Request(self.url + path, headers=headers, method=method)  # noqa: S310 - http
        try:
            with self.opener.open(request) as answer:
                return str(answer.read(MAX_BYTES).decode())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise NoAnswer(f"{self.url}{path}: status {error.code}") from None
        except (OSError, ValueError) as error:
            raise NoAnswer(f"no answer from {self.url}{path}: {getattr(error, 'reason', error)}") from None


def look(service: Service) -> dict[str, str]:
    """Returns `state` (none, rebalance, notice) with `action` and `time` of a notice, `since` of a recommendation.

    Raises:
        NoAnswer: nothing can be said.
    """
    token = service.ask(TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}, "PUT")
    if not token:
        raise NoAnswer(f"{service.url}{TOKEN}: no token")
    headers = {"X-aws-ec2-metadata-token": token}
    notice = service.ask(NOTICE, headers)
    if notice is not None:
        told = read(notice, NOTICE)
        return {"state": "notice", "action": str(told.get("action", "")), "time": str(told.get("time", ""))}
    rebalance = service.ask(REBALANCE, headers)
    if rebalance is not None:
        return {"state": "rebalance", "since": str(read(rebalance, REBALANCE).get("noticeTime", ""))}
    return {"state": "none"}


def read(text: str, path: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise NoAnswer(f"{path}: expected a JSON object, found {text[:80]!r}")
    return told


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    url, timeout_s = str(options["url"]), float(options["timeout_s"])

    def give_up(_number: int, _frame: object) -> None:
        raise NoAnswer(f"no answer from {url} within {timeout_s:g} s")

    # One limit for everything: a socket's own would begin anew with every byte of a slow answer.
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, max(timeout_s, 0.1))  # 0 would mean no limit
    try:
        found = look(Service(url))
    except NoAnswer as reason:
        found = {"state": "unknown", "why": str(reason)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
