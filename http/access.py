"""Who may ask, from where, and as whom: keys, CORS, and the check against DNS rebinding."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable

import attrs
from werkzeug.datastructures import Headers

from motet.http.errors import HTTPError

_BEARER = re.compile(r"^bearer +", re.IGNORECASE)


@attrs.frozen
class Access:
    """The rules of one server.

    Args:
        api_keys: any of these must come as a bearer token or in ``x-api-key``; none: nobody is asked.
        origins: web pages of these origins may call; ``*`` for all.
        hosts: names under which the server may be addressed; None for any.
    """

    api_keys: tuple[str, ...] = ()
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None

    def check_host(self, host: str) -> None:
        """Refuse a name that is not the server's.

        A web page can have its own name resolve to 127.0.0.1 (DNS rebinding) and would then be of one origin
        with a server that answers to any name.

        Raises:
            HTTPError: 403.
        """
        if self.hosts is not None and _hostname(host) not in self.hosts:
            raise HTTPError(
                403, f"this server is not called '{host[:100]}'", param="Host", code="host_not_allowed"
            )

    def check_key(self, headers: Headers) -> str | None:
        """Which key came, in a form that may be logged; None if none is asked for.

        Raises:
            HTTPError: 401.
        """
        if not self.api_keys:
            return None
        # Both are looked at: some clients send a key of another service in one of them.
        given = (headers.get("x-api-key", ""), _BEARER.sub("", headers.get("Authorization", "")))
        # All are compared, each in constant time: how long this takes tells nothing.
        found = [
            number
            for number, key in enumerate(self.api_keys, 1)
            for digest in map(_digest, given)
            if hmac.compare_digest(digest, _digest(key))
        ]
        if not found:
            what = "the API key is wrong" if any(given) else "an API key is required"
            raise HTTPError(
                401, what, kind="authentication_error", param="Authorization", code="invalid_api_key"
            )
        return f"key {found[0]}"

    def allowed_origin(self, origin: str | None) -> str | None:
        """The origin, if pages of it may read answers."""
        return origin if origin and not self.origins.isdisjoint({origin, "*"}) else None


def hosts_for(bound: str) -> frozenset[str] | None:
    """The names of a server bound to this address: any, unless it is a loopback address."""
    if bound != "localhost":
        try:
            if not ipaddress.ip_address(bound).is_loopback:
                return None
        except ValueError:
            return None
    return frozenset({"localhost", "127.0.0.1", "[::1]", _hostname(bound)})


def split_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """Keys from options and the environment, each a comma-separated list."""
    return tuple(key.strip() for text in texts for key in text.split(",") if key.strip())


def _hostname(host: str) -> str:
    """A Host header's name without its port; IPv6 addresses keep their brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    if host.count(":") > 1:  # a bare IPv6 address
        return f"[{host}]"
    return host.partition(":")[0].lower().rstrip(".")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
