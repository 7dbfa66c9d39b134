"""Keys, names, origins: who may ask, from where, and as whom."""

import httpx
import pytest
from werkzeug.datastructures import Headers

from motet.http.access import Access, hosts_for, split_keys
from motet.http.errors import HTTPError
from served import Server, chat, served

KEYS = Access(api_keys=("one", "two"))


def test_a_loopback_server_answers_to_its_own_names_only() -> None:
    access = Access(hosts=hosts_for("127.0.0.1"))
    for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "localhost."):
        access.check_host(host)
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1"):
        with pytest.raises(HTTPError) as refused:
            access.check_host(host)
        assert (refused.value.status, refused.value.param) == (403, "Host")
    Access(hosts=hosts_for("127.0.0.2")).check_host("127.0.0.2:80")
    Access(hosts=hosts_for("::1")).check_host("[::1]")


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "10.0.0.5", "my.host"])
def test_a_server_for_the_network_answers_to_any_name(bound: str) -> None:
    assert hosts_for(bound) is None


def test_a_key_comes_as_bearer_or_x_api_key() -> None:
    assert KEYS.check_key(Headers({"Authorization": "Bearer two"})) == "key 2"
    assert KEYS.check_key(Headers({"x-api-key": "one"})) == "key 1"
    assert KEYS.check_key(Headers({"Authorization": "bearer two"})) == "key 2"
    assert KEYS.check_key(Headers({"x-api-key": "another's", "Authorization": "Bearer two"})) == "key 2"
    assert KEYS.check_key(Headers({"x-api-key": "one", "Authorization": "Basic x"})) == "key 1"
    assert Access().check_key(Headers()) is None
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer on"}, {"x-api-key": "éé"}):
        with pytest.raises(HTTPError) as refused:
            KEYS.check_key(Headers(headers))
        assert refused.value.status == 401
    assert split_keys(["a, b", "", "c"]) == ("a", "b", "c")


async def answer(server: Server, path: str, **headers: str) -> httpx.Response:
    async with server.client() as client:
        body = chat("x", max_tokens=1)
        return await client.post(path, json=body, headers=headers)


async def test_without_a_key_it_is_401_in_the_apis_own_shape() -> None:
    async with served(access=KEYS) as server:
        for path in ("/v1/chat/completions", "/v1/nothing", "/stats"):
            refused = await answer(server, path)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
        refused = await answer(server, "/v1/messages", **{"x-api-key": "wrong"})
        assert refused.status_code == 401 and refused.json()["type"] == "error"
        assert refused.json()["error"]["type"] == "authentication_error"
        taken = await answer(server, "/v1/chat/completions", Authorization="Bearer two")
        assert taken.status_code == 200
        async with server.client() as client:
            assert (await client.get("/health")).status_code == 200


async def test_another_hosts_page_is_refused() -> None:
    async with served(access=Access(hosts=hosts_for("127.0.0.1"))) as server:
        assert (await answer(server, "/v1/chat/completions")).status_code == 200
        refused = await answer(server, "/v1/chat/completions", Host="evil.example")
        assert refused.status_code == 403 and refused.json()["error"]["param"] == "Host"


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/health"])
async def test_a_websocket_is_refused_without_a_trace(path: str, caplog: pytest.LogCaptureFixture) -> None:
    asks = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    async with served(access=KEYS) as server, server.client() as client:
        refused = await client.get(path, headers=asks)
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "unknown_route"
        assert (await client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pages_of_other_origins_may_read_only_where_that_is_said() -> None:
    page = {"Origin": "http://app.example", "Access-Control-Request-Method": "POST"}
    async with served() as server, server.client() as client:
        told = await client.options("/v1/chat/completions", headers=page)
        assert not [name for name in told.headers if name.startswith("access-control")]
    access = Access(api_keys=("one",), origins=frozenset({"http://app.example"}))
    async with served(access=access) as server, server.client() as client:
        told = await client.options("/v1/chat/completions", headers=page)
        assert told.status_code == 204
        assert told.headers["access-control-allow-origin"] == "http://app.example"
        told = await client.get("/health", headers={"Origin": "http://app.example"})
        assert told.headers["access-control-allow-origin"] == "http://app.example"
        told = await client.get("/health", headers={"Origin": "http://other.example"})
        assert "access-control-allow-origin" not in told.headers
