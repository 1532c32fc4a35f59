"""Who may look: requests that name this server, and where it is open to others, that know its token."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    return address == "localhost" or (is_number(address) and ipaddress.ip_address(address).is_loopback)


def is_number(address: str) -> bool:
    """Whether an address is an IP number and not a name, which anybody's name server could give any meaning."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Doorkeeper:
    """Judges requests by their headers and query."""

    address: str  # where the server listens
    token: str | None

    def knows_host(self, header: str | None) -> bool:
        """Whether the `Host` is ours: a page elsewhere whose name was made to lead here comes with its own name."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in (*LOOPBACK, self.address.lower()):
            return True
        everywhere = is_number(self.address) and ipaddress.ip_address(self.address).is_unspecified
        return everywhere and (is_number(name) or name == socket.gethostname().lower())

    def knows_token(self, query: str, cookies: str | None, port: int) -> bool:
        """Whether the token comes along, in the address or in the cookie that was given for it."""
        if self.token is None:
            return True
        shown = [*parse_qs(query).get("token", []), self._kept(cookies, port)]
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in shown)

    def cookie(self, port: int) -> str:
        """The cookie that stands for the token from then on; of this port, as cookies belong to whole machines."""
        return f"{_name(port)}={self.token}; HttpOnly; SameSite=Strict; Path=/"

    def _kept(self, cookies: str | None, port: int) -> str:
        try:
            kept = SimpleCookie(cookies or "").get(_name(port))
        except CookieError:
            return ""
        return kept.value if kept else ""


def _name(port: int) -> str:
    return f"trainoff-{port}"
