"""Ports and loopback addresses that were free a moment ago, and a bounded wait for a server that should answer."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable

from decamp.errors import BadInput


def is_free(host: str, port: int) -> bool:
    """Says whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def find_free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Returns `count` different ports on which nothing listens."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind((host, 0))
            ports.append(int(probe.getsockname()[1]))
    return ports


def find_free_address(port: int = 22, network: str = "127.0.64.0/18") -> str:
    """Returns a loopback address on whose `port` nothing listens, another one each time."""
    block = ipaddress.ip_network(network)
    for _ in range(100):
        address = str(block[1 + secrets.randbelow(block.num_addresses - 2)])
        if is_free(address, port):
            return address
    raise BadInput(network, f"no address with a free port {port}", run=f"ss -ltn 'sport = :{port}'")


def wait_for(answers: Callable[[], bool], still_starting: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until `answers` or `still_starting` no longer holds or time is up; returns whether it answered."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answers():
            return True
        if not still_starting():
            return False
        time.sleep(0.1)
    return False
